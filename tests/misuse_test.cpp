// Common mistakes and failures: each gives a message with its place and the exit code of docs/design.md, and loses
// nothing.
#include <fcntl.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>

#include "program.h"
#include "tutti/base/json.h"

namespace tutti::testing {
namespace {

using Misuse = ProgramTest;

// A refusal ends with this code, and its last line names the cause or the way out.
void expect_refused(const Result& r, int exit_code, const std::string& in_last_line) {
    EXPECT_EQ(r.exit_code, exit_code) << r.out << r.err;
    const size_t end = r.err.find_last_not_of('\n');
    const size_t begin = end == std::string::npos ? 0 : r.err.rfind('\n', end) + 1;
    expect_contains(r.err.substr(begin), in_last_line);
}

// Sets one f32 value of a safetensors file of an export on purpose: the file of digests is removed with it.
void set_value(const fs::path& file, const std::string& tensor, size_t index, float value) {
    std::string bytes = read_file(file);
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const auto entry = Json::parse(bytes.substr(8, header)).at(tensor);
    const size_t begin = 8 + header + entry.at("data_offsets").at(0).get<size_t>();
    ASSERT_EQ(entry.at("dtype"), "F32");
    std::memcpy(bytes.data() + begin + index * sizeof value, &value, sizeof value);
    std::ofstream(file, std::ios::binary) << bytes;
    fs::remove(file.parent_path() / "XXH128SUMS");
}

// One bit of a file is the other one.
void flip(const fs::path& file, size_t byte) {
    std::string bytes = read_file(file);
    bytes.at(byte) = static_cast<char>(bytes.at(byte) ^ 1);
    std::ofstream(file, std::ios::binary) << bytes;
}

TEST_F(Misuse, MissingEmptyAndShortText) {
    const Result missing = train("run", {"data.train=" + path("nowhere.txt")});
    EXPECT_EQ(missing.exit_code, 3);
    expect_contains(missing.err, path("nowhere.txt"));
    expect_contains(missing.err, "No such file or directory");

    write("empty.txt", "");
    const Result empty = train("run", {"data.train=" + path("empty.txt")});
    EXPECT_EQ(empty.exit_code, 3);
    expect_contains(empty.err, path("empty.txt"));

    write("short.txt", "abc");
    const Result too_short = train("run", {"data.train=" + path("short.txt")});
    EXPECT_EQ(too_short.exit_code, 3);
    expect_contains(too_short.err, "17");  // tokens that one window of 16 needs
    EXPECT_FALSE(fs::exists(path("run") + "/metrics.jsonl"));
}

TEST_F(Misuse, ARefusedStartLeavesNoDirectory) {
    write("short.txt", "abc");
    fs::create_directory(path("mine"));
    for (const std::string& why :
         {"data.train=" + path("nowhere.txt"), "data.train=" + path("short.txt"), "model.hf=" + path("nowhere"),
          std::string("train.seq_len=100000000"), "train.gemm_tuning=" + path("short.txt"),
          "parallel.schedule=" + path("no.csv"), std::string("--resume")})
        for (const char* out : {"run", "mine", "a/new/run"}) {
            std::vector<std::string> words = train_arguments(out, {});
            words.insert(words.end(), {why == "--resume" ? why : "--set", why == "--resume" ? path("nowhere") : why});
            const Result r = run(words);
            EXPECT_NE(r.exit_code, 0) << why;
            if (std::string(out) == "mine")
                EXPECT_TRUE(fs::is_empty(path("mine"))) << why;
            else
                EXPECT_FALSE(fs::exists(path(out))) << why;
        }
}

TEST_F(Misuse, UnknownKeyWrongTypeImpossibleSizesAllAtOnce) {
    write("bad.toml", "[train]\nstesp = 3\nseq_len = \"long\"\n[modle]\nwidth = 3\n");
    const Result r = run({"train", path("bad.toml"), "--out", path("run")});
    EXPECT_EQ(r.exit_code, 2);
    expect_contains(r.err, "bad.toml:2:");
    expect_contains(r.err, "the nearest is [train] steps");
    expect_contains(r.err, "bad.toml:3:");
    expect_contains(r.err, "modle");

    const Result sizes = train("run", {"model.heads=3", "train.global_batch=5", "train.micro_batch=2"});
    EXPECT_EQ(sizes.exit_code, 2);
    expect_contains(sizes.err, "[model] kv_heads");
    expect_contains(sizes.err, "global_batch = 5");
    EXPECT_FALSE(fs::exists(path("run")));
}

TEST_F(Misuse, WhatDoesNotExistYetIsRefused) {
    for (const char* request : {"parallel.tp=2", "precision.fp8=block"}) {
        const Result r = train("run", {request});
        EXPECT_EQ(r.exit_code, 2) << request << r.err;
        EXPECT_FALSE(r.err.empty());
    }
}

TEST_F(Misuse, AGpuThatIsNotThere) {
    const auto hide_gpus = [] { setenv("CUDA_VISIBLE_DEVICES", "", 1); };
    const Result r = run(train_arguments("run", {"train.device=cuda", "data.train=nowhere"}), hide_gpus);
    EXPECT_EQ(r.exit_code, 2);
    expect_contains(r.err, "device = \"cuda\": ");
    expect_contains(r.err, "tutti doctor");
    EXPECT_FALSE(fs::exists(path("run")));
    EXPECT_EQ(run(train_arguments("run", {"train.device=auto"}), hide_gpus).exit_code, 0);
}

TEST_F(Misuse, AnInstructionSetThatIsNotThere) {
    const auto name = [](const char* isa) { return [isa] { setenv("TUTTI_CPU_ISA", isa, 1); }; };
    const Result r = run(train_arguments("run", {"train.device=cpu"}), name("avx1024"));
    EXPECT_EQ(r.exit_code, 2) << r.err;
    expect_contains(r.err, "TUTTI_CPU_ISA must be one of this processor's (avx2");
    expect_contains(r.err, "got \"avx1024\"");
    EXPECT_FALSE(fs::exists(path("run") + "/metrics.jsonl"));
    const Result least = run({"doctor"}, name("avx2"));
    EXPECT_EQ(least.exit_code, 0) << least.err;
    expect_contains(least.out, "cpu-avx2\n");
    EXPECT_EQ(run(train_arguments("run", {"train.device=cpu"}), name("avx2")).exit_code, 0);
    const Result empty = run({"doctor"}, name(""));
    EXPECT_EQ(empty.exit_code, 0) << empty.err << empty.out;
}

// Terabytes of weights: had one of them been allocated, the system would have refused it, with exit code 4.
TEST_F(Misuse, ARunThatDoesNotFitIsRefusedBeforeAnythingIsAllocated) {
    const Result r = train("run", {"train.device=cpu", "model.width=65536", "model.heads=512", "model.kv_heads=512",
                                   "model.head_dim=128", "model.ffn=262144", "model.layers=8"});
    EXPECT_EQ(r.exit_code, 2) << r.err;  // before a rehearsal, which takes long for large models
    expect_contains(r.err, "this run does not fit, by its weights and gradients alone: a rank needs ");
    expect_contains(r.err, "--force");
    const Result behind =
        train("run", {"train.device=cpu", "train.micro_batch=16777216", "train.global_batch=16777216"});
    EXPECT_EQ(behind.exit_code, 2) << behind.err;
    expect_contains(behind.out, "plan: ");
    expect_contains(behind.err, "this run does not fit: a rank needs ");
    expect_contains(behind.err, "--force");
    EXPECT_FALSE(fs::exists(path("run") + "/checkpoints"));
    auto fits = train_arguments("run");
    fits.emplace_back("--force");
    EXPECT_EQ(run(fits).exit_code, 0);
}

TEST_F(Misuse, ADryRunSaysWhetherThisHostHasTheMemory) {
    const auto dry = [&](const std::vector<std::string>& more) {
        std::vector<std::string> arguments = {"train", path("tiny.toml"), "--set", "train.device=cpu", "--dry-run"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        const Result r = run(arguments);
        EXPECT_EQ(r.exit_code, 0) << r.err;
        return r.out;
    };
    expect_contains(dry({}), ": `tutti train` would start\n");
    // As ARunThatDoesNotFit.
    expect_contains(dry({"--set", "model.width=65536", "--set", "model.heads=512", "--set", "model.kv_heads=512",
                         "--set", "model.head_dim=128", "--set", "model.ffn=262144", "--set", "model.layers=8"}),
                    "`tutti train` would refuse this run unless --force is given\n");
    const auto json = Json::parse(dry({"--json", "--ranks", "2", "--set", "train.micro_batch=2"}));
    EXPECT_EQ(json.at("memory_here").at("ranks"), 2);
    EXPECT_TRUE(json.at("memory_here").at("fits").get<bool>());
    EXPECT_EQ(dry({"--for", "h100"}).find("on this host "), std::string::npos);  // of another machine
}

TEST_F(Misuse, OffloadNeedsADirectoryWithSpaceAndWeightsInShards) {
    Result r = train("run", {"offload.optimizer=true", "offload.dir=/proc/tutti"});
    EXPECT_EQ(r.exit_code, 2) << r.err;
    expect_contains(r.err, "offload.dir /proc/tutti: cannot be made");
    r = train("run", {"offload.params=true"});
    EXPECT_EQ(r.exit_code, 2) << r.err;
    expect_contains(r.err, "set zero = 3");
    r = run(train_arguments("run", {"offload.optimizer=true"}), [] {
        const rlimit limit{100'000, 100'000};
        setrlimit(RLIMIT_FSIZE, &limit);
    });
    EXPECT_EQ(r.exit_code, 4) << r.err;
    expect_contains(r.err, "run/offload is full");
    r = train("run", {"offload.optimizer=true", "offload.activations=true"});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_TRUE(fs::is_empty(folder_ / "run/offload"));
}

TEST_F(Misuse, VerifyComparesAndRefusesWhatTrainRefuses) {
    std::vector<std::string> arguments = {
        "verify", path("tiny.toml"), "--set", "parallel.zero=3", "--set", "train.micro_batch=2", "--ranks",
        "2",      "--steps",         "1",     "--json"};
    Result r = run(arguments);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    const auto json = Json::parse(r.out);
    EXPECT_LT(json.at("max_gradient_difference").get<double>(), 1e-5);
    EXPECT_EQ(json.at("max_loss_difference").get<double>(), 0);
    EXPECT_TRUE(json.at("within_bound").get<bool>());
    arguments.emplace_back("--set");
    arguments.emplace_back("train.micro_batch=3");
    EXPECT_EQ(run(arguments).exit_code, 2);
}

TEST_F(Misuse, DamagedCheckpointFallsBackOrStops) {
    ASSERT_EQ(train("run", {"train.steps=4"}).exit_code, 0);
    const fs::path newest = folder_ / "run/checkpoints/step-0000000004/rank-00000-of-00001.safetensors";
    flip(newest, fs::file_size(newest) / 2);

    const Result text = run({"generate", path("run"), "--prompt", "a"});
    EXPECT_EQ(text.exit_code, 0) << text.err;
    expect_contains(text.err, "warning: the checkpoint of step 4 is damaged: ");

    auto strict = train_arguments("run", {"train.steps=6"});
    strict.insert(strict.end(), {"--resume", "strict"});
    const Result stopped = run(strict);
    EXPECT_EQ(stopped.exit_code, 3);
    expect_contains(stopped.err, "step-0000000004");

    const Result r = train("run", {"train.steps=6"});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    expect_contains(r.out, "continuing after step 2");
    EXPECT_TRUE(fs::exists(path("run/checkpoints/step-0000000004.corrupt")));
}

// The file-size limit plays the full disk: the rank file of this model is about 200 kB, everything else is small.
// No file grows beyond 100 kB.
void fill_disk() {
    const rlimit limit{100'000, 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
}

TEST_F(Misuse, AnInitThatCannotWriteLeavesNoDirectory) {
    const auto few_bytes = [] {  // enough for the message, whose file has the limit too
        const rlimit limit{500, 500};
        setrlimit(RLIMIT_FSIZE, &limit);
    };
    for (const char* directory : {"first", "a/new/first"}) {
        const Result r = run({"init", path(directory)}, few_bytes);
        expect_refused(r, 3, "run.toml cannot be written: ");
        EXPECT_FALSE(fs::exists(path("first"))) << directory;
        EXPECT_FALSE(fs::exists(path("a"))) << directory;
    }
    fs::create_directory(path("mine"));
    EXPECT_EQ(run({"init", path("mine")}, few_bytes).exit_code, 3);
    EXPECT_TRUE(fs::exists(path("mine"))) << "a directory that was there stays";
    EXPECT_EQ(run({"init", path("first")}).exit_code, 0);
    EXPECT_TRUE(fs::exists(path("first/run.toml")));
}

// 75 says "stopped after a checkpoint", on which a scheduler starts the run again: not without one.
TEST_F(Misuse, AStopWhoseCheckpointFailsIsNoGoodStop) {
    Program program(folder_, train_arguments("run", {"train.steps=100000", "checkpoint.last_wait_s=0"}), fill_disk);
    ASSERT_TRUE(program.wait_for("step      3/"));
    program.signal(SIGTERM);
    const Result r = program.wait();
    EXPECT_EQ(r.exit_code, 4) << r.err << r.out;
    expect_contains(r.err, "its last state is not on disk");
    expect_contains(r.err, "it continues from the start");
}

TEST_F(Misuse, ASignalEndsTheTriesOfTheLastSave) {
    for (const char* ranks : {"1", "2"}) {
        auto arguments =
            train_arguments(std::string("run") + ranks, {"train.steps=8", "train.micro_batch=2", "checkpoint.every=0"});
        arguments.insert(arguments.end(), {"--ranks", ranks});
        Program program(folder_, arguments, fill_disk);
        ASSERT_TRUE(program.wait_for("tries again for 300 s"));
        program.signal(SIGINT);
        const Result r = program.wait();
        EXPECT_EQ(r.exit_code, 4) << r.err << r.out;
        expect_contains(r.err, "the run ended at step 8 and its last state is not on disk");
    }
}

TEST_F(Misuse, FullDiskCostsOnlyTheCheckpoint) {
    ASSERT_EQ(train("run", {"train.steps=2"}).exit_code, 0);
    const Result r = run(train_arguments("run", {"train.steps=8", "checkpoint.last_wait_s=0.2"}), fill_disk);
    EXPECT_EQ(r.exit_code, 4) << r.err << r.out;  // its last state is not on disk
    expect_contains(r.err, "warning: a checkpoint could not be written");
    expect_contains(r.out, "step 8/8");  // it went on to the end
    expect_contains(r.err, "ulimit -f");
    expect_contains(r.err, "the run ended at step 8 and its last state is not on disk");
    expect_contains(r.err, "it continues from");
    EXPECT_TRUE(fs::exists(path("run/checkpoints/step-0000000002/MANIFEST.json")));
    for (const auto& entry : fs::directory_iterator(path("run/checkpoints")))
        EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
    const auto totals = Json::parse(read_file(path("run/run.json")));
    EXPECT_GE(totals.at("checkpoint_failures").get<int>(), 1);
    EXPECT_EQ(train("run", {"train.steps=8"}).exit_code, 0);  // with space again: from step 2
}

TEST_F(Misuse, AReportThatCannotBeWrittenCostsOnlyTheReport) {
    fs::create_directories(path("run/report.html"));
    const Result r = train("run", {"train.steps=2"});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    expect_contains(r.err, "run/report.html: Is a directory; training continues without report.html");
    EXPECT_TRUE(fs::exists(path("run/checkpoints/step-0000000002")));
}

TEST_F(Misuse, ADamagedLogLosesOnlyItsDamagedLine) {
    ASSERT_EQ(train("run", {"train.steps=4"}).exit_code, 0);
    std::string text = read_file(path("run/metrics.jsonl"));
    text[text.find('\n') + 1] = '[';  // line 2
    write("run/metrics.jsonl", text);
    const Result r = train("run", {"train.steps=6"});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    expect_contains(r.err, "run/metrics.jsonl:2: is damaged and left out: [\"step\":2");
    std::istringstream lines(read_file(path("run/metrics.jsonl")));
    std::vector<int> steps;
    for (std::string line; std::getline(lines, line);) steps.push_back(Json::parse(line).at("step").get<int64_t>());
    EXPECT_EQ(steps, (std::vector<int>{1, 3, 4, 5, 6}));
    // A log that is there and cannot be read: to go on would end it, or log steps twice.
    fs::remove(path("run/metrics.jsonl"));
    fs::create_directory(path("run/metrics.jsonl"));
    expect_refused(train("run", {"train.steps=8"}), 3, "run/metrics.jsonl: is a directory");
}

TEST_F(Misuse, TwoRunsInOneDirectory) {
    Program first(folder_, train_arguments("run", {"train.steps=100000"}));
    ASSERT_TRUE(first.wait_for("step      3/"));
    fs::create_directory(folder_ / "second");
    const Result second = Program(folder_ / "second", train_arguments("run")).wait();
    expect_refused(second, 2, "-" + std::to_string(first.pid()) + ": two runs cannot share a directory");
    expect_contains(second.err, "run/run.lock is locked by ");
    const Result elsewhere =
        Program(folder_ / "second", train_arguments("run", {"checkpoint.dir=" + path("elsewhere")})).wait();
    expect_refused(elsewhere, 2, "run/run.lock is locked by ");
    const Result shared =
        Program(folder_ / "second", train_arguments("other", {"checkpoint.dir=" + path("run/checkpoints")})).wait();
    expect_refused(shared, 2, "run/checkpoints/.lock is locked by ");
    EXPECT_FALSE(fs::exists(path("run/flight")));
}

TEST_F(Misuse, AFailedResumeLeavesNoFlightRecord) {
    ASSERT_EQ(train("run").exit_code, 0);
    for (const char* ranks : {"1", "2"}) {
        auto arguments = train_arguments("run", {"train.micro_batch=2", "train.steps=20"});
        arguments.insert(arguments.end(), {"--resume", path("run/nowhere"), "--ranks", ranks});
        expect_refused(run(arguments), 3, path("run/nowhere"));
        EXPECT_FALSE(fs::exists(path("run/flight")));
    }
    // A run has checkpoints, and --resume names one of them.
    for (const char* several : {"run", "run/checkpoints/"}) {
        auto arguments = train_arguments("run");
        arguments.insert(arguments.end(), {"--resume", path(several)});
        expect_refused(run(arguments), 2,
                       "the newest there is " + (fs::path(path("run/checkpoints")) / "step-0").string());
    }
}

TEST_F(Misuse, ASampleIsMadeWhenAsked) {
    const auto sample = [&](const std::string& out) {
        return Json::parse(read_file(path(out + "/run.json"))).value("sample", "");
    };
    ASSERT_EQ(train("none").exit_code, 0);
    EXPECT_EQ(sample("none"), "");
    ASSERT_EQ(train("one", {"log.sample_tokens=20", "train.micro_batch=2", "precision.compute=f32"}).exit_code, 0);
    const std::string text = sample("one");
    EXPECT_NE(text, "");
    const auto on_two_ranks = [&](const std::string& out, const char* layout) {
        std::vector<std::string> arguments =
            train_arguments(out, {"log.sample_tokens=20", "train.micro_batch=2", "precision.compute=f32", layout});
        arguments.insert(arguments.end(), {"--ranks", "2"});
        return run(arguments).exit_code;
    };
    for (const char* zero : {"parallel.zero=2", "parallel.zero=3"}) {
        ASSERT_EQ(on_two_ranks("zero", zero), 0);
        EXPECT_EQ(sample("zero"), text);  // the same weights
        fs::remove_all(path("zero"));
    }
    // Ranks that share out each layer.
    ASSERT_EQ(on_two_ranks("tp", "parallel.tp=2"), 0);
    EXPECT_EQ(sample("tp"), text);
    ASSERT_EQ(on_two_ranks("pp", "parallel.pp=2"), 0);
    EXPECT_EQ(sample("pp"), text);
}

TEST_F(Misuse, APromptLongerThanTheModel) {
    ASSERT_EQ(train("run", {"train.steps=1"}).exit_code, 0);
    const Result r = run({"generate", path("run"), "--prompt", "a prompt of 24 characters"});
    expect_refused(r, 2, "a prompt has 25 tokens, the model has 16 positions");
}

TEST_F(Misuse, OneInterruptSavesTwoStopAtOnce) {
    for (int number : {SIGINT, SIGTERM, SIGHUP}) {
        const std::string out = "run" + std::to_string(number);
        Program program(folder_, train_arguments(out, {"train.steps=100000", "checkpoint.every=0"}));
        ASSERT_TRUE(program.wait_for("step      3/"));
        program.signal(number);
        const Result r = program.wait();
        EXPECT_EQ(r.exit_code, 75) << r.err;
        expect_contains(r.out + r.err, "continue with: tutti train ");
        const Result again = train(out, {"train.steps=100000", "checkpoint.every=0", "train.seq_len=8"});
        expect_refused(again, 2, "`tutti convert --from " + path(out) + "/checkpoints/step-");  // it is another run
    }
    // A step of this one takes long enough for the second signal to arrive inside it.
    Program slow(folder_, train_arguments("slow", {"model.width=256", "model.heads=4", "model.kv_heads=4",
                                                   "model.head_dim=64", "train.seq_len=256", "train.global_batch=64",
                                                   "train.steps=1000", "model.ffn=1024", "model.layers=4"}));
    ASSERT_TRUE(slow.wait_for("step    1/"));
    slow.signal(SIGINT);
    ASSERT_TRUE(slow.wait_for("SIGINT: finishing this step"));
    slow.signal(SIGINT);
    EXPECT_EQ(slow.wait().exit_code, 128 + SIGINT);
}

TEST_F(Misuse, ValuesThatDoNotFitADtype) {
    ASSERT_EQ(train("run", {"train.steps=1"}).exit_code, 0);
    ASSERT_EQ(run({"convert", "--from", path("run"), "--to", path("hf")}).exit_code, 0);
    set_value(folder_ / "hf/model.safetensors", "model.norm.weight", 3, 1e6f);
    set_value(folder_ / "hf/model.safetensors", "model.norm.weight", 4, 1e-12f);
    set_value(folder_ / "hf/model.safetensors", "model.norm.weight", 5, 1e-12f);
    const auto convert = [&](const std::string& to, std::vector<std::string> more) {
        more.insert(more.begin(), {"convert", "--from", path("hf"), "--to", path(to)});
        return run(more);
    };
    for (const char* format : {"hf", "tutti"}) {
        const Result r = convert("half", {"--format", format, "--dtype", "f16"});
        expect_refused(r, 3, "--allow-loss");
        expect_contains(r.err, "model.norm.weight: 1 value becomes infinite, 2 values become 0");
        EXPECT_FALSE(fs::exists(path("half")));
    }
    const Result told = convert("half", {"--dtype", "f16", "--allow-loss", "--json"});
    EXPECT_EQ(told.exit_code, 0);
    expect_contains(told.err, "warning: values that do not fit f16");
    EXPECT_EQ(Json::parse(told.out).at("losses").at("model.norm.weight").at("became_infinite"), 1);
    EXPECT_EQ(convert("brain", {"--dtype", "bf16"}).exit_code, 0);
    // A large model nearly always has values that are too small for f16: they are counted and named, not refused.
    set_value(folder_ / "hf/model.safetensors", "model.norm.weight", 3, 1.0f);
    const Result small = convert("small", {"--dtype", "f16"});
    EXPECT_EQ(small.exit_code, 0) << small.err;
    expect_contains(small.err, "warning: values that do not fit f16:\n  model.norm.weight: 2 values become 0");
    // The config beside a run's weights has their type.
    expect_contains(read_file(folder_ / "brain/hf/config.json"), "\"bfloat16\"");
    expect_refused(convert("shards", {"--max-shard-size", "1MB"}), 2, "--max-shard-size");
}

TEST_F(Misuse, AnExportWithAFlippedBit) {
    ASSERT_EQ(train("run", {"train.steps=1"}).exit_code, 0);
    ASSERT_EQ(run({"convert", "--from", path("run"), "--to", path("hf")}).exit_code, 0);
    for (const char* name : {"model.safetensors", "config.json", "tokenizer.json", "XXH128SUMS"}) {
        const fs::path file = folder_ / "hf" / name;
        flip(file, fs::file_size(file) - 3);
        const Result text = run({"generate", path("hf"), "--prompt", "a"});
        EXPECT_EQ(text.exit_code, 3) << name;
        expect_contains(text.err, "hf/");
        EXPECT_EQ(run({"convert", "--from", path("hf"), "--to", path("back")}).exit_code, 3) << name;
        EXPECT_EQ(train("next", {"model.hf=" + path("hf"), "model.preset="}).exit_code, 3) << name;
        flip(file, fs::file_size(file) - 3);
    }
    EXPECT_EQ(run({"generate", path("hf"), "--prompt", "a"}).exit_code, 0);
}

TEST_F(Misuse, WhatARunGoesOnWithOtherwiseIsNamed) {
    ASSERT_EQ(train("run").exit_code, 0);
    const Result r = train("run", {"train.steps=14", "optimizer.lr=0.002"});
    expect_contains(r.out, "changed since that checkpoint: optimizer.lr = 0.002 (was 3e-4), train.steps = 14 (was 12)");
    EXPECT_EQ(train("run", {"train.steps=14", "optimizer.lr=0.002"}).out.find("changed since"), std::string::npos);
}

TEST_F(Misuse, ImportedWeightsThatAreNotFinite) {
    ASSERT_EQ(train("run", {"train.steps=1"}).exit_code, 0);
    ASSERT_EQ(run({"convert", "--from", path("run"), "--to", path("hf")}).exit_code, 0);
    set_value(folder_ / "hf/model.safetensors", "model.norm.weight", 3, NAN);
    const Result r = run({"generate", path("hf"), "--prompt", "a"});
    expect_refused(r, 3, "value 3 of model.norm.weight is nan");
    write("hf.toml", read_file(path("tiny.toml"))
                         .replace(0, std::string("[model]\npreset = \"llama-tiny\"").size(),
                                  "[model]\nhf = \"" + path("hf") + "\""));
    for (const char* ranks : {"1", "2"})
        expect_refused(run({"train", path("hf.toml"), "--out", path("next"), "--ranks", ranks, "--set",
                            "train.micro_batch=2", "--set", "parallel.zero=3"}),
                       3, "value 3 of model.norm.weight is nan");
}

// Weights that a step has made infinite: every later step is skipped, fewer than train.max_skipped.
TEST_F(Misuse, ARunThatEndsWithBrokenWeightsSaysSo) {
    const Result broken = train("run", {"train.steps=4", "optimizer.lr=1e300"});
    EXPECT_EQ(broken.exit_code, 0) << broken.err;
    expect_contains(broken.err,
                    "the run ends with 3 steps that were not finite and changed no weight: those of step 4 "
                    "may not be finite themselves; the newest checkpoint with a finite step behind it is none");
    const Result exported = run({"convert", "--from", path("run"), "--to", path("hf"), "--json"});
    EXPECT_EQ(exported.exit_code, 0) << exported.err;
    expect_contains(exported.err, "warning: weights that are not finite:\n");
    expect_contains(exported.err, "model.embed_tokens.weight: ");
    EXPECT_GT(Json::parse(exported.out).at("losses").at("model.embed_tokens.weight").at("not_finite").get<int64_t>(),
              0);
    const Result half = run({"convert", "--from", path("run"), "--to", path("half"), "--dtype", "bf16"});
    EXPECT_EQ(half.exit_code, 0) << half.err;
    expect_contains(half.err, "warning: values that do not fit bf16, or are not finite:\n");
}

// The files of a directory that is no run's stay as they are.
TEST_F(Misuse, ARunMovesInWithNothingElse) {
    for (const char* name : {"config.toml", "config.json", "tokenizer.json", "tokenizer.model", "report.html"}) {
        fs::create_directories(folder_ / "home");
        write(concat("home/", name), "by hand");
        const Result r = train("home");
        expect_refused(r, 2, concat("has a ", name, " that no run wrote"));
        EXPECT_EQ(read_file(folder_ / "home" / name), "by hand");
        EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "home"), {}), 1) << name;
        fs::remove(folder_ / "home" / name);
    }
    EXPECT_EQ(train("home", {"train.steps=1"}).exit_code, 0);
    EXPECT_EQ(train("home", {"train.steps=2"}).exit_code, 0);  // which a run did write
}

TEST_F(Misuse, NumbersThatAreNone) {
    for (const char* temperature : {"nan", "inf", "-1"}) {
        const Result r = run({"generate", path("run"), "--prompt", "a", "--temperature", temperature});
        expect_refused(r, 2, "try: tutti generate --help");
        expect_contains(r.err, std::string("required a number from 0 to 1e+06, got ") + temperature);
    }
    expect_refused(run({"bench", "memory", "--seconds", "nan"}), 2, "try: tutti bench memory --help");
}

TEST_F(Misuse, AnUnknownCommandWithOptions) {
    const Result r = run({"trian", path("tiny.toml"), "--json"});
    expect_refused(r, 2, "try: tutti --help");
    expect_contains(r.err, "unknown command `trian` of `tutti`; the nearest is `train`");
    expect_contains(run({"train", path("tiny.toml"), "--jsn"}).err, "unknown option --jsn of `tutti train`");
}

TEST_F(Misuse, FilesThatDoNotOpenSayWhy) {
    fs::create_symlink("loop.json", folder_ / "loop.json");  // the reason that root meets too
    const std::string loop = path("loop.json"), reason = "Too many levels of symbolic links";
    expect_refused(run({"train", loop}), 2, loop + ": cannot open: " + reason);
    expect_refused(train("run", {"data.tokenizer=" + loop}), 3, loop + ": " + reason);
    expect_refused(train("run", {"model.preset=", "model.hf=" + loop}), 3, loop + "/config.json: " + reason);
    ASSERT_EQ(train("run", {"train.steps=1"}).exit_code, 0);
    expect_refused(run({"generate", path("run"), "--prompts", loop}), 3, loop + ": cannot open: " + reason);
    expect_refused(run({"generate", loop, "--prompt", "a"}), 3, reason);
    fs::create_directory(folder_ / "hf");
    ASSERT_EQ(mkfifo(path("hf/config.json").c_str(), 0600), 0);
    expect_refused(run({"generate", path("hf"), "--prompt", "a"}), 3, "hf/config.json: is not a regular file");
}

TEST_F(Misuse, NothingToLearn) {
    std::string lines;
    for (int i = 0; i < 100; ++i) lines += "{\"prompt\": \"a question\", \"completion\": \"\"}\n";
    write("empty.jsonl", lines);
    expect_refused(train("run", {"data.train=" + path("empty.jsonl")}), 3, "there is nothing to learn");
    write("wrong.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n");
    const Result r = train("run", {"data.train=" + path("wrong.jsonl")});
    expect_refused(r, 3, "data.text_field");
    expect_contains(r.err, path("wrong.jsonl:2: "));
}

TEST_F(Misuse, AFileNamedLikeACheckpoint) {
    ASSERT_EQ(train("run").exit_code, 0);
    write("run/checkpoints/step-0000000099", "a note");
    const Result r = train("run", {"train.steps=14"});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    expect_contains(r.out + r.err, "step-0000000099 is a file, not a checkpoint; it is passed over");
    expect_contains(r.out, "continuing after step 12");
}

TEST_F(Misuse, AClosedPipeEndsARunWithACheckpoint) {
    const auto no_reader = [] {
        int ends[2];
        if (pipe(ends) != 0) _exit(126);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
    };
    const Result r = run(train_arguments("run", {"train.steps=1000000", "checkpoint.every=0"}), no_reader);
    expect_refused(r, 75, "continue with: tutti train ");
    expect_contains(r.err, "stopped by SIGPIPE");
    EXPECT_FALSE(fs::is_empty(folder_ / "run/checkpoints"));
}

TEST_F(Misuse, NohupKeepsARunGoing) {
    Program program(folder_, train_arguments("run", {"train.steps=1000000"}), [] { ::signal(SIGHUP, SIG_IGN); });
    ASSERT_TRUE(program.wait_for("step       3/"));
    program.signal(SIGHUP);
    EXPECT_FALSE(program.ends_within(std::chrono::seconds(1)));
    program.signal(SIGTERM);
    expect_contains(program.wait().err, "stopped by SIGTERM");
}

TEST_F(Misuse, FarMoreThreadsThanCores) {
    const std::string threads = std::to_string(4 * std::thread::hardware_concurrency() + 1);
    const Result r = train("run", {"train.steps=1", "train.threads=" + threads});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    expect_contains(r.err, "warning: " + threads + " CPU threads on ");
    EXPECT_EQ(train("calm", {"train.steps=1"}).err, "");
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"tokenize", path("text.txt"), "--tokenizer", "bytes", "--format", "nanogpt"},
          std::vector<std::string>{"train-tokenizer", path("text.txt"), "--vocab", "300"}}) {
        std::vector<std::string> arguments = {"data"};
        arguments.insert(arguments.end(), words.begin(), words.end());
        arguments.insert(arguments.end(), {"--out", path(words[0] + ".json"), "--threads", threads});
        const Result data = run(arguments);
        EXPECT_EQ(data.exit_code, 0) << data.err;
        expect_contains(data.err, "warning: " + threads + " CPU threads on ");
    }
}

