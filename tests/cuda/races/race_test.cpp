// Races in the kernels of the CUDA table, by ThreadSanitizer over the emulation's threads: none in any op, and at night
// each line that orders threads is missed where it does not. The kernels are compiled for ThreadSanitizer, with stops
// at loads and stores that are not aligned; the emulation and this file are not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>
#include <random>

#include "tests/cuda/emulation/race_tsan.h"
#include "tests/cuda/races/planted.h"
#include "tutti/base/error.h"
#include "tutti/base/testing/draws.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/testing/cuda_place.h"
#include "tutti/kernels/testing/equivalence.h"

namespace tutti::kernels {
namespace {

namespace race = emulation::race;

// An op, and the kernels of attention by name.
struct Target {
    const char* op;
    const char* attention = nullptr;
    std::string name() const { return attention == nullptr ? op : concat(op, "_", attention); }
};
void PrintTo(const Target& target, std::ostream* to) { *to << target.name(); }

std::vector<Target> targets() {
    std::vector<Target> all;
    for (const char* op : kOps) {
        const std::string name = op;
        if (name == "attention_forward" || name == "attention_backward")
            for (const char* kernels : {"hopper", "tensor", "plain"}) all.push_back({op, kernels});
        else
            all.push_back({op});
    }
    return all;
}

// The shape in the name of a case, multiplied: what the case takes, roughly. Behind the head dim of attention come
// numbers that are no sizes.
double cost_of(const Case& c) {
    double size = 1;
    const size_t head_dim = c.name.find(" D ");
    const size_t end = head_dim == c.name.npos ? c.name.size() : c.name.find(' ', head_dim + 3);
    for (size_t i = c.name.find(' '); i < std::min(end, c.name.size()); ++i) {
        if (!std::isdigit(static_cast<unsigned char>(c.name[i]))) continue;
        size_t length = 0;
        size *= std::max(1.0, std::stod(c.name.substr(i), &length));
        i += length;
    }
    return size;
}

// What a run of the case reports. An error that the emulation finds counts too, where a line is missing.
struct Runner {
    const Target& target;
    bool refused(const Case& c) const {
        if (!cuda_table().own_value_width && c.name.find(" Dv ") != std::string::npos) return true;  // ops/ widens them
        const PlaceOfAttention by(kernels());
        c.run(cuda_table(), by.place);
        return by.had_others();
    }
    int64_t reports_of(const Case& c) const {
        const int64_t before = race::races();
        const PlaceOfAttention by(kernels());
        try {
            c.run(cuda_table(), by.place);
        } catch (const Error& error) {
            if (error_ != nullptr) *error_ = error.what();
            return 1;
        }
        return race::races() - before;
    }
    std::string* error_ = nullptr;

