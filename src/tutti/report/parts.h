// report/parts.h: the parts of pages: series from a run's log, charts with captions, the cards of a trace, the frame.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/report/report.h"
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
inline constexpr Curve kStepTime{"step-time", "Time of a step", "ms", &LoggedStep::step_ms, 1, false, true};

// What a view means for the curves of these runs.
struct CurveAxis {
    View::X x = View::X::step;
    double seconds = 1;  // of a unit of time
    std::string label = "step";
    double smoothing = 1;
};
CurveAxis axis_of(const View& view, std::span<const RunHistory> runs);

Chart chart_of(const Curve& curve, const CurveAxis& axis);  // without series
void add_run(Chart& chart, const Curve& curve, const std::string& label, int colour, const RunHistory& run,
             const CurveAxis& axis);

// The values of one field, times `scale`, over the steps or what else `axis` has to the right.
std::vector<Point> values_of(const RunHistory& run, Field field, double scale = 1, const CurveAxis& axis = {});
// Where a line of the log is on the axis; nothing: the line does not say.
std::optional<double> place_of(const RunHistory& run, const LoggedStep& step, const CurveAxis& axis);
std::vector<double> finite(const std::vector<Point>& points);
std::optional<double> median(std::vector<double> values);  // of an even number the mean of the two in the middle
// Peak of the rank with the most memory, of those in the line.
std::optional<double> fullest_bytes(const LoggedStep& step);
std::optional<double> last_of(const RunHistory& run, Field field);  // the last finite value
// Bytes that the first rank sends in a step, by group: medians over the logged steps.
std::map<std::string, double> sent_by_group(const RunHistory& run);
// The steps and totals alone, of the steps that `run.predicted` is about: those of a stage, or all.
RunHistory predicted_steps(const RunHistory& run);
// A number as text; "" without one.
template <class Format>
std::optional<std::string> shown(const std::optional<double>& value, const Format& format) {
    return value ? std::optional<std::string>(format(*value)) : std::nullopt;
}
std::string duration(double seconds);                                     // "3 min 20 s"
std::string number_cell(const std::optional<double>& value, int digits);  // "2.31", "not finite", "–" without one
// "12.3 %", at most 100 %: another rank's steps may be a little longer than those of the first, which writes the log.
// "–" without a whole.
std::string share_text(double part, double whole);
// Medians of the log, and its largest peak, as the boxes of facts and of a comparison have them.
std::optional<std::string> median_throughput(const RunHistory& run);
std::optional<std::string> median_mfu(const RunHistory& run);
std::optional<std::string> memory_peak(const RunHistory& run);

// "train: 5.56 at step 1, 1.43 at step 2000, lowest 1.4 at step 1980, highest ...": a series for a screen reader.
std::string in_words(const Series& series, const CurveAxis& axis);
// Adds the values as a line; long ones as a faint line behind their moving average.
void add_series(Chart& chart, const std::string& label, int colour, std::vector<Point> points, const CurveAxis& axis);

std::string facts_box(const RunHistory& run);                  // model, steps, loss, ...: "" where nothing is known
std::string notes_box(const std::vector<std::string>& notes);  // "" without notes
// A card with a heading; `inside` is HTML.
std::string section(const std::string& title, const std::string& inside, const char* style = "card full");
std::string quiet(const std::string& html);  // a remark
// A table that scrolls inside the page; `rows` are <tr> elements.
std::string table(const std::vector<std::string>& head, const std::string& rows);
std::string row_of(const std::vector<std::string>& cells);

// The caption of a <figure>; `legend` is HTML.
std::string caption(const std::string& title, const std::string& unit, const std::string& legend = "");
std::string chart_card(const Chart& chart);  // "" when there is no finite value to draw
// A full-width card with two drawings, because the one for wide screens has letters too small for a phone.
std::string wide_card(Chart chart);

// A legend of boxes: class and label of each colour.
using Legend = std::vector<std::pair<std::string, std::string>>;
std::string legend_list(const Legend& colours);
std::string legend_list(const std::string& items);
// One item: an SVG element within 24 x 10, and a label. `style` is the class of its colour.
std::string legend_item(std::string_view drawing, const std::string& label, const std::string& style = "");
// The inside of a <figure>: caption, legend, and the drawing, which scrolls on a narrow screen. `id` is unique in the
// page.
std::string figure(const svg::Bars& bars, const std::string& id, const std::string& note, const Legend& legend);
std::string figure(const svg::Bars& bars, const std::string& id, const std::string& note);  // its meanings

// The cards of trace_card.cpp; "" when the run has no data for them.
std::string trace_card(const RunHistory& run);
std::string prediction_card(const RunHistory& run);
std::string pipeline_card(const RunHistory& run);
std::string groups_card(const RunHistory& run);

// The cards of run_cards.cpp: the time of a step beside the plan's band, the ranks, what the time was spent on, stages.
std::string step_time_card(const RunHistory& run, const CurveAxis& axis);
std::string ranks_card(const RunHistory& run);
// The rank that the others wait for, if there is one, as a sentence: by the median of each rank's waits in the newest
// lines of the log that have the same ranks, since a single step may have waited for any of them. "" of one rank.
std::string slowest_of(const std::vector<LoggedStep>& steps);
std::string spent_card(const RunHistory& run);
std::string stages_card(const RunHistory& run);  // what each stage changed, and how fast it was

// The whole document, with its styles inside.
std::string page(const std::string& title, const std::string& body);
std::string style_sheet();

}  // namespace tutti::report
