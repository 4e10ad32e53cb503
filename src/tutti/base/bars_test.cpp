#include "tutti/base/bars.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <regex>

#include "tutti/base/error.h"
#include "tutti/base/palette.h"
#include "tutti/base/purpose.h"

namespace tutti::svg {
namespace {

struct Drawn {
    std::string style;
    double x = 0, y = 0, width = 0, height = 0;
};

std::vector<Drawn> boxes(const std::string& picture) {
    const std::regex box(
        "<rect class=\"([^\"]+)\" x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\" height=\"([0-9.]+)\"");
    std::vector<Drawn> all;
    for (std::sregex_iterator i(picture.begin(), picture.end(), box), end; i != end; ++i)
        all.push_back({(*i)[1], std::stod((*i)[2]), std::stod((*i)[3]), std::stod((*i)[4]), std::stod((*i)[5])});
    return all;
}

// Bars at random times lie at their times and in their rows, clipped to the axis.
TEST(Bars, LieOnTheirAxis) {
    std::mt19937 random(3);
    std::uniform_real_distribution<double> time(-2, 12);
    Bars chart{.title = "t", .x_label = "ms", .rows = {{"a", 15}, {"b", 6}}, .end = 10};
    for (int i = 0; i < 40; ++i) {
        const double one = time(random), other = time(random);
        chart.bars.push_back({size_t(i % 2), std::min(one, other), std::max(one, other), "forward"});
    }
    const Scale scale = scale_of(chart);
    EXPECT_NEAR(scale.at(10), 1060 - 14, 1e-9);
    const std::vector<Drawn> drawn = boxes(draw(chart).body);
    size_t next = 0;
    for (const Bar& bar : chart.bars) {
        const double begin = std::max(0.0, bar.begin), end = std::min(10.0, bar.end);
        if (begin > end) continue;
        ASSERT_LT(next, drawn.size());
        const Drawn& box = drawn[next++];
        EXPECT_NEAR(box.x, scale.start + begin * (scale.at(10) - scale.start) / 10, 0.01);
        EXPECT_NEAR(box.x + box.width, scale.start + end * (scale.at(10) - scale.start) / 10, 0.7);
        EXPECT_EQ(box.height, bar.row == 0 ? 15 : 6);
    }
    EXPECT_EQ(next, drawn.size());
}

// The beginning and the end of a long axis are drawn at one scale; the middle is not drawn.
TEST(Bars, FoldAtTheMiddle) {
    Bars chart{.title = "t", .x_label = "ms", .rows = {{"a", 15}}, .end = 100, .most_in_row = 20};
    for (int i = 0; i < 100; ++i) chart.bars.push_back({0, double(i), i + 1.0, i % 2 == 0 ? "forward" : "backward"});
    const Scale scale = scale_of(chart);
    EXPECT_TRUE(scale.folded());
    EXPECT_NEAR(scale.head, 10, 1e-9);
    EXPECT_NEAR(scale.tail, 90, 1e-9);
    EXPECT_NEAR(scale.at(100), 1060 - 14, 1e-9);
    EXPECT_NEAR(scale.at(1) - scale.at(0), scale.at(100) - scale.at(99), 1e-9);
    std::vector<Drawn> drawn = boxes(draw(chart).body);
    std::erase_if(drawn, [](const Drawn& box) { return box.style == "paper"; });
    ASSERT_EQ(drawn.size(), 20u);
    for (int i = 0; i < 10; ++i) {
        EXPECT_NEAR(drawn[size_t(i)].x, scale.at(i), 0.01);
        EXPECT_NEAR(drawn[size_t(10 + i)].x, scale.at(90 + i), 0.01);
    }
    chart.most_in_row = 100;
    EXPECT_FALSE(scale_of(chart).folded());
}

TEST(Bars, LabelsStandWhereTheyFit) {
    Bars chart{.title = "t", .x_label = "", .rows = {{"a", 22}}, .end = 1000};
    chart.bars = {{0, 0, 500, "forward", "", "wide"}, {0, 500, 501, "forward", "", "narrow"}};
    const std::string body = draw(chart).body;
    EXPECT_NE(body.find(">wide<"), std::string::npos);
    EXPECT_EQ(body.find(">narrow<"), std::string::npos);
}

// The label of a bar under others stands in the longest part that is seen, or nowhere.
TEST(Bars, LabelsStandWhereNoBarCoversThem) {
    Bars chart{.title = "t", .x_label = "", .rows = {{"a", 22}, {"b", 22}}, .end = 1000};
    const auto at = [&](const std::string& label) {
        const std::string body = draw(chart).body;
        std::smatch found;
        return std::regex_search(body, found, std::regex("x=\"([0-9.]+)\"[^<]*>" + label + "<")) ? std::stod(found[1])
                                                                                                 : -1;
    };
    chart.bars = {{0, 0, 900, "communication", "", "under"}, {0, 300, 500, "communication", "", "over"}};
    const Scale scale = scale_of(chart);
    EXPECT_NEAR(at("under"), scale.at(700), 0.5);  // the middle of 500 to 900
    EXPECT_NEAR(at("over"), scale.at(400), 0.5);
    chart.bars[1].row = 1;  // another row covers nothing
    EXPECT_NEAR(at("under"), scale.at(450), 0.5);
    chart.bars[1] = {0, 10, 890, "communication", "", "over"};
    EXPECT_EQ(at("under"), -1);
    EXPECT_NEAR(at("over"), scale.at(450), 0.5);
}

TEST(Bars, TheAxisGrowsToALimitThatIsNear) {
    Bars chart{
        .title = "t", .rows = {{"a", 22}}, .bars = {{0, 0, 10, "weights"}}, .end = 10, .limit = 20, .limit_label = "L"};
    EXPECT_NE(draw(chart).body.find(">L<"), std::string::npos);
    EXPECT_NEAR(scale_of(chart).at(20), 1060 - 14, 1e-9);
    chart.limit = 31;
    EXPECT_EQ(draw(chart).body.find(">L<"), std::string::npos);
    EXPECT_NEAR(scale_of(chart).at(10), 1060 - 14, 1e-9);
}

// --- colours ---

// Relative luminance and contrast of WCAG 2.2.
double luminance(std::string_view colour) {
    std::string hex(colour.substr(1));
    if (hex.size() == 3) hex = {hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]};
    double sum = 0;
    const std::array<double, 3> weight{0.2126, 0.7152, 0.0722};
    for (size_t i = 0; i < 3; ++i) {
        const double c = std::stoi(hex.substr(2 * i, 2), nullptr, 16) / 255.0;
        sum += weight[i] * (c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4));
    }
    return sum;
}
double contrast(std::string_view a, std::string_view b) {
    const double x = luminance(a), y = luminance(b);
    return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

// Labels on boxes have the card's colour. Boxes of waits have no labels.
TEST(Palette, LettersAreLegibleOnEveryMeaning) {
    for (const Tone& tone : kTones) {
        if (tone.name == "wait") continue;
        EXPECT_GE(contrast(tone.light, "#ffffff"), 3.4) << tone.name;
        EXPECT_GE(contrast(tone.dark, "#1b1e23"), 4.5) << tone.name;
    }
}

TEST(Palette, EveryPurposeHasAColour) {
    const std::string css = picture_css();
    for (const Purpose purpose : kAllPurposes) {
        const std::string rule = concat('.', name_of(purpose), '{');
        EXPECT_NE(css.find(rule), std::string::npos) << rule;
    }
}

TEST(Palette, FilesAreLightAndDark) {
    const std::string drawn = file({100, 50, "a < b", "", text("ink", 1, 2, "x")});
    EXPECT_NE(drawn.find("prefers-color-scheme:dark"), std::string::npos);
    EXPECT_NE(drawn.find("<title>a &lt; b</title>"), std::string::npos);
    EXPECT_EQ(drawn.find("var("), std::string::npos);  // not every viewer supports CSS variables
    EXPECT_TRUE(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace tutti::svg