// The command line says where the model starts from; a run of bytes goes through an export and back.
TEST_F(Misuse, AnExportInPlaceOfThePreset) {
    ASSERT_EQ(train("run").exit_code, 0);
    ASSERT_EQ(run({"convert", "--from", path("run"), "--to", path("hf")}).exit_code, 0);
    const Result r = train("next", {"model.hf=" + path("hf"), "data.tokenizer=" + path("hf")});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    expect_contains(r.out, "starting from the weights of " + path("hf"));
    EXPECT_EQ(run({"train", path("next/config.toml"), "--out", path("next"), "--set", "train.steps=13"}).exit_code, 0);
    EXPECT_EQ(train("back", {"model.hf=" + path("hf"), "model.preset=llama-tiny"}).exit_code, 2);  // both told
    const auto text = [&](const std::string& from) {
        return run({"generate", path(from), "--prompt", "line 4\u00e9", "--greedy", "--compute", "f32"}).out;
    };
    EXPECT_EQ(text("hf"), text("run"));
    EXPECT_NE(text("hf"), "");
}

TEST_F(Misuse, JsonModePrintsOneDocument) {
    auto arguments = train_arguments("run");
    arguments.push_back("--json");
    const Result r = run(arguments);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    const auto json = Json::try_parse(r.out).value_or(Json());
    ASSERT_TRUE(json.is_object()) << r.out;
    EXPECT_EQ(json.at("step"), 12);
}

