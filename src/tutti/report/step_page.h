// report/step_page.h: one step as a page with a slider: what each rank does at a time t, its memory by purpose, the
// operations in flight and their ranks, the rectangles of the weights at work, and the line of the step's source.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/report/trace_read.h"

namespace tutti::report {

struct StepPage {
    std::string title, about;
    std::vector<TracedRank> trace;  // with a span "step" on each rank
    // [{"name", "shape", "holdings": [{"ranks", "blocks": [{"offset", "sizes"}]}]}]: the weights that a rank computes
    // with, of one block for all of its kind; empty: not known.
    Json grids = Json::array();
    int per_node = 0;  // 0: not known
};

// One HTML document that needs no other file and no server. Error for a trace without a step.
std::string render_step(const StepPage& page);

// engine/step.cpp, whose line the page shows.
std::string_view step_source();
std::string_view step_page_script();

}  // namespace tutti::report
