// cli/published_table.cpp: `tutti simulate --table`: predictions for published runs of other systems, with their
// errors.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/units.h"
#include "tutti/cli/commands.h"
#include "tutti/published/calibration.h"
#include "tutti/published/memory.h"
#include "tutti/published/step.h"

namespace tutti::cli {

namespace {

using published::GroupError;
using published::PublishedRun;
using published::Source;
using simulate::Physics;

struct Predicted {
    std::vector<double> seconds;
    Json rows = Json::array();
    std::vector<std::string> refused;
};

Json describe(const PublishedRun& run, double seconds, const published::StepTime& time) {
    const published::Memory memory = published::memory(run);
    const double high = std::exp(half_width(run));
    const double full = run.tokens() * (run.model.product_flops() + run.model.attention_flops(run.seq));
    const double causal = full - run.tokens() * run.model.attention_flops(run.seq) / 2;
    const double peak = run.ranks * run.cluster.peak(run.cluster.sixteen_bits());
    Json kinds = Json::object();
    for (const auto& [name, each] : kinds_of(time)) kinds[name] = each;
    return {{"id", run.id},
            {"step_time_s", seconds},
            {"step_time_low_s", seconds / high},
            {"step_time_high_s", seconds * high},
            {"tokens_per_s", run.tokens() / seconds},
            {"tokens_per_s_per_rank", run.tokens() / seconds / run.ranks},
            {"flops_per_s_per_rank", full / seconds / run.ranks},
            {"mfu_causal", causal / seconds / peak},
            {"mfu_full", full / seconds / peak},
            {"peak_bytes", std::round(memory.total())},
            {"house", run.house},
            {"software", run.software.name},
            {"time", std::move(kinds)}};
}

Predicted predict_all(const std::vector<PublishedRun>& runs, const Physics& physics) {
    Predicted p;
    p.seconds.assign(runs.size(), 0);
    for (size_t i = 0; i < runs.size(); ++i) {
        const PublishedRun& run = runs[i];
        std::string problem = run.problem;
        Json row;
        if (problem.empty()) try {
                const published::StepTime time = step_time(run, physics);
                const double seconds = time.total();
                check<UsageError>(std::isfinite(seconds) && seconds > 0, "no time follows from these sizes");
                p.seconds[i] = seconds;
                row = describe(run, seconds, time);
            } catch (const UsageError& error) {
                problem = error.what();
            }
        if (!problem.empty()) {
            row = {{"refused", problem}};
            p.refused.push_back(concat(run.id.empty() ? concat("row ", i + 1) : run.id, ": ", problem));
        }
        p.rows.push_back(std::move(row));
    }
    return p;
}

// Every row of a table that is short enough to be read; all are in the JSON document.
void print_rows(const std::vector<PublishedRun>& runs, const Json& predictions, std::ostream& text) {
    constexpr size_t kMost = 40;
    if (runs.size() > kMost) return;
    const auto line = [&](const auto& run, const auto& devices, const auto& step, const auto& interval,
                          const auto& measured, const auto& mfu, const auto& measured_mfu) {
        text << left(run, 24) << right(devices, 8) << right(step, 11) << right(interval, 22) << right(measured, 11)
             << right(mfu, 9) << right(measured_mfu, 10) << '\n';
    };
    line("run", "devices", "step", "in 8 of 10 runs", "measured", "MFU", "measured");
    for (size_t i = 0; i < runs.size(); ++i) {
        const PublishedRun& run = runs[i];
        if (!run.problem.empty()) continue;
        const auto of = [&](const char* key) { return predictions[i].at(key).template get<double>(); };
        const double step = of("step_time_s"), mfu = of("mfu_full");
        const bool measured = run.measured();
        line(run.id, std::to_string(run.ranks), format_time(step),
             concat(format_time(of("step_time_low_s")), " to ", format_time(of("step_time_high_s"))),
             measured ? format_time(run.seconds) : "-", format_percent(mfu),
             measured ? format_percent(mfu * step / run.seconds) : "-");
    }
    text << "MFU of the peak in 16 bits, counting full attention\n\n";
}

// Rows by group: the error, its bias, the largest, how many rows are inside their intervals, and the error of one
// constant a device and precision.
void print_groups(const char* what, const std::vector<PublishedRun>& runs, const std::vector<double>& predicted,
                  const std::function<std::vector<std::string>(const PublishedRun&)>& names_of, Source source,
                  std::ostream& text) {
    const std::vector<GroupError> ours = errors_of(runs, predicted, names_of, source);
    const std::vector<GroupError> constant = errors_of(runs, published::naive(runs), names_of);
    text << left(what, 24) << right("rows", 6) << right("error", 9) << right("bias", 9) << right("largest", 9)
         << right("inside", 9) << right("one constant", 14) << '\n';
    for (const GroupError& group : ours) {
        const auto same =
            std::find_if(constant.begin(), constant.end(), [&](const GroupError& g) { return g.name == group.name; });
        text << left(group.name, 24) << right(std::to_string(group.rows), 6) << right(format_percent(group.mean), 9)
             << right(format_percent(group.bias), 9) << right(format_percent(group.largest), 9)
             << right(format_percent(double(group.inside) / group.rows), 9) << right(format_percent(same->mean), 14)
             << '\n';
    }
}

void print_errors(const std::vector<PublishedRun>& runs, const std::vector<double>& predicted, Source source,
                  std::ostream& text) {
    const auto of_family = [](const PublishedRun& run) { return std::vector<std::string>{run.family}; };
    text << "errors are |ln(predicted / measured)|; one constant: the best one for a device and precision\n";
    print_groups("family", runs, predicted, of_family, source, text);
    text << '\n';
    print_groups(
        "kind", runs, predicted, [](const PublishedRun& run) { return kinds_of(run); }, source, text);
    text << '\n';
    const published::Means ours = means_of(runs, predicted), constant = means_of(runs, published::naive(runs));
    text << left("mean of the families", 30) << right(format_percent(ours.families), 9) << right("", 27)
         << right(format_percent(constant.families), 14) << '\n'
         << left("mean of the houses", 30) << right(format_percent(ours.houses), 9) << right("", 27)
         << right(format_percent(constant.houses), 14) << '\n';
}

void print_coverage(const std::vector<PublishedRun>& runs, const std::vector<double>& predicted, Source source,
                    std::ostream& text) {
    for (const GroupError& all : errors_of(
             runs, predicted, [](const PublishedRun&) { return std::vector<std::string>{"all"}; }, source))
        text << all.inside << " of " << all.rows
             << " measured steps are inside their interval, which should hold 8 of 10\n";
}

// Every group predicted by constants that were fitted to the others.
std::vector<double> left_out(const SimulateArguments& a, const std::vector<PublishedRun>& runs, std::ostream& text) {
    const std::map<std::string, std::function<std::string(const PublishedRun&)>> groups = {
        {"house", [](const PublishedRun& run) { return run.house; }},
        {"family", [](const PublishedRun& run) { return run.family; }},
        {"generation", [](const PublishedRun& run) { return kinds_of(run).front(); }}};
    const auto group = groups.find(a.leave_out);
    check<UsageError>(group != groups.end(), "--leave-out ", a.leave_out,
                      ": required house, family or generation (of the devices)");
    std::vector<double> seconds = leave_out(runs, group->second, simulate::physics_of_tables());
    text << "predicted by constants that were fitted without the run's " << a.leave_out << '\n';
    std::vector<double> tables(runs.size(), 0);
    for (size_t i = 0; i < runs.size(); ++i)
        if (seconds[i] > 0) tables[i] = step_time(runs[i], simulate::physics_of_tables()).total();
    const published::Means means = means_of(runs, tables);
    text << "with nothing fitted, constants of data sheets and kernel tables alone: " << format_percent(means.families)
         << " of the families, " << format_percent(means.houses) << " of the houses\n\n";
    return seconds;
}

}  // namespace

int simulate_table(const SimulateArguments& a, const Io& io) {
    std::vector<PublishedRun> runs;
    for (const std::string& table : a.tables)
        std::ranges::move(published::read_runs(read_file(table), table), std::back_inserter(runs));
    Physics physics = a.site.empty() ? Physics{} : simulate::read_physics(a.site);
    if (!a.fit.empty()) {
        std::vector<const PublishedRun*> all;
        for (const PublishedRun& run : runs) all.push_back(&run);
        constexpr auto kLeast = 3;
        const auto counting = std::ranges::count_if(runs, &PublishedRun::counts);
        check<DataError>(
            counting >= kLeast, joined(a.tables), ": --fit needs ", kLeast,
            " rows or more with a measured time, a layout that can be simulated and no estimated field, got ", counting,
            " of ", runs.size());
        physics = published::fit(all, physics);
        write_file("--fit", a.fit, site_of(physics).dump(2) + "\n");
    }
    std::ostream& text = io.text();
    Predicted p = predict_all(runs, physics);
    if (p.refused.size() == runs.size())
        throw DataError(concat(joined(a.tables), ": none of ", counted(std::ssize(runs), "row"),
                               " can be predicted; the first: ", p.refused.front()));
    // Rows of devices without products of their precision are refused above.
    for (size_t i = 0; i < runs.size(); ++i)
        if (p.seconds[i] == 0 && runs[i].problem.empty()) runs[i].problem = "refused";
    if (!a.leave_out.empty()) {
        p.seconds = left_out(a, runs, text);
        for (size_t i = 0; i < runs.size(); ++i)
            if (p.seconds[i] > 0) p.rows[i]["left_out_step_time_s"] = p.seconds[i];
    }
    print_rows(runs, p.rows, text);
    const Source source = a.leave_out.empty() ? Source::as_fitted : Source::left_out;
    if (std::any_of(runs.begin(), runs.end(), [](const PublishedRun& run) { return run.measured(); }))
        print_errors(runs, p.seconds, source, text);
    if (!p.refused.empty())
        text << p.refused.size() << " of " << runs.size() << " rows are not predicted (--json says why); "
             << p.refused.front() << '\n';
    print_coverage(runs, p.seconds, source, text);
    if (const published::MemoryErrors errors = memory_errors(runs); errors.rows > 0)
        text << "memory of " << errors.rows << " rows: error " << format_percent(errors.mean) << " on average, median "
             << format_percent(errors.median) << '\n';
    text << std::flush;
    io.print(Json{{"rows", p.rows}});
    return 0;
}

}  // namespace tutti::cli
