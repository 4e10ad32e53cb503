// parallel/data_parallel.h: data parallelism in all its forms: every rank computes on its own samples; the gradients
// are summed over the ranks, overlapping the backward; state is replicated (ZeRO-0) or cut into shards (ZeRO-1, 2, 3 =
// FSDP; with dp_replicate > 1 HSDP). Rajbhandari et al. 2020; Zhao et al. 2023.
//
// A gradient is summed over the axes in Parameter::partial: data parallelism, context parallelism, copies of tensor
// parallelism. DataParallel attaches to the engine through Hooks, unit by unit, in any order of the passes.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/autograd/tape.h"
#include "tutti/optim/rules.h"
#include "tutti/parallel/flat_unit.h"
#include "tutti/parallel/groups.h"

namespace tutti::parallel {

struct DataParallelOptions {
    Zero zero = Zero::optimizer;
    DType compute = DType::bf16;
    // Gradients are stored in this type: a contribution of a microbatch, computed in f32, is added to the gradient and
    // rounded once, and so is a sum over ranks. 16 bits are not for keep_gradients.
    DType gradients = DType::f32;
    // Of reduce_scatters: 16 bits round f32 gradients once, for half the traffic; the sums stay f32. Not for ZeRO-0.
    DType reduce = DType::f32;
    uint64_t seed = 0;
    // true: ZeRO-2 and 3 reduce the gradients of each microbatch and keep a shard. false: they keep all gradients until
    // the last microbatch and reduce once, as ZeRO-0 and 1 do: more memory, less traffic. The two add in different
    // orders; with one microbatch they are equal.
    bool reduce_each_microbatch = true;
    // Reduce_scatters in flight at once in a backward; each keeps the gradients of one more unit. A backward that sends
    // its gradient to an earlier stage does not wait for reductions of whole gradients.
    int reductions = 1;
    bool keep_gradients = false;  // at the same addresses in every step, as CUDA graphs need them; not for ZeRO-2, 3
    int64_t grain = 1;            // FlatOptions
    bool masters = true;          // FlatOptions
    Device* masters_device = nullptr;  // offload: FlatOptions
    Device* weights_device = nullptr;
};

// How a gradient that is a partial sum over some axes is summed: over the ranks that each take a shard, where it is cut
// into shards, then over the others.
struct SumAxes {
    mesh::Axes cut;     // of the shards; empty: ZeRO-0
    mesh::Axes first;   // ZeRO-0: ranks that sum first, as shards would
    mesh::Axes second;  // the rest
    bool in_one;        // one sum over `second` is equal
};
// `between_stages`: stages of a pipeline share the parameter, and sum it too.
SumAxes axes_of_sum(const mesh::Mesh& mesh, Zero zero, mesh::Axes partial, bool between_stages);

class DataParallel final : public autograd::Hooks {
  public:
    // One run of units for each pipeline stage of the rank: the units of its modules, in the order of the forward.
    // Allocates and initialises the state; collective over the world. Call parallel::apply() first.
    DataParallel(ops::Context& ctx, const std::vector<std::vector<autograd::Unit*>>& runs, Groups& groups,
                 const DataParallelOptions& options);

    // The pieces that this rank updates.
    std::vector<optim::ParameterShard> parameter_shards() const;
    // The parameters that are gathered together, and whose gradients are summed together; the units that have them.
    struct Together {
        const FlatUnit* values;
        std::vector<const autograd::Unit*> units;
    };
    std::vector<Together> states() const;
    // Brings the matrices that the rules need whole to their owners and back (parallel/whole_matrices.h); null when no
    // rule needs them. Collective over the ranks along tp, cp and dp_shard. This object must outlive the result.
    std::unique_ptr<optim::WholeMatrices> gather_whole(const optim::Rules& rules,
                                                       int64_t wave_values = int64_t{1} << 24) const;

    // Run i of units will do microbatches[i] forwards and backwards, in any order. A gradient is complete, and its sum
    // over the ranks begins, when the last of these backwards has added its contribution; the sum over several stages
    // of a pipeline waits for finish_gradients().
    void begin_step(const std::vector<int64_t>& microbatches);
    void begin_step(int64_t microbatches);  // the same number for every run
    // Call after the last pass: gradients are summed on return.
    void finish_gradients();
    // L2 norm of the gradient of all ranks: exact up to the last rounding, so equal for any stage and rank count that
    // sums the same gradients. Not finite when some gradient is not finite. Collective over the world, as are the
    // functions up to load_masters().
    double gradient_norm();
    // The first parameter, in the order of the model, with a gradient that is not finite on some rank; "": none.
    std::string first_non_finite();
    // Call after the update: gathers the weights of all shards; forwards wait for them unit by unit.
    void all_gather_weights();
    // `load` writes the masters of parameter_shards(), from which the weights are then rounded and gathered.
    void load_masters(const std::function<void()>& load);
    void wait_for_weights();  // before weights are read outside a forward

