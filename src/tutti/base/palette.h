// base/palette.h: the colours of all pictures and pages, light and dark. A purpose of memory or an activity of a rank
// has the same colour everywhere. A forward has the colour of activations, a backward that of gradients.
#pragma once

#include <string>
#include <string_view>

namespace tutti::svg {

// A colour, and the CSS class with this `color` and `fill`. Colours are from or near the Okabe-Ito palette, which is
// distinguishable under common forms of colour blindness.
struct Tone {
    std::string_view name, label;  // the class, "backward-input"; the text in a legend
    std::string_view light, dark;
};

// Purposes and activities, in the order of legends. The first are named like the values of Purpose.
inline constexpr Tone kTones[] = {{"weights", "weights", "#00805d", "#3fc79a"},
                                  {"gradients", "gradients", "#c8500a", "#f29b4b"},
                                  {"optimizer", "optimizer", "#5b5bb5", "#b3a7f5"},
                                  {"activations", "activations", "#0072b2", "#56b4e9"},
                                  {"communication", "communication", "#4a4f57", "#c3c8d0"},
                                  {"workspace", "workspace", "#8a5f4a", "#cfa58c"},
                                  {"data", "data", "#5e8fb8", "#a9cdec"},
                                  {"forward", "F forward", "#0072b2", "#56b4e9"},
                                  {"recompute", "recompute", "#00838f", "#5fd0dd"},
                                  {"backward", "B backward", "#c8500a", "#f29b4b"},
                                  {"backward-input", "I backward, input", "#b3478b", "#e39ac8"},
                                  {"backward-weight", "W backward, weights", "#8f6a00", "#e8c04a"},
                                  {"other", "other", "#767d88", "#8d95a1"},
                                  {"wait", "waits", "#c9ccd1", "#474d57"}};

// Colours of other series of a chart: runs, measured and predicted values. Classes c1 to c8.
inline constexpr int kSeriesColours = 8;

// Light fills of ranks, for dark letters in light and dark pictures: classes r0, r1, ..., reused after the last one.
inline constexpr int kRankColours = 16;
std::string rank_class(int rank);

// The style sheet of a page: the variables --page, --card, --ink, --soft, --rule, --grid, --warn of surfaces and --c1
// ... of series, and the rules of picture_css().
std::string page_css();
// The rules of a picture, in a file of its own or in a page: the classes above and
//   text       soft; .ink dark, .h heading, .m and .e anchored at the middle and the end, .cell and .half small, for
//   boxes .on        letters on a box of a tone (.ink on a .later one); .plain: on a box of a rank .later     a lighter
//   shade of a tone, for the second and later chunks and the second replica .paper .idle .frame; line.grid .axis .limit
std::string picture_css();

}  // namespace tutti::svg
