#include "tutti/spec/stages.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/learning_rate.h"

namespace tutti::spec {
namespace {

void set_keys(RunSpec& run, const StageSpec& stage) {
    for_each_field(run, [&]<class T>(const Field& field, T& value) {
        const auto given = stage.set.find(field.path());
        if constexpr (kMayBeInStage<T>)
            if (given != stage.set.end()) value = std::get<T>(given->second);
    });
}

bool begins_course(const StageSpec& stage) {
    return std::any_of(stage.set.begin(), stage.set.end(),
                       [](const auto& given) { return given.first.starts_with("optimizer."); });
}

// Whether samples of both are drawn from one order.
bool read_alike(const RunSpec& a, const RunSpec& b) {
    DataSpec of_a = a.data, of_b = b.data;
    of_a.valid = of_b.valid = {};
    return of_a == of_b && a.train.seq_len == b.train.seq_len;
}

// The number of samples of its data that a stage finds used is that of the stages before it which read alike. Unsigned:
// no run makes so many steps that the product wraps around, but a config may name them.
int64_t shift_of(const std::vector<RunSpec>& before, const RunSpec& stage) {
    const auto samples = [](int64_t steps, const RunSpec& s) {
        return static_cast<uint64_t>(steps) * static_cast<uint64_t>(s.train.global_batch);
    };
    uint64_t used = 0;
    for (const RunSpec& earlier : before)
        if (read_alike(earlier, stage)) used += samples(earlier.place.last - earlier.place.first + 1, earlier);
    return static_cast<int64_t>(used - samples(stage.place.first - 1, stage));
}

}  // namespace

std::vector<RunSpec> stages_of(const RunSpec& run) {
    if (run.stages.empty()) return {run};
    std::vector<RunSpec> stages;
    RunSpec now = run;
    now.stages.clear();
    for (const StageSpec& given : run.stages) {
        const bool is_last = stages.size() + 1 == run.stages.size();
        set_keys(now, given);
        now.place.number = static_cast<int64_t>(stages.size()) + 1;
        now.place.first = stages.empty() ? 1 : stages.back().place.last + 1;
        now.place.last = is_last ? run.train.steps : given.until;
        now.place.sample_shift = shift_of(stages, now);
        if (!stages.empty() && begins_course(given)) {
            const int64_t before = stages.back().place.last;
            for (RunSpec& earlier : stages)
                if (earlier.place.course_end == 0) earlier.place.course_end = before;
            now.place.course_begin = before;
            now.place.course_from = learning_rate(stages.back(), before);
        }
        stages.push_back(now);
    }
    return stages;
}

size_t stage_at(const std::vector<RunSpec>& stages, int64_t step) {
    const auto holds = [&](const RunSpec& stage) { return step <= last_step(stage); };
    const auto found = std::find_if(stages.begin(), stages.end() - 1, holds);
    return to_size(found - stages.begin());
}

std::string stage_name(const RunSpec& stage) {
    return stage.place.number == 0 ? "" : concat("stage ", stage.place.number);
}

std::string of_stage(const RunSpec& stage, const std::string& message) {
    return stage.place.number == 0 ? message : concat(stage_name(stage), ": ", message);
}

std::string stage_keys_text(const RunSpec& run, size_t stage) {
    return joined(run.stages.at(stage).set, ", ",
                  [](const auto& given) { return concat(given.first, " = ", toml_text(given.second)); });
}

std::string stage_text(const RunSpec& run, size_t stage) {
    if (run.stages.empty()) return "";
    const bool is_last = stage + 1 == run.stages.size();
    const std::string keys = stage_keys_text(run, stage);
    return concat("until step ", is_last ? run.train.steps : run.stages[stage].until, keys.empty() ? "" : ": ", keys);
}

std::string stage_status(const RunSpec& run, size_t stage) {
    if (run.stages.empty()) return "";
    return concat("stage ", stage + 1, " of ", run.stages.size(), ", ", stage_text(run, stage));
}

std::vector<std::string> stage_keys() {
    std::vector<std::string> keys;
    const RunSpec run;
    for_each_field(run, [&](const Field& field, const auto&) {
        if (field.in_stage) keys.push_back(field.path());
    });
    return keys;
}

std::map<std::string, StageSpec::Value> layout_keys(const RunSpec& run) {
    std::map<std::string, StageSpec::Value> keys;
    for_each_field(run, [&]<class T>(const Field& field, const T& value) {
        if constexpr (kMayBeInStage<T>) {
            const bool of_section =
                field.section == "parallel" || field.section == "recompute" || field.section == "offload";
            if (field.in_stage && (of_section || field.path() == "train.micro_batch")) keys[field.path()] = value;
        }
    });
    return keys;
}

RunSpec with_layouts(RunSpec run, const std::vector<RunSpec>& stages) {
    auto before = layout_keys(stages.front());
    set_keys(run, {.set = before});
    for (size_t i = 0; i < run.stages.size(); ++i) {
        auto keys = layout_keys(stages.at(i));
        for (const auto& [path, value] : keys) {
            run.stages[i].set.erase(path);
            if (value != before.at(path)) run.stages[i].set[path] = value;
        }
        before = std::move(keys);
    }
    return run;
}

RunSpec longest_stage(const RunSpec& run) {
    const std::vector<RunSpec> stages = stages_of(run);
    return *std::max_element(stages.begin(), stages.end(), [](const RunSpec& a, const RunSpec& b) {
        return std::pair(a.train.seq_len, a.train.global_batch) < std::pair(b.train.seq_len, b.train.global_batch);
    });
}

bool have_equal_steps(RunSpec a, const RunSpec& b) {
    const std::string documents = a.data.documents;
    a.data = b.data;
    a.optimizer = b.optimizer;
    a.place = b.place;
    return a == b && documents == b.data.documents;
}

}  // namespace tutti::spec