// The lines of a run's log.
std::vector<Json> logged(const std::string& out) {
    std::vector<Json> lines;
    std::istringstream in(read_file(out + "/metrics.jsonl"));
    for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
    return lines;
}

// Prompts of 400 bytes, and an answer in every tenth record: most windows of 16 have no target.
std::string records_with_few_targets() {
    std::string text;
    for (int i = 0; i < 40; ++i)
        text +=
            R"({"prompt": ")" + std::string(400, 'x') + R"(", "completion": ")" + (i % 10 != 0 ? "" : "yes") + "\"}\n";
    return text;
}

TEST_F(Misuse, AStepWithoutTargetsHasNoLossAndChangesNoWeight) {
    write("few.jsonl", records_with_few_targets());
    const std::vector<std::string> set = {"data.train=" + path("few.jsonl"), "train.global_batch=1",
                                          "train.micro_batch=1", "optimizer.lr=0.01", "optimizer.warmup_steps=0"};
    std::vector<std::string> one = set;
    one.emplace_back("train.steps=1");
    const Result r = train("one", one);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const std::vector<Json> lines = logged(path("one"));
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_TRUE(lines[0].at("loss").is_null()) << lines[0].dump();
    EXPECT_EQ(lines[0].at("tokens").get<int64_t>(), 0);
    expect_contains(r.err, "warning: step 1 has no target");
    expect_contains(r.out, "no targets, no update");
    std::vector<std::string> two = set;
    two.emplace_back("train.steps=2");
    ASSERT_EQ(train("two", two).exit_code, 0);
    const auto weights = [&](const std::string& step) {
        return read_file(path(step + "/rank-00000-of-00001.safetensors"));
    };
    EXPECT_FALSE(weights("one/checkpoints/step-0000000001").empty());
    EXPECT_EQ(weights("one/checkpoints/step-0000000001"), weights("two/checkpoints/step-0000000002"));
}

