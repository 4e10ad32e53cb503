// schedule/timeline.h: when each action of a schedule runs, given the times of F, I, W and of messages. Ranks run their
// programs in order and wait only for results of other ranks; messages overlap the computation.
//
// T is double, or int64_t for exact numbers: times counted in any common unit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/bars.h"
#include "tutti/base/to_size.h"
#include "tutti/schedule/schedule.h"

namespace tutti::schedule {

// Times of one chunk and one microbatch. B takes backward_input + backward_weight.
template <class T>
struct StageTimes {
    T forward = 1;          // F
    T backward_input = 1;   // I
    T backward_weight = 1;  // W
};

template <class T>
struct Times {
    std::vector<StageTimes<T>> stages = std::vector<StageTimes<T>>(1);  // one for all stages, or one per stage
    std::optional<T> overlap;  // of an overlapped F and B; nullopt: F + I + W of the two chunks
    // A message takes latency + transfer. Transfer is size / bandwidth: messages from one rank to another share their
    // link and follow each other at this distance.
    T latency = 0;
    T transfer = 0;

    const StageTimes<T>& of(int stage) const { return stages[stages.size() == 1 ? 0 : to_size(stage)]; }
};

template <class T>
struct Span {
    T start = 0, end = 0;
    Action action;
};

template <class T>
struct Timeline {
    std::vector<std::vector<Span<T>>> ranks;  // [rank], in order
    T makespan = 0;                           // from the start of the step until the last rank is done
    T cost = 0;    // largest time between a rank's first start and its last end: the zero-bubble papers' measure
    T bubble = 0;  // makespan less the busiest rank's work
    std::vector<T> busy, idle;      // [rank]; their sum is the makespan
    std::vector<int> peak_until_w;  // [rank]: chunks whose saved tensors live at once, until their W
    std::vector<int> peak_until_i;  // until their I: the peak if W needed nothing of the forward
    int64_t messages = 0;           // between ranks, of a step
};

// The timeline of the compute actions; messages follow from the placement. Error, naming the actions, for a deadlock.
template <class T>
Timeline<T> simulate(const Schedule& schedule, const Times<T>& times);
extern template Timeline<double> simulate(const Schedule&, const Times<double>&);
extern template Timeline<int64_t> simulate(const Schedule&, const Times<int64_t>&);

// Times written as "1.5", "1/3" or "2e-3", counted in their common unit, so that no sum of a timeline is rounded.
struct ExactTimes {
    std::vector<int64_t> counts;  // one for each text
    int64_t unit = 1;             // counts in a time of 1
};
struct NamedText {
    std::string name, text;  // of an option
};
// UsageError with the option's name and text when the text is no number, is negative, or has too many digits for exact
// sums over `actions` actions.
ExactTimes exact_times(const std::vector<NamedText>& texts, int64_t actions);

// --- pictures of a timeline ---

// One line per rank, at most `columns` wide: a letter per slice of time for the action in the middle of the slice (F,
// B, I, W; in lower case on the second and later chunks and on replica 1; # overlap), a dot where the rank is idle.
std::string draw_text(const Timeline<double>& timeline, const Placement& placement, int columns);

// One row per rank, time to the right; colour by operation, lighter on the second and later chunks and on replica 1; an
// overlap as two halves in one frame; each box has the number of its microbatch, its action and times as a tooltip.
// Under PipeDream the lower half of a box says the version of the weights. A long step is shown as its beginning and
// its end. `x_label`: of the times, with their unit.
svg::Bars picture_of(const Timeline<double>& timeline, const Schedule& schedule, const std::string& x_label);

}  // namespace tutti::schedule