  private:
    std::string kernels() const { return target.attention != nullptr ? target.attention : "own"; }
};

// By day one of an op's cases, of a seed; at night three: a small one, the largest that is not too slow, and one
// between.
constexpr double kLargest = 6e6, kLargestOnHopper = 1.3e7;  // there several tiles pass through each buffer
std::vector<Case> some_cases_of(const Target& target, const Runner& runner) {
    const bool on_hopper = target.name().ends_with("_hopper");
    std::vector<Case> all;
    for (Case& c : cases_of(target.op))
        if (cost_of(c) <= (on_hopper ? kLargestOnHopper : kLargest)) all.push_back(std::move(c));
    if (testing::draws(0, 1) == 0) {
        std::minstd_rand random(20261128);
        for (int tries = 0; tries < 50; ++tries)
            if (Case& c = all[random() % all.size()]; !runner.refused(c)) return {c};
        return {};
    }
    if (std::ranges::any_of(all, [](const Case& c) { return cost_of(c) > 64; }))
        std::erase_if(all, [](const Case& c) { return cost_of(c) <= 64; });
    if (on_hopper) std::erase_if(all, [](const Case& c) { return !c.name.starts_with("bf16"); });
    if (all.empty()) return {};
    std::ranges::stable_sort(all, {}, cost_of);
    std::vector<Case> some;
    std::vector<size_t> places = {all.size() / 3, 2 * all.size() / 3, all.size() - 1};
    if (on_hopper) {
        const auto many_tiles =
            std::ranges::find_if(all, [](const Case& c) { return c.name.find(" Tk 1000 ") != c.name.npos; });
        const auto place = static_cast<size_t>(many_tiles - all.begin());
        places.insert(places.end(), {all.size() / 2, all.size() * 5 / 6, std::min(place, all.size() - 1)});
    }
    for (size_t i : places) {
        while (i > 0 && runner.refused(all[i])) --i;
        some.push_back(all[i]);
    }
    return some;
}

// The cases of an op by the lines that order threads in them. None has a race.
std::map<race::Line, std::vector<Case>> lines_of(const Target& target) {
    std::map<race::Line, std::vector<Case>> lines;
    race::forget({});
    race::show(true);
    std::string error;
    const Runner runner{target, &error};
    for (const Case& c : some_cases_of(target, runner)) {
        race::lines();
        EXPECT_EQ(runner.reports_of(c), 0)
            << c.op << " " << c.name << " " << error << "; names of functions: TSAN_OPTIONS=symbolize=1";
        for (const race::Line& line : race::lines()) lines[line].push_back(c);
    }
    race::show(false);
    return lines;
}

// Whether something is reported when the line orders nothing.
bool is_missed(const Target& target, const race::Line& line, const std::vector<Case>& cases) {
    const Runner runner{target};
    race::forget(line);
    const bool missed =
        std::any_of(cases.begin(), cases.end(), [&](const Case& c) { return runner.reports_of(c) > 0; });
    race::forget({});
    return missed;
}

class Races : public ::testing::TestWithParam<Target> {};

// Lines that order no accesses: the warp groups of attention on Hopper start their products in turn for speed alone
// (two lines), and the first barrier of float8.cu's block_largest() is for a second use that no kernel has.
size_t needless_lines(const Target& target) {
    if (target.name() == "attention_forward_hopper") return 2;
    return target.name() == "amax" || target.name() == "quantize" ? 1 : 0;
}

// At night the table of all lines is printed: each is a mutation.
TEST_P(Races, AreNoneAndEachLineIsMissed) {
    const auto lines = lines_of(GetParam());
    if (testing::draws(0, 1) == 0) return;
    std::vector<std::string> idle;
    for (const auto& [line, cases] : lines) {
        const bool missed = is_missed(GetParam(), line, cases);
        std::printf("%-40s %s:%u %s\n", GetParam().name().c_str(), line.file.c_str(), line.line,
                    missed ? "missed" : "NOT missed");
        // A header's functions are called by several ops, of which some do without a line.
        if (!missed && line.file.ends_with(".cu")) idle.push_back(concat(line.file, ":", line.line));
    }
    EXPECT_EQ(idle.size(), needless_lines(GetParam())) << ::testing::PrintToString(idle) << " order nothing";
}

INSTANTIATE_TEST_SUITE_P(Ops, Races, ::testing::ValuesIn(targets()),
                         [](const auto& target) { return target.param.name(); });

// --- planted ---------------------------------------------------------------------------------------------------------

TEST(PlantedRaces, AreReportedWhateverTheOrder) {
    race::show(false);
    for (const Plant plant : kPlants) {
        const int64_t before = race::races();
        run_planted(plant);
        EXPECT_EQ(race::races() > before, plant != Plant::nothing) << "plant " << static_cast<int>(plant);
    }
}

// The detector goes on behind an error that a unit of the hardware finds, beside a thread or when none can proceed.
TEST(PlantedRaces, AreReportedAfterErrorsOfUnits) {
    race::show(false);
    for (const bool by_product : {true, false}) {
        try {
            read_unpublished(by_product);
            ADD_FAILURE() << "no error";
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("publish_shared"), std::string::npos) << error.what();
        }
        for (const Plant plant : {Plant::nothing, Plant::barrier}) {
            const int64_t before = race::races();
            run_planted(plant);
            EXPECT_EQ(race::races() > before, plant != Plant::nothing) << by_product;
        }
    }
}

// The registers of a product: its sums are read, or its left operand written, before the wait.
TEST(PlantedRaces, OfRegistersAreReported) {
    race::show(false);
    for (const Registers early : {Registers::none, Registers::sums, Registers::operand}) {
        const int64_t before = race::races();
        use_registers(early);
        EXPECT_EQ(race::races() > before, early != Registers::none) << static_cast<int>(early);
    }
}

TEST(PlantedRacesDeathTest, ALoadThatIsNotAlignedEndsTheProgram) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    load_word(0);
    EXPECT_DEATH(load_word(4), "misaligned");
}

}  // namespace
}  // namespace tutti::kernels
