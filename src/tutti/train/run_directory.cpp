#include "tutti/train/run_directory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/digest.h"
#include "tutti/checkpoint/file_writer.h"
#include "tutti/checkpoint/store.h"
#include "tutti/device/device.h"
#include "tutti/hf/export.h"
#include "tutti/report/run_history.h"

namespace tutti::train {

namespace {

constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kFirstStep = "first_step.json";
constexpr const char* kTotals = "run.json";
constexpr const char* kConfig = "config.toml";
constexpr const char* kReport = "report.html";
constexpr const char* kLock = "run.lock";
constexpr const char* kCheckpoints = "checkpoints";

// Whole numbers as such: 40 operations, not 40.0.
Json count(double x) { return x == std::floor(x) ? Json(static_cast<int64_t>(x)) : Json(x); }

Json comm_of(const StepMetrics& m) {
    auto groups = Json::object();
    for (const StepMetrics::Comm& c : m.comm)
        groups[c.group] = {{"operations", count(c.operations)}, {"bytes", count(c.bytes)}, {"wait_ms", c.wait_ms}};
    return groups;
}

// A list for each layer that has experts, in steps of 1e-4.
Json load_of(const nn::RoutingSummary& routing) {
    Json layers = Json::array();
    for (size_t i = 0; i < routing.load.size(); ++i) {
        if (i % to_size(routing.experts) == 0) layers.push_back(Json::array());
        layers.back().push_back(std::round(routing.load[i] * 1e4) / 1e4);
    }
    return layers;
}

Json ranks_of(const StepMetrics& m) {
    Json ranks = Json::array(), waits = Json::array(), peaks = Json::array();
    for (const report::RankFigures& figures : m.ranks) {
        ranks.push_back(figures.rank);
        waits.push_back(count(std::round(figures.wait_ms * 1000) / 1000));
        peaks.push_back(count(figures.mem_peak_bytes));
    }
    return {{"rank", ranks}, {"wait_ms", waits}, {"mem_peak_bytes", peaks}};
}

// The object in a file of the run. Empty where the file is missing or unreadable: the next write replaces the file.
Json object_of(const std::string& path, const std::string& name) {
    const auto json = Json::try_parse(read_file_if_readable(path + "/" + name).value_or(""));
    return json && json->is_object() ? *json : Json::object();
}

// A directory of something else, such as the user's own config.toml or a Hugging Face model, is no place for a run,
// which would replace its files.
void require_no_others(const std::string& path) {
    std::error_code missing;
    for (const char* name : {kLock, kMetrics, kFirstStep, kCheckpoints})
        if (std::filesystem::exists(concat(path, "/", name), missing)) return;
    for (const char* name : {kConfig, "config.json", "tokenizer.json", "tokenizer.model", kTotals, kReport})
        check<UsageError>(!std::filesystem::is_regular_file(concat(path, "/", name), missing), path, " has a ", name,
                          " that no run wrote, and a run there would replace it; choose another directory with --out, "
                          "or move the file");
}

class RunLock final : public checkpoint::FileLock {
  public:
    RunLock(std::string directory, bool made, std::unique_ptr<checkpoint::FileLock> lock)
        : directory_(std::move(directory)), made_(made), lock_(std::move(lock)) {}
    ~RunLock() override { remove_unless_begun(directory_, made_, {}); }
    RunLock(const RunLock&) = delete;
    RunLock& operator=(const RunLock&) = delete;

