// report/parts.h: what the page of one run and the page of several share: series out of a run's log, charts with
// captions, the frame.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/report/run_history.h"
#include "tutti/report/svg.h"

namespace tutti::report {

using Field = std::optional<double> LoggedStep::*;

// The values of one field over the steps, times `scale`.
std::vector<Point> values_of(const RunHistory& run, Field field, double scale = 1);
std::vector<double> finite(const std::vector<Point>& points);
std::optional<double> median(std::vector<double> values);
std::string duration(double seconds);  // "3 min 20 s"

// "train: 5.56 at step 1, 1.43 at step 2000, lowest 1.4 at step 1980, highest ..." for those who hear the page.
std::string in_words(const Series& series);
// Adds the values as a line; long ones as a faint line behind their moving average.
void add_series(Chart& chart, const std::string& label, int colour, std::vector<Point> points);

std::string caption(const Chart& chart);     // title, unit, legend
std::string chart_card(const Chart& chart);  // "" when there is no finite value to draw
// A full-width card: two drawings, because one that fits a desk has letters too small for a phone.
std::string wide_card(Chart chart);

// Of trace_card.cpp; "" when the run left nothing to show.
std::string trace_card(const RunHistory& run);
std::string prediction_card(const RunHistory& run);
std::string pipeline_card(const RunHistory& run);  // of pipeline_card.cpp
std::string groups_card(const RunHistory& run);
std::string experts_card(const RunHistory& run);  // of experts_card.cpp

// The whole document.
std::string page(const std::string& title, const std::string& body);

}  // namespace tutti::report