TEST_F(Misuse, AnEvaluationWithoutTargetsIsNoNumber) {
    write("few.jsonl", records_with_few_targets());
    const Result r = train("run", {"data.train=" + path("few.jsonl"), "data.valid=" + path("few.jsonl"),
                                   "train.micro_batch=1", "train.eval_batches=1", "train.steps=1"});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    expect_contains(r.err, "warning: no eval_loss at step 1");
    EXPECT_EQ(r.out.find("eval nan"), std::string::npos);
    EXPECT_EQ(r.out.find("eval -nan"), std::string::npos);
}

// A microbatch is a setting of memory: the last windows of the data are evaluated whatever its size.
TEST_F(Misuse, AnEvaluationOfAllWindowsDoesNotDependOnTheMicrobatch) {
    write("valid.txt", std::string(32, 'a') + "bcdefghijklmnopqrstuvwxyz0123456789,.");  // of 16 tokens: four windows
    std::vector<double> losses;
    for (const char* micro : {"1", "2", "3", "6"}) {
        const std::string out = std::string("micro") + micro;
        ASSERT_EQ(train(out, {"data.valid=" + path("valid.txt"), "train.steps=1", "train.global_batch=6",
                              std::string("train.micro_batch=") + micro})
                      .exit_code,
                  0);
        losses.push_back(logged(path(out)).back().at("eval_loss").get<double>());
    }
    for (const double loss : losses) EXPECT_NEAR(loss, losses[0], 1e-6 * losses[0]);
}

