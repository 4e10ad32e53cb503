// 08: rehearse, then train. A rehearsal is a step of the real engine on memory that is only counted, with kernels that
// compute nothing, in a world without peers: it needs no data, no ranks and not the machine that the run is for.
//   08_rehearse_then_train TEXT
// Rehearses every rank of a run, then trains it and counts FLOPs, bytes sent by group and operation, and memory by
// purpose at the peak of the first step. All must be as rehearsed, to the byte. Prints them, and the loss that falls
// meanwhile.
#include <cstdio>
#include <string>
#include <vector>

#include "tutti/base/units.h"
#include "tutti/comm/launcher.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/data/data_set.h"
#include "tutti/engine/step.h"
#include "tutti/rehearsal/present.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

using namespace tutti;

constexpr int kRanks = 4;
constexpr const char* kConfig = R"(
    model.preset = "llama-tiny"
    parallel.tp = 2
    parallel.zero = 3
    recompute.policy = "selective"
    optimizer.lr = 3e-3
    [train]
    steps = 20
    seq_len = 64
    global_batch = 8
    micro_batch = 4
    threads = 1
)";

// Adds up the FLOPs of every kernel that a context runs.
struct FlopCounter final : ops::Meter {
    double flops = 0;
    void after_kernel(Device&, const char*, const kernels::Work& work) override { flops += work.flops; }
};

int64_t sent(const std::vector<parallel::GroupTraffic>& traffic) {
    int64_t bytes = 0;
    for (const parallel::GroupTraffic& t : traffic) bytes += t.traffic.sent;
    return bytes;
}

int main(int argc, char** argv) try {
    check<UsageError>(argc == 2, "required: a text to learn; usage: 08_rehearse_then_train TEXT");
    const spec::RunSpec run =
        spec::parse_text(kConfig, "08_rehearse_then_train", {std::string("data.train=") + argv[1]});
    spec::validate(run, kRanks);

    const auto machine_of = [&](int rank) { return engine::machine_of(run, comm::local_rank({}, rank, kRanks), ""); };
    std::vector<rehearsal::Rehearsal> rehearsed;
    for (int rank = 0; rank < kRanks; ++rank)
        rehearsed.push_back(rehearsal::rehearse(run, rehearsal::target_of(machine_of(rank)), kRanks, rank));

    const data::DataSet data = data::open(run.data, run.model.vocab, run.train.seq_len);
    comm::run_ranks(kRanks, engine::world_options(run, ""), [&](comm::World& world) {
        engine::Engine engine(run, world, machine_of(world.rank()), engine::training_batches(run, &data));
        const rehearsal::Rehearsal& expected = rehearsed[world.rank()];
        FlopCounter counter;
        engine.ctx.meter = &counter;
        engine.device->memory().reset_peaks();
        const auto before = engine.groups.traffic();
        const double first_loss = engine::train_step(engine, 1).loss;
        const auto traffic = parallel::difference(engine.groups.traffic(), before);
        const MemoryByPurpose memory = engine.device->memory().at_peak();
        engine.ctx.meter = nullptr;

        check(counter.flops == expected.flops, "rank ", world.rank(), ": required: ", expected.flops,
              " FLOPs, as rehearsed, counted ", counter.flops);
        check(memory == expected.memory.at_peak, "rank ", world.rank(), ": required: memory as rehearsed, ",
              rehearsal::to_json(expected.memory.at_peak), ", counted ", rehearsal::to_json(memory));
        check(rehearsal::to_json(traffic) == rehearsal::to_json(expected.communication), "rank ", world.rank(),
              ": required: communication as rehearsed, ", rehearsal::to_json(expected.communication), ", counted ",
              rehearsal::to_json(traffic));

        double loss = first_loss;
        for (int64_t step = 2; step <= run.train.steps; ++step) loss = engine::train_step(engine, step).loss;
        engine.data_parallel->wait_for_weights();
        check(loss < first_loss, "required: a loss below ", first_loss, " after ", run.train.steps, " steps, got ",
              loss);
        if (world.rank() != 0) return;
        std::printf("rank 0, rehearsed = counted: %s, %s sent, %s of memory at the peak, which is %s\n",
                    format_flops(counter.flops).c_str(), format_bytes(sent(traffic)).c_str(),
                    format_bytes(memory.total()).c_str(), expected.memory.peak_place.c_str());
        for (const Purpose purpose : kAllPurposes)
            std::printf("  %-14s %s\n", std::string(name_of(purpose)).c_str(), format_bytes(memory[purpose]).c_str());
        for (const parallel::GroupTraffic& t : traffic)
            std::printf("  %-14s %lld x %s, %s sent\n", t.group.c_str(), static_cast<long long>(t.traffic.calls),
                        std::string(comm::name_of(t.operation)).c_str(), format_bytes(t.traffic.sent).c_str());
        std::printf("loss %.4f, after %lld steps %.4f\n", first_loss, static_cast<long long>(run.train.steps), loss);
    });
} catch (const Error& error) {
    std::fprintf(stderr, "08_rehearse_then_train: %s\n", error.what());
    return error.exit_code();
}
