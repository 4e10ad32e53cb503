// report/live_page.h: the page of `tutti watch --http`: the cards of report.html (report.h) and what a run that goes on
// has besides (state, events, the end of the log), for a script that puts new cards in the place of old ones.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/report/report.h"
#include "tutti/report/watched_run.h"

namespace tutti::report {

// What a reader has chosen.
struct LiveView {
    std::vector<size_t> runs;  // at least one; several are drawn over each other
    View view;
};

// Reads the names and values that the page's form sends: runs=INDEX (repeated), x=step|tokens|time, smooth=0|1|4.
// UsageError for other ones, which says what is required. Nothing chosen: the first run, steps, smooth=1.
LiveView live_view(const std::vector<std::pair<std::string, std::string>>& query, size_t runs);

// All cards, in their order. Equal texts for equal runs: ages are written as times, from which the script counts.
std::vector<Card> live_cards(const std::vector<WatchedRun>& runs, const LiveView& view);

// The document with these cards in it, which loads live.css and live.js.
std::string live_page(const std::vector<WatchedRun>& runs, const LiveView& view);
std::string live_style();
std::string_view live_script();  // live_page.js

// An event of the stream for a reader that has the cards whose digests are in `sent` (by id): those that are new, and
// the order of all; updates `sent`. "": the reader has all of them. The event's id stands for all cards.
std::string live_event(const std::vector<Card>& cards, std::map<std::string, size_t>& sent);
std::string live_id(const std::vector<Card>& cards);
// The last event: this server has ended.
std::string_view live_end();

}  // namespace tutti::report