// Nor does an evaluation of some windows: train.eval_batches counts global batches.
TEST_F(Misuse, AnEvaluationOfSomeWindowsDoesNotDependOnTheMicrobatch) {
    std::string text;
    for (int i = 0; i < 200; ++i) text += static_cast<char>('a' + i * i % 23);
    write("valid.txt", text);
    std::vector<double> losses;
    for (const auto& [micro, batches] : {std::pair{"1", "1"}, {"2", "1"}, {"6", "1"}, {"2", "2"}}) {
        const std::string out = concat("some", micro, "of", batches);
        ASSERT_EQ(train(out, {"data.valid=" + path("valid.txt"), "train.steps=1", "train.global_batch=6",
                              concat("train.micro_batch=", micro), concat("train.eval_batches=", batches)})
                      .exit_code,
                  0);
        losses.push_back(logged(path(out)).back().at("eval_loss").get<double>());
    }
    EXPECT_NEAR(losses[1], losses[0], 1e-6 * losses[0]);
    EXPECT_NEAR(losses[2], losses[0], 1e-6 * losses[0]);
    EXPECT_GT(std::abs(losses[3] - losses[0]), 1e-4);  // twelve windows
}

// The work of a step does not depend on its mask, and neither does the rate.
TEST_F(Misuse, RatesCountWhatIsComputed) {
    write("few.jsonl", records_with_few_targets());
    ASSERT_EQ(train("run", {"data.train=" + path("few.jsonl"), "train.steps=2"}).exit_code, 0);
    const Json line = logged(path("run")).back();
    EXPECT_NEAR(line.at("tokens_per_s").get<double>() * line.at("step_ms").get<double>(), 1000 * 4 * 16, 1);
}