    // ZeRO-3: gathers all weights of run i, in the order of the forward, for all passes until reshard(i). Without
    // unshard(i) weights are gathered unit by unit in each pass. No effect for other stages of ZeRO.
    void unshard(size_t i);
    void reshard(size_t i);
    // ZeRO-3: frees gathered weights that no pass uses. The next pass finds as little as the first one did, whatever
    // passes were before.
    void free_idle_weights();

    void before(autograd::Unit& unit, const autograd::Pass& pass) override;
    void after(autograd::Unit& unit, const autograd::Pass& pass) override;
    void gradient_ready(autograd::Parameter& parameter, const autograd::Pass& pass) override;

  private:
    // Parameters of one unit that are gathered, reduced and released together.
    struct State {
        std::unique_ptr<FlatUnit> flat;
        mesh::Axes cut;                          // axes of the shards; empty: ZeRO-0
        comm::Communicator* shards = nullptr;    // ranks of the shards: reduce_scatter, all_gather. ZeRO-0: ranks that
                                                 // sum first, as shards would; null: one sum over `replicas` is equal
        comm::Communicator* replicas = nullptr;  // ranks over which the shard is then summed
        std::vector<size_t> users;               // units, in the order of the forward; several when a matrix is tied
        std::vector<size_t> runs;                // of the users
        bool between_stages = false;             // also summed over stages of a pipeline
        std::vector<comm::Work> gather;
        bool gathering = false;     // gather in flight, or done without wait
        bool published = false;     // frozen weights below ZeRO-3: they are gathered once
        bool idle = false;          // gathered but not in use; freed when another unit is needed
        int unsharded = 0;          // runs that keep this state gathered
        int64_t expected = 0;       // contributions in this step: one for each run and microbatch
        int64_t contributions = 0;  // so far in this step
        autograd::Pass pass;        // pass of the current contribution, with `ready` complete parameters
        size_t ready = 0;
        bool reduced = false;    // in this step
        bool in_flight = false;  // in in_flight_
        comm::Work reduction;    // over `shards`; ZeRO-0: an all_reduce; else the reduce_scatter
        Tensor sent;             // gradients rounded for the reduction
        Tensor received;         // f32: where a later microbatch's shard arrives before it is added
        comm::Work replica_reduction;

        bool complete() const { return contributions == expected; }
        bool frozen() const { return flat->parameters().front()->frozen(); }
    };

    // Of the weights that are gathered as codes over the same ranks: the largest magnitudes of all their groups.
    struct Magnitudes {
        comm::Communicator* shards;
        comm::Communicator* parts;  // GatheredCodes::ranks
        std::vector<State*> states;
        Tensor all;  // i32
    };

    struct UnitState {
        autograd::Unit* unit;
        size_t run;
        std::vector<State*> states;  // that hold its parameters
    };

    State& state_of(const autograd::Parameter* parameter) { return *states_of_.at(parameter); }
    void add_state(const std::vector<autograd::Parameter*>& parameters);
    DType stored_gradients(const autograd::Parameter& p) const;
    DType sent_gradients(const autograd::Parameter& p) const;
    void reserve_reductions(const State& state);
    void allocate_magnitudes();
    void find_magnitudes();
    bool sharded_weights() const { return options_.zero == Zero::weights; }
    bool reduces_each_microbatch() const { return options_.zero >= Zero::gradients && options_.reduce_each_microbatch; }
    void add_contributions(State& state, int64_t count);
    bool is_awaited(const State& state) const;
    void start_all_gather(State& state);
    static void finish_gather(State& state);
    void unshard_unit(size_t unit, const autograd::Pass& pass);
    void prefetch(size_t unit, size_t run, const autograd::Pass& pass);
    void reshard_unit(size_t unit, const autograd::Pass& pass);
    void need_gradients(State& state);
    void start_reduction(State& state);
    void finish_reduction(State& state);
    void start_replica_reduction(State& state);

    ops::Context& ctx_;
    Groups& groups_;
    DataParallelOptions options_;
    std::vector<std::unique_ptr<State>> states_;
    std::vector<Magnitudes> magnitudes_;
    size_t runs_ = 0;
    std::vector<UnitState> units_;                              // of all runs, one after another
    std::unordered_map<const autograd::Unit*, size_t> places_;  // in units_
    std::unordered_map<const autograd::Parameter*, State*> states_of_;
    // Of the step: states that wait for contributions, by the last run that uses them, and all of them. Counted, since
    // a look at all states for each reduction is quadratic in the layers; so is the list of idle states.
    std::vector<size_t> incomplete_of_;
    size_t incomplete_ = 0;
    std::vector<State*> idle_;      // some of which may be in use again
    std::deque<State*> in_flight_;  // reductions over shards, finished at places of the program: memory is as rehearsed
};

}  // namespace tutti::parallel
