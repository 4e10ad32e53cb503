#include "tutti/report/step_page.h"

#include <algorithm>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/report/parts.h"
#include "tutti/report/trace_picture.h"

namespace tutti::report {

namespace {

constexpr const char* kStepStyle = R"css(
.clock{position:sticky;top:0;z-index:1;background:var(--page);padding:8px 0;display:flex;gap:10px;align-items:center;flex-wrap:wrap}
.clock input{flex:1 1 220px;min-width:0}.clock output{font-variant-numeric:tabular-nums;min-width:84px}
button,select{font:inherit;color:var(--ink);background:var(--card);border:1px solid var(--rule);border-radius:6px;padding:3px 10px}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px;margin-top:16px}
.code{max-height:420px;overflow:auto}.code div{padding:0 6px;white-space:pre;min-width:max-content}
.code .now{background:var(--warn);outline:1px solid var(--warn-rule)}
#flights td{white-space:normal;text-align:left}#flights th{text-align:left}
.link{stroke:currentColor;stroke-width:2;fill:none}.chosen{stroke:var(--ink);stroke-width:2.5}
)css";

// One line of the source for a part of the step: that with its name, or that which runs the passes.
Json line_of(const std::vector<std::string>& lines, const std::string& name) {
    for (size_t i = 0; i < lines.size(); ++i)
        if (lines[i].find('"' + name + '"') != std::string::npos) return i;
    return nullptr;
}

Json spans_of(const TracedRank& rank, const TracedSpan& step, double begin, const std::vector<std::string>& lines,
              const Json& passes) {
    Json spans = Json::array();
    for (const TracedSpan& s : rank.spans) {
        if (s.step != step.step || s.activity == "step" || s.activity == "action") continue;
        const std::string meaning = meaning_of(s);
        const bool pass = meaning == "forward" || meaning == "backward" || meaning == "recompute" || meaning == "data";
        spans.push_back({{"begin", s.begin_us - begin},
                         {"end", s.end_us - begin},
                         {"meaning", meaning},
                         {"name", s.name},
                         {"group", s.group},
                         {"bytes", s.bytes},
                         {"ranks", s.ranks},
                         {"needed", s.needed},
                         {"line", pass ? passes : line_of(lines, s.name)}});
    }
    return spans;
}

// Samples in [begin, end] as [time, bytes of each purpose].
Json memory_of(const TracedRank& rank, double begin, double end) {
    Json memory = Json::array();
    for (const TracedMemory& sample : rank.memory) {
        if (sample.us < begin || sample.us > end) continue;
        Json row = {sample.us - begin};
        for (const int64_t bytes : sample.bytes.bytes) row.push_back(bytes);
        memory.push_back(std::move(row));
    }
    return memory;
}

// Inside <script> no text may end the element.
std::string for_script(std::string text) {
    for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at)) text.replace(at, 1, "\\u003c");
    return text;
}

std::vector<std::string> lines_of(std::string_view text) {
    std::vector<std::string> lines;
    std::istringstream in{std::string(text)};
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

}  // namespace

std::string render_step(const StepPage& page) {
    check<DataError>(!page.trace.empty() && typical_step(page.trace[0]) != nullptr,
                     "required: a trace with a step; got none. A run writes one with --set log.trace=true");
    const TracedSpan& step = *typical_step(page.trace[0]);
    svg::Bars bars = bars_of(page.trace, step, "What each rank does");
    bars.most_in_row = 0;  // the slider has one time along the whole axis
    const svg::Scale scale = svg::scale_of(bars);
    const auto [begin, end] = extent_of(page.trace, step);
    const std::vector<std::string> lines = lines_of(step_source());
    Json passes = nullptr;
    for (size_t i = 0; i < lines.size(); ++i)
        if (lines[i].find("run_passes(s, trace") != std::string::npos) passes = i;
    std::string code;
    for (const std::string& line : lines) code += "<div>" + escape_html(line.empty() ? " " : line) + "</div>";

    Json ranks = Json::array(), purposes = Json::array();
    for (const Purpose purpose : kAllPurposes) purposes.push_back(name_of(purpose));
    for (const TracedRank& rank : page.trace) {
        ranks.push_back({{"rank", rank.rank},
                         {"spans", spans_of(rank, step, begin, lines, passes)},
                         {"memory", memory_of(rank, begin, end)}});
    }
    const bool memory =
        std::any_of(page.trace.begin(), page.trace.end(), [](const TracedRank& rank) { return !rank.memory.empty(); });
    const Json data = {{"end", end - begin},       {"left", scale.start},       {"right", scale.at(bars.end)},
                       {"purposes", purposes},     {"ranks", std::move(ranks)}, {"grids", page.grids},
                       {"per_node", page.per_node}};
    const bool grids = page.grids.size() > 0;
    const auto card = [](const char* title, const char* id, const std::string& note) {
        return section(title, concat("<div class=\"scroll\" id=\"", id, "\"></div>", note.empty() ? "" : quiet(note)),
                       "card");
    };
    return report::page(
        page.title,
        concat("<style>", kStepStyle, "</style><header><h1>", escape_html(page.title), "</h1><p>",
               escape_html(page.about), "</p></header>\n<div class=\"clock\"><button id=\"back\" type=\"button\" ",
               "title=\"previous change of this rank\">&#9664;</button><input id=\"time\" type=\"range\" min=\"0\" ",
               "max=\"10000\" value=\"0\" aria-label=\"time in the step\"><button id=\"on\" type=\"button\" ",
               "title=\"next change of this rank\">&#9654;</button><output id=\"shown\"></output><label>rank ",
               "<select id=\"rank\"></select></label></div>\n<figure class=\"card full\" id=\"timeline\">",
               figure(bars, "step", "move the slider, or click in the picture"), "</figure>\n<div class=\"two\">",
               card("Ranks, and who sends to whom", "mesh",
                    "A box has the colour of what its rank does; lines join the ranks of the operations in flight, "
                    "arrows are messages."),
               memory ? card("Memory by purpose", "memory", "") : "", card("In flight", "flights", ""),
               grids ? card("Weights at work on this rank", "grids",
                            "Of the unit that the rank computes: filled, the rectangles that it computes with; dashed, "
                            "an operation for them is in flight.")
                     : "",
               "<section class=\"card\"><h2>engine/step.cpp</h2><pre class=\"code\" id=\"code\">", code,
               "</pre></section></div>\n<script type=\"application/json\" id=\"data\">", for_script(data.dump()),
               "</script><script>", step_page_script(), "</script>"));
}

}  // namespace tutti::report
