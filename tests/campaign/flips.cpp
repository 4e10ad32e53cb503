// tests/campaign/flips.cpp: campaign_flips FOLDER FLIPS SEED. Flips one bit after the other in the files of a run and
// of an export, and each time starts a command of `tutti` in this process, which must have the result of sound files,
// or refuse with exit code 2 or 3 and the reason. Prints JSON: how the starts ended by command and file, and the
// violations. scripts/campaign.py makes the folder, as SCRATCH/flips-N:
//
//   text.txt, tokenizer.json   what the run reads
//   run/                       checkpoints of steps 2 and 4; config.toml asks for one step more
//   exported/                  `tutti convert` of the run
//
// Half of the flips fall on all bits alike, half on all files alike: else 99 of 100 would hit weights.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/checkpoint/store.h"
#include "tutti/cli/cli.h"
#include "tutti/device/cpu/peak.h"

// In place of device/cpu/peak.cpp, which measures for 50 ms at each start what no flip can touch.
tutti::ArithmeticPeak tutti::measure_register_peak(const Stream&, DType, double) { return {1e9, ""}; }

namespace {

namespace fs = std::filesystem;
using tutti::Json;
using Files = std::map<std::string, std::string>;  // content by path below the folder

std::string content(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

Files files_below(const fs::path& folder, const std::string& part) {
    Files files;
    for (const auto& entry : fs::recursive_directory_iterator(folder / part))
        if (entry.is_regular_file()) files[fs::relative(entry.path(), folder).string()] = content(entry.path());
    return files;
}

struct Ran {
    int code;
    std::string out, err;
};

Ran tutti(const std::vector<std::string>& words) {
    std::vector<const char*> argv = {"tutti"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    std::ostringstream out, err;
    const int code = tutti::cli::run(static_cast<int>(argv.size()), argv.data(), {out, err});
    return {code, out.str(), err.str()};
}

// The compared fields of a line of metrics.jsonl, without times, by step; malformed lines are left out.
std::map<int64_t, std::string> log_of(const std::string& text) {
    std::map<int64_t, std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
        auto json = Json::try_parse(line).value_or(Json());
        if (!json.contains("step") || !json["step"].is_integer()) continue;
        for (const char* time :
             {"step_ms", "tokens_per_s", "mfu", "hfu", "mem_peak_bytes", "comm", "ranks", "seconds", "time"})
            json.erase(time);
        lines[json["step"].get<int64_t>()] = json.dump();
    }
    return lines;
}

class Campaign {
  public:
    Campaign(fs::path folder, uint64_t seed) : folder_(std::move(folder)), random_(seed) {
        for (const char* part : {"run", "exported"})
            for (auto& [path, text] : files_below(folder_, part)) sound_[path] = text;
        for (const char* name : {"text.txt", "tokenizer.json"}) sound_[name] = content(folder_ / name);
        for (const char* command :
             {"train", "generate", "convert", "report", "generate exported", "convert exported"}) {
            const Ran r = run(command);
            tutti::check(r.code == 0, command, " of sound files: ", r.err);
            reference_[command] = result_of(command, r);
            restore();
        }
    }

    void flip_one() {
        const std::string path = any_file();
        std::string damaged = sound_.at(path);
        const size_t bit = below(8 * damaged.size());
        damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
        std::ofstream(folder_ / path, std::ios::binary) << damaged;
        if (path.find("checkpoints/step-") != std::string::npos) verify(path, bit);
        const std::string command = any_command(path);
        const Ran r = run(command);
        judge(command, path, bit, r);
        restore();
    }

    Json report() const {
        Json outcomes;
        for (const auto& [key, count] : counts_) outcomes[std::get<0>(key)][std::get<1>(key)][std::get<2>(key)] = count;
        return {{"outcomes", outcomes}, {"violations", violations_}};
    }

  private:
    uint64_t below(uint64_t bound) { return std::uniform_int_distribution<uint64_t>(0, bound - 1)(random_); }

    std::string any_file() {
        std::vector<std::pair<std::string, size_t>> files;
        size_t bytes = 0;
        for (const auto& [path, text] : sound_)
            if (!text.empty()) files.emplace_back(path, bytes += text.size());
        if (below(2) == 0) return files[below(files.size())].first;
        const size_t at = below(bytes);
        return std::find_if(files.begin(), files.end(), [&](const auto& f) { return at < f.second; })->first;
    }

    // Mostly the one that reads most.
    std::string any_command(const std::string& path) {
        if (path.starts_with("exported/")) return below(2) == 0 ? "generate exported" : "convert exported";
        const std::vector<std::string> rare = {"generate", "convert", "report"};
        return below(4) > 0 ? "train" : rare[below(rare.size())];
    }

    Ran run(const std::string& command) const {
        const auto path = [&](const char* name) { return (folder_ / name).string(); };
        if (command == "train") return tutti({"train", path("run/config.toml"), "--out", path("run")});
        if (command == "report") return tutti({"report", path("run")});
        const std::string from = command.ends_with("exported") ? path("exported") : path("run");
        if (command.starts_with("convert"))
            return tutti({"convert", "--from", from, "--to", path("made"), "--format",
                          command.ends_with("exported") ? "tutti" : "hf"});
        return tutti({"generate", from, "--prompt", "line 4", "--greedy", "--max-tokens", "8", "--compute", "f32",
                      "--threads", "1", "--device", "cpu"});
    }

    // The result that must be equal with and without the flip.
    std::string result_of(const std::string& command, const Ran& r) const {
        if (command == "report") return "";  // the drawing is not compared
        if (command.starts_with("generate")) return r.out;
        std::string all;
        for (const auto& [path, text] : files_below(folder_, command == "train" ? "run/checkpoints" : "made"))
            if (command == "train" ? path.find("step-0000000005/rank") != std::string::npos
                                   : path.find("MANIFEST") == std::string::npos && !path.ends_with(".lock"))
                all += path + "\n" + text;
        return all;
    }

    // Whether a check of the checkpoint alone finds the damage, whatever a start makes of it.
    void verify(const std::string& path, size_t bit) {
        tutti::checkpoint::PosixFileSystem disk;
        try {
            tutti::checkpoint::Store(disk, folder_ / "run/checkpoints", tutti::checkpoint::Access::read,
                                     [](const auto&) {})
                .verify((folder_ / path).parent_path());
            violate("verify", path, bit, "a damaged checkpoint verifies", {});
        } catch (const tutti::checkpoint::DamagedError&) {
            count("verify", path, "found");
        }
    }

    void judge(const std::string& command, const std::string& path, size_t bit, const Ran& r) {
        if (r.code == 2 || r.code == 3) {
            if (r.err.find("tutti: ") == std::string::npos) violate(command, path, bit, "refused without a reason", r);
            return count(command, path, "refused with the reason");
        }
        if (r.code != 0) return violate(command, path, bit, tutti::concat("exit code ", r.code), r);
        // The first start after the folder was made changes train.steps alone.
        const bool config =
            std::regex_search(r.out, std::regex("changed since that checkpoint: (?!train.steps = 5 .was 4.\n)"));
        const bool named = config || r.err.find("warning: ") != std::string::npos;
        if (result_of(command, r) != reference_.at(command)) {
            if (command == "train" && path.ends_with("config.toml") && named)
                return count(command, path, "another config, and its keys named");
            return violate(command, path, bit, "another result, unnoticed", r);
        }
        if (command == "train" && !judge_log(path, bit, r)) return;
        if (!named && path.find("step-0000000004/") != std::string::npos &&
            (command == "train" || command == "generate"))
            return violate(command, path, bit, "a damaged checkpoint is passed over in silence", r);
        count(command, path, named ? "the same, damage named" : "the same");
    }

    // The lines without damage are there, and the one after the checkpoint is as it was. A flip damages one line, or
    // two: in the line feed between them, or in a step's number, which makes it another line's.
    bool judge_log(const std::string& path, size_t bit, const Ran& r) {
        const auto now = log_of(content(folder_ / "run/metrics.jsonl")), sound = log_of(sound_.at("run/metrics.jsonl"));
        size_t other = 0;
        for (const auto& [step, line] : sound) other += !now.contains(step) || now.at(step) != line ? 1 : 0;
        if (!now.contains(5) || other > (path.ends_with("metrics.jsonl") ? 2 : 0)) {
            violate("train", path, bit, tutti::concat(other, " lines of the log are not what they were"), r);
            return false;
        }
        if (other > 0 && r.err.find("metrics.jsonl:") == std::string::npos) {
            count("train", path, "the same, a value of the log changed");
            return false;
        }
        return true;
    }

    // Names of steps and ranks apart.
    static std::string kind_of(const std::string& path) {
        return std::regex_replace(path, std::regex("[0-9]{5,}"), "N");
    }
    void count(const std::string& command, const std::string& path, const std::string& outcome) {
        ++counts_[{command, kind_of(path), outcome}];
    }
    void violate(const std::string& command, const std::string& path, size_t bit, const std::string& what,
                 const Ran& r) {
        count(command, path, "VIOLATION: " + what);
        if (violations_.size() < 100)
            violations_.push_back({{"command", command}, {"file", path}, {"bit", bit}, {"what", what}, {"err", r.err}});
    }

    void restore() {
        fs::remove_all(folder_ / "made");
        std::set<fs::path> strange;
        for (const char* part : {"run", "exported"})
            for (const auto& entry : fs::recursive_directory_iterator(folder_ / part))
                if (entry.is_regular_file() && !sound_.contains(fs::relative(entry.path(), folder_).string()))
                    strange.insert(entry.path());
        for (const fs::path& path : strange) fs::remove(path);
        for (const auto& [path, text] : sound_) {
            fs::create_directories((folder_ / path).parent_path());
            if (content(folder_ / path) != text) std::ofstream(folder_ / path, std::ios::binary) << text;
        }
        for (const auto& entry : fs::directory_iterator(folder_ / "run/checkpoints"))
            if (entry.is_directory() && fs::is_empty(entry.path())) fs::remove(entry.path());
    }

    fs::path folder_;
    std::mt19937_64 random_;
    Files sound_;
    std::map<std::string, std::string> reference_;
    std::map<std::tuple<std::string, std::string, std::string>, int64_t> counts_;
    Json violations_ = Json::array();
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        std::cerr << "usage: campaign_flips FOLDER FLIPS SEED\n";
        return 2;
    }
    Campaign campaign(argv[1], std::stoull(argv[3]));
    for (int64_t flips = std::stoll(argv[2]); flips > 0; --flips) campaign.flip_one();
    std::cout << campaign.report().dump(1) << std::endl;
}