  private:
    std::string directory_;
    bool made_;
    std::unique_ptr<checkpoint::FileLock> lock_;
};

}  // namespace

void remove_unless_begun(const std::string& path, bool made, const std::vector<std::filesystem::path>& others) {
    const std::filesystem::path directory = path, checkpoints = directory / kCheckpoints;
    std::vector<std::filesystem::path> own = {directory / kLock, checkpoints / checkpoint::kLockName};
    for (const auto& other : others) own.push_back(directory / other);
    std::error_code ignored;
    for (const auto& place : {directory, checkpoints})
        for (const auto& entry : std::filesystem::directory_iterator(place, ignored))
            if (entry.path() != checkpoints && std::ranges::count(own, entry.path()) == 0) return;
    for (const auto& one : own) std::filesystem::remove_all(one, ignored);
    const bool real = std::filesystem::is_directory(std::filesystem::symlink_status(checkpoints, ignored));
    if (real) std::filesystem::remove(checkpoints, ignored);
    if (made) std::filesystem::remove(directory, ignored);
}

bool has_results(const std::string& path, int64_t step) {
    const Json totals = object_of(path, kTotals);
    const Json *steps = totals.find("steps"), *preempted = totals.find("preempted");
    return steps != nullptr && *steps == Json(step) && preempted != nullptr && *preempted == Json(false);
}

std::unique_ptr<checkpoint::FileLock> lock_run(const std::string& path) {
    require_no_others(path);
    std::error_code error;
    const bool made = !std::filesystem::exists(path, error);
    std::filesystem::create_directories(path, error);
    check_written(!error && std::filesystem::is_directory(path), error.value(), "cannot make the run directory ", path,
                  ": ", error ? error.message() : "a file of that name exists", "; choose another with --out");
    checkpoint::PosixFileSystem files;
    std::unique_ptr<checkpoint::FileLock> lock;
    try {
        lock = files.lock(concat(path, "/", kLock), checkpoint::this_owner());
    } catch (const checkpoint::IoError&) {  // a full disk
        RunLock(path, made, nullptr);
        throw;
    }
    checkpoint::remove_temporary_files(files, path, lock != nullptr);
    return lock ? std::make_unique<RunLock>(path, made, std::move(lock)) : nullptr;
}

RunDirectory::RunDirectory(std::string path, int64_t resumed_step, bool events, Warn warn)
    : path_(std::move(path)), warn_(std::move(warn)) {
    kept_ = lines_up_to(resumed_step);
    if (events) events_.emplace(path_ + "/tensorboard", resumed_step + 1, host_name());
}

std::optional<std::string> RunDirectory::lines_up_to(int64_t step) {
    const std::string path = path_ + "/" + kMetrics;
    const auto text = read_file_if_there(path);
    if (!text) return std::nullopt;
    std::string kept;
    std::istringstream in(*text);
    int64_t number = 1;
    for (std::string line; std::getline(in, line) && !in.eof(); ++number) {  // a torn last line has no end
        const std::optional<Json> json = Json::try_parse(line);
        const Json* of_line = json ? json->find("step") : nullptr;
        if (of_line == nullptr || !of_line->is_integer())
            warn_(concat(path, ":", number, ": is damaged and left out: ", line.substr(0, 60)));
        else if (of_line->get<int64_t>() <= step)
            kept += line + "\n";
    }
    return kept == *text ? std::nullopt : std::optional(kept);
}

bool RunDirectory::or_warn(const std::string& name, const std::function<void(checkpoint::FileSystem&)>& write) {
    try {
        checkpoint::PosixFileSystem files;
        write(files);
        return true;
    } catch (const DataError& error) {
        if (!failed_) warn_(concat(error.what(), "; training continues without ", name));
        failed_ = true;
        return false;
    }
}

bool RunDirectory::write_whole(const std::string& name, const std::string& text) {
    return or_warn(name, [&](checkpoint::FileSystem& files) {
        checkpoint::write_file_atomically(files, path_, {.name = name, .head = text});
    });
}

void RunDirectory::write_config(const std::string& toml) {
    config_ = toml;
    write_whole(kConfig, toml);
}

void RunDirectory::make_again() {
    if (config_.empty() || std::filesystem::exists(concat(path_, "/", kConfig))) return;
    try {
        lock_ = nullptr;
        lock_ = lock_run(path_);
        if (!std::filesystem::exists(path_ + "/" + kMetrics))
            warn_(concat(path_, " was taken away or emptied while the run goes on; it is made again, and what ",
                         kMetrics, " held until here is lost"));
        write_config(config_);
        if (!tokenizer_file_.empty()) copy_tokenizer(tokenizer_file_);
        if (events_) events_.emplace(path_ + "/tensorboard", 0, host_name());
    } catch (const Error& error) {
        if (!failed_) warn_(concat(error.what(), "; training continues"));
        failed_ = true;
    }
}

void RunDirectory::copy_tokenizer(const std::string& file) {
    tokenizer_file_ = file;
    const std::filesystem::path path(file);
    std::vector<std::string> copied;
    const auto copy = [&](const std::filesystem::path& from, const std::string& name) {
        if (write_whole(name, read_file(from.string()))) copied.push_back(name);
    };
    const std::string own = "tokenizer" + path.extension().string();
    copy(path, own);
    for (const std::string& name : hf::files_beside_tokenizers())
        if (name != own && std::filesystem::exists(path.parent_path() / name)) copy(path.parent_path() / name, name);
    std::error_code ignored;  // of a start with another tokenizer
    if (own == "tokenizer.json") std::filesystem::remove(path_ + "/tokenizer.model", ignored);
    or_warn("XXH128SUMS", [&](checkpoint::FileSystem& files) { checkpoint::write_sums(files, path_, copied); });
}

void RunDirectory::write_first_step(const std::string& json) { write_whole(kFirstStep, json); }

void RunDirectory::write_totals(const std::string& json) { write_whole(kTotals, json); }

void RunDirectory::write_report(const std::string& html) { write_whole(kReport, html); }

void RunDirectory::log_events(const StepMetrics& m, const Json& line) {
    std::vector<report::Scalar> scalars = {{"train/skipped", static_cast<double>(m.skipped)}};
    for (const auto& [key, number, tag] : report::kLoggedNumbers)
        if (const Json* value = line.find(key); value != nullptr && tag != nullptr)
            scalars.push_back({tag, value->get<double>()});
    for (size_t k = 0; k < m.result.later_losses.size(); ++k)
        scalars.push_back({"train/" + report::name_of_mtp_loss(k), m.result.later_losses[k]});
    if (const std::vector<double>& load = m.result.routing.load; !load.empty())
        scalars.push_back({"experts/largest_load", *std::max_element(load.begin(), load.end())});
    add_events(m.step, scalars);
}

void RunDirectory::add_events(int64_t step, const std::vector<report::Scalar>& scalars) {
    if (events_->add(step, scalars) || failed_) return;
    warn_(concat("cannot write ", events_->path(), ": ", std::strerror(errno), "; training continues"));
    failed_ = true;
}

void RunDirectory::log(const StepMetrics& m) {
    make_again();
    if (const auto kept = std::exchange(kept_, std::nullopt)) write_whole(kMetrics, *kept);
    Json line = {{"step", m.step},
                 {"tokens", m.tokens},
                 {"loss", m.result.loss},
                 {"grad_norm", m.result.grad_norm},
                 {"lr", m.result.lr},
                 {"step_ms", m.step_ms},
                 {"tokens_per_s", m.tokens_per_s},
                 {"mfu", m.mfu},
                 {"hfu", m.hfu},
                 {"mem_peak_bytes", m.mem_peak_bytes},
                 {"comm_bytes", m.comm_bytes()},
                 {"comm", comm_of(m)},
                 {"bubble", m.bubble},
                 {"skipped", m.skipped}};
    if (const nn::RoutingSummary& r = m.result.routing; r.experts > 0) {
        line["aux_loss"] = r.aux_loss;
        line["router_entropy"] = r.entropy;
        line["dropped_share"] = r.dropped_share;
        line["expert_layers"] = r.layers;
        line["expert_load"] = load_of(r);
    }
    if (!m.result.later_losses.empty()) line[report::kMtpLosses] = m.result.later_losses;
    if (m.stage > 0) line["stage"] = m.stage;
    if (m.scaled) line["loss_scale"] = m.result.loss_scale;
    if (m.result.saturated) line["fp8_saturated"] = *m.result.saturated;
    if (m.result.flushed) line["fp8_flushed"] = *m.result.flushed;
    if (m.result.skipped) line["skip_reason"] = m.result.culprit;
    if (m.eval_loss) line["eval_loss"] = *m.eval_loss;
    if (!m.ranks.empty()) line["ranks"] = ranks_of(m);
    line["seconds"] = report::to_json(m.spent);
    line["time"] = unix_time();
    if (events_) log_events(m, line);
    const std::string path = path_ + "/" + kMetrics;
    std::error_code error;
    const auto before = std::filesystem::file_size(path, error);
    const bool there = !error;
    std::ofstream out(path, std::ios::app);
    out << line.dump() << '\n';
    out.close();
    if (out) {
        failed_ = false;
        return;
    }
    if (!failed_) warn_(concat("cannot write ", path, ": ", std::strerror(errno), "; training continues"));
    failed_ = true;
    if (there) std::filesystem::resize_file(path, before, error);  // else the next line would end a torn one
}

// The lines before that of `step`, and that line, the last one; an empty object where the log ends elsewhere.
std::pair<std::string, Json> RunDirectory::split_before(int64_t step) const {
    const std::string text = kept_ ? *kept_ : read_file_if_there(path_ + "/" + kMetrics).value_or("");
    const size_t end = text.find_last_not_of('\n'), newline = end == std::string::npos ? end : text.rfind('\n', end);
    const size_t begin = newline == std::string::npos ? 0 : newline + 1;
    const std::optional<Json> line = Json::try_parse(text.substr(begin));
    const Json* of_line = line ? line->find("step") : nullptr;
    const bool found = of_line != nullptr && of_line->is_integer() && of_line->get<int64_t>() == step;
    return {text.substr(0, begin), found ? *line : Json::object()};
}

void RunDirectory::log_evaluation(int64_t step, double loss) {
    auto [before, line] = split_before(step);
    if (line.empty()) return;
    line["eval_loss"] = loss;
    kept_.reset();
    write_whole(kMetrics, before + line.dump() + "\n");
    if (events_) add_events(step, {{"eval/loss", loss}});
}

Json RunDirectory::first_step() const { return object_of(path_, kFirstStep); }

}  // namespace tutti::train
