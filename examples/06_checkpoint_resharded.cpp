// 06: a checkpoint resharded. Ranks save rectangles of global tensors, so any layout loads what any other has saved.
//   06_checkpoint_resharded
// Four ranks train a Llama with FSDP and save. Other layouts load the checkpoint. Every weight and moment is put
// together from the memory of the ranks, on both sides, and compared bit for bit. Prints how many tensors and values
// those are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/comm/launcher.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"
#include "tutti/train/checkpointing.h"

using namespace tutti;

constexpr const char* kDirectory = "06_checkpoints";
constexpr const char* kConfig = R"(
    model.preset = "llama-tiny"
    data.train = "random tokens"
    [train]
    steps = 2
    seq_len = 32
    global_batch = 12
    micro_batch = 1
    threads = 1
)";
using Tensors = std::map<std::string, std::vector<float>>;  // whole, by name

// One rank's slices into the whole tensors. A slice lists rectangles of its tensor, and where they lie in its memory.
void add_to(Tensors& whole, const std::vector<checkpoint::TensorSlice>& slices) {
    for (const checkpoint::TensorSlice& slice : slices) {
        const std::vector<float> values = slice.values.to_host<float>();
        // NaN, which equals nothing, stays where no rank holds an element.
        auto& to = whole.try_emplace(slice.name, slice.shape.numel(), NAN).first->second;
        for (const auto& [block, begin] : slice.blocks)
            mesh::for_each_run(block, mesh::whole_block(slice.shape), block,
                               [&, from = values.begin() + begin](int64_t in_tensor, int64_t in_block, int64_t n) {
                                   std::copy_n(from + in_block, n, to.begin() + in_tensor);
                               });
    }
}

// The state of all ranks under this layout: after two steps and a save, or as loaded.
Tensors state_of(int ranks, const std::vector<std::string>& layout, bool loads) {
    const spec::RunSpec run = spec::parse_text(kConfig, "06_checkpoint_resharded", layout);
    spec::validate(run, ranks);
    Tensors whole;
    std::mutex mutex;
    comm::run_ranks(ranks, engine::world_options(run, ""), [&](comm::World& world) {
        engine::Engine engine(
            run, world, engine::machine_of(run, comm::local_rank({}, world.rank(), ranks), ""),
            [&](ops::Context& ctx, const engine::BatchShard& share) { return engine::fixed_batches(ctx, run, share); });
        train::Checkpointing checkpoints({.run = run,
                                          .directory = kDirectory,
                                          .data_fingerprint = [](int64_t) { return "random tokens"; },
                                          .slices = [&] { return train::state_slices(engine); },
                                          .warn = [](const std::string& text) { throw Error(text); },
                                          .ranks = &engine.groups.world()});
        if (loads) {
            engine.data_parallel->load_masters([&] { checkpoints.resume("strict"); });
        } else {
            for (int64_t step = 1; step <= 2; ++step) engine::train_step(engine, step);
            checkpoints.save({.step = 2, .updates = 2});
            checkpoints.wait();
        }
        engine.data_parallel->wait_for_weights();
        const std::lock_guard lock(mutex);
        add_to(whole, train::state_slices(engine));
    });
    return whole;
}

int main() try {
    std::filesystem::remove_all(kDirectory);
    const Tensors saved = state_of(4, {"parallel.zero=3"}, false);
    struct Layout {
        int ranks;
        std::vector<std::string> set;
    };
    for (const auto& [ranks, set] : std::vector<Layout>{{1, {}},
                                                        {3, {"parallel.zero=1"}},
                                                        {4, {"parallel.tp=2", "parallel.pp=2"}},
                                                        {8, {"parallel.tp=2", "parallel.cp=2", "parallel.zero=3"}}}) {
        const Tensors loaded = state_of(ranks, set, true);
        int64_t values = 0;
        check(loaded.size() == saved.size(), "required: ", saved.size(), " tensors, got ", loaded.size());
        for (const auto& [name, expected] : saved) {
            check(loaded.at(name) == expected, name, " on ", ranks, " ranks: required: the saved bits, got others");
            values += static_cast<int64_t>(expected.size());
        }
        std::string layout;
        for (const std::string& s : set) layout += ", " + s;
        std::printf("4 ranks, FSDP -> %d rank%s%s: %zu tensors, %lld values, every bit equal\n", ranks,
                    ranks == 1 ? "" : "s", layout.c_str(), loaded.size(), static_cast<long long>(values));
    }
} catch (const Error& error) {
    std::fprintf(stderr, "06_checkpoint_resharded: %s\n", error.what());
    return error.exit_code();
}
