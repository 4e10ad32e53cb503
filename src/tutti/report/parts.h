// report/parts.h: the parts of pages: series from a run's log, charts with captions, the cards of a trace, the frame.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/report/run_history.h"
#include "tutti/report/svg.h"

namespace tutti::report {

using Field = std::optional<double> LoggedStep::*;

// A chart of one field of the log, for the page of one run and for a comparison.
struct Curve {
    const char *id, *title, *unit;
    Field field;
    double scale = 1;
    bool allow_log = false, from_zero = false, smoothed = true;
};
inline constexpr Curve kGradientNorm{"grad-norm", "Gradient norm", "before clipping", &LoggedStep::grad_norm, 1, true,
                                     false};
inline constexpr Curve kLearningRate{"lr", "Learning rate", "", &LoggedStep::lr, 1, false, true, false};
inline constexpr Curve kThroughput{"speed", "Throughput", "tokens/s", &LoggedStep::tokens_per_s, 1, false, true};
inline constexpr Curve kMfu{"mfu", "MFU", "% of the dense peak", &LoggedStep::mfu, 100, false, true};

Chart chart_of(const Curve& curve);  // without series
void add_run(Chart& chart, const Curve& curve, const std::string& label, int colour, const RunHistory& run);

// The values of one field over the steps, times `scale`.
std::vector<Point> values_of(const RunHistory& run, Field field, double scale = 1);
std::vector<double> finite(const std::vector<Point>& points);
std::optional<double> median(std::vector<double> values);
std::optional<double> last_of(const RunHistory& run, Field field);  // the last finite value
// A number as text; "" without one.
template <class Format>
std::optional<std::string> shown(const std::optional<double>& value, const Format& format) {
    return value ? std::optional<std::string>(format(*value)) : std::nullopt;
}
std::string duration(double seconds);  // "3 min 20 s"

// "train: 5.56 at step 1, 1.43 at step 2000, lowest 1.4 at step 1980, highest ...": a series for a screen reader.
std::string in_words(const Series& series);
// Adds the values as a line; long ones as a faint line behind their moving average.
void add_series(Chart& chart, const std::string& label, int colour, std::vector<Point> points);

std::string notes_box(const std::vector<std::string>& notes);  // "" without notes
// A table that scrolls inside the page; `rows` are <tr> elements.
std::string table(const std::vector<std::string>& head, const std::string& rows);
std::string row_of(const std::vector<std::string>& cells);

std::string caption(const Chart& chart);     // title, unit, legend
std::string chart_card(const Chart& chart);  // "" when there is no finite value to draw
// A full-width card with two drawings, because the one for wide screens has letters too small for a phone.
std::string wide_card(Chart chart);

// The cards of trace_card.cpp; "" when the run has no data for them.
std::string trace_card(const RunHistory& run);
std::string prediction_card(const RunHistory& run);
std::string pipeline_card(const RunHistory& run);
std::string groups_card(const RunHistory& run);

// The whole document.
std::string page(const std::string& title, const std::string& body);

}  // namespace tutti::report
