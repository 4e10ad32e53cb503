#include "tutti/train/stored_types.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tutti/base/ceil_div.h"
#include "tutti/base/dynamic_map.h"
#include "tutti/base/to_size.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::train {
namespace {

using checkpoint::CheckpointReader;
using checkpoint::TensorRecord;
using checkpoint::TensorSlice;
using mesh::HeldBlock;

constexpr std::string_view kState = "optimizer.", kLargest = "_absmax", kScales = "precision.";
constexpr std::string_view kFirst = "optimizer.m.", kMomentum = "optimizer.momentum.";  // of AdamW and Lion, of Muon
constexpr int64_t kBlock = kernels::kStateBlock;

// "optimizer.m_absmax.w" for "optimizer.m.w"; "" for a parameter.
std::string largest_of(const std::string& codes) {
    if (!codes.starts_with(kState)) return "";
    const size_t end = codes.find('.', kState.size());
    return codes.substr(0, end) + std::string(kLargest) + codes.substr(end);
}

// "w" of "optimizer.m.w"; "" for a parameter.
std::string parameter_of(const std::string& state) {
    return state.starts_with(kState) ? state.substr(state.find('.', kState.size()) + 1) : "";
}

const DynamicMap& map_of(const std::string& name) {
    return name.starts_with("optimizer.v.") ? kUnsignedMap : kSignedMap;
}

bool is_float(DType type) { return type == DType::f32 || type == DType::bf16; }

// Calls visit(element of the flattened tensor, element of the values, elements) for each stretch of a slice.
template <class Visit>
void for_each_run(const TensorSlice& slice, Visit visit) {
    for (const HeldBlock& held : slice.blocks)
        mesh::for_each_run(held.block, mesh::whole_block(slice.shape), held.block,
                           [&](int64_t global, int64_t local, int64_t n) { visit(global, held.begin + local, n); });
}

void store(const TensorSlice& slice, const std::vector<float>& values) {
    Device& device = slice.values.device();
    if (slice.values.dtype() == DType::f32)
        return device.copy_in(slice.values.view().data, values.data(), slice.values.bytes());
    std::vector<bf16> rounded;
    for (const float x : values) rounded.push_back(bf16(x));
    device.copy_in(slice.values.view().data, rounded.data(), slice.values.bytes());
}

class Conversion {
  public:
    Conversion(const CheckpointReader& reader, const std::vector<TensorSlice>& slices) {
        for (TensorRecord& record : checkpoint::stored_tensors(reader)) {
            std::string name = record.name;
            records_.emplace(std::move(name), std::move(record));
        }
        for (const TensorSlice& slice : slices) wanted_.insert({slice.name, slice.values.dtype()});
        for (const TensorSlice& slice : slices)
            if (slice.name.starts_with(kFirst) && !records_.contains(slice.name) &&
                records_.contains(concat(kMomentum, parameter_of(slice.name))))
                anew_.insert(parameter_of(slice.name));
        for (const TensorSlice& slice : slices)
            if (!begins_anew(slice)) (converts(slice) ? other_ : same_).push_back(slice);
    }

    void load(const CheckpointReader& reader) const {
        checkpoint::load_slices(reader, same_);
        for (const TensorSlice& slice : other_) {
            if (slice.name.find(kLargest) != std::string::npos && !is_codes(slice)) continue;  // with its codes
            const std::vector<float> values = wide(reader, slice);
            if (is_float(slice.values.dtype()))
                store(slice, values);
            else
                store_codes(slice, values);
        }
    }

    // Parameters that another rule of the optimizer updated when the checkpoint was written.
    const std::set<std::string>& anew() const { return anew_; }

    bool converted(const std::string& record) const {
        return std::any_of(other_.begin(), other_.end(),
                           [&](const TensorSlice& slice) { return largest_of(slice.name) == record; });
    }

  private:
    bool begins_anew(const TensorSlice& slice) const {
        if (anew_.contains(parameter_of(slice.name))) return true;
        const auto record = records_.find(slice.name);
        return slice.name.starts_with(kScales) && (record == records_.end() || record->second.shape != slice.shape);
    }
    bool is_codes(const TensorSlice& slice) const { return slice.values.dtype() == DType::u8; }

    // A slice whose tensor the checkpoint has in another type; or the largest magnitudes of such codes.
    bool converts(const TensorSlice& slice) const {
        const auto record = records_.find(slice.name);
        if (record != records_.end())
            return record->second.shape == slice.shape && record->second.dtype != slice.values.dtype();
        const size_t at = slice.name.find(kLargest);
        if (!slice.name.starts_with(kState) || at == std::string::npos) return false;
        const std::string codes = slice.name.substr(0, at) + slice.name.substr(at + kLargest.size());
        const auto wanted = wanted_.find(codes);
        const auto stored = records_.find(codes);
        return wanted != wanted_.end() && wanted->second == DType::u8 && stored != records_.end() &&
               is_float(stored->second.dtype);
    }

