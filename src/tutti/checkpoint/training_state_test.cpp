// Tensors through a checkpoint and back; a copied state keeps its values while training goes on, a borrowed one costs
// no memory.
#include "tutti/checkpoint/training_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "tutti/base/testing/scratch.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/testing/fault_file_system.h"
#include "tutti/checkpoint/testing/sample.h"
#include "tutti/checkpoint/testing/whole_slice.h"
#include "tutti/mesh/mesh.h"

namespace tutti::checkpoint {
namespace {

using testing::contains;
using testing::whole_slice;

class TrainingState : public ::testing::Test {
  protected:
    Tensor tensor(const std::vector<float>& values) {
        return Tensor::from_host<float>(*device_, {static_cast<int64_t>(values.size())}, values, Purpose::weights);
    }
    void save(int64_t step, const HostState& state) {
        store_.save({.step = step,
                     .files = {state.file(0, 1)},
                     .config_digest = {},
                     .data_fingerprint = {},
                     .state = "{}",
                     .tensors = state.tensors()});
    }
    // The values of a checkpoint that is written after `tensor` has changed.
    std::vector<float> written_after_a_change(HostMemory memory) {
        const Tensor weight = tensor({1, 2, 3});
        const HostState state({whole_slice("weight", weight)}, memory);
        weight.view().as<float>()[1] = 7;
        save(1, state);
        const Tensor back = tensor({0, 0, 0});
        store_.load_newest([&](const CheckpointReader& reader) { load_slices(reader, {whole_slice("weight", back)}); },
                           OnDamage::stop);
        return back.to_host<float>();
    }

