#include "tutti/rehearsal/layout.h"

#include <algorithm>
#include <array>
#include <set>

#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/comm/meta/meta_world.h"
#include "tutti/device/meta/meta_device.h"
#include "tutti/engine/engine.h"
#include "tutti/kernels/meta/meta_table.h"
#include "tutti/nn/context_attention.h"
#include "tutti/rehearsal/card.h"
#include "tutti/spec/layers.h"

namespace tutti::rehearsal {

namespace {

using autograd::Parameter;
using mesh::Axes;
using mesh::Axis;
using mesh::Block;
using mesh::HeldBlock;

void add(Grid& grid, int rank, std::vector<Block> blocks, const std::string& label = "") {
    if (blocks.empty()) return;
    for (Holding& h : grid.holdings)
        if (h.blocks == blocks && h.label == label) return h.ranks.push_back(rank);
    grid.holdings.push_back({std::move(blocks), {rank}, label});
}

std::vector<Block> blocks_of(const std::vector<HeldBlock>& held) {
    std::vector<Block> blocks;
    for (const HeldBlock& h : held) blocks.push_back(h.block);
    return blocks;
}

// Ascending numbers as blocks of one dim.
std::vector<Block> runs_of_numbers(const std::vector<int64_t>& numbers) {
    std::vector<Block> runs;
    for (const int64_t n : numbers) {
        if (runs.empty() || runs.back().offset[0] + runs.back().sizes[0] != n) runs.push_back({{n}, {0}});
        ++runs.back().sizes[0];
    }
    return runs;
}

// The parts of a layout, filled rank by rank.
struct Builder {
    Builder(const spec::RunSpec& r, const mesh::Mesh& m) : run(r), mesh(m) {
        const int64_t B = run.train.micro_batch, T = run.train.seq_len;
        inside.shape = outside.shape = {mesh.size(mesh::kDp) * B * T};
        heads.shape = {run.model.heads, T};
        const int64_t chunks = 2 * mesh.size(Axis::cp_ring);
        ring.shape = contiguous.shape = {chunks, chunks};
    }

    void add_rank(int rank, engine::Engine& engine) {
        const models::Model& model = engine.model;
        if (computed.empty()) choose(model);
        std::set<const Parameter*> here;
        for (const pipeline::ModelChunk& chunk : engine.pipeline.chunks()) {
            add(modules, rank, {{{static_cast<int64_t>(chunk.span.begin)}, {numel(chunk.span)}}},
                concat("stage ", chunk.stage));
            for (size_t m = chunk.span.begin; m < chunk.span.end; ++m)
                for (const Parameter* p : model.modules()[m]->unit.parameters) here.insert(p);
        }
        for (size_t i = 0; i < computed.size(); ++i) {
            const Parameter& p = model.parameter(computed[i].name);
            if (here.contains(&p)) add(computed[i], rank, blocks_of(p.part().blocks));
            std::vector<Block> blocks;
            for (const optim::ParameterShard& piece : engine.optimizer.parameter_shards())
                if (piece.parameter == &p)
                    for (const Block& b : blocks_of(piece.blocks())) blocks.push_back(b);
            add(state[i], rank, blocks);
        }
        if (spec::traits_of(run.model).tokens) add_tokens(rank, engine.groups);
    }