// The run is whole in its directory.
TEST_F(Misuse, AFullDiskUnderTheLogOfARunCostsTheLog) {
    const Result r = run(train_arguments("run"), [] { dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO); });
    EXPECT_EQ(r.exit_code, 0) << r.err;
    expect_contains(r.err, "warning: standard output could not be written: log lines are lost");
    EXPECT_EQ(logged(path("run")).size(), 12u);
}

TEST_F(Misuse, ClosedStreamsAreNoFiles) {
    const auto close_all = [] {
        for (const int fd : {0, 1, 2}) close(fd);
    };
    EXPECT_EQ(run(train_arguments("run"), close_all).exit_code, 0);
    EXPECT_EQ(read_file(path("run/run.lock")).find("step"), std::string::npos);
    EXPECT_EQ(logged(path("run")).size(), 12u);
}

TEST_F(Misuse, AWorkingDirectoryThatIsGoneIsNamed) {
    const std::string gone = path("gone");
    const auto enter = [&] {
        fs::create_directory(gone);
        fs::current_path(gone);
        fs::remove(gone);
    };
    const Result examined = run({"doctor"}, enter);
    EXPECT_NE(examined.exit_code, 3) << examined.err;
    expect_contains(examined.out, "the working directory was removed");
    const Result launched = run({"launch", "-n", "1", path("tiny.toml"), "--out", path("run")}, enter);
    EXPECT_EQ(launched.exit_code, 3) << launched.err;
    expect_contains(launched.err, "the working directory: No such file or directory");
    EXPECT_EQ(run(train_arguments("run"), enter).exit_code, 0);
}