    ScratchFolder scratch_;
    PosixFileSystem files_;
    Store store_{files_, scratch_.path(), Access::write, [](const std::string&) {}};
    std::unique_ptr<Device> device_ = make_cpu_device(1);
};

TEST_F(TrainingState, ACopyIsOfTheMomentItWasMade) {
    EXPECT_EQ(written_after_a_change(HostMemory::copy), (std::vector<float>{1, 2, 3}));
}

TEST_F(TrainingState, ALoanOfTheHostsMemoryCopiesNothing) {
    EXPECT_EQ(written_after_a_change(HostMemory::borrow), (std::vector<float>{1, 7, 3}));
}

TEST_F(TrainingState, NamesWhatIsMissingWhatIsTooMuchAndWhatHasAnotherShape) {
    save(1, HostState({whole_slice("a", tensor({1, 2})), whole_slice("b", tensor({3}))}, HostMemory::borrow));
    const auto error = [&](const std::vector<TensorSlice>& wanted) -> std::string {
        try {
            store_.load(store_.list().front().path,
                        [&](const CheckpointReader& reader) { load_slices(reader, wanted); });
        } catch (const DataError& e) {
            return e.what();
        }
        return "";
    };
    EXPECT_EQ(error({whole_slice("a", tensor({0, 0}))}), "");
    EXPECT_TRUE(contains(error({whole_slice("c", tensor({0}))}), "has no tensor 'c' among its 2"));
    EXPECT_TRUE(contains(error({whole_slice("b", tensor({0, 0}))}), "b is (1) f32, the model needs (2) f32"));
    const TensorSlice half{.name = "a",
                           .shape = {2},
                           .blocks = {{{{1}, {1}}, 0}},
                           .values = Tensor::empty(*device_, {1}, DType::bf16, {})};
    EXPECT_TRUE(contains(error({half}), "a is (2) f32, the model needs (2) bf16"));
    store_.load(store_.list().front().path, [&](const CheckpointReader& reader) {
        EXPECT_EQ(unwanted_tensors(reader, {whole_slice("a", tensor({0, 0}))}), std::vector<std::string>{"b"});
    });
}

TEST_F(TrainingState, WhatIsHeldTwiceOrByNobodyIsNotSaved) {
    const auto piece = [&](int64_t begin, const std::vector<float>& values) {
        const auto end = begin + static_cast<int64_t>(values.size());
        return TensorSlice{.name = "a",
                           .shape = {2, 2},
                           .blocks = mesh::blocks_of_range(mesh::whole_part({2, 2}), begin, end),
                           .values = tensor(values)};
    };
    EXPECT_THROW(save(1, HostState({piece(0, {1, 2, 3})}, HostMemory::borrow)), Error);
    EXPECT_THROW(save(1, HostState({piece(0, {1, 2, 3}), piece(1, {2})}, HostMemory::borrow)), Error);
    EXPECT_THROW(HostState({piece(2, {1, 2, 3})}, HostMemory::borrow), Error);  // beyond the end
    EXPECT_THROW(HostState({whole_slice("a@b", tensor({1}))}, HostMemory::borrow), Error);
    EXPECT_TRUE(store_.list().empty());
    EXPECT_TRUE(testing::debris_in(files_, scratch_.path()).empty());
    // A rank does not write slices that another rank owns.
    TensorSlice other = piece(2, {0, 0});
    other.owned = false;
    save(1, HostState({piece(0, {1, 2}), piece(2, {3, 4})}, HostMemory::borrow));
    EXPECT_EQ(HostState({piece(0, {1, 2}), other}, HostMemory::borrow).file(0, 1).body.size(), 1u);
}

// As one rank wrote before the manifest knew tensors: whole ones, moments flat.
TEST_F(TrainingState, VersionOneLoads) {
    const std::vector<float> weight = {1, 2, 3, 4, 5, 6}, moment = {7, 8, 9, 10, 11, 12};
    store_.save({.step = 1,
                 .files = {safetensors_file(rank_file_name(0, 1),
                                            {{"w", DType::f32, {2, 3}, std::as_bytes(std::span(weight))},
                                             {"m.w", DType::f32, {6}, std::as_bytes(std::span(moment))}})},
                 .config_digest = {},
                 .data_fingerprint = {},
                 .state = "{}"});
    const Tensor w = tensor({0, 0, 0, 0}), m = tensor({0, 0, 0, 0});
    const auto load = [&](const Shape& shape) {
        store_.load(store_.list().front().path, [&](const CheckpointReader& reader) {
            const auto blocks = mesh::blocks_of_range(mesh::whole_part(shape), 1, 5);
            load_slices(reader, {{.name = "w", .shape = shape, .blocks = blocks, .values = w},
                                 {.name = "m.w", .shape = shape, .blocks = blocks, .values = m}});
        });
    };
    load({2, 3});
    EXPECT_EQ(w.to_host<float>(), (std::vector<float>{2, 3, 4, 5}));
    EXPECT_EQ(m.to_host<float>(), (std::vector<float>{8, 9, 10, 11}));
    EXPECT_THROW(load({3, 2}), DataError);
}

// Resharding: saved under one layout, loaded under another, every element is in its place. Layouts are ranges of
// flattened tensors with cuts anywhere, and rectangles (parts of columns, as tensor parallelism makes) on the stored
// side; the values are a hash of the tensor's name and the global element, so no layout is the standard of another.

struct Spec {
    std::string name;
    Shape shape;
    DType dtype = DType::f32;
};

const std::vector<Spec>& specs() {
    static const std::vector<Spec> all = {{"wte.weight", {61, 16}},   {"h.0.norm", {16}},
                                          {"h.0.experts", {3, 5, 7}}, {"h.1.attn", {2, 3, 1, 4}, DType::bf16},
                                          {"h.10.attn", {24, 8}},     {"h.1", {1, 1}},
                                          {"count", {}, DType::i64},  {"bytes", {1000}, DType::u8},
                                          {"nothing", {3, 0, 2}}};
    return all;
}

std::vector<std::byte> values_of(const Spec& spec, int64_t begin, int64_t end) {
    std::vector<std::byte> bytes;
    for (int64_t e = begin; e < end; ++e) {
        const auto words = philox(random_key(7, spec.name), static_cast<uint64_t>(e));
        for (int64_t b = 0; b < size_of(spec.dtype); ++b)
            bytes.push_back(static_cast<std::byte>(words[to_size(b / 4)] >> (8 * (b % 4))));
    }
    return bytes;
}

class Reshard : public ::testing::Test {
  protected:
    // The begins of the ranks' parts of n elements, and n: anywhere, some parts are empty.
    std::vector<int64_t> cuts(int64_t n, int ranks, const std::string& purpose) {
        std::vector<int64_t> at = {0, n};
        for (int i = 1; i < ranks; ++i)
            at.push_back(static_cast<int64_t>(
                uniform_below(random_key(seed_, purpose), static_cast<uint64_t>(i), static_cast<uint64_t>(n + 1))));
        std::sort(at.begin(), at.end());
        return at;
    }
    TensorSlice piece(const Spec& spec, int64_t begin, int64_t end, bool filled) {
        TensorSlice p{.name = spec.name,
                      .shape = spec.shape,
                      .blocks = mesh::blocks_of_range(mesh::whole_part(spec.shape), begin, end)};
        p.values = Tensor::empty(*device_, {end - begin}, spec.dtype, Purpose::weights);
        const auto bytes =
            filled ? values_of(spec, begin, end) : std::vector<std::byte>(to_size(p.values.bytes()), std::byte{0xee});
        device_->copy_in(p.values.view().data, bytes.data(), p.values.bytes());
        return p;
    }
    // The bytes of a slice, with zeros for its padding.
    std::vector<std::byte> bytes_of(const Spec& spec, const TensorSlice& piece) {
        std::vector<std::byte> bytes(to_size(piece.values.bytes()));
        const int64_t size = size_of(spec.dtype);
        for (const mesh::HeldBlock& held : piece.blocks)
            mesh::for_each_run(held.block, mesh::whole_block(spec.shape), held.block,
                               [&](int64_t from, int64_t to, int64_t n) {
                                   const auto run = values_of(spec, from, from + n);
                                   std::copy(run.begin(), run.end(), bytes.begin() + (held.begin + to) * size);
                               });
        return bytes;
    }
    // Pieces of rank `rank`: tensors cut one by one, or all of them laid end to end and cut once.
    std::vector<TensorSlice> pieces(int rank, int ranks, bool each, const std::string& purpose, bool filled) {
        std::vector<TensorSlice> mine;
        int64_t total = 0, base = 0;
        for (const Spec& spec : specs()) total += spec.shape.numel();
        const auto global = cuts(total, ranks, purpose);
        const auto r = to_size(rank);
        for (const Spec& spec : specs()) {
            const int64_t n = spec.shape.numel();
            const auto own = cuts(n, ranks, purpose + spec.name);
            const int64_t begin = each ? own[r] : std::clamp<int64_t>(global[r] - base, 0, n);
            const int64_t end = each ? own[r + 1] : std::clamp<int64_t>(global[r + 1] - base, 0, n);
            // Two pieces of one tensor side by side are allowed, too.
            const int64_t middle = begin + (end - begin) / 3;
            if (begin < middle) mine.push_back(piece(spec, begin, middle, filled));
            if (middle < end || (n == 0 && rank == 0)) mine.push_back(piece(spec, middle, end, filled));
            base += n;
        }
        return mine;
    }
    // Saves as the ranks would, and returns the path.
    std::string save(int ranks, bool each, const std::string& purpose) {
        Store::Attempt attempt = store_.begin(seed_);
        std::vector<Manifest> parts;
        for (int rank = 0; rank < ranks; ++rank) {
            const HostState state(pieces(rank, ranks, each, purpose, true), HostMemory::copy);
            const FileToWrite file = state.file(rank, ranks);
            Manifest part;
            part.step = seed_;
            part.state = "{}";
            part.files = {NewFile(files_, join(attempt.path, file.name), file.size()).write(file)};
            part.tensors = state.tensors();
            parts.push_back(parse_manifest(write_manifest(part), "part"));
        }
        return store_.commit(attempt, merge(parts));
    }
    void expect_loads(const std::string& path, int ranks, bool each, const std::string& purpose) {
        for (int rank = 0; rank < ranks; ++rank) {
            const auto mine = pieces(rank, ranks, each, purpose, false);
            load_slices(CheckpointReader(files_, path), mine);
            for (const TensorSlice& p : mine) {
                const Spec& spec =
                    *std::find_if(specs().begin(), specs().end(), [&](const Spec& s) { return s.name == p.name; });
                const auto* data = p.values.view().as<const std::byte>();
                const int64_t begin = mesh::flat_begin(spec.shape, p.blocks.front().block);
                ASSERT_EQ(std::vector(data, data + p.values.bytes()), values_of(spec, begin, begin + p.values.numel()))
                    << p.name << " from " << begin << ", rank " << rank << " of " << ranks << ", seed " << seed_;
            }
        }
    }

