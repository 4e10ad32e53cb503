// cli/commands.h: the arguments of each subcommand as plain data, and the function that runs it. A function returns the
// exit code or throws (base/error.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cli/io.h"
#include "tutti/peers/peers.h"

namespace tutti::comm {
struct Launch;
}
namespace tutti::spec {
struct RunSpec;
}

namespace tutti::cli {

// Warns when `threads` CPU threads on this host are far more than its cores.
void warn_of_threads(const Io& io, int64_t threads);
// The same for `threads` threads of each rank that this launch has on the host; the first rank warns.
void warn_of_threads(const Io& io, const comm::Launch& launch, int64_t threads, int ranks);

// Which run.
struct RunArguments {
    std::string config, model;  // a file; a preset or a directory in place of its [model]. Both "": `set` says all
    int ranks = 1;
    std::vector<std::string> set;       // "section.key=value"
    std::optional<int> threads;         // train.threads
    std::optional<std::string> device;  // train.device
    int stage = 0;                      // of the config, from 1; 0: all
};

// A question about a run that is not started (cli/forecast.h).
struct ForecastArguments : RunArguments {
    std::string cluster;                   // a machine, by name or file; "": this one, where a command allows that
    std::vector<std::string> set_cluster;  // "network.gbs=35"
    std::vector<std::string> vary;         // "section.key=A,B": a line for each value in place of one answer
    std::string expert_loads;              // "1.5", or a load for each expert; "": even
};

struct InitArguments {
    std::string directory = "first-run";
    bool demo = false;  // also train and print a sample
};
int init(const InitArguments& arguments, const Io& io);

struct ConfigArguments {
    std::string name;  // a section, a key or a part of its name; "": all. With `from`: a file of that trainer
    std::string from;  // a trainer (peers/peers.h); "": none
};
int config(const ConfigArguments& arguments, const Io& io);

struct RehearseArguments : ForecastArguments {
    std::optional<int> rank;  // nullopt: the rank with the most memory
    int ranks_per_host = 0;   // 0: those of a node of the cluster; of this machine, all
    bool kernels = false;     // also list the kernels of a step in order
    bool layout = false;      // show each rank's part of the model in place of the step
    std::string svg;          // file for the picture of the layout, of the values, or of the memory over the step
    std::string html;         // file for the page with the step's slider
};
int rehearse(const RehearseArguments& arguments, const Io& io);

struct TrainArguments : RehearseArguments {
    std::string out;  // "": runs/<stem of config>
    std::string resume = "auto";
    bool dry_run = false;  // rehearse instead
    bool force = false;    // start even if memory does not suffice
};
int train(const TrainArguments& arguments, const Io& io);

struct LaunchArguments : RunArguments {
    std::string out;    // "": runs/<stem of config>
    std::string hosts;  // a file; "": this host alone
    int min_ranks = 0;  // 0: all
    int max_restarts = 3;
    std::string cluster;  // of the devices, for the planner; "": only data parallelism changes with the ranks
    std::vector<std::string> set_cluster;
    double grace_s = 25, silence_s = 15, grow_after_s = 600;
    std::string ssh = "ssh -T -o BatchMode=yes -o ConnectTimeout=5 -o ServerAliveInterval=5 -o ServerAliveCountMax=3";
    bool force = false;
};
int launch(const LaunchArguments& arguments, const Io& io);
int agent(const Io& io);

struct VerifyArguments : RunArguments {
    int64_t steps = 3;
    bool force = false;  // start even if memory does not suffice
    bool blame = false;  // find the tensor whose rounding moves the loss instead
};
int verify(const VerifyArguments& arguments, const Io& io);

// A model that makes texts, and how its tokens are chosen.
struct TextModelArguments {
    std::string checkpoint;
    std::vector<std::string> stop;
    std::string stop_ids;
    bool ignore_eos = false;
    std::string compute = "auto";
    int64_t max_tokens = 256;
    double temperature = 0.8;
    int64_t top_k = 0;
    double top_p = 1;
    uint64_t seed = 1234;
    bool greedy = false;
    std::string device = "auto";
    int threads = 0;  // of each rank
    int ranks = 1;
    std::vector<std::string> set;
};

struct GenerateArguments : TextModelArguments {
    std::vector<std::string> prompts, prompt_ids;  // texts; "1,2,3"
    std::string prompts_file;                      // one text per line
    bool ids = false;
    bool prompt_log_probabilities = false;
};
int generate(const GenerateArguments& arguments, const Io& io);

struct ChatArguments : TextModelArguments {
    ChatArguments() { max_tokens = 1024; }  // of an answer
    std::string system;
    std::string template_file;              // "": the one of the model's files
    std::vector<std::string> set_template;  // "key=value"
    int64_t context = 4096;                 // tokens of the longest conversation
};
int chat(const ChatArguments& arguments, const Io& io);

struct ConvertArguments {
    std::string from, to, format, dtype;  // format, dtype "": see infer/convert.h
    std::optional<int64_t> max_shard_size;
    bool allow_loss = false;
};
int convert(const ConvertArguments& arguments, const Io& io);

struct InspectArguments : RunArguments {  // `config`: what to inspect
    bool precision = false;
    std::string number;
    int64_t steps = 1;  // with precision; the last one is measured
    std::string svg;    // file for the picture; "": none
    bool force = false;
};
int inspect(const InspectArguments& arguments, const Io& io);

struct WatchArguments {
    std::vector<std::string> run_dirs;
    bool once = false;   // show the runs as they are and end
    bool http = false;   // serve a page
    std::string listen;  // its address; "": a free port of this machine alone
};
int watch(const WatchArguments& arguments, const Io& io);

struct ReportArguments {
    std::vector<std::string> run_dirs;
    std::string out;     // "": report.html in the run directory, of several runs comparison.html here
    std::string csv;     // "": none
    std::string step;    // file for the page of one traced step; "": none
    std::string flight;  // read the flight records of this run instead of writing a page
};
int report(const ReportArguments& arguments, const Io& io);

struct SimulateArguments : ForecastArguments {
    std::vector<std::string> tables;  // files of published runs
    std::string site;                 // file of constants written by `--fit`; "": the defaults
    std::string fit;                  // with table: file for the fitted constants; "": none
    std::string leave_out;            // with table: house, family or generation; "": none
    std::string profile;              // file by `tutti bench calibrate` in place of a cluster
    std::string trace;                // file for the predicted timeline; "": none
    std::string svg;                  // file for its picture; "": none
    std::string run;                  // run directory for the prediction; "": none
    std::vector<std::string> slow;    // "3=1.5": rank 3 takes 1.5 times as long
};
int simulate(const SimulateArguments& arguments, const Io& io);
int simulate_table(const SimulateArguments& arguments, const Io& io);  // published_table.cpp

struct CalibrateArguments {
    std::string out;
};
int calibrate(const CalibrateArguments& arguments, const Io& io);

struct PlanArguments : ForecastArguments {
    PlanArguments() { ranks = 0; }
    int64_t global_batch = 0;  // sequences; 0: those of the config
    int64_t seq_len = 0;       // 0: that of the config, else 4096, at most the model's positions
    std::string precision;     // "": that of the config
    std::string without;       // "offload,cp": left out of the search
    double margin = 0;         // share of the memory of a device to leave free
    std::string site;          // as of simulate
    int top = 10;
    std::vector<std::string> data;  // of the emitted config
    std::string emit, html, svg;    // files; "": none
    std::string emit_for;           // a trainer (peers/peers.h); "": this one
    std::vector<std::string> from = std::vector<std::string>(peers::names().size());  // by Peer: a file whose
                                                                                      // run is planned; "": none
    std::string why_not;                                                              // a layout in words; "": none
    bool explain = false;
    bool scaling = false;    // show the best layout at 8 to 65,536 devices instead
    bool tables = false;     // show a course's tables instead
    double parameters = 0;   // with tables, budget or tokens, in place of a model; 0: none
    double budget = 0;       // FLOPs of a compute budget to show instead; 0: none
    double tokens = 0;       // of a run whose compute to show instead; 0: none
    double mfu = 0.4;        // with budget
    double price = 0;        // dollars per device and hour; 0: the cluster file's
    double storage_gbs = 1;  // GB/s of a node for checkpoints
    double restart = 600;    // seconds from a failure until training continues
};
int plan(const PlanArguments& arguments, const Io& io);

struct HardwareArguments {
    std::string name;                      // of the catalog, or a file; "": a table of all
    std::vector<std::string> set_cluster;  // "network.gbs=35"
    int devices = 1;                       // for the totals
    std::string html;                      // file; "": none
};
int show_hardware(const HardwareArguments& arguments, const Io& io);

int doctor(const Io& io);
int models(const Io& io);
int version(const Io& io);

// The table of commands as a script for a shell, and as a page for man.
struct CompletionArguments {
    std::string shell;  // bash, zsh or fish
};
int completion(const CompletionArguments& arguments, const Io& io);

int manual(const Io& io);

struct BenchArguments {
    enum class Kind { gemm, attention, memory, step };
    Kind kind = Kind::gemm;
    std::string dtype = "bf16";
    std::string device = "auto";
    int threads = 0;              // 0: all cores that the process may use
    double seconds = 0;           // for all measurements; 0: the benchmark's own
    int64_t window = 0;           // attention: keys of a sliding window; 0: no window
    std::vector<std::string> by;  // attention: kernels to time, of [train] attention; none: own, and the library's
    std::string model;  // gemm: preset whose products are measured too; step, attention with tune: preset to train
    std::optional<std::string> sizes;  // gemm: products in place of the sweep
    std::string cluster;               // gemm: predict for it; "": measure
    std::vector<std::string> set_cluster;
    std::vector<std::string> set;
    bool kernels = false;  // step: also show the time of each kernel beside its lower bound
    std::string tune;      // the file that gets what a step's products, or its attention, measured
};
int bench(const BenchArguments& arguments, const Io& io);

// A measurement with ranks.
struct MeasuringArguments {
    int ranks = 0;         // threads; 0: the command's own number, or the launcher's processes
    std::string launcher;  // "": detected
    double seconds = 20;   // for all measurements, about
};

struct BenchCommArguments : MeasuringArguments {
    bool progress_thread = false;
};
int bench_comm(const BenchCommArguments& arguments, const Io& io);

struct BenchPipelineArguments {
    std::string kind = "all";  // a schedule
    int stages = 4;            // ranks
    int chunks = 2;            // of a rank, where a schedule leaves them free
    int microbatches = 16;
    double forward = 10, backward_input = 10, backward_weight = 10;  // milliseconds of a rank's part of the model
    int repeats = 3;
    bool progress_thread = false;
};
int bench_pipeline(const BenchPipelineArguments& arguments, const Io& io);

struct HealthArguments : MeasuringArguments {
    std::string device = "auto";
    int threads = 0;          // of a rank; 0: its part of the cores
    double margin = 0.2;      // slow means below 1 - margin of the peers' median
    bool one_by_one = false;  // measure one link at a time
};
int health(const HealthArguments& arguments, const Io& io);

struct ScheduleArguments {
    std::string kind;  // a name of schedule/generators.h, auto, all, or a CSV file
    std::optional<int> stages, chunks, microbatches, group_size, memory_limit;
    std::string forward = "1", backward_input = "1", backward_weight = "1",
                latency = "0";             // times, exact: "0.5", "1/3"
    std::string overlap;                   // "": F + I + W
    std::string message_bytes, bandwidth;  // "" and "": a message takes its latency only
    double w_memory = 1;                   // auto: share of a chunk's memory that lives between I and W
    std::string csv, svg;                  // "": none
    bool messages = false;                 // include sends and receives in the CSV and the JSON
};
int schedule(const ScheduleArguments& arguments, const Io& io);

// `tutti data ...`
struct TrainTokenizerArguments {
    std::vector<std::string> files;     // UTF-8 text, or JSONL by name
    std::string field = "text";         // of a record
    std::string out;                    // tokenizer.json
    int64_t vocab = 4096;               // special tokens and the 256 bytes included
    std::string pretokenizer = "gpt2";  // gpt2, llama3 or qwen
    std::vector<std::string> special;   // have the first ids
    int64_t min_frequency = 2;
    int threads = 0;  // 0: all cores
};
int train_tokenizer(const TrainTokenizerArguments& arguments, const Io& io);

struct TokenizeArguments {
    std::vector<std::string> files;  // text or JSONL
    std::string tokenizer = "bytes";
    std::string out;  // prefix of the files
    std::string format = "megatron";
    std::string input = "auto";  // text, jsonl; auto: by name
    std::string separator;       // between two documents, with \n, \t and \\; "": a file is one document
    std::string field = "text";  // field with the text of a JSONL record
    bool append_eod = false;
    std::string eod;  // id or text; "": the tokenizer's
    int threads = 0;  // 0: all cores
};
int tokenize(const TokenizeArguments& arguments, const Io& io);

// Arguments of the commands that read token files.
struct TokenFileArguments {
    std::vector<std::string> files;
    std::string format = "auto";
    std::string tokenizer;  // inspect: shows the first tokens as text; JSONL: encodes the records
    std::string eod;        // inspect: end-of-document token, by id or text, for files without documents
    int64_t vocab = 0;      // verify: ids must be below it; 0: any id
};
int inspect_data(const TokenFileArguments& arguments, const Io& io);
int verify_data(const TokenFileArguments& arguments, const Io& io);

struct DataArguments {
    TrainTokenizerArguments train_tokenizer;
    TokenizeArguments tokenize;
    TokenFileArguments inspect, verify;
};

}  // namespace tutti::cli
