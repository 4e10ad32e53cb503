#include "tutti/report/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/base/svg.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/report/parts.h"

namespace tutti::report {

namespace {

const char* const kFactors[] = {"x", "w", "dy"};
// What each factor is: its colour (base/palette.h).
const char* meaning_of_factor(const std::string& factor) {
    return factor == "x" ? "activations" : factor == "w" ? "weights" : "gradients";
}

// The binary exponents that a picture shows.
struct Exponents {
    int low = 0, high = 0;  // inclusive
    int size() const { return high - low + 1; }
};

Exponents shown_exponents(const PrecisionReading& reading) {
    Exponents all{std::numeric_limits<int>::max(), std::numeric_limits<int>::min()};
    for (const TensorNumbers& t : reading.tensors) {
        if (t.exponents.empty()) continue;
        all.low = std::min(all.low, t.exponents.begin()->first);
        all.high = std::max(all.high, t.exponents.rbegin()->first);
    }
    if (all.low > all.high) return {-24, 15};
    return {std::max(std::min(all.low, -24), -64), std::min(std::max(all.high, 15), 64)};
}

// The share of a tensor's values with an exponent from `first` to `last`; what lies beyond the shown ones is in the
// outermost ones.
double share(const TensorNumbers& t, const Exponents& shown, int first, int last) {
    int64_t count = 0;
    for (const auto& [exponent, n] : t.exponents) {
        const int place = std::clamp(exponent, shown.low, shown.high);
        if (place >= first && place <= last) count += n;
    }
    return static_cast<double>(count) / static_cast<double>(std::max<int64_t>(t.values, 1));
}

// One character for `step` binades, its height by the square root of the share, so that few values are seen.
std::string bars(const TensorNumbers& t, const Exponents& shown, int step) {
    const char* const kHeights[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    std::string text;
    for (int e = shown.low; e <= shown.high; e += step) {
        const double s = share(t, shown, e, e + step - 1);
        text += kHeights[s == 0 ? 0 : std::clamp(static_cast<int>(std::ceil(8 * std::sqrt(s))), 1, 8)];
    }
    return text;
}

std::string percent(double share) {
    return share == 0 ? "-" : share < 1e-4 ? "<0.01 %" : fmt::format("{:.2f} %", 100 * share);
}
std::string decibels(const std::optional<double>& snr) { return snr ? fmt::format("{:.1f}", *snr) : "exact"; }

std::string short_name(const std::string& layer) {
    std::string name = layer;
    for (const char* prefix : {"model.", "transformer."})
        if (name.starts_with(prefix)) name.erase(0, std::string(prefix).size());
    if (name.ends_with(".weight")) name.resize(name.size() - 7);
    return name.size() <= 30 ? name : "…" + name.substr(name.size() - 29);
}

const FormatLoss& loss_of(const TensorNumbers& t, const std::string& format) {
    const auto found =
        std::find_if(t.formats.begin(), t.formats.end(), [&](const FormatLoss& f) { return f.format == format; });
    check<DataError>(found != t.formats.end(), t.layer, ".", t.factor, ": no figures of format ", format);
    return *found;
}

// Boxes, letters, and lines at the ends of f16's range.
std::string drawing(const PrecisionReading& reading, double width) {
    constexpr double kRow = 13, kLabels = 250, kTop = 20;
    const Exponents shown = shown_exponents(reading);
    const double cell = (width - kLabels - 10) / shown.size();
    const auto left_of = [&](int exponent) { return kLabels + cell * (exponent - shown.low); };
    std::string text;
    double y = kTop;
    for (const TensorNumbers& t : reading.tensors) {
        text += svg::text("e", kLabels - 8, y + kRow - 3, short_name(t.layer) + "  " + t.factor);
        for (int e = shown.low; e <= shown.high; ++e) {
            const double s = share(t, shown, e, e);
            if (s == 0) continue;
            text += concat("<g opacity=\"", fmt::format("{:.2f}", 0.15 + 0.85 * std::min(1.0, 2 * std::sqrt(s))), "\">",
                           svg::box(meaning_of_factor(t.factor), left_of(e), y, std::max(0.5, cell - 1), kRow - 1,
                                    fmt::format("{} {}: 2^{}: {:.3g} % of the values", t.layer, t.factor, e, 100 * s)),
                           "</g>");
        }
        y += kRow;
    }
    const auto line = [&](double x, const char* style, const std::string& words) {
        text += svg::line("limit", x, kTop - 4, x, y + 4) + svg::text(style, x, kTop - 7, words);
    };
    line(left_of(-24), "m", "least number of f16");
    line(left_of(16), "e", "largest of f16");
    for (int e = (shown.low + 63) / 8 * 8 - 56; e <= shown.high; e += 8)
        if (e >= shown.low) text += svg::text("m", left_of(e) + cell / 2, y + 14, fmt::format("2^{}", e));
    return text;
}

double height_of(const PrecisionReading& reading) { return 20 + 13 * static_cast<double>(reading.tensors.size()) + 24; }

constexpr double kWidth = 1000;
constexpr const char* kTitle =
    "Binary exponents of x (activations), w (weights) and dy (gradients); shade: share of the values";

}  // namespace

Json to_json(const PrecisionReading& reading) {
    Json tensors = Json::array();
    for (const TensorNumbers& t : reading.tensors) {
        Json formats = Json::array(), exponents = Json::array();
        for (const FormatLoss& f : t.formats)
            formats.push_back({{"format", f.format},
                               {"saturated", f.saturated},
                               {"flushed", f.flushed},
                               {"snr_db", f.snr_db ? Json(*f.snr_db) : Json()}});
        for (const auto& [exponent, count] : t.exponents) exponents.push_back(Json::array({exponent, count}));
        tensors.push_back({{"layer", t.layer},
                           {"factor", t.factor},
                           {"values", t.values},
                           {"zeros", t.zeros},
                           {"not_finite", t.not_finite},
                           {"largest", t.largest},
                           {"rms", t.rms},
                           {"exponents", exponents},
                           {"formats", formats}});
    }
    return {{"compute", reading.compute}, {"recipe", reading.recipe},         {"step", reading.step},
            {"loss", reading.loss},       {"loss_scale", reading.loss_scale}, {"formats", reading.formats},
            {"tensors", tensors}};
}

PrecisionReading precision_from(const Json& json) {
    PrecisionReading reading{.compute = json.at("compute").text(),
                             .recipe = json.at("recipe").text(),
                             .step = json.at("step").get<int64_t>(),
                             .loss = json.at("loss").get<double>(),
                             .loss_scale = json.at("loss_scale").get<double>(),
                             .formats = {},
                             .tensors = {}};
    for (const Json& format : json.at("formats").elements()) reading.formats.push_back(format.text());
    check<DataError>(!reading.formats.empty(), "required: at least one format");
    for (const Json& tensor : json.at("tensors").elements()) {
        TensorNumbers t{.layer = tensor.at("layer").text(),
                        .factor = tensor.at("factor").text(),
                        .values = tensor.at("values").get<int64_t>(),
                        .zeros = tensor.at("zeros").get<int64_t>(),
                        .not_finite = tensor.at("not_finite").get<int64_t>(),
                        .largest = tensor.at("largest").get<double>(),
                        .rms = tensor.at("rms").get<double>()};
        check<DataError>(std::find(std::begin(kFactors), std::end(kFactors), t.factor) != std::end(kFactors),
                         "factor: required x, w or dy, got ", t.factor);
        for (const Json& pair : tensor.at("exponents").elements()) {
            check<DataError>(pair.elements().size() == 2, "exponents: required pairs, got ", pair.shown());
            t.exponents[pair.elements()[0].get<int>()] = pair.elements()[1].get<int64_t>();
        }
        for (const Json& f : tensor.at("formats").elements())
            t.formats.push_back(
                {.format = f.at("format").text(),
                 .saturated = f.at("saturated").get<double>(),
                 .flushed = f.at("flushed").get<double>(),
                 .snr_db = f.at("snr_db").is_null() ? std::nullopt : std::optional(f.at("snr_db").get<double>())});
        for (const std::string& format : reading.formats) loss_of(t, format);
        reading.tensors.push_back(std::move(t));
    }
    return reading;
}

std::string precision_text(const PrecisionReading& reading) {
    std::string text = fmt::format("step {}: loss {:.6g}, loss scale {:g}; compute {}, recipe {}\n\n", reading.step,
                                   reading.loss, reading.loss_scale, reading.compute, reading.recipe);
    text += "The worst tensor of each format: signal over rounding in dB, shares to zero and beyond the largest\n\n";
    text += left("", 10);
    for (const char* factor : kFactors) text += right(factor, 9) + right("to zero", 10) + right("beyond", 10);
    text += '\n';
    for (const std::string& format : reading.formats) {
        text += left(format, 10);
        for (const char* factor : kFactors) {
            std::optional<double> snr;
            double flushed = 0, saturated = 0;
            for (const TensorNumbers& t : reading.tensors) {
                if (t.factor != factor) continue;
                const FormatLoss& loss = loss_of(t, format);
                if (loss.snr_db && (!snr || *loss.snr_db < *snr)) snr = loss.snr_db;
                flushed = std::max(flushed, loss.flushed);
                saturated = std::max(saturated, loss.saturated);
            }
            text += right(decibels(snr), 9) + right(percent(flushed), 10) + right(percent(saturated), 10);
        }
        text += '\n';
    }
    const Exponents shown = shown_exponents(reading);
    const int step = (shown.size() + 25) / 26;
    const int width = (shown.size() + step - 1) / step;
    const auto column = to_size(width);
    const std::string& run = reading.formats.front();
    const std::string first = fmt::format("2^{}", shown.low), last = fmt::format("2^{}", shown.high);
    text += fmt::format("\nEach tensor, and what {} makes of it; a character of the bar is {} binades\n\n", run, step);
    text += left("", 34) + right("largest", 10) + "  " + left(first, column - std::min(column, last.size())) + last +
            right("dB", 8) + right("to zero", 10) + right("beyond", 10) + '\n';
    for (const TensorNumbers& t : reading.tensors) {
        const FormatLoss& loss = loss_of(t, run);
        text += left(short_name(t.layer), 31) + left(t.factor, 3) + right(fmt::format("{:.3g}", t.largest), 10) + "  " +
                bars(t, shown, step) + right(decibels(loss.snr_db), 8) + right(percent(loss.flushed), 10) +
                right(percent(loss.saturated), 10) + '\n';
        if (t.zeros > 0.02 * static_cast<double>(t.values))  // one in 64 is zero by itself: a causal row's first query
            text += fmt::format("  {} of the values are zero before that\n",
                                percent(static_cast<double>(t.zeros) / static_cast<double>(t.values)));
        if (t.not_finite > 0) text += fmt::format("  {} of {} values are not finite\n", t.not_finite, t.values);
    }
    return text;
}

std::string precision_svg(const PrecisionReading& reading) {
    constexpr double kHead = 30;
    return svg::file({kWidth, kHead + height_of(reading), kTitle, "",
                      concat(svg::text("h ink", 10, 20, kTitle), "<g transform=\"translate(0 ", kHead, ")\">",
                             drawing(reading, kWidth), "</g>")});
}

std::string precision_card(const PrecisionReading& reading) {
    std::string rows;
    for (const TensorNumbers& t : reading.tensors) {
        std::vector<std::string> cells = {short_name(t.layer), t.factor, short_number(t.largest)};
        for (const std::string& format : reading.formats) {
            const FormatLoss& loss = loss_of(t, format);
            cells.push_back(decibels(loss.snr_db) +
                            (loss.flushed > 0 ? concat(" (", percent(loss.flushed), " to zero)") : ""));
        }
        rows += row_of(cells);
    }
    std::vector<std::string> head = {"layer", "factor", "largest"};
    for (const std::string& format : reading.formats) head.push_back(format + ", dB");
    return concat(
        "<figure class=\"card full\">",
        caption(concat("Numbers of the products, step ", reading.step), "shade: share of the values in a binade",
                legend_list(Legend{{"activations", "x"}, {"weights", "w"}, {"gradients", "dy"}})),
        "<div class=\"drawing\">",
        svg::in_page({kWidth, height_of(reading), kTitle, "", drawing(reading, kWidth)}, "precision"),
        "</div><details><summary>Signal over rounding by format</summary>", table(head, rows), "</details></figure>\n");
}

}  // namespace tutti::report
