// nn/testing/sequence_share.h: one rank's part of sequences that a context group shares, for the tests of layers that
// mix neighbouring tokens.
#pragma once

#include <memory>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/nn/functions.h"

namespace tutti::nn {

// Normal values that depend on `purpose` and their index alone.
inline std::vector<float> numbers(int64_t count, const char* purpose) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i)
        values.push_back(static_cast<float>(normal(random_key(1, purpose), static_cast<uint64_t>(i))));
    return values;
}

struct SequenceShare {
    // Of `sequences` of `length` tokens each. `ulysses` of the ranks exchange heads, the others keys. Positions begin
    // at 0 every `document` tokens.
    SequenceShare(Device& device, comm::World& world, int ulysses, int64_t sequences, int64_t length, int64_t document)
        : device_(device), all_(world.everyone("cp")) {
        const int ranks = world.size();
        std::vector<int> peers;  // that exchange heads with this rank: only their number matters
        for (int i = 0; i < ulysses; ++i) peers.push_back(world.rank() / ulysses * ulysses + i);
        heads_ = world.group("cp_ulysses", peers);
        const SequencePart part{world.rank(), ranks, ulysses};
        for (int64_t b = 0; b < sequences; ++b)
            for (const TokenRun& run : runs_of(part, length))
                for (int64_t i = 0; i < run.tokens; ++i) tokens.push_back(b * length + run.begin + i);
        std::vector<int32_t> positions;
        for (const int64_t token : tokens) positions.push_back(static_cast<int32_t>(token % length % document));
        shape_ = {sequences, length / ranks};
        batch.positions = Tensor::from_host<int32_t>(device, shape_, positions, Purpose::data);
        if (ranks > 1) batch.context = {.ulysses = ulysses > 1 ? heads_.get() : nullptr, .all = all_.get()};
    }

    // This rank's rows of `width` values among those of all tokens.
    Tensor own(const std::vector<float>& whole, int64_t width) const {
        std::vector<float> values;
        for (const int64_t token : tokens)
            values.insert(values.end(), whole.begin() + token * width, whole.begin() + (token + 1) * width);
        return Tensor::from_host<float>(device_, {shape_[0], shape_[1], width}, values, Purpose::data);
    }

    std::vector<int64_t> tokens;  // of this rank, in its order: b T + t
    Batch batch;

  private:
    Device& device_;
    std::unique_ptr<comm::Communicator> all_, heads_;
    Shape shape_;
};

}  // namespace tutti::nn
