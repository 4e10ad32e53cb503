// planner/price.h: the step of a layout as ends + layers x probe (probe.h) over the timeline of its schedule: seconds,
// and bytes of the fullest rank. A few microseconds without a pipeline, milliseconds with a long one.
#pragma once

#include <array>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/base/purpose.h"
#include "tutti/planner/cache.h"
#include "tutti/planner/probe.h"
#include "tutti/planner/request.h"
#include "tutti/schedule/schedule.h"
#include "tutti/simulate/machine_prices.h"

namespace tutti::planner {

struct Price {
    double seconds = 0;               // of a step
    double bytes = 0;                 // of the device of the fullest rank
    double offloaded = 0, saved = 0;  // of that rank: on the host; in a checkpoint
};

// Safe to share between threads.
class Pricer {
  public:
    static constexpr double kUnlimited = std::numeric_limits<double>::infinity();
    Pricer(const Request& request, const rehearsal::Target& target);
    // A run of the request that keeps the rules. Nothing where its step takes longer than `limit`, its schedule does
    // not exist for these numbers, or a rank has more values than a kernel takes.
    std::optional<Price> price(const spec::RunSpec& run, double limit = kUnlimited);
    // The same for a search, with a given probe, from the first, the middle and the last position of the pipeline and
    // the timeline of its schedule on at most 8 ranks with equal stages: microseconds. No seconds where it needs more
    // than `memory`, and bytes that are a lower bound where also that is more than `enough`. Where it takes longer than
    // `limit`, seconds above that and bytes that are lower bounds. Requires that bounds() are not kUnlimited.
    struct Wanted {
        double memory = kUnlimited, enough = kUnlimited, limit = kUnlimited;
    };
    Price estimate(const spec::RunSpec& run, const LayerProbe& probe, const Wanted& wanted);
    Price estimate(const spec::RunSpec& run, const LayerProbe& probe) { return estimate(run, probe, {}); }
    // Seconds that estimate() does not fall below: those of its passes, and with data parallelism as the run has it,
    // whose last microbatch takes no less than the reductions of a rank. kUnlimited: its schedule does not exist.
    struct Bounds {
        double passes = 0, step = 0;
    };
    Bounds bounds(const spec::RunSpec& run, const LayerProbe& probe);
    const LayerProbe& probe(const spec::RunSpec& run) { return probes_.rough_of(run); }  // for estimates
    size_t probes() const { return probes_.rehearsed(); }

  private:
    struct Pass {  // of a stage's units, as one piece; its peak above the bytes before it, and what it adds to them
        Piece piece;
        double peak = 0, bytes = 0;
        double least = 0;  // seconds, waits among them, where gradients are new if that is less
    };
    struct Stage {
        std::span<const UnitProbe* const> units;  // of Layout::units
        double kept = 0, offloaded = 0;
        double values = 0, shards = 0;  // of parameters: all, and the rank's shards
        bool is_first = false;
        Pass f, b, i, w;  // where data parallelism neither waits nor frees
        // Seconds of a microbatch, in estimates with what data parallelism does not hide.
        double forward = 0, backward = 0;

        double passes() const { return forward + backward; }
    };
    struct Layout;                     // of one run
    struct Position {                  // a rank of the pipeline
        std::vector<Stage> different;  // those that follow one another with the same units are one
        std::vector<Stage*> stages;    // in order
        std::vector<int64_t> numbers;  // of the stages in the pipeline

        Position() = default;
        Position(Position&&) = default;  // no copies: stages point to their own

        // In a pipeline whose stages are all like one: when its first forward begins, and its last backward ends.
        double begins(size_t i) const { return static_cast<double>(numbers[i]) * stages[i]->forward; }
        double ends(size_t i) const { return -static_cast<double>(numbers[i]) * stages[i]->backward; }
    };
    class Walk;      // of one rank (price_walk.h)
    class Pipeline;  // of all ranks
    // A schedule with equal stages, as it is on a few ranks.
    struct Shape {
        double idle = 0;                         // of the first rank, in microbatches of a rank, over the other ranks
        bool folded = false;                     // in a V
        std::array<double, 3> held = {1, 1, 1};  // most microbatches that the first, middle and last rank keep
        bool exists = true;
    };

    using Layers = std::vector<std::pair<int64_t, int64_t>>;  // begin, end by stage

    Layout sizes_of(const spec::RunSpec& run, const LayerProbe& probe);
    Layout layout_of(const spec::RunSpec& run);  // without ranks where its schedule does not exist
    Layout layout_of_few(const spec::RunSpec& run, const LayerProbe& probe, const Shape& shape);
    std::optional<Price> price_pipeline(const spec::RunSpec& run, double limit);
    void add_sums(Layout& layout) const;
    static bool alike(const Layout& layout, int64_t a, int64_t b);
    template <class Visit>
    static void for_each_sum(const Layout& layout, const UnitProbe& unit, Visit visit);
    static Stage stage_of(const Layout& layout, int64_t index);
    static void add_passes(Stage& stage, double hidden);
    static Position position_of(const Layout& layout, std::vector<int64_t> numbers);
    static std::array<Position, 3> positions_of(const Layout& layout, const Shape& shape);
    const schedule::Schedule* schedule_of(const spec::ParallelSpec& p, int64_t microbatches);
    const Shape& shape_of_few(const spec::ParallelSpec& p, int64_t ranks, int64_t microbatches);
    Shape shape_of(const spec::RunSpec& run);
    const Layers& layers_of(const spec::RunSpec& run, int64_t stages);
    double add_data_parallelism(const Layout& layout, Stage& stage) const;
    double first_gathers(const Layout& layout, const Position& position) const;
    double last_reductions(const Layout& layout, const Position& position) const;
    double update(const Layout& layout, std::span<const Stage* const> stages) const;
    double sum_of_ends(const Layout& layout) const;
    double least_reductions(const Layout& layout, const Position& position) const;
    Price state_of(const Layout& layout, std::span<const Stage* const> stages, bool with_gradients) const;
    Price alone(const Layout& layout) const;
    double seconds_of(const Layout& layout, const Shape& shape, double busiest) const;

    const Request& request_;
    rehearsal::Target target_;
    simulate::MachinePrices prices_;
    Probes probes_;
    std::vector<double> costs_;  // of the model's modules, as the engine balances stages
    // Of Layout::kMany values: by ZeRO, offload of the optimizer, offload of weights.
    Cache<std::tuple<int64_t, bool, bool>, MemoryByPurpose> states_;
    // Kind, ranks, virtual stages, microbatches; nothing: there is no such schedule.
    using Dimensions = std::tuple<std::string, int64_t, int64_t, int64_t>;
    Cache<Dimensions, std::optional<schedule::Schedule>> schedules_;
    Cache<Dimensions, Shape> shapes_;
    Cache<std::pair<int64_t, bool>, Layers> layers_;
};

}  // namespace tutti::planner
