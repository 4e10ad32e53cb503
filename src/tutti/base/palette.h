// base/palette.h: the colours of all pictures and pages, light and dark. One meaning has one colour everywhere: what
// memory holds, and what a rank does. Forwards have the colour of the activations that they make, backwards that of
// the gradients.
#pragma once

#include <string>
#include <string_view>

namespace tutti::svg {

// A colour and the CSS class that has it as `color` and as `fill`. The colours are of the Okabe-Ito palette and near
// it, which people with any common colour blindness can tell apart.
struct Tone {
    std::string_view name, label;  // "backward-input"; as a legend says it
    std::string_view light, dark;
};

// Meanings, in the order of legends. The first are those of Purpose, by its names.
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

// Lines of a chart that have no meaning above: runs, measured and predicted values. Classes c1 to c8.
inline constexpr int kSeriesColours = 8;

// Light fills of ranks, under dark letters in light and dark pictures: class r0 ... ; ranks beyond them begin again.
inline constexpr int kRankColours = 16;
std::string rank_class(int rank);

// Backgrounds, letters and lines: `color` of a page by name: "page", "card", "ink", "soft", "rule", "grid", "warn".
// The style sheet of every page: the variables --page ... of those and --c1 ... of series, and the rules of
// picture_css().
std::string page_css();
// The rules of every picture, in a file of its own or in a page: the classes above and
//   text       soft; .ink dark, .h heading, .m and .e anchored at its middle and end, .cell and .half small in a box
//   .on        letters on a box of a meaning (.ink on a lighter one); .plain: on a box of a rank
//   .later     a lighter shade of a meaning, for the second and later chunks and the second replica
//   .paper .idle .frame; line.grid .axis .limit
std::string picture_css();

}  // namespace tutti::svg
