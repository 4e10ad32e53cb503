// train/testing/saved_rank.h: one rank of a run that is only saved and resumed: ranges of flattened tensors with uneven
// cuts, whose values follow from tensor, element and step.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/world.h"
#include "tutti/spec/run_spec.h"
#include "tutti/train/checkpointing.h"
#include "tutti/train/memory_copies.h"

namespace tutti::train {

struct NamedShape {
    const char* name;
    Shape shape;
};
inline const NamedShape kTensors[] = {{"w", {7, 5}}, {"b", {5}}, {"optimizer.m.w", {7, 5}}, {"one", {1}}};

inline float value_of(size_t tensor, int64_t element, int64_t step) {
    return static_cast<float>(1000 * step + 100 * static_cast<int64_t>(tensor) + element);
}

// One rank of a run: its pieces, and the step whose values they hold.
class SavedRank {
  public:
    SavedRank(comm::World& world, const spec::RunSpec& run, const std::string& directory,
              checkpoint::FileSystem* files = nullptr, MemoryCopies* memory = nullptr)
        : device_(make_cpu_device(1)), group_(group_of(world)) {
        const int64_t n = world.size(), r = world.rank();
        for (size_t t = 0; t < std::size(kTensors); ++t) {
            const int64_t all = kTensors[t].shape.numel();
            // Squares: uneven, and the first ranks of many have nothing.
            const int64_t begin = all * r * r / (n * n), end = all * (r + 1) * (r + 1) / (n * n);
            if (begin == end) continue;
            slices_.push_back({.name = kTensors[t].name,
                               .shape = kTensors[t].shape,
                               .blocks = mesh::blocks_of_range(mesh::whole_part(kTensors[t].shape), begin, end),
                               .values = Tensor::empty(*device_, {end - begin}, DType::f32, Purpose::weights)});
            tensors_.push_back(t);
            begins_.push_back(begin);
        }
        set(0);
        checkpoints.emplace(Checkpointing::Setup{.run = run,
                                                 .directory = directory,
                                                 .data_fingerprint = [](int64_t) { return "data"; },
                                                 .slices = [this] { return slices_; },
                                                 .warn = [this](const std::string& text) { warn(text); },
                                                 .ranks = group_.get(),
                                                 .memory = memory,
                                                 .files = files});
    }

    void set(int64_t step) {
        for_each([&](float& x, float value) { x = value; }, step);
    }
    // Whether every value is that of the step.
    bool holds(int64_t step) {
        bool equal = true;
        for_each([&](float& x, float value) { equal = equal && x == value; }, step);
        return equal;
    }
    // One iteration of a training loop.
    void step_and_save(int64_t step) {
        set(step);
        checkpoints->save({.step = step, .updates = step, .tokens = 10 * step});
        set(-1);  // training goes on
        checkpoints->poll();
        checkpoints->wait();
    }
    // The same, with a copy in memory.
    void step_and_copy(int64_t step) {
        set(step);
        checkpoints->copy({.step = step, .updates = step, .tokens = 10 * step});
        set(-1);  // training goes on
        checkpoints->poll();
        checkpoints->wait();
    }
    int64_t resumed_step(const std::string& mode = "auto") {
        const auto state = checkpoints->resume(mode);
        if (!state) return -1;
        EXPECT_TRUE(holds(state->step));
        EXPECT_EQ(state->tokens, 10 * state->step);
        return state->step;
    }
    std::string warnings() {
        const std::lock_guard lock(mutex_);
        return warnings_;
    }

  private:
    static std::unique_ptr<comm::Communicator> group_of(comm::World& world) {
        std::vector<int> ranks;
        for (int r = 0; r < world.size(); ++r) ranks.push_back(r);
        return world.group("dp", ranks);
    }
    template <class F>
    void for_each(F f, int64_t step) {
        for (size_t p = 0; p < slices_.size(); ++p)
            for (int64_t i = 0; i < slices_[p].values.numel(); ++i)
                f(slices_[p].values.view().as<float>()[i], value_of(tensors_[p], begins_[p] + i, step));
    }
    void warn(const std::string& text) {
        const std::lock_guard lock(mutex_);
        warnings_ += text + "\n";
        if (on_warning) on_warning();
    }

    std::unique_ptr<Device> device_;
    std::unique_ptr<comm::Communicator> group_;
    std::vector<checkpoint::TensorSlice> slices_;
    std::vector<size_t> tensors_;
    std::vector<int64_t> begins_;  // first elements of the pieces
    std::mutex mutex_;
    std::string warnings_;

  public:
    std::function<void()> on_warning;
    std::optional<Checkpointing> checkpoints;  // last: when a rank dies, its job still uses the others
};

}  // namespace tutti::train
