#include "tutti/base/palette.h"

#include "tutti/base/error.h"

namespace tutti::svg {

namespace {

constexpr Tone kSeries[kSeriesColours] = {{"c1", "", "#0072b2", "#56b4e9"}, {"c2", "", "#d55e00", "#f29b4b"},
                                          {"c3", "", "#00805d", "#3fc79a"}, {"c4", "", "#b3478b", "#e39ac8"},
                                          {"c5", "", "#9a6a00", "#e8c04a"}, {"c6", "", "#3f8fd6", "#8ecbff"},
                                          {"c7", "", "#5b5bb5", "#b3a7f5"}, {"c8", "", "#4a4f57", "#c3c8d0"}};

constexpr std::string_view kRanks[kRankColours] = {"#8fc1ec", "#f9c27f", "#a8d58a", "#efadcd", "#cdb5e8", "#f2dc74",
                                                   "#86d6c9", "#ec9d90", "#b9d3f5", "#ffd9a8", "#cdeab6", "#f7cfe2",
                                                   "#e1d3f4", "#f8ebae", "#b4e8df", "#f5c4bb"};

struct Surface {
    std::string_view name, light, dark;
};
constexpr Surface kSurfaces[] = {{"page", "#f6f6f3", "#131518"}, {"card", "#fff", "#1b1e23"},
                                 {"ink", "#1d2025", "#e7e8ea"},  {"soft", "#5d636d", "#9fa6b1"},
                                 {"rule", "#e2e2dc", "#2d3138"}, {"grid", "#ecece7", "#282c33"},
                                 {"warn", "#fdf3dc", "#2b2514"}, {"warn-rule", "#e0b84c", "#8a6d1f"}};

std::string_view surface(std::string_view name, bool dark) {
    for (const Surface& s : kSurfaces)
        if (s.name == name) return dark ? s.dark : s.light;
    throw InternalError(concat("the palette has no surface ", name));
}

std::string colours(bool dark) {
    std::string css;
    const auto of = [&](std::string_view name) { return surface(name, dark); };
    const auto add = [&](const Tone& tone) {
        const std::string_view colour = dark ? tone.dark : tone.light;
        css += concat('.', tone.name, "{color:", colour, ";fill:", colour, '}');
    };
    css += concat("svg text{fill:", of("soft"), "}svg .ink{fill:", of("ink"), "}svg .on{fill:", of("card"),
                  "}.paper{fill:", of("card"), "}.idle{fill:", of("grid"), "}.frame{stroke:", of("ink"),
                  "}line.grid{stroke:", of("grid"), "}line.axis{stroke:", of("soft"),
                  "}line.limit{stroke:", dark ? kTones[1].dark : kTones[1].light, "}\n");
    for (const Tone& tone : kTones) add(tone);
    for (const Tone& tone : kSeries) add(tone);
    return css;
}

constexpr const char* kDark = "@media screen and (prefers-color-scheme:dark){";
constexpr const char* kShapes =
    "svg text{font:12px system-ui,-apple-system,\"Segoe UI\",Roboto,\"DejaVu Sans\",sans-serif;"
    "font-variant-numeric:tabular-nums}\n"
    "svg .h{font-size:14px;font-weight:600}.m{text-anchor:middle}.e{text-anchor:end}"
    "svg .cell{font-size:11px}svg .half{font-size:9px}svg .plain{fill:#1d2025}\n"
    ".later{fill-opacity:.4}.frame{fill:none;stroke-width:1}.edged{stroke:#555;stroke-width:.6}"
    "line.axis{stroke-opacity:.6}line.limit{stroke-width:1.5;stroke-dasharray:5 3}\n";

}  // namespace

std::string rank_class(int rank) { return concat('r', rank % kRankColours); }

std::string picture_css() {
    std::string css = kShapes;
    for (int r = 0; r < kRankColours; ++r) css += concat(".r", r, "{fill:", kRanks[r], '}');
    return concat(css, '\n', colours(false), '\n', kDark, colours(true), "}\n");
}

std::string page_css() {
    const auto variables = [](bool dark) {
        std::string css = ":root{";
        for (const Tone& s : kSeries) css += concat("--", s.name, ':', dark ? s.dark : s.light, ';');
        for (const Surface& s : kSurfaces) css += concat("--", s.name, ':', dark ? s.dark : s.light, ';');
        return css + "}\n";
    };
    return concat(":root{color-scheme:light dark}", variables(false), kDark, variables(true), "}\n", picture_css());
}

}  // namespace tutti::svg