    ScratchFolder scratch_;
    PosixFileSystem files_;
    Store store_{files_, scratch_.path(), Access::write, [](const std::string&) {}};
    std::unique_ptr<Device> device_ = make_cpu_device(1);
    uint32_t seed_ = 0;
};

TEST_F(Reshard, AnyLayoutLoadsUnderAnyOther) {
    for (int saved : {1, 2, 3, 4, 8})
        for (bool each : {false, true}) {
            ++seed_;
            const std::string path = save(saved, each, "saved");
            store_.verify(path);
            for (int loaded : {1, 2, 3, 8}) {
                expect_loads(path, loaded, false, "flat");
                expect_loads(path, loaded, true, "each");
            }
            expect_loads(path, saved, each, "saved");  // as it was
        }
}

// The blocks of tensor-parallel ranks: column halves of one tensor, row thirds of another, over two files.
TEST_F(Reshard, RectanglesLoadIntoRanges) {
    const Spec columns{"columns", {6, 10}}, rows{"rows", {3, 4, 5}};
    const auto column = [&](int64_t first, int64_t width) {
        std::vector<std::byte> bytes;
        for (int64_t r = 0; r < 6; ++r) {
            const auto row = values_of(columns, r * 10 + first, r * 10 + first + width);
            bytes.insert(bytes.end(), row.begin(), row.end());
        }
        return bytes;
    };
    const auto left = column(0, 3), right = column(3, 7), whole = values_of(rows, 0, 60);
    const Block left_block{{0, 0}, {6, 3}}, right_block{{0, 3}, {6, 7}};
    const std::span<const std::byte> all(whole);
    Snapshot snapshot{.step = 1, .files = {}, .config_digest = {}, .data_fingerprint = {}, .state = "{}"};
    snapshot.files = {safetensors_file("a.safetensors", {{"columns@0,3", DType::f32, {6, 7}, right},
                                                         {"rows@2,0,0", DType::f32, {1, 4, 5}, all.last(80)}}),
                      safetensors_file("b.safetensors", {{"columns@0,0", DType::f32, {6, 3}, left},
                                                         {"rows@0,0,0", DType::f32, {2, 4, 5}, all.first(160)}})};
    snapshot.tensors = {{"columns", DType::f32, {6, 10}, {{0, right_block}, {1, left_block}}},
                        {"rows", DType::f32, {3, 4, 5}, {{0, {{2, 0, 0}, {1, 4, 5}}}, {1, {{0, 0, 0}, {2, 4, 5}}}}}};
    const CheckpointReader reader(files_, store_.save(snapshot));
    for (const Spec& spec : {columns, rows})
        for (int64_t begin = 0; begin < 60; ++begin)
            for (int64_t end = begin + 1; end <= 60; ++end) {
                const TensorSlice p = piece(spec, begin, end, false);
                load_slices(reader, {p});
                const auto* data = p.values.view().as<const std::byte>();
                ASSERT_EQ(std::vector(data, data + p.values.bytes()), values_of(spec, begin, end))
                    << spec.name << " [" << begin << ", " << end << ")";
            }
}

// Tensor parallelism (columns, rows, sections of rows, a padded vocabulary) under ZeRO: each rank of one layout has a
// range of its part; any layout of these loads what any other saved.
TEST_F(Reshard, PartsCutIntoShardsLoadUnderAnyOther) {
    constexpr mesh::Axis tp = mesh::Axis::tp_part;
    const std::vector<Spec> specs = {
        {"columns", {12, 10}}, {"rows", {12, 5}}, {"packed", {12, 3}}, {"words", {13, 3}}, {"norm", {7}}};
    const std::vector<mesh::Placement> placements = {
        {{tp, 1}}, {{tp, 0, 2}}, {{tp, 0, 1, 3}}, {{.axes = tp, .grain = 2, .padded = true}}, {}};
    struct Layout {
        int tp, shards;
    };
    // Rank r of a layout has shard r / tp of its part.
    const auto pieces_of = [&](const Layout& layout, int rank, bool filled) {
        const mesh::Mesh mesh({{tp, layout.tp}});
        std::vector<TensorSlice> mine;
        for (size_t i = 0; i < specs.size(); ++i) {
            const Spec& spec = specs[i];
            const mesh::Placement& placement = placements[i];
            const mesh::Part part = mesh::part_of(mesh, rank % layout.tp, spec.shape, placement, spec.name);
            const int64_t n = part.shape.numel(), shard = rank / layout.tp;
            const int64_t begin = n * shard / layout.shards, end = n * (shard + 1) / layout.shards;
            TensorSlice p{.name = spec.name, .shape = spec.shape, .blocks = mesh::blocks_of_range(part, begin, end)};
            p.values = Tensor::empty(*device_, {end - begin}, DType::f32, Purpose::weights);
            p.owned = !placement.empty() || rank % layout.tp == 0;
            if (filled) device_->copy_in(p.values.view().data, bytes_of(spec, p).data(), p.values.bytes());
            mine.push_back(p);
        }
        return mine;
    };
    const std::vector<Layout> layouts = {{1, 1}, {2, 1}, {1, 3}, {2, 2}, {2, 3}};
    for (const Layout& saved : layouts) {
        ++seed_;
        Store::Attempt attempt = store_.begin(seed_);
        std::vector<Manifest> parts;
        const int ranks = saved.tp * saved.shards;
        for (int rank = 0; rank < ranks; ++rank) {
            const HostState state(pieces_of(saved, rank, true), HostMemory::copy);
            const FileToWrite file = state.file(rank, ranks);
            Manifest part{.step = seed_, .config_digest = {}, .data_fingerprint = {}, .state = "{}", .files = {}};
            part.files = {NewFile(files_, join(attempt.path, file.name), file.size()).write(file)};
            part.tensors = state.tensors();
            parts.push_back(std::move(part));
        }
        const CheckpointReader reader(files_, store_.commit(attempt, merge(parts)));
        for (const Layout& loaded : layouts)
            for (int rank = 0; rank < loaded.tp * loaded.shards; ++rank) {
                const std::vector<TensorSlice> mine = pieces_of(loaded, rank, false);
                for (const TensorSlice& p : mine) {
                    const std::vector<std::byte> zeros(to_size(p.values.bytes()));
                    device_->copy_in(p.values.view().data, zeros.data(), p.values.bytes());
                }
                load_slices(reader, mine);
                for (size_t i = 0; i < mine.size(); ++i) {
                    const auto* data = mine[i].values.view().as<const std::byte>();
                    ASSERT_EQ(std::vector(data, data + mine[i].values.bytes()), bytes_of(specs[i], mine[i]))
                        << mine[i].name << " of " << saved.tp << " x " << saved.shards << " under " << loaded.tp
                        << " x " << loaded.shards << ", rank " << rank;
                }
            }
    }
}

TEST_F(Reshard, ReadsOnlyTheFilesThatItNeedsAndTheirBytesOnce) {
    const std::string path = save(4, false, "saved");
    testing::FaultFileSystem counting(files_, {});
    const CheckpointReader reader(counting, path);
    counting.bytes_read().clear();
    load_slices(reader, pieces(2, 4, false, "saved", false));
    const auto file = reader.file(rank_file_name(2, 4));
    EXPECT_EQ(counting.bytes_read(), (std::map<std::string, int64_t>{{file->path(), file->size()}}));
}

TEST_F(Reshard, ReadersShareTheVerification) {
    const std::string path = save(2, false, "saved");
    const std::string second = join(path, rank_file_name(1, 2));
    std::fstream file(second, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x5a' ^ static_cast<char>(values_of({"bytes", {1000}, DType::u8}, 999, 1000)[0]));
    file.close();
    const CheckpointReader first_half(files_, path), second_half(files_, path), alone(files_, path);
    EXPECT_NO_THROW(first_half.verify_share(0, 2));
    EXPECT_NO_THROW(first_half.verify_rest());  // the other file is left to the other reader
    EXPECT_THROW(second_half.verify_share(1, 2), DamagedError);
    EXPECT_THROW(alone.verify_share(0, 1), DamagedError);
}

TEST_F(Reshard, AManifestThatDoesNotFitItsFilesIsRefused) {
    const Spec w{"w", {4, 6}};
    const auto bytes = values_of(w, 0, 24);
    const auto error = [&](const std::string& entry, std::vector<int64_t> sizes, std::vector<StoredBlock> blocks) {
        int64_t n = 4;
        for (int64_t size : sizes) n *= size;
        const auto part = std::span(bytes).first(to_size(n));
        Store::Attempt attempt = store_.begin(1);
        const FileToWrite file = safetensors_file("a.safetensors", {{entry, DType::f32, std::move(sizes), part}});
        Manifest manifest{.step = 1, .config_digest = {}, .data_fingerprint = {}, .state = "{}", .files = {}};
        manifest.files = {NewFile(files_, join(attempt.path, file.name), file.size()).write(file)};
        // Past Store::commit(), which would refuse to write it.
        manifest.tensors = {{"w", DType::f32, {4, 6}, std::move(blocks)}};
        const FileToWrite text{std::string(kManifestName), write_manifest(manifest), {}};
        NewFile(files_, join(attempt.path, text.name), text.size()).write(text);
        try {
            load_slices(CheckpointReader(files_, attempt.path), {piece(w, 0, 24, false)});
        } catch (const DataError& e) {
            return std::string(e.what());
        }
        return std::string("loaded");
    };
    const StoredBlock whole{0, mesh::whole_block({4, 6})}, half{0, {{0, 0}, {2, 6}}};
    EXPECT_EQ(error("w", {4, 6}, {whole}), "loaded");
    EXPECT_TRUE(contains(error("w", {4, 6}, {half}), "w of shape (4, 6) cannot be read: its blocks hold 12 of its 24"));
    EXPECT_TRUE(contains(error("w", {4, 6}, {half, whole}), "overlap"));
    EXPECT_TRUE(contains(error("v", {4, 6}, {whole}), "has no tensor 'w'"));
    EXPECT_TRUE(contains(error("w", {6, 4}, {whole}), "w is not the block (4, 6) f32 that the manifest says"));
    EXPECT_TRUE(contains(error("w", {4}, {whole}), "is not the block"));
}

}  // namespace

}  // namespace tutti::checkpoint