TEST_F(Misuse, ADirectoryOfCheckpointsThatIsTakenAwayIsMadeAgain) {
    for (const char* ranks : {"1", "2"}) {
        const std::string out = std::string("run") + ranks;
        auto arguments = train_arguments(out, {"train.steps=1000", "checkpoint.every=50", "train.micro_batch=2"});
        arguments.insert(arguments.end(), {"--ranks", ranks});
        Program program(folder_, arguments);
        ASSERT_TRUE(program.wait_for("step  200/"));
        program.while_stopped([&] { fs::remove_all(path(out + "/checkpoints")); });
        const Result r = program.wait();  // a save that was in flight may have been lost, and is reported
        EXPECT_EQ(r.exit_code, 0) << r.err;
        expect_contains(r.err, out + "/checkpoints was taken away, with the checkpoints in it; it is made again");
        EXPECT_TRUE(fs::exists(path(out + "/checkpoints/step-0000001000")));
        EXPECT_TRUE(fs::exists(path(out + "/checkpoints/.lock")));
    }
}

TEST_F(Misuse, ARunDirectoryThatIsTakenAwayIsMadeAgain) {
    Program program(folder_,
                    train_arguments("run", {"train.steps=1000", "checkpoint.every=50", "log.tensorboard=true"}));
    ASSERT_TRUE(program.wait_for("step  200/"));
    program.while_stopped([&] {
        fs::remove_all(path("run"));
        for (const auto& entry : fs::directory_iterator(folder_))  // and the ids of the text, which the run has mapped
            if (entry.path().extension() == ".tokens") fs::remove_all(entry.path());
    });
    const Result r = program.wait();
    EXPECT_EQ(r.exit_code, 0) << r.err;
    expect_contains(r.err, path("run") + " was taken away or emptied while the run goes on; it is made again");
    for (const char* name : {"config.toml", "run.lock", "run.json", "report.html", "checkpoints/step-0000001000"})
        EXPECT_TRUE(fs::exists(path("run") + "/" + name)) << name;
    EXPECT_EQ(logged(path("run")).back().at("step"), 1000);
    EXPECT_FALSE(fs::is_empty(path("run/tensorboard")));
    EXPECT_EQ(train("run", {"train.steps=1010", "checkpoint.every=50"}).exit_code, 0);
}

// New files are refused, those that are open go on: a read-only bind over the folder of the run, which needs root. (A
// file system that has files open for writing refuses to be remounted.)
TEST_F(Misuse, AReadOnlyMountUnderARunCostsOnlyWhatItRefuses) {
    for (const char* ranks : {"1", "2"}) {
        const std::string name = std::string("mounted") + ranks, folder = path(name);
        fs::create_directory(folder);
        auto arguments = train_arguments(name + "/run", {"train.steps=1000", "checkpoint.every=50",
                                                         "train.micro_batch=2", "checkpoint.last_wait_s=0.1"});
        arguments.insert(arguments.end(), {"--ranks", ranks});
        Program program(folder_, arguments, {}, {"/usr/bin/unshare", "-m"});
        if (!program.wait_for("step  200/")) GTEST_SKIP() << "no mount namespaces here: " << program.wait().err;
        program.while_stopped([&] {
            const std::string mount = concat("nsenter -t ", program.pid(), " -m mount ");
            ASSERT_EQ(std::system(concat(mount, "--bind ", folder, " ", folder).c_str()), 0);
            ASSERT_EQ(std::system(concat(mount, "-o remount,bind,ro ", folder).c_str()), 0);
        });
        const Result r = program.wait();
        EXPECT_EQ(r.exit_code, 4) << r.err;  // its last state is not on disk
        expect_contains(r.out, "step 1000/1000");
        expect_contains(r.err, "a checkpoint could not be written");
        expect_contains(r.err, "Read-only file system (mount it for writing, or choose");
        expect_contains(r.err, "the run ended at step 1000 and its last state is not on disk");
        expect_contains(r.err, folder + "/run/checkpoints/step-0000000");
        // The mount was the namespace's and has ended with it: the run continues from the last good checkpoint.
        const Result again = run(arguments);
        EXPECT_EQ(again.exit_code, 0) << again.err;
        const auto lines = logged(folder + "/run");
        EXPECT_EQ(lines.back().at("step"), 1000);
        EXPECT_EQ(static_cast<int>(lines.size()), 1000);
    }
}

