// planner/price_walk.h: a rank's step, unit by unit, as the engine runs it: its time and its memory. The passes of its
// stages come in any order; around each unit the walk gathers weights, makes gradients and reduces them as
// parallel::DataParallel does. A price walks all ranks of a pipeline through their schedule, an estimate one rank
// through a few passes.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "tutti/planner/price.h"
#include "tutti/simulate/clock.h"

namespace tutti::planner {

// A run as prices see it: its stages from probes, and its numbers of ranks.
struct Pricer::Layout {
    static constexpr int64_t kMany = 1 << 20;
    const spec::RunSpec* run = nullptr;
    const LayerProbe* probe = nullptr;
    const schedule::Schedule* schedule = nullptr;
    const Layers* layers = nullptr;       // of all stages
    std::vector<const UnitProbe*> units;  // of the whole model, in the order of the forward
    std::vector<Position> ranks;
    double microbatches = 1, replicas = 1, shards = 1, expert_shards = 1;
    struct Sum {  // of LayerProbe::sums
        const SummedTogether* of;
        double shards, shard;        // shard: values of a rank's
        double gather, reduce, add;  // seconds of operations; add: over the ranks beyond the shards
        bool in_one;                 // ZeRO-0: `reduce` is over all ranks
    };
    std::vector<Sum> sums;
    // Bytes for sums over ranks that the probe has not; and where the rank shares its embedding or head with another.
    std::array<double, 2> beside = {};
    bool tied = false;      // the embedding's matrix is the head's, and both are on one rank
    MemoryByPurpose state;  // of kMany values

    double of_value(Purpose purpose) const { return static_cast<double>(state[purpose]) / kMany; }
};

// Seconds since the begin of the step. Bytes above the state that the rank has between steps: without gradients.
class Pricer::Walk {
  public:
    // Where a walk begins: with the gathers of ZeRO-1 and 2 that follow the update of the step before; or later, when
    // all gradients have their memory, from which bytes() are counted then.
    enum class From { update, middle };
    // `stages`: of the rank, which passes name by their place here. `microbatches`: that are to come.
    Walk(const Pricer& pricer, const Layout& layout, std::span<const Stage* const> stages, double microbatches,
         From from);

    // `turns_round`: its backward comes next, so that the last unit's activations stay on the device.
    void forward(size_t stage, bool turns_round = false);
    void backward(size_t stage, bool input_only = false);
    void backward_weight(size_t stage);
    void overlap(size_t forward_stage, size_t backward_stage);  // their units in turns
    void take_early();  // gradients that a forward completes: for walks of backwards alone
    void finish_gradients();

    double now() const { return clock_.now; }
    double passed() const { return passed_; }    // seconds of passes until now
    double most() const { return most_; }        // bytes, until now
    double bytes() const { return bytes_; }      // now
    double waiting() const { return waiting_; }  // the most that is offloaded until now
    void wait_until(double when) { clock_.now = std::max(clock_.now, when); }
    void compute(double seconds) { clock_.compute(seconds); }
    void hold(double bytes) { bytes_ += bytes; }  // of a message; below 0: it has been sent
    void forget_most() { most_ = bytes_; }

  private:
    struct Operation {
        double begin = 0, seconds = 0;
    };
    struct State {  // of parallel::DataParallel
        const Layout::Sum* sum;
        double left;  // contributions of microbatches to its gradients that are to come
        bool gathering = false, gathered = false, is_idle = false, has_gradients = false, was_reduced = false;
        Operation gather = {};
    };
    struct Unit {
        const UnitProbe* probe;
        size_t first;  // of its states, in of_units_
        bool is_head = false;
        bool is_embedding = false;  // whose weights no backward reads
    };
    struct Run {  // of units: a stage
        size_t begin = 0, end = 0;
        const Stage* stage;
        double left;
        bool has_gathered = false, has_gradients = false;
        bool has_early = false;  // gradients that a forward completes
        double plain = 0;        // backwards that its states do not count yet
        double stays = 0;        // bytes of the last unit that a forward has not offloaded
    };
    struct Reduction {
        Operation operation;
        State* state;
        double bytes;  // of what is sent and received
        bool adds;     // what is received to the shard
    };

    Operation begin(double& free, double seconds) const;
    void wait_for(const Operation& operation);

    std::span<State* const> states_of(const Unit& unit) const {
        return std::span(of_units_).subspan(unit.first, unit.probe->states.size());
    }
    void begin_gather(State& state);
    void use(const Unit& unit, bool reads = true);
    void prefetch(const Unit& unit);
    void set_idle(const Unit& unit, bool is_forward);
    bool need_gradients(const Unit& unit, bool is_early);  // whether some are new
    bool is_in_both(const State& state) const { return tied_in_stage_ && state.sum->of->is_shared; }
    bool is_shared_with_another_rank(const State& state) const {
        return p_.pp > 1 && !tied_ && state.sum->of->is_shared;
    }
    void begin_copy(double bytes);
    void leave(const UnitProbe& unit);
    void run_pieces(const Unit& unit, const Run& run, const UnitPass& pass, bool copies, bool is_new);
    void complete(State& state, const Run& run);
    bool is_awaited(const Run& run) const;
    void begin_reduction(State& state, bool awaited);
    void finish_reduction(size_t place);
    void finish_until(size_t most);

    bool is_plain(const Run& run, bool is_forward) const;
    void run_kernels(const Piece& piece, double more = 0);
    void run_kernel(double bytes);
    void run_plain(const Pass& of);
    void count_plain(Run& run);
    void forward_unit(size_t unit, const Run& run);
    void backward_unit(size_t unit, const Run& run, bool input_only);
    void begin_forward(Run& run, bool turns_round);
    void note(double bytes) { most_ = std::max(most_, bytes_ + bytes); }

    const simulate::MachinePrices& prices_;
    const Layout& layout_;
    const spec::RunSpec& run_;
    const spec::ParallelSpec& p_;
    const bool masters_gathered_;
    const double launch_;  // seconds of the host for a kernel
    // Bytes of a weight, of a gradient while it is made, as it is stored and as it is reduced.
    const double value_, made_ = 4, stored_, reduced_;
    const double hidden_;
    simulate::Clock clock_;
    // When the last operation of a group ends: of the shards, and of those of experts; of the ranks beyond, and of
    // those with ranks of a layer.
    std::array<double, 2> shards_free_ = {}, beyond_free_ = {};
    // Embedding and head are here and share their matrix; and one stage has both, so that its gradient is complete once
    // a microbatch.
    bool tied_ = false, tied_in_stage_ = false;
    std::vector<State> states_;  // in the order of the model
    std::vector<State*> of_units_;
    std::vector<Unit> units_;
    std::vector<Run> runs_;
    std::vector<State*> idle_;  // that are gathered, and freed when another unit is used
    std::vector<Reduction> reductions_;
    std::vector<Reduction> sums_;  // that are waited for after all passes
    double passed_ = 0;
    // The host, beside the kernels: when it has launched those so far, its seconds for them, and when kernels began.
    double host_ = 0, launched_ = 0;
    struct Begun {
        double launched, when;
    };
    std::vector<Begun> begun_;
    size_t oldest_ = 0;           // of begun_ that matters
    std::vector<double> copies_;  // between device and host: when they end
    double bytes_ = 0, most_ = 0, offloaded_ = 0, waiting_ = 0;
};

}  // namespace tutti::planner
