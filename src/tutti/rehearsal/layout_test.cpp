// Layouts against counting: the parts of all ranks cover a grid, and each rank has its part by hand.
#include "tutti/rehearsal/layout.h"

#include <gtest/gtest.h>

#include <map>

#include "tutti/base/json.h"
#include "tutti/base/to_size.h"
#include "tutti/parallel/groups.h"
#include "tutti/rehearsal/drawing.h"
#include "tutti/spec/validate.h"

namespace tutti::rehearsal {
namespace {

using mesh::Block;

spec::RunSpec run_of(const std::string& preset) {
    spec::RunSpec run;
    run.model = spec::preset(preset);
    run.data.train = {"not read"};
    run.train.seq_len = 64;
    run.train.micro_batch = 1;
    run.train.global_batch = 16;
    return run;
}

Layout layout_with(spec::RunSpec run, int ranks) {
    spec::validate(run, ranks);
    return layout_of(run, ranks);
}

const Grid& grid(const Layout& l, const std::string& part, const std::string& name) {
    for (const LayoutPart& p : l.parts)
        for (const Grid& g : p.grids)
            if (p.title == part && g.name.ends_with(name)) return g;
    throw Error(concat("no ", name, " in part ", part));
}

const std::string kWeights = "weights that a rank computes with";

// Each rank's part of a grid, by rank; several rectangles of a rank are added up.
std::map<int, std::vector<Block>> by_rank(const Grid& g) {
    std::map<int, std::vector<Block>> all;
    for (const Holding& h : g.holdings)
        for (const int rank : h.ranks) all[rank].insert(all[rank].end(), h.blocks.begin(), h.blocks.end());
    return all;
}

// Every tensor is there exactly once over the holdings that differ, for layouts that use all axes.
TEST(Layout, HoldingsCoverEveryTensor) {
    const auto expect = [](spec::RunSpec run, int ranks) {
        const Layout l = layout_with(run, ranks);
        for (const LayoutPart& part : l.parts) {
            if (part.kind != LayoutPart::Kind::tensor) continue;
            for (const Grid& g : part.grids) {
                std::vector<Block> blocks;
                for (const Holding& h : g.holdings) blocks.insert(blocks.end(), h.blocks.begin(), h.blocks.end());
                EXPECT_EQ(mesh::tiling_problem(g.shape, blocks), "") << part.title << ": " << g.name;
            }
        }
    };
    for (const int zero : {0, 1, 3}) {
        spec::RunSpec run = run_of("llama-tiny");
        run.model.kv_heads = 2;
        run.parallel.zero = zero;
        run.parallel.tp = 4;
        run.parallel.dp_replicate = 2;
        expect(run, 16);
        run.parallel.tp = 2;
        run.parallel.cp = 2;
        run.parallel.pp = 2;
        expect(run, 16);
        spec::RunSpec experts = run_of("moe-tiny");
        experts.parallel.zero = zero;
        experts.parallel.tp = 2;
        experts.parallel.ep = 4;
        experts.parallel.etp = 2;
        expect(experts, 16);
    }
}

// Columns are rows of (out, in), rows columns; two heads of keys on four ranks are there twice.
TEST(Layout, TensorParallelByHand) {
    spec::RunSpec run = run_of("llama-tiny");
    run.model.kv_heads = 2;
    run.parallel.tp = 4;
    const Layout l = layout_with(run, 4);
    for (const auto& [rank, blocks] : by_rank(grid(l, kWeights, "q_proj.weight")))
        EXPECT_EQ(blocks, (std::vector<Block>{{{32 * rank, 0}, {32, 128}}}));
    for (const auto& [rank, blocks] : by_rank(grid(l, kWeights, "o_proj.weight")))
        EXPECT_EQ(blocks, (std::vector<Block>{{{0, 32 * rank}, {128, 32}}}));
    EXPECT_EQ(grid(l, kWeights, "k_proj.weight").holdings.size(), 2u);
    const Grid& rows = grid(l, "tokens of the first microbatch of every rank", "tensor parallelism");
    for (const auto& [rank, blocks] : by_rank(rows)) EXPECT_EQ(blocks, (std::vector<Block>{{{16 * rank}, {16}}}));
    run.parallel.sequence_parallel = false;  // all ranks have all rows, which is no picture
    for (const LayoutPart& part : layout_with(run, 4).parts) EXPECT_NE(part.kind, LayoutPart::Kind::line);
}

// Zigzag: rank r of 4 has chunks r and 7 - r, and computes 9 of the 36 pairs of chunks that a causal mask leaves.
TEST(Layout, RingByHand) {
    spec::RunSpec run = run_of("llama-tiny");
    run.parallel.cp = 4;
    const Layout l = layout_with(run, 4);
    const auto tokens = by_rank(grid(l, "tokens of the first microbatch of every rank", "inside the layers"));
    EXPECT_EQ(tokens.at(1), (std::vector<Block>{{{8}, {8}}, {{48}, {8}}}));
    EXPECT_EQ(tokens.at(3), (std::vector<Block>{{{24}, {16}}}));
    const Grid& ring = grid(l, "attention", "by hop");
    std::map<std::pair<int64_t, int64_t>, int> seen;
    for (const Holding& h : ring.holdings) {
        ASSERT_EQ(h.ranks.size(), 1u);
        const int64_t query = h.blocks[0].offset[0], key = h.blocks[0].offset[1];
        ++seen[{query, key}];
        EXPECT_EQ(h.ranks[0], std::min(query, 7 - query));  // where the query is
        const int64_t source = std::min(key, 7 - key);      // where the key is
        EXPECT_EQ(h.label, concat("hop ", (h.ranks[0] - source + 4) % 4));
    }
    EXPECT_EQ(seen.size(), 36u);
    for (const auto& [pair, times] : seen) EXPECT_TRUE(times == 1 && pair.second <= pair.first);
    for (const auto& [rank, blocks] : by_rank(ring)) EXPECT_EQ(blocks.size(), 9u) << rank;
    // Beside it, contiguous: rank r of 4 sees 4 r + 3 of the same 36 pairs; in no text and no document.
    const Grid& contiguous = grid(l, "attention", "pairs 3, 7, 11, 15");
    std::map<int, size_t> pairs;
    for (const Holding& h : contiguous.holdings) {
        const int64_t query = h.blocks[0].offset[0], key = h.blocks[0].offset[1];
        EXPECT_LE(key, query);
        EXPECT_EQ(h.ranks, std::vector<int>{static_cast<int>(query / 2)});
        EXPECT_EQ(h.label, concat("hop ", query / 2 - key / 2));
        ++pairs[h.ranks[0]];
    }
    EXPECT_EQ(pairs, (std::map<int, size_t>{{0, 3}, {1, 7}, {2, 11}, {3, 15}}));
    EXPECT_EQ(render_layout(l, {}).find("zigzag"), std::string::npos);
    EXPECT_EQ(to_json(l).dump().find("zigzag"), std::string::npos);
    run.parallel.tp = 2;  // the ranks of a place have the same pairs, named once
    EXPECT_NO_THROW(grid(layout_with(run, 16), "attention", "comparison; pairs 3, 7, 11, 15"));
    run.parallel.tp = 1;
    run.model.window = 8;  // of a chunk: only the chunk before is seen
    EXPECT_EQ(by_rank(grid(layout_with(run, 4), "attention", "by hop")).at(0).size(), 3u);
}

// Ranks that exchange heads for tokens have all queries of one head each.
TEST(Layout, UlyssesByHand) {
    spec::RunSpec run = run_of("llama-tiny");
    run.parallel.cp = 4;
    run.parallel.cp_method = "ulysses";
    const auto heads = by_rank(grid(layout_with(run, 4), "attention", "queries of a sequence"));
    for (const auto& [rank, blocks] : heads) EXPECT_EQ(blocks, (std::vector<Block>{{{rank, 0}, {1, 64}}}));
    EXPECT_EQ(heads.size(), 4u);
}

// Stages by schedule: of zb-v the first rank has the first and the last.
TEST(Layout, StagesOfAVShape) {
    spec::RunSpec run = run_of("llama-tiny");
    run.parallel.pp = 2;
    run.parallel.schedule = "zb-v";
    const auto modules = by_rank(grid(layout_with(run, 2), "modules of the model", "head"));
    ASSERT_EQ(modules.at(0).size(), 2u);
    EXPECT_EQ(modules.at(0)[0].offset[0], 0);
    EXPECT_EQ(modules.at(0)[1].offset[0] + modules.at(0)[1].sizes[0], 6);
}

TEST(Layout, TextAndJsonSayTheSame) {
    spec::RunSpec run = run_of("llama-tiny");
    run.parallel.tp = 2;
    run.parallel.zero = 0;
    const Layout l = layout_with(run, 4);
    const std::string all = render_layout(l, {}), of_one = render_layout(l, 1);
    EXPECT_NE(all.find("    [0:64, :]    ranks 0, 2\n    [64:128, :]  ranks 1, 3\n"), std::string::npos) << all;
    EXPECT_EQ(of_one.find("[0:64, :]"), std::string::npos) << of_one;
    EXPECT_NE(of_one.find("[64:128, :]  ranks 1, 3"), std::string::npos) << of_one;
    const Json json = to_json(l);
    EXPECT_EQ(json["ranks"][3]["tp"], 1);
    EXPECT_EQ(json["ranks"][3]["dp_shard"], 1);
    const Json& part = json["parts"][json["parts"].size() - 1];
    EXPECT_EQ(part["title"], kWeights);
    EXPECT_EQ(part["grids"][0]["holdings"][1]["blocks"][0]["offset"][0], 128);
}

size_t count(const std::string& text, const std::string& what) {
    size_t n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
}

bool is_of_second_group(const mesh::Mesh& mesh, int rank, mesh::Axes axes) {
    std::vector<int> first;
    for (int r = 0; r < mesh.size(); ++r) {
        const std::vector<int> group = mesh.group(r, axes);
        if (first.empty()) first = group;
        if (group == first) continue;
        return mesh.group(rank, axes) == group;
    }
    return false;
}

// One box for each rectangle; a rank of colour 1 has what the layout gives it.
TEST(Drawing, HasEveryRectangle) {
    spec::RunSpec run = run_of("moe-tiny");
    run.parallel.ep = 4;
    run.parallel.zero = 0;
    const Layout l = layout_with(run, 4);
    const std::string svg = svg::file(draw_layout(l, 0));
    size_t boxes = 4 + l.axes.size() * 4, backgrounds = 1, of_rank_1 = 1;
    for (const mesh::Axes a : l.axes)  // the ranks of the second group of each axis have the second colour
        for (int r = 0; r < 4; ++r) of_rank_1 += is_of_second_group(l.mesh, r, a) ? 1 : 0;
    for (const LayoutPart& part : l.parts)
        for (const Grid& g : part.grids) {
            if (part.kind == LayoutPart::Kind::tensor && g.shape.rank() == 1) continue;
            ++backgrounds;
            for (const Holding& h : g.holdings)
                for (const Block& b : h.blocks) {
                    const size_t drawn = g.shape.rank() == 3 ? to_size(b.sizes[0]) : 1;
                    boxes += drawn;
                    of_rank_1 += h.ranks.front() == 1 ? drawn : 0;
                }
        }
    EXPECT_EQ(count(svg, "<rect "), boxes + backgrounds);
    EXPECT_EQ(count(svg, "class=\"r1 edged\""), of_rank_1);
    EXPECT_GT(of_rank_1, 6u);  // two experts of each of three tensors
    run.train.global_batch = 64;
    EXPECT_THROW(draw_layout(layout_with(run, 64), 8), UsageError);
}

// The widths of a bar are to each other as its bytes.
TEST(Drawing, MemoryIsToScale) {
    MemoryByPurpose bytes, half;
    bytes[Purpose::weights] = 3'000'000;
    bytes[Purpose::gradients] = 1'000'000;
    half[Purpose::weights] = 2'000'000;
    const std::string svg = svg::file(svg::draw_with_legend(memory_bars("a < b", {{"one", bytes}, {"two", half}})));
    EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
    std::vector<double> widths;
    const std::string width = "width=\"";
    for (size_t at = svg.find("<title>weights:"); at != std::string::npos; at = svg.find("<title>weights:", at + 1)) {
        const size_t begin = svg.rfind(width, at) + width.size();
        widths.push_back(std::stod(svg.substr(begin)));
    }
    ASSERT_EQ(widths.size(), 2u);
    EXPECT_NEAR(widths[0] / widths[1], 1.5, 5e-3);
}

// Two nodes of eight ranks: tensor parallel stays in a node, the pipeline crosses nodes. Of 4,096 ranks the first
// node and the last one are drawn.
TEST(Drawing, NodesShowWhichGroupsCrossThem) {
    spec::RunSpec run = run_of("llama-tiny");
    run.parallel.tp = 2;
    run.parallel.pp = 4;
    run.parallel.dp_shard = 2;
    const auto drawn = [&](int ranks) {
        const mesh::Mesh mesh = parallel::make_mesh(run, ranks);
        const svg::Picture picture = draw_nodes(mesh, axes_with_several_ranks(mesh), 8, "t");
        EXPECT_EQ(picture.width, svg::Bars{}.width);  // else its text has another size than that of the charts beside
        return picture.body;
    };
    const std::string two = drawn(16);
    EXPECT_EQ(count(two, ">node "), 2u);
    EXPECT_EQ(count(two, ">in a node<"), 2u);  // tp and dp
    EXPECT_EQ(count(two, ">across nodes<"), 1u);
    EXPECT_EQ(count(two, "<rect "), 4u * 16u);
    EXPECT_NE(two.find("rank 5: pp 1, in a group with ranks 1, 5, 9, 13"), std::string::npos) << two;
    run.parallel.dp_shard = 512;
    const std::string many = drawn(4096);
    EXPECT_EQ(count(many, ">node "), 2u);
    EXPECT_NE(many.find(">node 511<"), std::string::npos);
    EXPECT_NE(many.find(">4095<"), std::string::npos);
    EXPECT_EQ(count(many, "<rect "), 4u * 16u);
}

}  // namespace
}  // namespace tutti::rehearsal
