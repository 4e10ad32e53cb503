// report/report.h: finished (or running) runs as one HTML page, or as CSV.
#pragma once

#include <string>
#include <vector>

#include "tutti/report/run_history.h"

namespace tutti::report {

// How curves are drawn.
struct View {
    enum class X { step, tokens, time } x = X::step;  // to the right; time: since the first line of the log
    double smoothing = 1;                             // half-lives of the moving average; 0: none
    bool operator==(const View&) const = default;
};

// A part of a page. Cards that have nothing to show are missing.
struct Card {
    std::string id, html;
};
std::vector<Card> cards_of(const RunHistory& run, const View& view);
// Of 2 to 8 runs: curves over one another, tables of results and of the differing keys of their configs. UsageError for
// another number.
std::vector<Card> cards_of(const std::vector<RunHistory>& runs, const View& view);
inline constexpr size_t kMostCompared = 8;

// One self-contained page: no network, no script. Charts are SVG, text is escaped, light and dark, phone and paper.
std::string render_report(const RunHistory& run);

// Names that tell the runs apart: those of the directories, with numbers where two have the same name.
std::vector<std::string> names_of(const std::vector<RunHistory>& runs);

// A page that compares 2 to 8 runs.
std::string render_comparison(const std::vector<RunHistory>& runs);

// One line per logged step of each run, with a header: run, step and the numbers of metrics.jsonl; "skipped" counts the
// skipped steps since the previous line. A missing number is empty, one that is not finite is nan.
std::string render_csv(const std::vector<RunHistory>& runs);

}  // namespace tutti::report