    // The values of a slice in f32, from whatever the checkpoint has.
    std::vector<float> wide(const CheckpointReader& reader, const TensorSlice& slice) const {
        const TensorRecord& record = records_.at(slice.name);
        TensorSlice stored = slice;
        stored.values = Tensor::empty(slice.values.device(), slice.values.shape(), record.dtype, Purpose::workspace);
        if (record.dtype != DType::u8) {
            checkpoint::load_slices(reader, {stored});
            return stored.values.to_floats();
        }
        // The blocks that the slice's elements lie in; the slice may hold parts of them.
        const TensorRecord& of_largest = records_.at(largest_of(slice.name));
        std::set<int64_t> blocks;
        for_each_run(slice, [&](int64_t global, int64_t, int64_t n) {
            for (int64_t b = global / kBlock; n > 0 && b <= (global + n - 1) / kBlock; ++b) blocks.insert(b);
        });
        TensorSlice largest{of_largest.name, of_largest.shape, {}, {}};
        std::map<int64_t, size_t> place;
        for (const int64_t b : blocks) {
            const auto at = static_cast<int64_t>(place.size());
            largest.blocks.push_back({mesh::blocks_of_range(of_largest.shape, b, b + 1).front(), at});
            place.emplace(b, to_size(at));
        }
        largest.values =
            Tensor::empty(slice.values.device(), {static_cast<int64_t>(place.size())}, DType::f32, Purpose::workspace);
        checkpoint::load_slices(reader, {stored, largest});
        const auto codes = stored.values.to_host<uint8_t>();
        const auto magnitudes = largest.values.to_host<float>();
        std::vector<float> values(codes.size());
        for_each_run(slice, [&](int64_t global, int64_t local, int64_t n) {
            for (int64_t i = 0; i < n; ++i)
                values[to_size(local + i)] =
                    map_of(slice.name).values[codes[to_size(local + i)]] * magnitudes[place.at((global + i) / kBlock)];
        });
        return values;
    }

    // The run cuts between blocks only, so the slice's values are whole blocks one after another, and padding.
    void store_codes(const TensorSlice& slice, const std::vector<float>& values) const {
        int64_t held = 0;
        for (const HeldBlock& h : slice.blocks) held += h.block.numel();
        const auto largest = std::find_if(other_.begin(), other_.end(), [&](const TensorSlice& other) {
            return other.name == largest_of(slice.name) && other.values.numel() == ceil_div(held, kBlock) &&
                   same_part(slice, other);
        });
        check(largest != other_.end(), slice.name, ": its largest magnitudes are missing");
        std::vector<uint8_t> codes(values.size());
        std::vector<float> magnitudes(to_size(largest->values.numel()));
        const DynamicMap& map = map_of(slice.name);
        for (size_t begin = 0, b = 0; b < magnitudes.size(); begin += kBlock, ++b) {
            const size_t end = std::min(to_size(held), begin + kBlock);
            for (size_t i = begin; i < end; ++i) magnitudes[b] = std::max(magnitudes[b], std::abs(values[i]));
            for (size_t i = begin; i < end; ++i) codes[i] = map.code_of(values[i], magnitudes[b]);
        }
        slice.values.device().copy_in(slice.values.view().data, codes.data(), slice.values.bytes());
        largest->values.device().copy_in(largest->values.view().data, magnitudes.data(), largest->values.bytes());
    }

    // Slices of one shard follow one another: the codes', then their magnitudes'.
    bool same_part(const TensorSlice& codes, const TensorSlice& largest) const {
        if (codes.blocks.empty() || largest.blocks.empty()) return codes.blocks.empty() == largest.blocks.empty();
        return mesh::flat_begin(codes.shape, codes.blocks.front().block) / kBlock ==
               mesh::flat_begin(largest.shape, largest.blocks.front().block);
    }

    std::map<std::string, TensorRecord> records_;
    std::map<std::string, DType> wanted_;
    std::set<std::string> anew_;
    std::vector<TensorSlice> same_, other_;
};

}  // namespace

void load_converted(const CheckpointReader& reader, const std::vector<TensorSlice>& slices) {
    Conversion(reader, slices).load(reader);
}

std::vector<std::string> left_over(const CheckpointReader& reader, const std::vector<TensorSlice>& slices) {
    const Conversion conversion(reader, slices);
    std::vector<std::string> names = checkpoint::unwanted_tensors(reader, slices);
    std::erase_if(names, [&](const std::string& name) {
        return name.starts_with(kScales) || conversion.converted(name) ||
               conversion.anew().contains(parameter_of(name));
    });
    return names;
}

std::vector<std::string> begun_anew(const CheckpointReader& reader, const std::vector<TensorSlice>& slices) {
    const Conversion conversion(reader, slices);
    return {conversion.anew().begin(), conversion.anew().end()};
}

}  // namespace tutti::train
