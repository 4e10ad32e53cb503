// report/parts.cpp: the parts of pages (parts.h).
#include "tutti/report/parts.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/palette.h"

namespace tutti::report {
namespace {

// The style sheet inside every page, behind that of its colours and pictures (base/palette.h). Evaluation and
// prediction differ by line and marker too. Dark applies to screens only: paper is always light.
constexpr const char* kReportStyle = R"css(
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
-webkit-text-size-adjust:100%}
main{max-width:1140px;margin:0 auto;padding:28px 20px 48px}
header{margin-bottom:20px}
header p{margin:0;color:var(--soft)}
h1{font-size:28px;line-height:1.2;margin:2px 0 4px;overflow-wrap:anywhere}
h2{font-size:17px;margin:0 0 10px}
.facts{display:flex;flex-wrap:wrap;gap:1px;margin:20px 0;padding:0;background:var(--rule);
border:1px solid var(--rule);border-radius:10px;overflow:hidden}
.facts div{flex:1 1 18%;min-width:130px;background:var(--card);padding:10px 14px}
.facts dt{color:var(--soft);font-size:12.5px}
.facts dd{margin:0;font-size:19px;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px}
.card{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px 16px;min-width:0}
.full{grid-column:1/-1}
figcaption{display:flex;flex-wrap:wrap;align-items:baseline;gap:2px 14px;margin-bottom:8px}
figcaption b{font-size:16px}
figcaption .unit{color:var(--soft);font-weight:400;font-size:13px}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;margin:0 0 0 auto;padding:0;list-style:none;font-size:13px;color:var(--soft)}
.legend svg{width:24px;height:10px;margin-right:6px;display:inline-block}
svg{display:block;width:100%;height:auto}
.line,.faint,.dashed{fill:none;stroke:currentColor;stroke-linejoin:round;stroke-linecap:round;stroke-width:2}
.faint{stroke-width:1;stroke-opacity:.38}
.dashed{stroke-width:1.4;stroke-dasharray:4 4}
.dot{fill:var(--card);stroke:currentColor;stroke-width:2}
.bar-predicted{fill:none;stroke:currentColor;stroke-width:1.5;stroke-dasharray:3 2}
.narrow-only{display:none}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:5px 10px;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--soft);font-weight:500;font-size:13px}
th:first-child,td:first-child{text-align:left;padding-left:0}th:last-child,td:last-child{padding-right:0}
td.words,th.words{text-align:left;white-space:normal;min-width:240px}
.has-reason td{border-bottom:0;padding-bottom:0}td.reason{color:var(--soft);font-size:13px;padding-top:0;white-space:normal;overflow-wrap:anywhere}
.scroll,.drawing{overflow-x:auto}.drawing>*{min-width:720px;width:100%}
.key{display:inline-block;width:14px;height:3px;border-radius:2px;background:currentColor;margin-right:6px;vertical-align:middle}
th[scope=row]{text-align:left}.runs th[scope=col]{white-space:normal;overflow-wrap:anywhere;min-width:100px;vertical-align:bottom}
.quiet{color:var(--soft);margin:0}
.ranks{display:flex;flex-wrap:wrap;gap:4px;margin:0 0 10px;padding:0;list-style:none}
.ranks li{--w:0%;flex:0 0 66px;padding:4px 6px;border:1px solid var(--rule);border-radius:6px;font-size:12.5px;line-height:1.3;
background:color-mix(in srgb,var(--c4) var(--w),var(--card));font-variant-numeric:tabular-nums}
.ranks b{display:block;font-size:12px;color:var(--soft);font-weight:500}
.ranks .w1{--w:6%}.ranks .w2{--w:12%}.ranks .w3{--w:18%}.ranks .w4{--w:24%}.ranks .w5{--w:30%}.ranks .w6{--w:36%}.ranks .w7{--w:42%}
.ranks .w8{--w:48%}.ranks .w9{--w:54%}.ranks .w10{--w:60%}.ranks .gone{border:2px solid var(--c2);padding:3px 5px}
.share{margin-bottom:8px}
.notes{background:var(--warn);border:1px solid var(--warn-rule);border-radius:10px;padding:10px 16px;margin:0 0 16px}
.notes p{margin:2px 0}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.55 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
.sample{border-left:3px solid var(--warn-rule);padding-left:14px}
summary{cursor:pointer;font-weight:600;font-size:17px}
details pre{margin-top:12px}
footer{color:var(--soft);font-size:13px;margin-top:24px}
@media screen and (max-width:700px){main{padding:18px 12px 32px}h1{font-size:23px}.narrow-only{display:block}.wide-only{display:none}
.facts div{flex-basis:45%}.legend{margin-left:0}.card{padding:12px}td:first-child{white-space:normal}}
@page{size:A4;margin:14mm}
@media print{:root{--page:#fff;--rule:#ccc}body{font-size:11px}main{max-width:none;padding:0}h1{font-size:20px}
.grid{grid-template-columns:1fr 1fr;gap:8px}.facts div{min-width:0}.facts{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.facts dd{font-size:14px}.card,.facts div,tr{break-inside:avoid}.card.long{break-inside:auto}.facts dt,.legend,figcaption .unit,footer,th,td.reason{font-size:10px}.wide-only svg text{font-size:15px}.drawing>*{min-width:0}
figcaption b,h2,summary{font-size:12.5px}pre{font-size:9.5px}details::details-content{content-visibility:visible;block-size:auto}}
)css";

constexpr size_t kSmoothFrom = 20;  // points; fewer are readable as they are

std::string step_number(double step) { return concat(static_cast<int64_t>(step)); }

double half_life_of(size_t points) { return std::max(2.0, std::round(static_cast<double>(points) / 60)); }

std::string legend(const Chart& chart) {
    std::string items;
    int count = 0;
    for (const Series& series : chart.series) {
        if (series.label.empty() || series.mark == Mark::limit) continue;
        ++count;
        std::string_view mark = "<path class=\"line\" d=\"M2 5H22\"/>";
        if (series.mark == Mark::bound) mark = "<path class=\"dashed\" d=\"M2 5H22\"/>";
        if (series.mark == Mark::ticks) mark = "<path class=\"event\" d=\"M12 1l4 8h-8z\"/>";
        if (series.mark == Mark::dots)
            mark = "<path class=\"dashed\" d=\"M2 5H22\"/><circle class=\"dot\" cx=\"12\" cy=\"5\" r=\"3\"/>";
        if (series.mark == Mark::points) mark = "<circle class=\"dot\" cx=\"12\" cy=\"5\" r=\"3\"/>";
        items += legend_item(mark, series.label, concat("c", series.colour));
    }
    return count < 2 ? "" : legend_list(items);
}

std::string caption_of(const Chart& chart) { return caption(chart.title, chart.y_unit, legend(chart)); }

}  // namespace

