#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/base/strings.h"
#include "tutti/base/units.h"
#include "tutti/report/parts.h"
#include "tutti/report/watched_run.h"

namespace tutti::report {

namespace {

constexpr size_t kRankLines = 16;

std::string with(const char* name, const std::optional<double>& value, const auto& format) {
    return value ? concat("   ", name, name[0] != 0 ? " " : "", format(*value)) : "";
}

// A line for each rank; of more ranks those that wait least, since the others wait for them.
std::string rank_lines(const WatchedRun& run) {
    if (!run.last() || run.last()->ranks.empty()) return "";
    const LoggedStep& last = *run.last();
    std::vector<RankFigures> shown = last.ranks;
    if (shown.size() > kRankLines) {
        std::stable_sort(shown.begin(), shown.end(),
                         [](const RankFigures& a, const RankFigures& b) { return a.wait_ms < b.wait_ms; });
        shown.resize(kRankLines);
    }
    std::string text;
    for (const RankFigures& of : shown) {
        text += concat("rank ", right(concat(of.rank), 3), "   waits ", right(format_time(of.wait_ms / 1000), 8),
                       " a step");
        if (last.step_ms && *last.step_ms > 0)
            text += concat(", ", right(format_percent(of.wait_ms / *last.step_ms), 7));
        text += concat("   memory ", format_bytes(of.mem_peak_bytes));
        if (const double predicted = predicted_bytes(run.history(), of.rank); predicted > 0)
            text += concat(" of ", format_bytes(predicted), " predicted");
        text += '\n';
    }
    return text;
}

std::string spent_line(const WatchedRun& run) {
    const std::optional<TimeSpent> spent = newest_times(run.history());
    if (!spent || !spent->goodput()) return "";
    std::string text = concat("goodput ", format_percent(*spent->goodput()));
    for (const auto& [key, part] : kTimes) text += concat("   ", key, " ", format_duration((*spent).*part));
    return text + '\n';
}

}  // namespace

std::string render(const WatchedRun& run, size_t columns, double now) {
    std::string text =
        concat(run.path(), "   ", run.state() == WatchedRun::State::died ? "DIED" : name_of(run.state()));
    if (run.state() == WatchedRun::State::silent)
        text += concat(", no line for ", format_duration(now - run.last_line()));
    if (const auto& last = run.last()) {
        text += concat("   step ", last->step);
        if (run.steps() > 0)
            text += concat(" of ", run.steps(), ", ", format_percent(double(last->step) / double(run.steps())));
        if (const auto left = run.seconds_left()) text += concat("   ", format_duration(*left), " left");
    }
    text += '\n';
    if (const std::string stage = run.stage(); !stage.empty()) text += stage + '\n';
    if (const auto& last = run.last()) {
        text += concat("loss ", last->loss ? format_fixed(*last->loss, 4) : "-");
        for (size_t k = 0; k < last->mtp_losses.size(); ++k)
            text += concat("   ", name_of_mtp_loss(k), ' ', format_fixed(last->mtp_losses[k], 4));
        if (const auto& e = run.last_evaluation())
            text += concat("   eval ", format_fixed(*e->eval_loss, 4), " at step ", e->step);
        text += with("norm", last->grad_norm, [](double x) { return format_fixed(x, 3); });
        text += with("lr", last->lr, [](double x) { return short_number(x); }) + '\n';
        std::string rates = with("", last->tokens_per_s, [](double x) { return format_rate(x, "tokens"); });
        rates += with("step", last->step_ms, [](double x) { return format_time(x / 1000); });
        rates += with("mfu", last->mfu, format_percent);
        rates += with("memory", last->mem_peak_bytes, format_bytes);
        double wait = 0;
        for (const auto& [name, group] : last->comm) wait += group.wait_ms.value_or(0);
        if (wait > 0) rates += concat("   waits ", format_time(wait / 1000), " a step for other ranks");
        if (rates.size() > 3) text += rates.substr(3) + '\n';
    }
    if (const auto& c = run.checkpoint())
        text +=
            concat("checkpoint of step ", c->step, ", ", format_duration(std::max(0.0, now - c->written)), " ago\n");
    else
        text += "no checkpoint yet\n";
    if (const RunEvent* start = run.start())
        text += concat("generation ", start->generation, ", started ",
                       format_duration(std::max(0.0, now - start->time)), " ago: ", start->text, '\n');
    if (const RunEvent* death = run.death())
        text += concat("generation ", death->generation, " died ", format_duration(std::max(0.0, now - death->time)),
                       " ago: ", death->text, '\n');
    if (run.skipped() > 0) text += concat("warning: ", run.skipped(), " steps were skipped\n");
    if (run.state() == WatchedRun::State::died)
        text += concat("its process is gone: tutti report --flight ", quoted_for_shell(run.path()), "\n");
    text += rank_lines(run);
    if (const std::string slowest = slowest_of({run.tail().begin(), run.tail().end()}); !slowest.empty())
        text += slowest + '\n';
    text += spent_line(run);
    for (const std::string& note : run.history().notes) text += concat("note: ", note, '\n');
    std::vector<Point> curve;
    for (const LoggedStep& step : run.history().steps)
        if (step.loss) curve.push_back({static_cast<double>(step.step), *step.loss});
    return text + braille_curve(curve, columns, 8);
}

std::string log_line(const WatchedRun& run, const LoggedStep& step) {
    std::string text = concat("step ", step.step);
    if (run.steps() > 0) text += concat("/", run.steps());
    text += with("loss", step.loss, [](double x) { return format_fixed(x, 4); });
    text += with("", step.tokens_per_s, [](double x) { return format_rate(x, "tokens"); });
    text += with("eval", step.eval_loss, [](double x) { return format_fixed(x, 4); });
    if (step.skipped_before > 0) text += concat("   ", step.skipped_before, " skipped");
    return text;
}

std::string braille_curve(const std::vector<Point>& points, size_t columns, size_t rows) {
    constexpr size_t kLabel = 10;  // columns of the two values
    double low = std::numeric_limits<double>::infinity(), high = -low, first = low, last = -low;
    size_t finite = 0;
    for (const auto& [step, loss] : points) {
        if (!std::isfinite(loss)) continue;
        ++finite;
        low = std::min(low, loss), high = std::max(high, loss);
        first = std::min(first, step), last = std::max(last, step);
    }
    if (finite < 2 || last <= first || columns < kLabel + 10 || rows == 0) return "";
    if (high <= low) high = low + 1;
    const size_t width = columns - kLabel, wide = 2 * width, tall = 4 * rows;
    std::vector<double> sum(wide, 0), count(wide, 0);
    for (const auto& [step, loss] : points) {
        if (!std::isfinite(loss)) continue;
        const auto x = static_cast<size_t>((step - first) / (last - first) * static_cast<double>(wide - 1));
        sum[x] += loss;
        count[x] += 1;
    }
    std::vector<unsigned> cells(width * rows, 0);
    // Dots of a character by column and row: the bits of Unicode's braille patterns from U+2800 on.
    constexpr unsigned kDots[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
    for (size_t x = 0; x < wide; ++x) {
        if (count[x] == 0) continue;
        const double share = (high - sum[x] / count[x]) / (high - low);
        const auto y = static_cast<size_t>(std::lround(share * static_cast<double>(tall - 1)));
        cells[y / 4 * width + x / 2] |= kDots[x % 2][y % 4];
    }
    std::string text;
    for (size_t row = 0; row < rows; ++row) {
        text += right(row == 0 ? format_fixed(high, 4) : row + 1 == rows ? format_fixed(low, 4) : "", kLabel - 1) + ' ';
        for (size_t x = 0; x < width; ++x) {
            const unsigned code = 0x2800 + cells[row * width + x];
            text += static_cast<char>(0xE0 | (code >> 12));
            text += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
            text += static_cast<char>(0x80 | (code & 0x3F));
        }
        text += '\n';
    }
    return text;
}

}  // namespace tutti::report
