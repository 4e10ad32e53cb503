#include "tutti/report/openmetrics.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::report {

namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

// The samples of one family of one run.
class Samples {
  public:
    Samples(std::string& text, std::string name, std::string run)
        : text_(text), name_(std::move(name)), run_(std::move(run)) {}

    void add(const std::optional<double>& value, const Labels& labels = {}) {
        if (!value) return;
        text_ += concat(name_, "{run=\"", escaped(run_), "\"");
        for (const auto& [label, of] : labels) text_ += concat(",", label, "=\"", escaped(of), "\"");
        text_ += concat("} ", number(*value), "\n");
    }

  private:
    static std::string escaped(const std::string& text) {
        std::string escaped;
        for (const char c : text) {
            if (c == '\\' || c == '"') escaped += '\\';
            if (c == '\n')
                escaped += "\\n";
            else
                escaped += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
        }
        return escaped;
    }
    static std::string number(double value) {
        if (std::isnan(value)) return "NaN";
        if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
        std::array<char, 32> text{};
        const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
        return {text.data(), end};
    }

    std::string& text_;
    std::string name_, run_;
};

bool goes_on(const WatchedRun& run) {
    using enum WatchedRun::State;
    return run.state() == waiting || run.state() == running;
}

// The newest line of a run that goes on; null for an ended run, and before the first line.
const LoggedStep* current(const WatchedRun& run) { return goes_on(run) && run.last() ? &*run.last() : nullptr; }

std::optional<double> as_number(int64_t value) { return static_cast<double>(value); }

// How a run's samples of a family are made.
struct Family {
    MetricFamily family;
    std::function<void(const WatchedRun&, Samples&)> add;
};

std::function<void(const WatchedRun&, Samples&)> last_number(std::optional<double> LoggedStep::*number,
                                                             double scale = 1) {
    return [=](const WatchedRun& run, Samples& samples) {
        const LoggedStep* line = current(run);
        if (line != nullptr && line->*number) samples.add(*(line->*number) * scale);
    };
}

void add_memory(const WatchedRun& run, Samples& samples) {
    if (!goes_on(run)) return;
    std::vector<RankMemory> ranks = run.history().totals.ranks;
    if (ranks.size() > kMostRanks) {
        const auto measured = [](const RankMemory& of) {
            double sum = 0;
            for (const auto& [purpose, bytes] : of.measured) sum += bytes;
            return sum;
        };
        std::stable_sort(ranks.begin(), ranks.end(),
                         [&](const RankMemory& a, const RankMemory& b) { return measured(a) < measured(b); });
        ranks = {ranks.front(), ranks[ranks.size() / 2], ranks.back()};
    }
    for (const RankMemory& of : ranks)
        for (const auto& [kind, bytes] : {std::pair{"measured", &of.measured}, std::pair{"predicted", &of.predicted}})
            for (const auto& [purpose, value] : *bytes)
                samples.add(value, {{"rank", concat(of.rank)}, {"purpose", purpose}, {"kind", kind}});
}

void add_state(const WatchedRun& run, Samples& samples) {
    using enum WatchedRun::State;
    for (const auto state : {waiting, running, stopped, ended, died, silent})
        samples.add(run.state() == state ? 1 : 0, {{"state", name_of(state)}});
}

template <class T>
std::function<void(const WatchedRun&, Samples&)> of_times(T value) {
    return [value](const WatchedRun& run, Samples& samples) {
        if (const auto spent = newest_times(run.history())) value(*spent, samples);
    };
}

