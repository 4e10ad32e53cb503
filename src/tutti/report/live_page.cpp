#include "tutti/report/live_page.h"

#include <algorithm>
#include <functional>
#include <map>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"
#include "tutti/report/parts.h"

namespace tutti::report {

namespace {

// --- the form ---

struct Choice {
    const char *value, *label;
};
constexpr Choice kX[] = {{"step", "steps"}, {"tokens", "tokens"}, {"time", "time"}};  // by View::X
constexpr Choice kSmooth[] = {{"0", "none"}, {"1", "some"}, {"4", "much"}};           // the value is View::smoothing

template <size_t N>
size_t index_of(const std::string& name, const std::string& value, const Choice (&choices)[N]) {
    for (size_t i = 0; i < N; ++i)
        if (value == choices[i].value) return i;
    throw UsageError(concat(name, "=", value, ": required ", name, "=", joined(choices, ", ", " or ", &Choice::value)));
}

template <size_t N>
std::string select(const char* name, const char* label, const Choice (&choices)[N], size_t chosen) {
    std::string html = concat("<label>", label, " <select name=\"", name, "\">");
    for (size_t i = 0; i < N; ++i)
        html += concat("<option value=\"", choices[i].value, "\"", i == chosen ? " selected=\"\"" : "", ">",
                       choices[i].label, "</option>");
    return html + "</select></label>";
}

size_t smoothing_of(const View& view) {
    for (size_t i = 0; i < std::size(kSmooth); ++i)
        if (concat(view.smoothing) == kSmooth[i].value) return i;
    return 1;
}

// --- cards of a run that goes on ---

// A moment; the script writes its age.
std::string moment(double time) {
    const std::string shown = utc_text(time);
    return concat("<time datetime=\"", shown.substr(0, 10), "T", shown.substr(11, 8), "Z\">", shown, "</time>");
}

std::string badge(const WatchedRun& run) {
    return concat("<span class=\"badge ", name_of(run.state()), "\">", name_of(run.state()), "</span>");
}

std::string runs_card(const std::vector<WatchedRun>& runs, const LiveView& view) {
    std::string rows;
    for (size_t i = 0; i < runs.size(); ++i) {
        const WatchedRun& run = runs[i];
        const bool chosen = std::find(view.runs.begin(), view.runs.end(), i) != view.runs.end();
        rows += concat("<tr><td><label><input type=\"checkbox\" name=\"runs\" value=\"", i, "\"",
                       chosen ? " checked=\"\"" : "", "/> ", escape_html(run.path()), "</label></td><td>", badge(run),
                       "</td><td>", run.last() ? concat(run.last()->step) : "–", "</td><td>",
                       number_cell(run.last() ? run.last()->loss : std::nullopt, 4), "</td></tr>");
    }
    return table({"run", "state", "step", "loss"}, rows);
}

std::string status_card(const WatchedRun& run) {
    std::string html =
        concat("<section class=\"card full status\"><p><b>", escape_html(run.history().name), "</b> ", badge(run));
    if (const auto& last = run.last()) {
        html += concat(" step ", last->step);
        if (run.steps() > 0) html += concat(" of ", run.steps());
        if (const auto left = run.seconds_left()) html += concat(", about ", duration(*left), " left");
        html += "</p>";
        if (run.steps() > 0)
            html += concat("<progress max=\"", run.steps(), "\" value=\"", last->step, "\"></progress>");
    } else {
        html += " no step is logged yet</p>";
    }
    if (const std::string stage = run.stage(); !stage.empty()) html += concat("<p>", escape_html(stage), "</p>");
    html += "<p>";
    if (run.last_line() > 0) html += concat("Last line of the log: ", moment(run.last_line()), ". ");
    if (const auto& c = run.checkpoint())
        html += concat("Newest checkpoint: step ", c->step, ", ", moment(c->written), ".");
    else
        html += "No checkpoint yet.";
    html += "</p>";
    if (const RunEvent* start = run.start())
        html += concat("<p>Generation ", start->generation, ", started ", moment(start->time), ": ",
                       escape_html(start->text), ".</p>");
    if (const RunEvent* death = run.death())
        html += concat("<p class=\"death\">Generation ", death->generation, " died ", moment(death->time), ": ",
                       escape_html(death->text), ".</p>");
    if (run.state() == WatchedRun::State::died)
        html +=
            concat("<p class=\"death\">Its process is gone",
                   run.history().flight.findings.empty() ? std::string(".")
                                                         : ": " + escape_html(run.history().flight.findings.front()),
                   "</p>");
    if (run.state() == WatchedRun::State::silent)
        html += "<p class=\"death\">No line for long: the run may have died on another host.</p>";
    return html + "</section>\n";
}

std::string log_card(const WatchedRun& run) {
    std::string lines, events;
    for (const LoggedStep& step : run.tail()) lines += log_line(run, step) + "\n";
    for (const RunEvent& event : run.events())
        events +=
            concat("<tr><td>", moment(event.time), "</td><td>", event.generation, "</td><td class=\"event-text\">",
                   escape_html(event.kind), ": ", escape_html(event.text), "</td></tr>");
    std::string html;
    if (!events.empty()) html += section("Events", table({"when", "generation", "event"}, events), "card full events");
    if (!lines.empty())
        html +=
            section("End of the log", concat("<pre class=\"log\">", escape_html(lines), "</pre>"), "card full long");
    return html;
}

std::string facts_card(const WatchedRun& run) {
    std::vector<std::string> notes = run.history().notes;
    if (run.lines_of_point() > 1)
        notes.push_back(concat("A point of a curve is the mean of ", run.lines_of_point(), " lines of the log."));
    return facts_box(run.history()) + notes_box(notes);
}

constexpr const char* kLiveStyle = R"css(
.badge{display:inline-block;padding:1px 9px;border-radius:9px;font-size:13px;font-weight:600;color:#fff;background:#5d636d}
.badge.running{background:#00704f}.badge.ended{background:#005f94}.badge.stopped{background:#7d5600}.badge.died,.badge.silent{background:#b03a00}
.status p{margin:0 0 4px}.status progress{width:100%;height:10px;accent-color:var(--c3)}
.death{color:var(--c2);font-weight:600}
.bar{display:flex;flex-wrap:wrap;gap:8px 18px;align-items:center;margin:14px 0}
.bar select,.bar button{font:inherit;color:inherit;background:var(--card);border:1px solid var(--rule);border-radius:6px;padding:3px 6px}
#live{color:var(--soft);font-size:13px}#live.lost{color:var(--c2)}
.runs{margin:14px 0}.runs input{accent-color:var(--c1)}
.slot{display:contents}.slot>.facts,.slot>.notes{grid-column:1/-1;margin:0}
td.event-text{text-align:left;white-space:normal}.events th:last-child{text-align:left}
pre.log{white-space:pre;overflow-x:auto}
)css";

}  // namespace

LiveView live_view(const std::vector<std::pair<std::string, std::string>>& query, size_t runs) {
    LiveView live;
    for (const auto& [name, value] : query) {
        if (name == "have") continue;
        if (name == "x") {
            live.view.x = static_cast<View::X>(index_of(name, value, kX));
        } else if (name == "smooth") {
            live.view.smoothing = std::stod(kSmooth[index_of(name, value, kSmooth)].value);
        } else {
            const size_t index = parse_number<size_t>(value).value_or(runs);
            check<UsageError>(name == "runs" && index < runs, name.substr(0, 40), "=", value.substr(0, 40),
                              ": required runs=0 to runs=", runs - 1, ", x or smooth");
            if (std::find(live.runs.begin(), live.runs.end(), index) == live.runs.end()) live.runs.push_back(index);
        }
    }
    check<UsageError>(live.runs.size() <= kMostCompared, "at most ", kMostCompared, " runs over each other, got ",
                      live.runs.size());
    if (live.runs.empty()) live.runs = {0};
    std::sort(live.runs.begin(), live.runs.end());
    return live;
}

std::vector<Card> live_cards(const std::vector<WatchedRun>& runs, const LiveView& view) {
    std::vector<Card> cards = {{"runs", runs_card(runs, view)}};
    for (const size_t i : view.runs) cards.push_back({concat("status-", i), status_card(runs.at(i))});
    if (view.runs.size() == 1) {
        const WatchedRun& run = runs.at(view.runs.front());
        cards.push_back({"facts", facts_card(run)});
        for (Card& card : cards_of(run.history(), view.view)) cards.push_back(std::move(card));
        cards.push_back({"log", log_card(run)});
    } else {
        std::vector<RunHistory> all;
        for (const size_t i : view.runs) all.push_back(runs.at(i).history());
        for (Card& card : cards_of(all, view.view)) cards.push_back(std::move(card));
    }
    std::erase_if(cards, [](const Card& card) { return card.html.empty(); });
    return cards;
}

std::string live_page(const std::vector<WatchedRun>& runs, const LiveView& view) {
    const std::vector<Card> cards = live_cards(runs, view);
    std::string slots;
    for (const Card& card : cards)
        if (card.id != "runs") slots += concat("<div class=\"slot\" id=\"card-", card.id, "\">", card.html, "</div>");
    return concat(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" "
        "content=\"width=device-width, initial-scale=1\"/><title>tutti watch</title>"
        "<link rel=\"icon\" href=\"data:,\"/><link rel=\"stylesheet\" href=\"live.css\"/></head>\n<body><main>\n"
        "<header><p>Tutti watch</p></header>\n<form name=\"view\" action=\"/\"><div class=\"runs\" id=\"runs\"",
        runs.size() == 1 ? " hidden=\"\"" : "", ">", cards.front().html, "</div><div class=\"bar\">",
        select("x", "x axis", kX, to_size(view.view.x)),
        select("smooth", "smoothing", kSmooth, smoothing_of(view.view)),
        "<noscript><button>show</button></noscript><span id=\"live\" role=\"status\">not live</span></div></form>\n"
        "<div class=\"grid\" id=\"cards\" data-have=\"",
        live_id(cards), "\">", slots,
        "</div>\n<footer><p>Bold lines are exponential moving averages of the faint ones. Read from the files of the "
        "runs; see also <code>tutti report</code>. <a href=\"metrics\">/metrics</a> is for Prometheus.</p></footer>\n"
        "</main><script src=\"live.js\"></script></body></html>\n");
}

std::string live_style() { return concat(style_sheet(), kLiveStyle); }

std::string live_id(const std::vector<Card>& cards) {
    std::string all;
    for (const Card& card : cards) all += concat(card.id, '\0', card.html, '\0');
    return concat(std::hash<std::string>()(all));
}

std::string live_event(const std::vector<Card>& cards, std::map<std::string, size_t>& sent) {
    Json order = Json::array(), changed = Json::object();
    std::map<std::string, size_t> now;
    for (const Card& card : cards) {
        order.push_back(card.id);
        const size_t digest = now[card.id] = std::hash<std::string>()(card.html);
        const auto before = sent.find(card.id);
        if (before == sent.end() || before->second != digest) changed[card.id] = card.html;
    }
    if (now == sent) return "";
    sent = std::move(now);
    const Json event = {{"order", std::move(order)}, {"cards", std::move(changed)}};
    return concat("retry: 2000\nid: ", live_id(cards),
                  "\nevent: cards\ndata: ", event.dump(-1, Json::InvalidUtf8::replace), "\n\n");
}

std::string_view live_end() { return "event: end\ndata: {}\n\n"; }

}  // namespace tutti::report
