#include "tutti/report/run_history.h"

#include <algorithm>
#include <cmath>

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

LoggedStep logged_step(const Record& line, int64_t& skipped_total) {
    const Json* step = line.find("step");
    check<DataError>(step && step->is_integer(), line.where, ": `step` must be an integer, got ",
                     step ? step->dump() : "no such key");
    LoggedStep logged;
    logged.step = step->get<int64_t>();
    for (const auto& [key, number] : kLoggedNumbers) logged.*number = line.number(key);
    logged.skipped_before = skipped_steps(line, skipped_total);
    logged.skip_reason = line.text("skip_reason");
    if (const Json* load = line.find("expert_load")) {
        const auto is_row = [](const Json& row) {
            return row.is_array() && !row.empty() &&
                   std::all_of(row.begin(), row.end(), [](const Json& value) { return value.is_number(); });
        };
        check<DataError>(load->is_array() && std::all_of(load->begin(), load->end(), is_row), line.where,
                         ": `expert_load` must be a list of lists of numbers, got ", load->dump());
        logged.expert_load = load->get<std::vector<std::vector<double>>>();
    }
    if (const Json* layers = line.find("expert_layers")) {
        check<DataError>(
            layers->is_array() && layers->size() == logged.expert_load.size() &&
                std::all_of(layers->begin(), layers->end(), [](const Json& layer) { return layer.is_integer(); }),
            line.where, ": `expert_layers` must be a whole number for each list of `expert_load`, got ",
            layers->dump());
        logged.expert_layers = layers->get<std::vector<int64_t>>();
    }
    if (const Json* comm = line.find("comm")) {
        check<DataError>(comm->is_object(), line.where, ": `comm` must be an object, got ", comm->dump());
        for (const auto& [name, group] : comm->items()) {
            check<DataError>(group.is_object(), line.where, ": `comm`: `", name, "` must be an object, got ",
                             group.dump());
            const Record record{group, line.where};
            logged.comm[name] = {record.number("operations"), record.number("bytes"), record.number("wait_ms")};
        }
    }
    return logged;
}

// Sets the fields that `record` has: those of run.json override those of the log's header line.
void read_totals(const Record& record, RunTotals& totals) {
    const auto keep = [](auto& field, auto value) {
        if (value != decltype(value){}) field = std::move(value);
    };
    keep(totals.model, record.text("model"));
    keep(totals.machine, record.text("machine"));
    keep(totals.sample, record.text("sample"));
    keep(totals.peak_origin, record.text("peak_origin"));
    keep(totals.loss_unit, record.text("loss_unit"));
    keep(totals.parameters, record.known("parameters"));
    keep(totals.tokens, record.known("tokens"));
    keep(totals.wall_s, record.known("wall_s"));
    keep(totals.peak_flops, record.known("peak_flops"));
    keep(totals.final_loss, record.known("final_loss"));
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

void read_metrics(const fs::path& path, RunHistory& run) {
    const std::optional<std::string> text = read_file_if_there(path.string());
    check<DataError>(text.has_value(), path.string(),
                     ": is not there. Required: the directory of a run, as `tutti train ",
                     "--out DIR` leaves it, with metrics.jsonl in it");
    int64_t skipped_total = 0;
    size_t begin = 0;
    for (int64_t number = 1; begin < text->size(); ++number) {
        const size_t end = std::min(text->find('\n', begin), text->size());
        const std::string line = text->substr(begin, end - begin);
        const bool last = end + 1 >= text->size();
        begin = end + 1;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;

        const std::string where = concat(path.string(), ":", number);
        const std::optional<Json> json = Json::try_parse(line);
        if (!json && last) {
            run.notes.push_back(concat("Line ", number,
                                       " of metrics.jsonl, the last one, was cut off and is left out: the run "
                                       "ended, or is still writing, in the middle of it."));
            break;
        }
        check<DataError>(json && json->is_object(), where, ": required: one JSON object, got `", line.substr(0, 80),
                         "`");
        const Record record{*json, where};
        if (const Json* header = json->find("header"); header && *header == true) {
            read_totals(record, run.totals);
            continue;
        }
        run.steps.push_back(logged_step(record, skipped_total));
        const size_t count = run.steps.size();
        if (count > 1 && run.steps[count - 1].step < run.steps[count - 2].step) {
            run.notes.push_back(concat("Line ", number, " of metrics.jsonl goes back from step ",
                                       run.steps[count - 2].step, " to step ", run.steps[count - 1].step, "."));
        }
    }
}

PredictedStep read_prediction(const fs::path& run_dir) {
    const fs::path path = run_dir / "predicted.json";
    PredictedStep step;
    try {
        const Json document = Json::parse(read_file(path.string()));
        step.machine = document.at("machine").get<std::string>();
        step.step_s = document.at("step_time_s").get<double>();
        step.low_s = document.at("step_time_low_s").get<double>();
        step.high_s = document.at("step_time_high_s").get<double>();
        step.peak_bytes = document.at("peak_bytes").get<double>();
        for (const Json& group : document.at("communication"))
            step.sent[group.at("group").get<std::string>()] += group.at("sent").get<double>();
    } catch (const DataError& error) {
        throw DataError(concat(path.string(), ": not what `tutti simulate --run` writes: ", error.what(),
                               "; remove it to report without it"));
    }
    if (fs::exists(run_dir / "predicted_trace.json")) step.trace = read_trace(run_dir / "predicted_trace.json");
    return step;
}

}  // namespace

LoggedStep read_step(const std::string& line, const std::string& where, int64_t& skipped_total) {
    const std::optional<Json> json = Json::try_parse(line);
    check<DataError>(json && json->is_object(), where, ": required: one JSON object, got `", line.substr(0, 80), "`");
    return logged_step({*json, where}, skipped_total);
}

RunHistory read_run(const fs::path& run_dir) {
    check<DataError>(fs::is_directory(run_dir), run_dir.string(), ": required: the directory of a run; ",
                     fs::exists(run_dir) ? "this is not a directory" : "it does not exist");
    RunHistory run;
    const fs::path path = fs::canonical(run_dir);  // "." and "runs/a/" do not end in a directory name
    run.name = path.has_filename() ? path.filename().string() : path.string();
    read_metrics(run_dir / "metrics.jsonl", run);

    const fs::path totals_path = run_dir / "run.json";
    if (const auto text = read_file_if_there(totals_path.string())) {
        try {
            const Json json = Json::parse(*text);
            check<DataError>(json.is_object(), totals_path.string(), ": required: one JSON object");
            read_totals({json, totals_path.string()}, run.totals);
        } catch (const JsonError& error) {
            throw DataError(concat(totals_path.string(), ": byte ", error.byte, ": not JSON: ", error.reason));
        }
    } else {
        run.notes.push_back(
            "run.json is not there: the run has not ended yet, or was stopped. Totals are as far as the log goes.");
    }
    if (auto text = read_file_if_there((run_dir / "config.toml").string()))
        run.config = std::move(*text);
    else
        run.notes.push_back("config.toml is not there.");
    if (fs::exists(run_dir / "trace.json")) run.trace = read_trace(run_dir / "trace.json");
    if (const auto text = read_file_if_there((run_dir / "precision.json").string())) {
        try {
            run.precision = precision_from(Json::parse(*text));
        } catch (const DataError& error) {
            throw DataError(concat((run_dir / "precision.json").string(),
                                   ": not what `tutti inspect --precision` writes: ", error.what(),
                                   "; remove it to report without it"));
        }
    }
    if (fs::exists(run_dir / "predicted.json")) run.predicted = read_prediction(run_dir);
    return run;
}

}  // namespace tutti::report