const std::vector<Family>& families() {
    static const std::vector<Family> all = {
        {{"tutti_run", "info", "", "What the run is."},
         [](const WatchedRun& run, Samples& samples) {
             const RunTotals& totals = run.history().totals;
             samples.add(1, {{"model", totals.model}, {"layout", totals.layout}, {"version", totals.version}});
         }},
        {{"tutti_run_state", "gauge", "", "1 for the state that the run is in."}, add_state},
        {{"tutti_training_step", "gauge", "", "The last logged step."},
         [](const WatchedRun& run, Samples& samples) {
             if (const LoggedStep* line = current(run)) samples.add(as_number(line->step));
         }},
        {{"tutti_training_steps_planned", "gauge", "", "Steps of the whole run."},
         [](const WatchedRun& run, Samples& samples) {
             if (run.steps() > 0) samples.add(as_number(run.steps()));
         }},
        {{"tutti_training_loss", "gauge", "", "Mean loss of the last logged step."}, last_number(&LoggedStep::loss)},
        {{"tutti_training_mtp_loss", "gauge", "", "Mean loss of a token further ahead, by depth."},
         [](const WatchedRun& run, Samples& samples) {
             const LoggedStep* line = current(run);
             for (size_t k = 0; line != nullptr && k < line->mtp_losses.size(); ++k)
                 samples.add(line->mtp_losses[k], {{"depth", concat(k + 1)}});
         }},
        {{"tutti_training_evaluation_loss", "gauge", "", "Loss of the last evaluation."},
         [](const WatchedRun& run, Samples& samples) {
             if (goes_on(run) && run.last_evaluation()) samples.add(run.last_evaluation()->eval_loss);
         }},
        {{"tutti_training_grad_norm", "gauge", "", "Norm of the gradients before clipping."},
         last_number(&LoggedStep::grad_norm)},
        {{"tutti_training_learning_rate", "gauge", "", "Learning rate of the last logged step."},
         last_number(&LoggedStep::lr)},
        {{"tutti_training_step_seconds", "gauge", "seconds", "Time of a step, mean since the line before."},
         last_number(&LoggedStep::step_ms, 1e-3)},
        {{"tutti_training_tokens", "counter", "", "Tokens with a target that the run has trained on."},
         [](const WatchedRun& run, Samples& samples) {
             if (run.last()) samples.add(run.last()->tokens);
         }},
        {{"tutti_training_positions", "counter", "", "Positions computed, with or without a target."},
         [](const WatchedRun& run, Samples& samples) {
             if (run.last()) samples.add(run.sums().positions);
         }},
        {{"tutti_skipped_steps", "counter", "", "Steps that changed no weight because a value was not finite."},
         [](const WatchedRun& run, Samples& samples) { samples.add(as_number(run.skipped())); }},
        {{"tutti_mfu_ratio", "gauge", "ratio", "Model FLOPs as a share of the dense peak."},
         last_number(&LoggedStep::mfu)},
        {{"tutti_memory_bytes", "gauge", "bytes", "Memory of a rank at the peak of the first step."}, add_memory},
        {{"tutti_memory_peak_bytes", "gauge", "bytes", "Peak of a rank's memory since the line before."},
         [](const WatchedRun& run, Samples& samples) {
             const LoggedStep* line = current(run);
             if (line == nullptr) return;
             for (const RankFigures& of : line->ranks) samples.add(of.mem_peak_bytes, {{"rank", concat(of.rank)}});
             if (line->ranks.empty()) samples.add(line->mem_peak_bytes, {{"rank", "0"}});
         }},
        {{"tutti_wait_seconds", "counter", "seconds", "Waits of the first rank in a group of ranks."},
         [](const WatchedRun& run, Samples& samples) {
             for (const auto& [group, seconds] : run.sums().wait_of_group)
                 samples.add(seconds, {{"rank", "0"}, {"group", group}});
         }},
        {{"tutti_rank_wait_seconds", "counter", "seconds", "Waits of a rank for other ranks in all groups."},
         [](const WatchedRun& run, Samples& samples) {
             // Of a run of many ranks those of a line change from line to line: no counters.
             if (run.sums().wait_of_rank.size() > kMostRanks || run.history().totals.ranks.size() > kMostRanks) return;
             for (const auto& [rank, seconds] : run.sums().wait_of_rank) samples.add(seconds, {{"rank", concat(rank)}});
         }},
        {{"tutti_rank_wait_ratio", "gauge", "ratio", "Share of a step that a rank waits for others."},
         [](const WatchedRun& run, Samples& samples) {
             const LoggedStep* line = current(run);
             if (line == nullptr || line->step_ms.value_or(0) <= 0) return;
             for (const RankFigures& of : line->ranks)
                 samples.add(of.wait_ms / *line->step_ms, {{"rank", concat(of.rank)}});
         }},
        {{"tutti_checkpoint_step", "gauge", "", "Step of the newest checkpoint."},
         [](const WatchedRun& run, Samples& samples) {
             if (run.checkpoint()) samples.add(as_number(run.checkpoint()->step));
         }},
        {{"tutti_checkpoint_timestamp_seconds", "gauge", "seconds",
          "When the newest checkpoint was written, Unix time."},
         [](const WatchedRun& run, Samples& samples) {
             if (run.checkpoint()) samples.add(run.checkpoint()->written);
         }},
        {{"tutti_generation", "gauge", "", "Start by `tutti launch`, counted from 1."},
         [](const WatchedRun& run, Samples& samples) {
             if (run.start()) samples.add(as_number(run.start()->generation));
         }},
        {{"tutti_ranks", "gauge", "", "Ranks of the run."},
         [](const WatchedRun& run, Samples& samples) {
             const size_t ranks = run.history().totals.ranks.size();
             if (goes_on(run) && (run.start() || ranks > 0))
                 samples.add(run.start() ? as_number(run.start()->ranks) : static_cast<double>(ranks));
         }},
        {{"tutti_restarts", "counter", "", "Starts that continued the run, by how the one before had ended."},
         of_times([](const TimeSpent& spent, Samples& samples) {
             samples.add(as_number(spent.deaths), {{"reason", "died"}});
             samples.add(as_number(spent.stops), {{"reason", "stopped"}});
         })},
        {{"tutti_restarts_from_memory", "counter", "", "Of these starts, those that continued from a copy in memory."},
         of_times([](const TimeSpent& spent, Samples& samples) { samples.add(as_number(spent.from_memory)); })},
        {{"tutti_lost_steps", "counter", "", "Steps that were done again after a death."},
         of_times([](const TimeSpent& spent, Samples& samples) { samples.add(as_number(spent.lost_steps)); })},
        {{"tutti_time_seconds", "counter", "seconds", "What the time of the run was spent on."},
         of_times([](const TimeSpent& spent, Samples& samples) {
             for (const auto& [key, part] : kTimes) samples.add(spent.*part, {{"on", key}});
         })},
        {{"tutti_goodput_ratio", "gauge", "ratio", "Share of the run's time in steps that count."},
         of_times([](const TimeSpent& spent, Samples& samples) { samples.add(spent.goodput()); })}};
    return all;
}

}  // namespace

