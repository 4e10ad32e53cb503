// checkpoint/training_state.cpp: saving; loading, which finds the blocks of the checkpoint that meet the wanted ones
// and copies the runs of bytes that both share, however either side was cut.
#include "tutti/checkpoint/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tutti/base/to_size.h"

namespace tutti::checkpoint {

std::string rank_file_name(int rank, int ranks) { return fmt::format("rank-{:05}-of-{:05}.safetensors", rank, ranks); }

HostState::HostState(const std::vector<TensorSlice>& slices, HostMemory memory) {
    for (const TensorSlice& slice : slices) {
        if (!slice.owned) continue;
        const Tensor& values = slice.values;
        check(values.contiguous(), "checkpoint: ", slice.name, " must be contiguous");
        check(slice.name.find(kBlockSeparator) == std::string::npos, "checkpoint: the name ", slice.name,
              " must not have a '", kBlockSeparator, "', which begins the offset of a block");
        Held held{slice, nullptr};
        if (memory == HostMemory::copy || !values.device().host_readable()) {
            held.copy = std::make_unique_for_overwrite<std::byte[]>(to_size(values.bytes()));
            values.device().copy_out(held.copy.get(), values.view().data, values.bytes());
        }
        held_.push_back(std::move(held));
    }
}

void HostState::update(const std::vector<TensorSlice>& slices) {
    size_t next = 0;
    for (const TensorSlice& slice : slices) {
        if (!slice.owned) continue;
        check(next < held_.size() && held_[next].slice.name == slice.name &&
                  held_[next].slice.values.bytes() == slice.values.bytes(),
              "checkpoint: ", slice.name, " is no slice of the copy before");
        Held& held = held_[next++];
        held.slice = slice;
        if (held.copy) slice.values.device().copy_out(held.copy.get(), slice.values.view().data, slice.values.bytes());
    }
    check(next == held_.size(), "checkpoint: the copy before had ", held_.size(), " slices, now there are ", next);
}

FileToWrite HostState::file(int rank, int ranks) const {
    std::vector<TensorToWrite> entries;
    for (const Held& held : held_) {
        const DType dtype = held.slice.values.dtype();
        const auto* data = held.copy ? held.copy.get() : held.slice.values.view().as<const std::byte>();
        for (const auto& [block, begin] : held.slice.blocks) {
            const auto bytes = to_size(block.numel() * size_of(dtype));
            entries.push_back({entry_name(held.slice.name, held.slice.shape, block),
                               dtype,
                               {block.sizes.begin(), block.sizes.end()},
                               std::span<const std::byte>(data + begin * size_of(dtype), bytes)});
        }
    }
    return safetensors_file(rank_file_name(rank, ranks), std::move(entries));
}

std::vector<TensorRecord> HostState::tensors() const {
    std::map<std::string, TensorRecord> records;
    for (const Held& held : held_) {
        const TensorSlice& slice = held.slice;
        TensorRecord& record =
            records.try_emplace(slice.name, TensorRecord{slice.name, slice.values.dtype(), slice.shape, {}})
                .first->second;
        check(record.dtype == slice.values.dtype() && record.shape == slice.shape, "checkpoint: slices of ", slice.name,
              " are of ", record.shape, " ", record.dtype, " and of ", slice.shape, " ", slice.values.dtype());
        for (const HeldBlock& held_block : slice.blocks) record.blocks.push_back({0, held_block.block});
    }
    std::vector<TensorRecord> tensors;
    for (auto& [name, record] : records) tensors.push_back(std::move(record));
    return tensors;
}

namespace {

// Version 1 of the manifest: every entry is a whole tensor.
std::vector<TensorRecord> whole_tensors(const CheckpointReader& reader) {
    std::vector<TensorRecord> records;
    const auto& files = reader.manifest().files;
    for (size_t file = 0; file < files.size(); ++file) {
        const SafetensorsFile entries = reader.safetensors(files[file].name);
        for (const TensorInfo& info : entries.tensors()) {
            Shape shape;
            check<DataError>(info.shape.size() <= Shape::kMaxDims, reader.path(), ": ", info.name, " has ",
                             info.shape.size(), " dims; at most ", Shape::kMaxDims, " are supported");
            for (int64_t size : info.shape) shape.push_back(size);
            records.push_back({info.name, info.dtype, shape, {{static_cast<int64_t>(file), mesh::whole_block(shape)}}});
        }
    }
    return records;
}

// A block that a slice needs, and where its values go.
struct Wanted {
    Block block;
    int64_t begin = 0, end = 0;  // its span in the flattened tensor
    std::byte* values = nullptr;
};

// Wanted blocks of one tensor, searchable for those that may meet a stored block.
class WantedBlocks {
  public:
    explicit WantedBlocks(std::vector<Wanted> wanted) : wanted_(std::move(wanted)) {
        std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) { return a.begin < b.begin; });
        for (const Wanted& w : wanted_) furthest_.push_back(std::max(furthest_.empty() ? 0 : furthest_.back(), w.end));
    }
    // The blocks whose span may meet [begin, end), in order.
    std::span<const Wanted> near(int64_t begin, int64_t end) const {
        const auto first = std::upper_bound(furthest_.begin(), furthest_.end(), begin) - furthest_.begin();
        const auto last = std::lower_bound(wanted_.begin(), wanted_.end(), end,
                                           [](const Wanted& w, int64_t position) { return w.begin < position; }) -
                          wanted_.begin();
        if (first >= last) return {};
        return {wanted_.data() + first, to_size(last - first)};
    }

