// cli/commands.h: arguments that several commands share, as plain data, and functions that run a command and have more
// than one caller. A function returns the exit code or throws (base/error.h). All else of a command is in its file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cli/io.h"

namespace tutti::comm {
struct Launch;
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

int agent(const Io& io);

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
int simulate_table(const SimulateArguments& arguments, const Io& io);  // published_table.cpp

int doctor(const Io& io);
int models(const Io& io);
int version(const Io& io);
int manual(const Io& io);

// A measurement with ranks.
struct MeasuringArguments {
    int ranks = 0;         // threads; 0: the command's own number, or the launcher's processes
    std::string launcher;  // "": detected
    double seconds = 20;   // for all measurements, about
};

}  // namespace tutti::cli