    Layout layout() {
        using Kind = LayoutPart::Kind;
        Layout l{
            concat(name_of(run.model), " on ", counted(mesh.size(), "rank")), mesh, axes_with_several_ranks(mesh), {}};
        if (mesh.size(Axis::pp) > 1) l.parts.push_back({"modules of the model", Kind::line, {modules}});
        std::vector<Grid> tokens;
        if (inside.holdings.size() > 1) tokens.push_back(inside);
        if (outside.holdings.size() > inside.holdings.size()) tokens.push_back(outside);
        if (!tokens.empty()) l.parts.push_back({"tokens of the first microbatch of every rank", Kind::line, tokens});
        std::vector<Grid> attention;
        if (heads.holdings.size() > 1) attention.push_back(heads);
        if (ring.holdings.size() > 1) attention.push_back(ring);
        if (!contiguous.holdings.empty()) attention.push_back(contiguous);
        if (!attention.empty()) l.parts.push_back({"attention", Kind::square, attention});
        l.parts.push_back({"weights that a rank computes with", Kind::tensor, computed});
        const auto same = [](const Grid& a, const Grid& b) {
            return std::equal(
                a.holdings.begin(), a.holdings.end(), b.holdings.begin(), b.holdings.end(),
                [](const Holding& x, const Holding& y) { return x.blocks == y.blocks && x.ranks == y.ranks; });
        };
        if (!std::equal(computed.begin(), computed.end(), state.begin(), same))
            l.parts.push_back({run.parallel.zero == 3 ? "weights, masters and moments that a rank keeps"
                                                      : "masters and moments that a rank keeps",
                               Kind::tensor, state});
        return l;
    }

  private:
    static int64_t numel(const pipeline::Span& span) { return static_cast<int64_t>(span.end - span.begin); }

    // The parameters that are shown.
    void choose(const models::Model& model) {
        const size_t n = model.modules().size();
        modules.name = concat(model.modules().front()->unit.name, ", ", n - 2, " blocks, head");
        modules.shape = {static_cast<int64_t>(n)};
        std::set<const Parameter*> known;  // a tied matrix is in two modules
        for (const size_t m : std::set<size_t>{0, n / 2, n - 1})
            for (const Parameter* p : model.modules()[m]->unit.parameters) {
                if (!known.insert(p).second) continue;
                computed.push_back({p->name, p->shape, {}});
                state.push_back({p->name, p->shape, {}});
            }
    }

    void add_tokens(int rank, parallel::Groups& groups) {
        const int64_t B = run.train.micro_batch, T = run.train.seq_len;
        const engine::BatchShard share = engine::share_of(groups);
        const std::vector<int32_t> zeros(to_size(B * T));
        const nn::Batch batch = nn::make_batch(*host, nn::BatchRows{zeros, zeros, {}}, B, share.rank * B, share.part);
        add(inside, rank, runs_of_numbers(batch.row_index.to_host<int64_t>()));
        const int tp = mesh.size(mesh::kTp);
        const Tensor rows = tp > 1 && run.parallel.sequence_parallel
                                ? nn::rows_of(batch.row_index, mesh.coordinate(rank, mesh::kTp), tp)
                                : batch.row_index;
        add(outside, rank, runs_of_numbers(rows.to_host<int64_t>()));
        add_attention(rank, share.part);
    }

    void add_attention(int rank, const nn::SequencePart& part) {
        // Ranks of tp divide the heads; ranks along cp_ulysses divide these again and have the tokens of each other.
        const Block of_tp =
            mesh::part_of(mesh, rank, {run.model.heads}, {{.axes = mesh::kTp}}, "heads").blocks.front().block;
        const int64_t share = std::max<int64_t>(of_tp.sizes[0] / part.ulysses, 1);
        const int64_t first = of_tp.offset[0] + part.rank % part.ulysses * of_tp.sizes[0] / part.ulysses;
        const int ring_rank = part.rank / part.ulysses, ring_ranks = part.ranks / part.ulysses;
        std::vector<Block> queries;
        for (const nn::TokenRun& run_of_tokens : nn::runs_of({ring_rank, ring_ranks, 1}, run.train.seq_len))
            queries.push_back({{first, run_of_tokens.begin}, {share, run_of_tokens.tokens}});
        add(heads, rank, queries);
        if (ring_ranks == 1) return;
        const bool gathered = run.parallel.cp_method == "all_gather";
        const int64_t size = run.train.seq_len / ring_ranks / 2;
        const spec::LayerSpec layer = spec::layer(run.model, run.model.layers / 2);
        const nn::RingOrder order{{ring_ranks, size}, layer.attention() ? layer.attention()->window : 0};
        for (int hop = 0; hop < ring_ranks; ++hop) {
            const int source = order.source(ring_rank, hop);
            order.for_each_pair(ring_rank, source, [&](int i, int j) {
                const int64_t query = order.chunks.begin(ring_rank, i), key = order.chunks.begin(source, j);
                add(ring, rank, {{{query / size, key / size}, {1, 1}}}, gathered ? "" : concat("hop ", hop));
            });
        }
        if (order.window == 0 && part.ulysses == 1) add_contiguous(rank, ring_rank, gathered);
    }

