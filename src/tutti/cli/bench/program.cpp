// cli/bench/program.cpp: the commands of `tutti bench` and their options.
#include "tutti/base/error.h"
#include "tutti/base/strings.h"
#include "tutti/cli/bench/bench.h"
#include "tutti/cli/forecast.h"
#include "tutti/simulate/profile.h"
#include "tutti/spec/model_spec.h"

namespace tutti::cli {

namespace {

struct CalibrateArguments {
    std::string out;
};

int calibrate(const CalibrateArguments& a, const Io& io) {
    std::ostream& text = io.text();
    const simulate::MachineProfile profile =
        simulate::calibrate([&](const std::string& what) { text << what << std::endl; });
    write_file("OUT", a.out, to_json(profile).dump() + "\n");
    text << "written to " << a.out << std::endl;
    io.next({concat("tutti simulate CONFIG --profile ", quoted_for_shell(a.out))});
    io.print(Json{{"profile", a.out}, {"machine", profile.machine}});
    return 0;
}

Command calibrate_command(Arguments& all, const Io& io) {
    auto& a = all.add<CalibrateArguments>();
    return command_of("calibrate", "time the kernels and operations of this machine for `tutti simulate`", a, io,
                      calibrate, {required({"OUT", "", "", "JSON file to write the profile to", &a.out, kOutput})},
                      "This takes one to two minutes; no other program should run meanwhile.\n\n"
                      "Examples:\n"
                      "  tutti bench calibrate here.json\n"
                      "  tutti simulate run.toml --profile here.json --ranks 4");
}

Option progress_thread_option(bool& progress_thread) {
    return {"--progress-thread", "", "", "communicate in a separate thread on each rank", &progress_thread};
}

Command bench_comm_command(Arguments& all, const Io& io) {
    auto& a = all.add<BenchCommArguments>();
    return command_of("comm", "collectives of 1 KiB to 64 MiB, relative to the rate of a copy", a, io, bench_comm,
                      joined_options({measuring_options(a, "2"), {progress_thread_option(a.progress_thread)}}),
                      "Examples:\n"
                      "  tutti bench comm --ranks 4\n"
                      "  mpirun -n 4 tutti bench comm");
}

Command bench_pipeline_command(Arguments& all, const Io& io) {
    auto& a = all.add<BenchPipelineArguments>();
    const auto time = [](const char* name, double& ms, const char* what) {
        return Option{name, "MS", "10", what, &ms, Between{0, 1e6}};
    };
    const Options options = {
        {"--kind", "KIND", "all", "a schedule, or all", &a.kind},
        {"--stages", "P", "4", "pipeline ranks", &a.stages, Between{1, 4096}},
        {"--virtual", "V", "2", "stages per rank, where a schedule leaves them free", &a.chunks, Between{1, 4096}},
        {"--microbatches", "M", "16", "microbatches of a step", &a.microbatches, Between{1, 1 << 20}},
        time("--f", a.forward, "forward of a rank's part of the model, in ms"),
        time("--i", a.backward_input, "input gradients of that part, in ms"),
        time("--w", a.backward_weight, "weight gradients of that part, in ms"),
        {"--repeats", "N", "3", "runs, whose median is shown", &a.repeats, Between{1, 1000}},
        progress_thread_option(a.progress_thread)};
    return command_of("pipeline", "pipeline schedules, measured, beside their predicted timelines", a, io,
                      bench_pipeline, options,
                      "Waits replace compute; messages and their order are those of training. So the measured time is\n"
                      "the predicted time and the cost of the messages.\n\n"
                      "Examples:\n"
                      "  tutti bench pipeline --stages 8 --microbatches 32\n"
                      "  mpirun -n 8 tutti bench pipeline --kind zb-v");
}

}  // namespace

Command bench_command(Arguments& all, const Io& io) {
    auto& a = all.add<BenchArguments>();
    const auto benchmark = [&a, &io](const char* name, const char* description, BenchResult (*measure)(Bench&),
                                     const Options& more, const char* footer) {
        const bool makes_products = measure == bench_gemm || measure == bench_step;
        Choices types = {"bf16", "f16", "f32"};
        if (makes_products) types.emplace_back("tf32");
        const Option dtype = {"--dtype", "TYPE",
                              "",        makes_products ? "[bf16], f16, f32, or tf32 on a GPU" : "[bf16], f16 or f32",
                              &a.dtype,  types};
        const Options shared = {dtype, device_option(a.device), threads_option(a.threads), seconds_option(a.seconds)};
        return Command{name, description, joined_options({shared, more}), footer, [&a, &io, name, measure] {
                           a.name = name;
                           a.measure = measure;
                           return bench(a, io);
                       }};
    };
    return {
        .name = "bench",
        .description = "measure the machine's limits, and how near Tutti comes to them",
        .footer =
            "Examples:\n"
            "  tutti bench memory\n"
            "  tutti bench gemm --dtype f32 --seconds 60\n"
            "  tutti bench step --model llama-20m",
        .commands = {
            benchmark("gemm", "matrix products from N = 512 on, relative to the peak", bench_gemm,
                      joined_options(
                          {{{"--model", "PRESET", "", "also measure the products of a preset such as gpt2-124m",
                             &a.model, Suggestions{spec::preset_names()}},
                            {"--sizes", "MxKxN,...", "", "products (M, K) x (K, N) in place of the sweep", &a.sizes}},
                           without({"--model", "--device", "--threads", "--seconds"},
                                   {{"--cluster,--for", "NAME|FILE", "", "predict for this machine; measure nothing",
                                     &a.cluster, Suggestions{hardware::cluster_names(), true}}}),
                           beside({"--cluster"}, {set_cluster_option(a.set_cluster)})}),
                      "Examples:\n"
                      "  tutti bench gemm --model llama-110m\n"
                      "  tutti bench gemm --sizes 256x4096x4096\n"
                      "  tutti bench gemm --cluster h100"),
            benchmark("attention", "causal attention of 1024 to 16384 tokens", bench_attention,
                      joined_options(
                          {{{"--window", "N", "0", "keys of a sliding window; 0: no window", &a.window,
                             Between{0, int64_t{1} << 31}},
                            {"--by", "KERNELS", "", "kernels of a GPU to time, repeatable [own, and cudnn where it is]",
                             &a.by, Choices{"own", "cudnn", "tensor", "plain"}}},
                           without({"--window", "--by", "--seconds"},
                                   {{"--tune", "FILE", "",
                                     "write times of the attention of a step, for train.attention_tuning", &a.tune,
                                     kOutput}}),
                           beside({"--tune"}, {{"--model", "PRESET", "", "model [llama-tiny]", &a.model,
                                                Suggestions{spec::preset_names()}},
                                               set_option(a.set, "set a key of the config; repeatable")})}),
                      "Examples:\n"
                      "  tutti bench attention --seconds 60\n"
                      "  tutti bench attention --window 1024\n"
                      "  tutti bench attention --tune attention.json --model llama3.2-1b --set train.seq_len=4096"),
            benchmark("memory", "memory bandwidth, and the share that kernels reach", bench_memory, {},
                      "Example:\n  tutti bench memory --threads 1"),
            benchmark("step", "a training step and its MFU", bench_step,
                      {{"--model", "PRESET", "", "model [llama-tiny]", &a.model, Suggestions{spec::preset_names()}},
                       set_option(a.set, "set a key of the config; repeatable"),
                       {"--kernels", "", "", "also show the time of each kernel beside its lower bound", &a.kernels},
                       {"--tune", "FILE", "", "write the fastest cuBLASLt algorithms, for train.gemm_tuning", &a.tune,
                        kOutput}},
                      "Examples:\n"
                      "  tutti bench step --model llama-5m --kernels\n"
                      "  tutti bench step --model gpt2-124m --set train.seq_len=1024 --set train.micro_batch=4\n"
                      "  tutti bench step --model mlp-8192 --set model.width=2048 --dtype f32\n"
                      "  tutti bench step --model gpt2-124m --set train.seq_len=1024 --tune products.json\n"
                      "  tutti bench step --model llama3.2-1b --set parallel.tp=2 --tune products.json"),
            of_ranks(bench_comm_command(all, io)), of_ranks(bench_pipeline_command(all, io)),
            calibrate_command(all, io)}};
}

}  // namespace tutti::cli