MetricsFormat format_of(std::string_view accept) {
    return accept.find("application/openmetrics-text") == std::string_view::npos ? MetricsFormat::text
                                                                                 : MetricsFormat::openmetrics;
}

std::string_view content_type(MetricsFormat format) {
    return format == MetricsFormat::openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                                : "text/plain; version=0.0.4; charset=utf-8";
}

const std::vector<MetricFamily>& metric_families() {
    static const std::vector<MetricFamily> all = [] {
        std::vector<MetricFamily> made;
        for (const Family& of : families()) made.push_back(of.family);
        return made;
    }();
    return all;
}

std::string metrics_text(const std::vector<WatchedRun>& runs, MetricsFormat format) {
    const bool open = format == MetricsFormat::openmetrics;
    std::string text;
    for (const auto& [family, add] : families()) {
        const std::string_view type = family.type;
        const std::string sample = concat(family.name, type == "counter" ? "_total" : type == "info" ? "_info" : "");
        std::string samples;
        for (const WatchedRun& run : runs) {
            Samples of_run(samples, sample, run.path());
            add(run, of_run);
        }
        if (samples.empty()) continue;
        // The older format names what the samples are called, and has no info.
        const std::string name = open ? family.name : sample;
        text += concat("# TYPE ", name, " ", !open && type == "info" ? "gauge" : type, "\n");
        if (open && family.unit[0] != 0) text += concat("# UNIT ", name, " ", family.unit, "\n");
        text += concat("# HELP ", name, " ", family.help, "\n", samples);
    }
    return open ? text + "# EOF\n" : text;
}

}  // namespace tutti::report