    // As in Liu et al. 2023: rank r has chunks 2 r and 2 r + 1, and computes 4 r + 3 pairs.
    void add_contiguous(int rank, int ring_rank, bool gathered) {
        int64_t pairs = 0;
        for (int64_t query = 2 * ring_rank; query < 2 * ring_rank + 2; ++query)
            for (int64_t key = 0; key <= query; ++key, ++pairs)
                add(contiguous, rank, {{{query, key}, {1, 1}}}, gathered ? "" : concat("hop ", ring_rank - key / 2));
        if (ring_rank != named_ring_ranks) return;  // ranks of other axes share the place
        contiguous.name += concat(ring_rank == 0 ? "" : ", ", pairs);
        ++named_ring_ranks;
    }

    const spec::RunSpec& run;
    const mesh::Mesh& mesh;
    std::unique_ptr<Device> host = make_cpu_device(1);
    std::vector<Grid> computed, state;  // by parameter
    Grid modules;
    Grid inside{"inside the layers", {}, {}}, outside{"between the products of tensor parallelism", {}, {}};
    Grid heads{"query heads x queries of a sequence", {}, {}}, ring{"query chunks x key chunks, by hop", {}, {}};
    Grid contiguous{"without zigzag, for comparison; pairs ", {}, {}, true};
    int named_ring_ranks = 0;  // in the name of `contiguous`
};

}  // namespace

std::vector<mesh::Axes> axes_with_several_ranks(const mesh::Mesh& mesh) {
    std::vector<Axes> axes;
    const auto add_several = [&](Axes a) {
        if (mesh.size(a) > 1) axes.push_back(a);
    };
    for (const Axes pair : {mesh::kTp, mesh::kCp}) {
        add_several(pair);
        const Axes first = pair == mesh::kTp ? Axis::tp_copy : Axis::cp_ulysses;
        if (mesh.size(first) == 1 || mesh.size(pair - first) == 1) continue;
        axes.push_back(first);
        axes.push_back(pair - first);
    }
    for (const Axis a : {Axis::dp_shard, Axis::dp_replicate, Axis::pp}) add_several(a);
    for (const mesh::AxisSize& a : mesh.second_axes())
        if (mesh.size(Axes{Axis::ep, Axis::etp}) > 1 && a.axis != Axis::dp_replicate && a.axis != Axis::pp)
            add_several(a.axis);
    return axes;
}

Layout layout_of(const spec::RunSpec& asked, int ranks) {
    spec::RunSpec run = asked;  // a layout does not depend on the machine
    run.train.cuda_graphs = false;
    run.train.packed_weights = "auto";
    const kernels::KernelTable table = kernels::meta_table(kernels::reference_table());
    const mesh::Mesh mesh = parallel::make_mesh(run, ranks);
    Builder builder(run, mesh);
    for (int rank = 0; rank < ranks; ++rank) {
        comm::MetaWorld world(rank, ranks);
        engine::Engine engine(
            run, world, {make_meta_device({.name = "none"}), table},
            [&](ops::Context& ctx, const engine::BatchShard& share) { return engine::fixed_batches(ctx, run, share); });
        builder.add_rank(rank, engine);
    }
    return builder.layout();
}

namespace {

// "[0:64, :]"
std::string slices(const Block& block, const Shape& shape) {
    std::string text;
    for (int d = 0; d < shape.rank(); ++d) {
        const int64_t begin = block.offset[d], end = begin + block.sizes[d];
        text += concat(d == 0 ? "" : ", ", block.sizes[d] == shape[d] ? ":" : concat(begin, ':', end));
    }
    return concat('[', text, ']');
}

bool has_rank(const Holding& h, int rank) { return std::find(h.ranks.begin(), h.ranks.end(), rank) != h.ranks.end(); }

constexpr size_t kMost = 16;  // lines of ranks or holdings without --rank

std::string more(size_t all, const char* what) {
    return all > kMost ? concat("    ... ", all - kMost, " more ", what, "; --rank R shows one rank\n") : "";
}

std::string coordinates(const Layout& l, std::optional<int> rank) {
    constexpr size_t kColumn = 6;
    std::string text = "  " + right("rank", kColumn);
    for (const Axes a : l.axes) text += "  " + right(mesh::name_of(a), kColumn);
    text += '\n';
    for (int r = rank.value_or(0); r < (rank ? *rank + 1 : std::min<int>(l.mesh.size(), kMost)); ++r) {
        text += "  " + right(std::to_string(r), kColumn);
        for (const Axes a : l.axes)
            text += "  " + right(std::to_string(l.mesh.coordinate(r, a)), std::max(kColumn, mesh::name_of(a).size()));
        text += '\n';
    }
    return text + (rank ? "" : more(to_size(l.mesh.size()), "ranks"));
}

std::string render_grid(const Grid& grid, std::optional<int> rank) {
    std::vector<std::array<std::string, 2>> lines;
    for (const Holding& h : grid.holdings) {
        if (rank && !has_rank(h, *rank)) continue;
        constexpr size_t kBlocks = 4;
        std::string blocks;
        for (size_t i = 0; i < std::min(h.blocks.size(), kBlocks); ++i)
            blocks += (i == 0 ? "" : " + ") + slices(h.blocks[i], grid.shape);
        if (h.blocks.size() > kBlocks) blocks += concat(" + ", h.blocks.size() - kBlocks, " more");
        lines.push_back({blocks, concat(h.ranks.size() == 1 ? "rank " : "ranks ", ranks_text(h.ranks),
                                        h.label.empty() ? "" : ", ", h.label)});
    }
    const size_t shown = rank ? lines.size() : std::min(lines.size(), kMost);
    std::string text = concat("  ", grid.name, ' ', grid.shape, lines.empty() ? ": none of it\n" : "\n");
    size_t width = 0;
    for (size_t i = 0; i < shown; ++i) width = std::max(width, lines[i][0].size());
    for (size_t i = 0; i < shown; ++i) text += concat("    ", left(lines[i][0], width), "  ", lines[i][1], '\n');
    return text + (rank ? "" : more(lines.size(), "parts"));
}

Json json_of(const Grid& grid) {
    const auto list = [](const Shape& shape) { return std::vector<int64_t>(shape.begin(), shape.end()); };
    Json holdings = Json::array();
    for (const Holding& h : grid.holdings) {
        Json blocks = Json::array();
        for (const Block& b : h.blocks) blocks.push_back({{"offset", list(b.offset)}, {"sizes", list(b.sizes)}});
        holdings.push_back({{"ranks", h.ranks}, {"blocks", blocks}, {"label", h.label}});
    }
    return {{"name", grid.name}, {"shape", list(grid.shape)}, {"holdings", holdings}};
}

}  // namespace

std::string render_layout(const Layout& l, std::optional<int> rank) {
    std::string text = concat(l.title, "\n\ncoordinates\n", coordinates(l, rank));
    for (const LayoutPart& part : l.parts) {
        text += concat('\n', part.title, '\n');
        for (const Grid& grid : part.grids)
            if (!grid.for_comparison) text += render_grid(grid, rank);
    }
    return text;
}

Json to_json(const Layout& l) {
    Json ranks = Json::array(), parts = Json::array();
    for (int r = 0; r < l.mesh.size(); ++r) {
        Json& row = ranks.push_back({{"rank", r}});
        for (const Axes a : l.axes) row[mesh::name_of(a)] = l.mesh.coordinate(r, a);
    }
    for (const LayoutPart& part : l.parts) {
        Json grids = Json::array();
        for (const Grid& grid : part.grids)
            if (!grid.for_comparison) grids.push_back(json_of(grid));
        parts.push_back({{"title", part.title}, {"grids", grids}});
    }
    return {{"ranks", ranks}, {"parts", parts}};
}

}  // namespace tutti::rehearsal
