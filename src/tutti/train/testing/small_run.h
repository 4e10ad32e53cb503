// train/testing/small_run.h: whole runs of a few thousand parameters over a short text, in a scratch folder.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/base/philox.h"
#include "tutti/base/read_file.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/store.h"
#include "tutti/checkpoint/training_state.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"
#include "tutti/train/trainer.h"
#include "tutti/train/verify.h"

namespace tutti::train {

class SmallRun : public ::testing::Test {
  protected:
    SmallRun() {
        std::string text;
        for (uint64_t i = 0; i < 4000; ++i) text += "abcdefgh \n"[uniform_below(random_key(2, "text"), i, 10)];
        folder_.write("text.txt", text);
    }

    // Checks that the memory of every rank and the communication of the first one in a run's first step were those
    // rehearsed, to the byte.
    void TearDown() override {
        if (!compares_rehearsal_) return;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
            if (entry.path().filename() != "run.json") continue;
            const auto totals = Json::parse(read_file(entry.path().string()));
            if (!totals.contains("rehearsed")) continue;  // the run took no step
            for (const char* key : {"memory", "communication"})
                EXPECT_EQ(totals.at(key), totals.at("rehearsed").at(key)) << entry.path();
            for (const Json& rank : totals.at("ranks"))
                EXPECT_EQ(rank.at("memory"), rank.at("rehearsed")) << entry.path() << " rank " << rank.at("rank");
        }
    }

    bool compares_rehearsal_ = true;  // not where experts have unequal loads: a rehearsal takes them to be equal

    std::string path(const std::string& name) const { return folder_.path(name); }

    // `verify` finds two steps of the layout to be those of one rank.
    static void expect_those_of_one_rank(const TrainOptions& o, const std::string& what) {
        const VerifyOutcome outcome = verify({.run = o.run, .ranks = o.ranks, .steps = 2});
        const VerifiedStep worst = outcome.worst();
        EXPECT_TRUE(outcome.within()) << what << ": gradient " << worst.gradient_difference << ' ' << worst.gradient
                                      << ", weight " << worst.weight_difference << ' ' << worst.weight;
    }

    // A Llama of two blocks that logs every step. `set`: as of `--set`, overrides the values here.
    TrainOptions options(const std::string& out, const std::vector<std::string>& set = {}, int ranks = 1) const {
        std::vector<std::string> all = {
            "model.preset=llama-tiny", "model.width=32",    "model.layers=2", "model.heads=2",
            "model.kv_heads=1",        "model.head_dim=16", "model.ffn=48"};
        all.insert(all.end(), set.begin(), set.end());
        return options_without_model(out, all, ranks);
    }
    // The same without [model].
    TrainOptions options_without_model(const std::string& out, const std::vector<std::string>& set,
                                       int ranks = 1) const {
        std::vector<std::string> all = {"train.seq_len=16",   "train.global_batch=4", "train.micro_batch=2",
                                        "train.threads=1",    "optimizer.lr=0.01",    "log.every=1",
                                        "checkpoint.every=0", "comm.timeout_s=60",    "data.train=" + path("text.txt")};
        all.insert(all.end(), set.begin(), set.end());
        TrainOptions o;
        o.run = spec::parse_text("", "test", all);
        spec::validate(o.run, ranks);
        o.ranks = ranks;
        o.out = path(out);
        return o;
    }

    // The lines of metrics.jsonl, each read by `parse`.
    template <class Parse>
    static auto logged(const TrainOptions& o, Parse parse) {
        std::vector<decltype(parse(std::string()))> lines;
        std::ifstream in(o.out + "/metrics.jsonl");
        for (std::string line; std::getline(in, line);) lines.push_back(parse(line));
        return lines;
    }

    // All tensors of the newest checkpoint, to the byte.
    static std::map<std::string, std::vector<std::byte>> weights(const TrainOptions& o) {
        std::map<std::string, std::vector<std::byte>> all;
        checkpoint::PosixFileSystem files;
        checkpoint::Store store(files, o.out + "/checkpoints", checkpoint::Access::read, [](const std::string&) {});
        const auto newest = store.load_newest(
            [&](const checkpoint::CheckpointReader& reader) {
                all.clear();
                for (int rank = 0; rank < o.ranks; ++rank) {
                    const auto file = reader.safetensors(checkpoint::rank_file_name(rank, o.ranks));
                    for (const auto& tensor : file.tensors()) {
                        auto& bytes = all[tensor.name];
                        bytes.resize(to_size(tensor.bytes()));
                        file.read(tensor.name, bytes);
                    }
                }
            },
            checkpoint::OnDamage::stop);
        EXPECT_TRUE(newest.has_value());
        EXPECT_FALSE(all.empty());
        return all;
    }

    ScratchFolder folder_;
};

}  // namespace tutti::train