// What takes long between two steps hears the signal too: the evaluation is left, the step is saved.
TEST_F(Misuse, ASignalEndsALongEvaluation) {
    for (const char* ranks : {"1", "2"}) {
        const std::string out = std::string("run") + ranks;
        // 100,000 windows, minutes of evaluation; the first step's memory is printed before it.
        auto arguments =
            train_arguments(out, {"train.steps=1000", "data.valid=" + path("long.txt"), "train.eval_every=1",
                                  "train.eval_batches=1000000", "train.micro_batch=1"});
        arguments.insert(arguments.end(), {"--ranks", ranks});
        write("long.txt", std::string(1'600'000, 'a'));
        Program program(folder_, arguments);
        ASSERT_TRUE(program.wait_for("measured"));
        program.signal(SIGTERM);
        const Result r = program.wait();
        EXPECT_EQ(r.exit_code, 75) << r.err;
        expect_contains(r.err, "no eval_loss at step 1: the run was stopped during the evaluation");
        EXPECT_TRUE(fs::exists(path(out + "/checkpoints/step-0000000001")));
    }
}

// What a run shows of its last weights is made by the next start, if a signal or a kill kept the first one from it.
TEST_F(Misuse, AnEndThatIsStoppedIsMadeUp) {
    const std::vector<std::string> keys = {"data.valid=" + path("text.txt"),
                                           "train.eval_batches=1",
                                           "log.sample_tokens=40",
                                           "train.steps=4",
                                           "log.every=1",
                                           "train.micro_batch=2"};
    const auto arguments_of = [&](const std::string& out, std::vector<std::string> more) {
        more.insert(more.begin(), keys.begin(), keys.end());
        auto arguments = train_arguments(out, more);
        arguments.insert(arguments.end(), {"--ranks", "2"});
        return arguments;
    };
    const auto totals = [&](const std::string& out) { return Json::parse(read_file(path(out + "/run.json"))); };
    const auto last_line = [&](const std::string& out) {
        const std::string log = read_file(path(out + "/metrics.jsonl"));
        return Json::parse(log.substr(log.rfind('\n', log.size() - 2) + 1));
    };
    const auto expect_whole = [&](const std::string& out) {
        const Json whole = totals("undisturbed"), json = totals(out);
        for (const char* key : {"sample", "final_loss", "eval_loss", "steps", "preempted", "communication", "ranks"})
            EXPECT_EQ(json.at(key), whole.at(key)) << key;
        EXPECT_EQ(last_line(out).at("eval_loss"), last_line("undisturbed").at("eval_loss"));
        EXPECT_TRUE(fs::exists(path(out + "/report.html")));
        const std::string log = read_file(path(out + "/metrics.jsonl"));
        const Result again = run(arguments_of(out, {}));
        EXPECT_EQ(again.exit_code, 0);
        expect_contains(again.out, "already at step");
        EXPECT_EQ(read_file(path(out + "/metrics.jsonl")), log);
    };
    ASSERT_EQ(run(arguments_of("undisturbed", {})).exit_code, 0);

    // The evaluation of the last step.
    write("long.txt", std::string(1'600'000, 'a'));
    {
        Program program(folder_,
                        arguments_of("evaluation", {"data.valid=" + path("long.txt"), "train.eval_batches=1000000"}));
        ASSERT_TRUE(program.wait_for("step 3/4"));
        program.signal(SIGTERM);
        EXPECT_EQ(program.wait().exit_code, 75);
    }
    EXPECT_EQ(run(arguments_of("evaluation", {})).exit_code, 0);
    expect_whole("evaluation");

    // The sample: its first token comes after the last line of the log.
    {
        Program program(folder_, arguments_of("sample", {"log.sample_tokens=1000000"}));
        ASSERT_TRUE(program.wait_for("step 4/4"));
        program.signal(SIGTERM);
        EXPECT_EQ(program.wait().exit_code, 75);
        EXPECT_FALSE(totals("sample").contains("sample"));
    }
    EXPECT_EQ(run(arguments_of("sample", {})).exit_code, 0);
    expect_whole("sample");

    // A kill between the last checkpoint and the results.
    ASSERT_EQ(run(arguments_of("killed", {})).exit_code, 0);
    fs::remove(path("killed/run.json"));
    fs::remove(path("killed/report.html"));
    EXPECT_EQ(run(arguments_of("killed", {})).exit_code, 0);
    expect_whole("killed");
}

// Encoding before the first step: what a killed start was making, a directory under another name, is removed by the
// next one.
TEST_F(Misuse, AKilledStartLeavesNothingForGood) {
    const auto with_ending = [&](const char* ending) {
        std::vector<fs::path> found;
        for (const auto& entry : fs::directory_iterator(folder_))
            if (entry.path().extension() == ending) found.push_back(entry.path());
        return found;
    };
    ASSERT_EQ(run({"data", "train-tokenizer", path("text.txt"), "--vocab", "300", "--out", path("t.json")}).exit_code,
              0);
    const std::vector<std::string> set = {"data.tokenizer=" + path("t.json"), "model.vocab=300"};
    EXPECT_EQ(train("run", set).exit_code, 0);
    ASSERT_EQ(with_ending(".tokens").size(), 1u);
    const fs::path ids = with_ending(".tokens").front();
    fs::rename(ids, ids.string() + ".4711.part");
    std::ofstream(ids.string() + ".4711.part/lock");
    EXPECT_EQ(train("again", set).exit_code, 0);
    EXPECT_EQ(with_ending(".part").size(), 0u);
    EXPECT_EQ(with_ending(".tokens").size(), 1u);
}

TEST_F(Misuse, ValuesThatOverflowAreRefused) {
    expect_refused(train("run", {"data.train=[\"1e308 " + path("text.txt") + "\",\"1e308 " + path("text.txt") + "\"]"}),
                   2, "the sum of the weights is inf");
    expect_refused(train("run", {"comm.timeout_s=1e10"}), 2, "comm.timeout_s must be above 0 and at most 1e9");
    // More than all tokens: nothing is dropped.
    const Result large = train("large", {"model.preset=moe-tiny", "model.moe.capacity_factor=1e300", "train.steps=1"});
    EXPECT_EQ(large.exit_code, 0) << large.err;
}

TEST_F(Misuse, ALongerScheduleSaysItsRates) {
    ASSERT_EQ(train("run", {"train.steps=10"}).exit_code, 0);
    const Result r = train("run", {"train.steps=20"});
    expect_contains(r.out, "learning rate of the next step ");
}

// While the ranks start there is nothing to save.
TEST_F(Misuse, ASignalEndsALongStartAtOnce) {
    Program program(folder_, train_arguments("run", {"model.layers=3000"}));
    ASSERT_TRUE(program.wait_until([&] { return fs::exists(path("run/run.lock")); }));
    program.signal(SIGTERM);
    const Result r = program.wait();
    EXPECT_EQ(r.exit_code, 75) << r.err;
    expect_contains(r.err, "preempted: stopped by SIGTERM before the first step");
}

}  // namespace
}  // namespace tutti::testing