CurveAxis axis_of(const View& view, std::span<const RunHistory> runs) {
    CurveAxis axis{.x = view.x, .smoothing = view.smoothing};
    if (view.x == View::X::tokens) axis.label = "tokens";
    if (view.x != View::X::time) return axis;
    axis.label = "seconds since the first step";
    double longest = 0;
    for (const RunHistory& run : runs)
        if (!run.steps.empty()) longest = std::max(longest, place_of(run, run.steps.back(), axis).value_or(0));
    for (const auto& [seconds, unit] : {std::pair{60, "minutes"}, std::pair{3600, "hours"}, std::pair{86400, "days"}})
        if (longest >= 10.0 * seconds) axis.seconds = seconds, axis.label = concat(unit, " since the first step");
    return axis;
}

std::optional<double> place_of(const RunHistory& run, const LoggedStep& step, const CurveAxis& axis) {
    std::optional<double> place = static_cast<double>(step.step);
    if (axis.x == View::X::tokens) place = step.tokens;
    if (axis.x == View::X::time) {
        place = std::nullopt;
        const auto& first = run.steps.front().time;
        if (step.time && first) place = (*step.time - *first) / axis.seconds;
    }
    return place && std::isfinite(*place) ? place : std::nullopt;
}

std::vector<Point> values_of(const RunHistory& run, Field field, double scale, const CurveAxis& axis) {
    std::vector<Point> points;
    for (const LoggedStep& step : run.steps)
        if (const auto place = place_of(run, step, axis); place && step.*field)
            points.push_back({*place, *(step.*field) * scale});
    return points;
}

std::vector<double> finite(const std::vector<Point>& points) {
    std::vector<double> values;
    for (const Point& point : points)
        if (std::isfinite(point.y)) values.push_back(point.y);
    return values;
}

