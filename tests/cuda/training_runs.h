// Small runs on the CUDA device of this program: their logs and checkpoints, for tests of whole runs.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/train/testing/small_run.h"

namespace tutti::train {

using Settings = std::vector<std::string>;

inline Settings operator+(Settings a, const Settings& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

struct Logged {
    double loss, grad_norm;
    bool operator==(const Logged&) const = default;
};

class CudaTraining : public SmallRun {
  protected:
    const Settings gpt2_ = {"model.preset=gpt2-124m", "model.width=32",          "model.layers=2", "model.heads=2",
                            "model.kv_heads=2",       "model.head_dim=16",       "model.ffn=64",   "model.vocab=256",
                            "model.max_positions=16", "data.tokenizer=\"bytes\""};
    const Settings f32_ = {"precision.compute=f32"};

    // The losses and norms of a run on `device`.
    std::vector<Logged> run(const std::string& device, const Settings& set, int ranks = 1) {
        const TrainOptions o = options_of(device, set, ranks);
        EXPECT_EQ(train(o).step, o.run.train.steps);
        return metrics(o);
    }
    TrainOptions options_of(const std::string& device, const Settings& set, int ranks = 1) {
        const bool has_model = !set.empty() && set.front().starts_with("model.preset");
        const std::string out = concat("run", runs_++);
        const Settings all = Settings{"train.steps=8", "optimizer.warmup_steps=2", "train.device=" + device} + set;
        if (!has_model) return options(out, all, ranks);
        return options_without_model(out, set + all, ranks);
    }
    static std::vector<Logged> metrics(const TrainOptions& o) {
        return logged(o, [](const std::string& line) {
            const auto json = Json::parse(line);
            return Logged{json.at("loss").get<double>(), json.at("grad_norm").get<double>()};
        });
    }
    // What `call` throws; "" if it throws nothing.
    static std::string refusal(const std::function<void()>& call) {
        try {
            call();
        } catch (const std::exception& error) {
            return error.what();
        }
        return "";
    }
    static void expect_follows(const std::vector<Logged>& gpu, const std::vector<Logged>& cpu, double tolerance) {
        ASSERT_EQ(gpu.size(), cpu.size());
        for (size_t i = 0; i < cpu.size(); ++i) {
            EXPECT_NEAR(gpu[i].loss, cpu[i].loss, tolerance * cpu[i].loss) << "step " << i + 1;
            EXPECT_NEAR(gpu[i].grad_norm, cpu[i].grad_norm, 10 * tolerance * cpu[i].grad_norm) << "step " << i + 1;
        }
    }

  private:
    int runs_ = 0;
};

}  // namespace tutti::train
