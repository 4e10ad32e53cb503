#include "tutti/report/run_history.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"

namespace tutti::report {
namespace {

namespace fs = std::filesystem;

// One JSON object and its place; the getters name the place and the key when a value has the wrong type.
struct Record {
    const Json& json;
    std::string where;  // "runs/a/metrics.jsonl:12"

    const Json* find(const char* key) const { return json.find(key); }
    std::optional<double> number(const char* key) const {
        const Json* value = find(key);
        if (!value) return std::nullopt;
        if (value->is_null()) return std::nan("");
        check<DataError>(value->is_number(), where, ": `", key, "` must be a number or null, got ", value->dump());
        return value->get<double>();
    }
    // Totals and memory: null means "not known", as an absent key does.
    std::optional<double> known(const char* key) const {
        const std::optional<double> value = number(key);
        return value && std::isfinite(*value) ? value : std::nullopt;
    }
    std::string text(const char* key) const {
        const Json* value = find(key);
        if (!value || value->is_null()) return "";
        check<DataError>(value->is_string(), where, ": `", key, "` must be text, got ", value->dump());
        return value->get<std::string>();
    }
};

// `skipped` may be a flag of this line or the run's count so far; `total` is the count up to the line before.
int64_t skipped_steps(const Record& line, int64_t& total) {
    const Json* value = line.find("skipped");
    if (!value || value->is_null()) return 0;
    if (value->is_boolean()) return value->get<bool>() ? 1 : 0;
    check<DataError>(value->is_integer(), line.where, ": `skipped` must be true, false or a count, got ",
                     value->dump());
    const auto count = value->get<int64_t>();
    const int64_t more = count - total;
    total = count;
    return more > 0 ? more : 0;
}

// What `read` returns; its errors are of `place`.
template <class Read>
auto read_at(const std::string& place, const Read& read) {
    try {
        return read();
    } catch (const Error& error) {
        throw DataError(concat(place, ": ", error.what()));
    }
}

TimeSpent time_spent(const Json& object, const std::string& where) {
    return read_at(where + ": `seconds`", [&] { return time_spent_from(object); });
}

std::vector<RankFigures> rank_figures(const Json& ranks) {
    const auto numbers = ranks.at("rank").get<std::vector<int>>();
    const auto waits = ranks.at("wait_ms").get<std::vector<double>>();
    const auto peaks = ranks.at("mem_peak_bytes").get<std::vector<double>>();
    check<DataError>(waits.size() == numbers.size() && peaks.size() == numbers.size(),
                     "required: lists of one length, got ", numbers.size(), ", ", waits.size(), ", ", peaks.size());
    std::vector<RankFigures> all;
    for (size_t i = 0; i < numbers.size(); ++i) all.push_back({numbers[i], waits[i], peaks[i]});
    return all;
}

LoggedStep logged_step(const Record& line, int64_t& skipped_total) {
    const Json* step = line.find("step");
    check<DataError>(step && step->is_integer(), line.where, ": `step` must be an integer, got ",
                     step ? step->dump() : "no such key");
    LoggedStep logged;
    logged.step = step->get<int64_t>();
    for (const auto& [key, number, tag] : kLoggedNumbers) logged.*number = line.number(key);
    logged.skipped_before = skipped_steps(line, skipped_total);
    logged.skip_reason = line.text("skip_reason");
    const auto read_list = [&](const char* key, const auto& read) {
        if (const Json* list = line.find(key)) read_at(concat(line.where, ": `", key, "`"), [&] { read(*list); });
    };
    read_list("expert_load",
              [&](const Json& load) { logged.expert_load = load.get<std::vector<std::vector<double>>>(); });
    read_list("expert_layers", [&](const Json& layers) { logged.expert_layers = layers.get<std::vector<int64_t>>(); });
    const std::vector<std::vector<double>>& load = logged.expert_load;
    const bool is_filled = std::none_of(load.begin(), load.end(), [](const auto& layer) { return layer.empty(); });
    check<DataError>(is_filled && (logged.expert_layers.empty() || logged.expert_layers.size() == load.size()),
                     line.where, ": `expert_load` must be a list of loads for each of `expert_layers`");
    read_list(kMtpLosses, [&](const Json& losses) {  // null, as elsewhere, is a number that is not finite
        for (const Json& loss : losses.elements())
            logged.mtp_losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>());
    });
    if (const Json* comm = line.find("comm")) {
        check<DataError>(comm->is_object(), line.where, ": `comm` must be an object, got ", comm->dump());
        for (const auto& [name, group] : comm->items()) {
            check<DataError>(group.is_object(), line.where, ": `comm`: `", name, "` must be an object, got ",
                             group.dump());
            const Record record{group, line.where};
            logged.comm[name] = {record.number("operations"), record.number("bytes"), record.number("wait_ms")};
        }
    }
    if (const Json* ranks = line.find("ranks"))
        logged.ranks = read_at(line.where + ": `ranks`", [&] { return rank_figures(*ranks); });
    if (const Json* spent = line.find("seconds")) logged.spent = time_spent(*spent, line.where);
    return logged;
}

// The memory of each rank, as first_step.json and run.json have it.
std::vector<RankMemory> ranks_of(const Json& ranks) {
    std::vector<RankMemory> all;
    for (const Json& of_rank : ranks.elements()) {
        RankMemory memory{.rank = of_rank.at("rank").get<int>()};
        memory.measured = of_rank.at("memory").get<std::map<std::string, double>>();
        memory.predicted = of_rank.value("rehearsed", memory.predicted);
        all.push_back(std::move(memory));
    }
    return all;
}

// Sets the fields that `record` has: those of run.json override those of the log's header line.
void read_totals(const Record& record, RunTotals& totals) {
    const auto keep = [](auto& field, auto value) {
        if (value != decltype(value){}) field = std::move(value);
    };
    keep(totals.model, record.text("model"));
    keep(totals.machine, record.text("machine"));
    keep(totals.sample, record.text("sample"));
    keep(totals.layout, record.text("layout"));
    keep(totals.version, record.text("version"));
    keep(totals.peak_origin, record.text("peak_origin"));
    keep(totals.loss_unit, record.text("loss_unit"));
    keep(totals.parameters, record.known("parameters"));
    keep(totals.tokens, record.known("tokens"));
    keep(totals.wall_s, record.known("wall_s"));
    keep(totals.peak_flops, record.known("peak_flops"));
    keep(totals.final_loss, record.known("final_loss"));
    if (const Json* spent = record.find("seconds")) totals.spent = time_spent(*spent, record.where);
    if (const Json* ranks = record.find("ranks"); ranks && ranks->is_array())
        totals.ranks = read_at(record.where + ": `ranks`", [&] { return ranks_of(*ranks); });
    const Json* memory = record.find("memory");
    if (!memory || memory->is_null()) return;
    if (memory->is_array()) return;  // of a version before 0.2
    check<DataError>(memory->is_object(), record.where, ": `memory` must be an object, got ", memory->dump());
    const Json* rehearsed = record.find("rehearsed");
    const Json* of_rehearsal = rehearsed ? rehearsed->find("memory") : nullptr;
    const Json none;
    const Record measured{*memory, record.where}, predicted{of_rehearsal ? *of_rehearsal : none, record.where};
    totals.memory.clear();
    for (const auto& [purpose, bytes] : memory->items())
        totals.memory.push_back({purpose, predicted.known(purpose.c_str()), measured.known(purpose.c_str())});
}

// Without the file an empty object.
Json read_object(const fs::path& path) {
    const auto text = read_file_if_there(path.string());
    if (!text) return Json::object();
    try {
        const Json json = Json::parse(*text);
        check<DataError>(json.is_object(), path.string(), ": required: one JSON object");
        return json;
    } catch (const JsonError& error) {
        throw DataError(concat(path.string(), ": byte ", error.byte, ": not JSON: ", error.reason));
    }
}

// What `read` makes of a document that a report can do without; `writer` is the command that writes it.
template <class Read>
auto read_optional(const fs::path& path, const char* writer, const Read& read) {
    try {
        return read(Json::parse(read_file(path.string())));
    } catch (const DataError& error) {
        throw DataError(concat(path.string(), ": not what `", writer, "` writes: ", error.what(),
                               "; remove it to report without it"));
    }
}

void read_metrics(const fs::path& path, RunHistory& run) {
    const std::optional<std::string> text = read_file_if_there(path.string());
    check<DataError>(text.has_value(), path.string(),
                     ": is not there: the run has logged no step yet; `tutti watch` waits for one");
    int64_t skipped_total = 0;
    size_t begin = 0;
    for (int64_t number = 1; begin < text->size(); ++number) {
        const size_t end = std::min(text->find('\n', begin), text->size());
        const std::string line = text->substr(begin, end - begin);
        const bool last = end + 1 >= text->size();
        begin = end + 1;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;

        if (last && !Json::try_parse(line)) {
            run.notes.push_back(concat("Line ", number,
                                       " of metrics.jsonl, the last one, was cut off and is left out: the run "
                                       "ended, or is still writing, in the middle of it."));
            break;
        }
        auto step = read_step(line, concat(path.string(), ":", number), skipped_total, run.totals);
        if (!step) continue;
        run.steps.push_back(std::move(*step));
        const size_t count = run.steps.size();
        if (count > 1 && run.steps[count - 1].step < run.steps[count - 2].step) {
            run.notes.push_back(concat("Line ", number, " of metrics.jsonl goes back from step ",
                                       run.steps[count - 2].step, " to step ", run.steps[count - 1].step, "."));
        }
    }
}

PredictedStep predicted_step_from(const Json& document) {
    PredictedStep step;
    step.machine = document.at("machine").get<std::string>();
    step.step_s = document.at("step_time_s").get<double>();
    step.low_s = document.at("step_time_low_s").get<double>();
    step.high_s = document.at("step_time_high_s").get<double>();
    step.peak_bytes = document.at("peak_bytes").get<double>();
    step.goodput = document.value("goodput", 0.0);
    step.between_failures_s = document.value("between_failures_s", 0.0);
    step.first = document.value("first_step", step.first);
    step.last = document.value("last_step", step.last);
    for (const Json& group : document.at("communication"))
        step.sent[group.at("group").get<std::string>()] += group.at("sent").get<double>();
    return step;
}

}  // namespace