std::optional<double> median(std::vector<double> values) {
    if (values.empty()) return std::nullopt;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (values.size() % 2 == 1) return *middle;
    return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

std::optional<double> fullest_bytes(const LoggedStep& step) {
    std::optional<double> most = step.mem_peak_bytes;
    for (const RankFigures& of : step.ranks) most = std::max(most.value_or(0), of.mem_peak_bytes);
    return most;
}

std::optional<double> last_of(const RunHistory& run, Field field) {
    const std::vector<double> values = finite(values_of(run, field));
    return values.empty() ? std::nullopt : std::optional(values.back());
}

RunHistory predicted_steps(const RunHistory& run) {
    RunHistory part;
    part.totals = run.totals;
    for (const LoggedStep& step : run.steps)
        if (!run.predicted ||
            (step.step >= run.predicted->first && (run.predicted->last == 0 || step.step <= run.predicted->last)))
            part.steps.push_back(step);
    return part;
}

std::map<std::string, double> sent_by_group(const RunHistory& run) {
    std::map<std::string, std::vector<double>> all;
    for (const LoggedStep& step : run.steps)
        for (const auto& [group, counted] : step.comm)
            if (counted.bytes && std::isfinite(*counted.bytes)) all[group].push_back(*counted.bytes);
    std::map<std::string, double> sent;
    for (auto& [group, bytes] : all) sent[group] = *median(std::move(bytes));
    return sent;
}

std::string duration(double seconds) {
    const auto whole = static_cast<int64_t>(std::llround(seconds));
    if (seconds < 10) return short_number(seconds, 2) + " s";
    if (whole < 60) return concat(whole, " s");
    if (whole < 3600) return concat(whole / 60, " min ", whole % 60, " s");
    if (whole < 48 * 3600) return concat(whole / 3600, " h ", whole % 3600 / 60, " min");
    return concat(whole / 86400, " d ", whole % 86400 / 3600, " h");
}

std::string number_cell(const std::optional<double>& value, int digits) {
    return !value ? "–" : std::isfinite(*value) ? short_number(*value, digits) : "not finite";
}

std::string share_text(double part, double whole) {
    return whole > 0 && std::isfinite(part) ? short_number(100 * std::min(1.0, part / whole)) + " %" : "–";
}

std::optional<std::string> median_throughput(const RunHistory& run) {
    return shown(median(finite(values_of(run, &LoggedStep::tokens_per_s))), [](double v) { return short_number(v); });
}

std::optional<std::string> median_mfu(const RunHistory& run) {
    return shown(median(finite(values_of(run, &LoggedStep::mfu, 100))),
                 [](double v) { return short_number(v) + " %"; });
}

std::optional<std::string> memory_peak(const RunHistory& run) {
    std::optional<double> most;
    for (const LoggedStep& step : run.steps)
        if (const auto bytes = fullest_bytes(step); bytes && std::isfinite(*bytes))
            most = std::max(most.value_or(0), *bytes);
    return shown(most, short_bytes);
}

std::string in_words(const Series& series, const CurveAxis& axis) {
    const Point* first = nullptr;
    const Point *last = nullptr, *lowest = nullptr, *highest = nullptr;
    for (const Point& point : series.points) {
        if (!std::isfinite(point.y)) continue;
        if (!first) first = lowest = highest = &point;
        last = &point;
        if (point.y < lowest->y) lowest = &point;
        if (point.y > highest->y) highest = &point;
    }
    if (!first) return "";
    const auto place = [&](const Point& p) {
        const bool is_step = axis.x == View::X::step;
        return concat(short_number(p.y, 4), " at ",
                      is_step ? "step " + step_number(p.x) : concat(short_number(p.x, 4), " ", axis.label));
    };
    return concat(series.label, ": ", place(*first), ", ", place(*last), ", lowest ", place(*lowest), ", highest ",
                  place(*highest), ". ");
}

void add_series(Chart& chart, const std::string& label, int colour, std::vector<Point> points, const CurveAxis& axis) {
    if (finite(points).empty()) return;
    const Series raw{label, colour, Mark::line, std::move(points)};
    chart.description += in_words(raw, axis);
    if (raw.points.size() < kSmoothFrom || axis.smoothing == 0) {
        chart.series.push_back(raw);
        return;
    }
    chart.series.push_back({"", colour, Mark::faint, raw.points});
    chart.series.push_back(
        {label, colour, Mark::line, smooth(raw.points, axis.smoothing * half_life_of(raw.points.size()))});
}

Chart chart_of(const Curve& curve, const CurveAxis& axis) {
    return {.id = curve.id,
            .title = curve.title,
            .x_label = axis.label,
            .y_unit = curve.unit,
            .from_zero = curve.from_zero,
            .allow_log = curve.allow_log};
}

void add_run(Chart& chart, const Curve& curve, const std::string& label, int colour, const RunHistory& run,
             const CurveAxis& axis) {
    std::vector<Point> points = values_of(run, curve.field, curve.scale, axis);
    if (curve.smoothed) return add_series(chart, label, colour, std::move(points), axis);
    chart.series.push_back({label, colour, Mark::line, std::move(points)});
    chart.description += in_words(chart.series.back(), axis);
}

std::string notes_box(const std::vector<std::string>& notes) {
    std::string lines;
    for (const std::string& note : notes) lines += "<p>" + escape_html(note) + "</p>";
    return lines.empty() ? "" : "<aside class=\"notes\">" + lines + "</aside>\n";
}

std::string section(const std::string& title, const std::string& inside, const char* style) {
    return concat("<section class=\"", style, "\"><h2>", title, "</h2>", inside, "</section>\n");
}

std::string quiet(const std::string& html) { return concat("<p class=\"quiet\">", html, "</p>"); }

std::string row_of(const std::vector<std::string>& cells) {
    std::string row = "<tr>";
    for (const std::string& cell : cells) row += "<td>" + escape_html(cell) + "</td>";
    return row + "</tr>";
}

std::string table(const std::vector<std::string>& head, const std::string& rows) {
    std::string text = "<div class=\"scroll\"><table><thead><tr>";
    for (const std::string& cell : head) text += "<th scope=\"col\">" + escape_html(cell) + "</th>";
    return text + "</tr></thead><tbody>" + rows + "</tbody></table></div>";
}

std::string caption(const std::string& title, const std::string& unit, const std::string& legend) {
    return concat("<figcaption><b>", escape_html(title), "</b><span class=\"unit\">", escape_html(unit), "</span>",
                  legend, "</figcaption>");
}

std::string chart_card(const Chart& chart) {
    const std::string svg = line_chart(chart);
    return svg.empty() ? "" : concat("<figure class=\"card\">", caption_of(chart), svg, "</figure>\n");
}

std::string wide_card(Chart chart) {
    Chart wide = chart;
    wide.id += "-wide";
    wide.width = 1060;
    wide.height = 340;
    chart.height = 300;
    const std::string svg = line_chart(chart);
    if (svg.empty()) return "";
    return concat("<figure class=\"card full\">", caption_of(chart), "<div class=\"wide-only\">", line_chart(wide),
                  "</div><div class=\"narrow-only\">", svg, "</div></figure>\n");
}

std::string style_sheet() { return svg::page_css() + kReportStyle; }

std::string legend_item(std::string_view drawing, const std::string& label, const std::string& style) {
    return concat("<li><svg", style.empty() ? "" : concat(" class=\"", style, "\""),
                  " viewBox=\"0 0 24 10\" aria-hidden=\"true\">", drawing, "</svg>", escape_html(label), "</li>");
}

std::string legend_list(const Legend& colours) {
    std::string items;
    for (const auto& [style, label] : colours)
        items += legend_item(concat("<rect class=\"", style, "\" x=\"4\" y=\"0\" width=\"16\" height=\"10\"/>"), label);
    return legend_list(items);
}

std::string legend_list(const std::string& items) { return "<ul class=\"legend\">" + items + "</ul>"; }

std::string figure(const svg::Bars& bars, const std::string& id, const std::string& note) {
    return figure(bars, id, note, svg::legend_of(bars));
}

std::string figure(const svg::Bars& bars, const std::string& id, const std::string& note, const Legend& legend) {
    return concat(caption(bars.title, note, legend_list(legend)), "<div class=\"drawing\">",
                  svg::in_page(svg::draw(bars), id), "</div>");
}

std::string page(const std::string& title, const std::string& body) {
    return concat(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>",
        escape_html(title), "</title><style>", style_sheet(), "</style></head>\n<body><main>\n", body,
        "</main></body></html>\n");
}

}  // namespace tutti::report