  private:
    std::vector<Wanted> wanted_;
    std::vector<int64_t> furthest_;  // the largest end so far: sorted, so that a binary search works
};

class Loader {
  public:
    explicit Loader(const CheckpointReader& reader) : reader_(reader) {
        for (TensorRecord& record : stored_tensors(reader)) records_.emplace(record.name, std::move(record));
    }

    // All slices are of one tensor.
    void load(std::span<const TensorSlice* const> slices) {
        TensorRecord record = record_of(*slices.front());
        const Shape& shape = slices.front()->shape;
        // Version 1 stored moments as flat tensors.
        const bool flat = reader_.manifest().tensors.empty() && record.shape == Shape{shape.numel()};
        if (flat) record = {record.name, record.dtype, shape, {{record.blocks[0].file, mesh::whole_block(shape)}}};
        for (const TensorSlice* slice : slices) check_fits(record, *slice);
        std::vector<Block> blocks;
        for (const StoredBlock& stored : record.blocks) blocks.push_back(stored.block);
        const std::string problem = tiling_problem(record.shape, blocks);
        check<DataError>(problem.empty(), reader_.path(), ": ", record.name, " of shape ", record.shape,
                         " cannot be read: ", problem);

        std::vector<std::vector<std::byte>> staged(slices.size());  // of slices that are not in the host's memory
        std::vector<Wanted> wanted;
        for (size_t i = 0; i < slices.size(); ++i) {
            const Tensor& values = slices[i]->values;
            auto* data = values.view().as<std::byte>();
            if (!values.device().host_readable()) {
                staged[i].resize(to_size(values.bytes()));
                data = staged[i].data();
            }
            for (const HeldBlock& held : slices[i]->blocks) {
                const Block& block = held.block;
                if (block.numel() == 0) continue;
                wanted.push_back({block, flat_begin(record.shape, block), flat_end(record.shape, block),
                                  data + held.begin * size_of(record.dtype)});
            }
        }
        read(record, WantedBlocks(std::move(wanted)));
        for (size_t i = 0; i < slices.size(); ++i)
            if (!staged[i].empty())
                slices[i]->values.device().copy_in(slices[i]->values.view().data, staged[i].data(),
                                                   slices[i]->values.bytes());
    }

  private:
    const TensorRecord& record_of(const TensorSlice& slice) const {
        const auto place = records_.find(slice.name);
        check<DataError>(place != records_.end(), reader_.path(), " has no tensor '", slice.name, "' among its ",
                         records_.size());
        return place->second;
    }

    void check_fits(const TensorRecord& record, const TensorSlice& slice) const {
        check(slice.values.contiguous(), "a slice of ", slice.name, " must be contiguous");
        for (const HeldBlock& held : slice.blocks)
            check(lies_in(slice.shape, held.block) && held.begin >= 0 &&
                      held.begin + held.block.numel() <= slice.values.numel(),
                  "a slice of ", slice.name, " ", slice.shape, " with ", slice.values.numel(), " values cannot hold ",
                  held.block.sizes, " at ", held.block.offset, " from value ", held.begin);
        check<DataError>(record.shape == slice.shape && record.dtype == slice.values.dtype(), reader_.path(), ": ",
                         record.name, " is ", record.shape, " ", record.dtype, ", the model needs ", slice.shape, " ",
                         slice.values.dtype());
    }