std::string name_of_mtp_loss(size_t k) { return concat("mtp_loss_", k + 1); }

std::optional<LoggedStep> read_step(const std::string& line, const std::string& where, int64_t& skipped_total,
                                    RunTotals& totals) {
    const std::optional<Json> json = Json::try_parse(line);
    check<DataError>(json && json->is_object(), where, ": required: one JSON object, got `", line.substr(0, 80), "`");
    const Record record{*json, where};
    if (const Json* header = json->find("header"); header && *header == true) {
        read_totals(record, totals);
        return std::nullopt;
    }
    return logged_step(record, skipped_total);
}

void check_run_directory(const fs::path& run_dir) {
    std::error_code unreadable;
    check<DataError>(fs::is_directory(run_dir, unreadable), run_dir.string(),
                     ": required: the directory of a run, as `tutti train --out DIR` makes it; ",
                     fs::exists(run_dir, unreadable) ? "this is not a directory" : "it does not exist");
}

void check_holds_run(const fs::path& run_dir) {
    check_run_directory(run_dir);
    std::error_code unreadable;
    for (const char* name : {"run.lock", "launch.lock", "metrics.jsonl", "run.json"})  // a start makes a lock first
        if (fs::exists(run_dir / name, unreadable)) return;
    throw DataError(concat(run_dir.string(), " holds no run: it has no metrics.jsonl, and no run.lock of one that ",
                           "starts; required: the directory of a run, as `tutti train --out DIR` makes it"));
}

