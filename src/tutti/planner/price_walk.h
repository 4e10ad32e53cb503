// planner/price_walk.h: a rank's step, unit by unit, as the engine runs it: its time and its memory. The passes of its
// stages come in any order; around each unit the walk gathers weights, makes gradients and reduces them as
// parallel::DataParallel does. A price walks all ranks of a pipeline through their schedule, an estimate one rank
// through a few passes.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "tutti/planner/price_layout.h"
#include "tutti/simulate/clock.h"

namespace tutti::planner {

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
    void take_head();  // the head's gradients, which a forward takes: for walks of backwards alone
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
    enum Values { kExperts, kDense, kSets };
    struct Operation {
        double begin = 0, seconds = 0;
    };
    struct Set {  // of dense parameters, or of experts: their groups
        double UnitProbe::*values;
        double shards;
        simulate::Group over, copies;
        double free = 0;  // when the last operation ends
        // Of the last unit, which most others are like. shard: its values.
        double gathered_values = -1, gather_seconds = 0, reduced_values = -1, reduce_seconds = 0, shard = 0;
    };
    struct Unit {
        const UnitProbe* probe;
        double left;                    // microbatches whose gradients are to come
        bool is_head = false;           // gradients of its matrix are taken in the forward
        bool is_embedding = false;      // whose weights no backward reads
        double dense = 0, experts = 0;  // values; those of a shared matrix are the head's
        Unit* of_values = nullptr;      // the unit that has its values
        bool gathering = false, gathered = false, is_idle = false;
        std::array<bool, kSets> has_gradients = {}, was_reduced = {};
        std::array<Operation, kSets> gather = {};
        double of(const Set& set) const { return set.values == &UnitProbe::dense ? dense : experts; }
    };
    struct Run {  // of units: a stage
        size_t begin = 0, end = 0;
        const Stage* stage;
        double left;
        bool has_gathered = false, has_gradients = false;
        double plain = 0;  // backwards that its units do not count yet
        double stays = 0;  // bytes of the last unit that a forward has not offloaded
    };
    struct Reduction {
        Operation operation;
        Set* set;
        Unit* unit;
        double values, bytes;  // bytes: of what is sent and received
        bool adds;             // what is received to the shard
    };

    Operation begin(double& free, double seconds) const;
    void wait_for(const Operation& operation);

    void begin_gather(Unit& unit);
    void use(Unit& unit);
    void prefetch(const Unit& unit);
    void set_idle(Unit& unit);
    void release_idle(const Unit& but);
    bool need_gradients(Unit& unit);  // whether they are new
    bool reduces(const Unit& unit) const { return p_.zero >= 2 || unit.left <= 0; }
    bool is_shared_with_another_rank(const Unit& unit) const {
        return run_.model.tie_embeddings && p_.pp > 1 && !tied_ && (unit.is_head || unit.is_embedding);
    }
    void begin_copy(double bytes);
    void leave(const UnitProbe& unit);
    void run_pieces(std::span<const Piece> pieces, bool copies = true, bool is_new = false);
    void contribute(Unit& unit, const Run& run, const UnitPass& pass, double freed, bool is_new);
    void contribute_set(Unit& unit, size_t set, const Run& run);
    bool is_awaited(const Run& run) const;
    void reduce_norms(Unit& unit, const Run& run);
    void take_head(Unit& unit, const Run& run);
    void end_head(Unit& unit, const Run& run);
    void begin_reduction(Unit& unit, size_t set, bool awaited);
    void finish_reduction(size_t place);
    void finish_until(size_t most);

    bool is_plain(const Run& run, bool is_forward) const;
    void pass(double seconds, double idle);
    void run_plain(const Pass& of);
    void count_plain(Run& run);
    void forward_unit(size_t unit, const Run& run);
    void backward_unit(size_t unit, const Run& run, bool input_only);
    void begin_forward(Run& run, bool turns_round);
    void note(double bytes) { most_ = std::max(most_, bytes_ + bytes); }

    const simulate::MachinePrices& prices_;
    const spec::RunSpec& run_;
    const spec::ParallelSpec& p_;
    const bool masters_gathered_;
    // Bytes of a weight, of a gradient while it is made, as it is stored and as it is reduced.
    const double value_, made_ = 4, stored_, reduced_;
    const double hidden_;
    simulate::Clock clock_;
    std::array<Set, kSets> sets_;
    double norm_seconds_ = 0;  // of the reduction of a vector of the model's width
    // Embedding and head are here and share their matrix; and one stage has both, so that its gradient is complete once
    // a microbatch.
    bool tied_ = false, tied_in_stage_ = false;
    std::vector<Unit> units_;
    std::vector<Run> runs_;
    std::vector<Unit*> idle_;  // gathered units that are freed when another one is used
    std::vector<Reduction> reductions_;
    std::vector<Reduction> sums_;  // over replicas, which are the same ranks for all sets
    double sums_end_ = 0;
    double passed_ = 0;
    std::vector<double> copies_;  // between device and host: when they end
    double bytes_ = 0, most_ = 0, offloaded_ = 0, waiting_ = 0;
};

}  // namespace tutti::planner