    void read(const TensorRecord& record, const WantedBlocks& wanted) {
        struct Source {
            const StoredBlock* stored;
            const TensorInfo* entry;
            std::span<const Wanted> near;
        };
        std::vector<Source> sources;
        for (const StoredBlock& stored : record.blocks) {
            if (stored.block.numel() == 0) continue;
            const auto near = wanted.near(flat_begin(record.shape, stored.block), flat_end(record.shape, stored.block));
            const auto meets = [&](const Wanted& w) { return intersection(stored.block, w.block).numel() > 0; };
            if (std::any_of(near.begin(), near.end(), meets))
                sources.push_back({&stored, &entry_of(record, stored), near});
        }
        // As they lie in the files, so that no chunk is read twice.
        std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) {
            return std::pair(a.stored->file, a.entry->begin) < std::pair(b.stored->file, b.entry->begin);
        });
        const int64_t size = size_of(record.dtype);
        for (const Source& source : sources) {
            const Block& block = source.stored->block;
            const SafetensorsFile& file = file_of(source.stored->file);
            for (const Wanted& w : source.near) {
                const Block part = intersection(block, w.block);
                if (part.numel() == 0) continue;
                for_each_run(part, block, w.block, [&](int64_t from, int64_t to, int64_t elements) {
                    file.read(*source.entry, from * size, std::span(w.values + to * size, to_size(elements * size)));
                });
            }
        }
    }

    const SafetensorsFile& file_of(int64_t index) {
        auto place = files_.find(index);
        if (place == files_.end()) {
            const std::string& name = reader_.manifest().files.at(to_size(index)).name;
            place = files_.emplace(index, reader_.safetensors(name)).first;
        }
        return place->second;
    }

    const TensorInfo& entry_of(const TensorRecord& record, const StoredBlock& stored) {
        const SafetensorsFile& file = file_of(stored.file);
        const TensorInfo& entry = file.at(entry_name(record.name, record.shape, stored.block));
        check<DataError>(
            entry.dtype == record.dtype && (reader_.manifest().tensors.empty() ||
                                            std::equal(entry.shape.begin(), entry.shape.end(),
                                                       stored.block.sizes.begin(), stored.block.sizes.end())),
            file.path(), ": ", entry.name, " is not the block ", stored.block.sizes, " ", record.dtype,
            " that the manifest says");
        return entry;
    }

    const CheckpointReader& reader_;
    std::map<std::string, TensorRecord> records_;
    std::map<int64_t, SafetensorsFile> files_;
};

}  // namespace

std::vector<TensorRecord> stored_tensors(const CheckpointReader& reader) {
    auto records = reader.manifest().tensors.empty() ? whole_tensors(reader) : reader.manifest().tensors;
    std::sort(records.begin(), records.end(),
              [](const TensorRecord& a, const TensorRecord& b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(records.begin(), records.end(),
                                          [](const auto& a, const auto& b) { return a.name == b.name; });
    check<DataError>(twice == records.end(), reader.path(), ": two files hold ",
                     twice == records.end() ? "" : twice->name);
    return records;
}

void load_slices(const CheckpointReader& reader, const std::vector<TensorSlice>& slices) {
    std::vector<const TensorSlice*> sorted;
    for (const TensorSlice& slice : slices) sorted.push_back(&slice);
    // The order of the files (safetensors_file()), so that their chunks are read once.
    const auto key = [](const TensorSlice* p) {
        return std::pair(-size_of(p->values.dtype()), std::string_view(p->name));
    };
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](const TensorSlice* a, const TensorSlice* b) { return key(a) < key(b); });
    Loader loader(reader);
    for (size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
        while (end < sorted.size() && sorted[end]->name == sorted[begin]->name) ++end;
        loader.load(std::span(sorted).subspan(begin, end - begin));
    }
}

std::vector<std::string> unwanted_tensors(const CheckpointReader& reader, const std::vector<TensorSlice>& slices) {
    std::set<std::string_view> wanted;
    for (const TensorSlice& slice : slices) wanted.insert(slice.name);
    std::vector<std::string> unwanted;
    for (TensorRecord& record : stored_tensors(reader))
        if (!wanted.contains(record.name)) unwanted.push_back(std::move(record.name));
    return unwanted;
}

}  // namespace tutti::checkpoint