std::string name_of_run(const fs::path& run_dir) {
    const fs::path path = fs::canonical(run_dir);  // "." and "runs/a/" do not end in a directory name
    return path.has_filename() ? path.filename().string() : path.string();
}

std::optional<TimeSpent> newest_times(const RunHistory& run) {
    const bool has_line = !run.steps.empty() && run.steps.back().spent.has_value();
    if (!has_line) return run.totals.spent;
    // run.json of an earlier end has less.
    const TimeSpent& line = *run.steps.back().spent;
    return run.totals.spent && run.totals.spent->total() > line.total() ? run.totals.spent : line;
}

double predicted_bytes(const RunHistory& run, int rank) {
    double bytes = 0;
    for (const RankMemory& of : run.totals.ranks)
        if (of.rank == rank)
            for (const auto& [purpose, value] : of.predicted) bytes += value;
    return bytes;
}

RunHistory read_run(const fs::path& run_dir) {
    check_holds_run(run_dir);
    RunHistory run;
    run.name = name_of_run(run_dir);
    read_metrics(run_dir / "metrics.jsonl", run);
    if (!fs::exists(run_dir / "run.json"))
        run.notes.push_back(
            "run.json is not there: the run has not ended yet, or was stopped. Totals are as far as the log goes.");
    read_other_files(run_dir, run);
    return run;
}

void read_other_files(const fs::path& run_dir, RunHistory& run) {
    const Json first = read_object(run_dir / "first_step.json"), end = read_object(run_dir / "run.json");
    read_totals({first, (run_dir / "first_step.json").string()}, run.totals);
    // A run that has gone on since has other ranks, other memory and another end.
    if (end.value("steps", int64_t{0}) >= first.value("step", int64_t{0}))
        read_totals({end, (run_dir / "run.json").string()}, run.totals);
    if (auto text = read_file_if_there((run_dir / "config.toml").string()))
        run.config = std::move(*text);
    else
        run.notes.push_back("config.toml is not there.");
    const fs::path trace = run_dir / "trace.json", precision = run_dir / "precision.json",
                   predicted = run_dir / "predicted.json", predicted_trace = run_dir / "predicted_trace.json";
    if (fs::exists(trace)) run.trace = read_trace(trace);
    if (fs::exists(precision)) run.precision = read_optional(precision, "tutti inspect --precision", precision_from);
    if (!fs::exists(predicted)) return;
    run.predicted = read_optional(predicted, "tutti simulate --run", predicted_step_from);
    if (fs::exists(predicted_trace)) run.predicted->trace = read_trace(predicted_trace);
}

}  // namespace tutti::report
