// parallel/data_parallel.h: data parallelism in all its forms: every rank computes on its own samples; the gradients
// are summed over the ranks, overlapping the backward; state is replicated (ZeRO-0) or cut into shards (ZeRO-1, 2, 3 =
// FSDP; with dp_replicate > 1 HSDP). Rajbhandari et al. 2020; Zhao et al. 2023.
//
// Attaches to the engine through Hooks, unit by unit. Below: flat_unit.h, comm/. Called by engine/step.cpp, which sees
// the same few calls whatever the stage.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/autograd/tape.h"
#include "tutti/parallel/flat_unit.h"
#include "tutti/parallel/groups.h"
#include "tutti/parallel/parameter_server.h"

namespace tutti::parallel {

struct DataParallelOptions {
    Zero zero = Zero::optimizer;
    DType compute = DType::bf16;
    uint64_t seed = 0;
    // ZeRO-2 and 3 reduce the gradients of each microbatch and keep a shard, or keep all until the last microbatch and
    // reduce once, as 0 and 1 do: more memory, less traffic. The two add in different orders; with one microbatch they
    // are the same.
    bool reduce_each_microbatch = true;
    bool keep_gradients = false;     // at the same addresses in every step, as CUDA graphs need them; not for ZeRO-2, 3
    bool parameter_server = false;   // in place of collectives; for Zero::none
    Device* masters_home = nullptr;  // offload: FlatOptions
    Device* weights_home = nullptr;
};

class DataParallel final : public autograd::Hooks {
  public:
    // `units` in the order of the forward. Allocates and initialises the state; collective over groups.dp.
    DataParallel(ops::Context& ctx, std::vector<autograd::Unit*> units, const Groups& groups,
                 const DataParallelOptions& options);

    // What this rank updates. Of the ranks with equal pieces one is to save them.
    std::vector<optim::Piece> pieces() const;
    bool saves() const;

    void begin_step();
    void begin_microbatch(bool last);
    void begin_evaluation();
    // After the last backward: gradients are summed when it returns.
    void finish_gradients();
    // L2 norm of the gradient of all ranks: exact up to the last rounding, so the same for any stage and rank count
    // that sums the same gradients. Not finite when some gradient is not.
    double gradient_norm();
    // The first parameter, in the order of the model, whose gradient is not finite on some rank; "" if there is none.
    std::string first_non_finite();
    // After the update: brings the weights of all shards together; forwards wait for them unit by unit.
    void publish_weights();
    // `load` writes the masters of pieces(); then the weights follow.
    void load_masters(const std::function<void()>& load);
    void settle();  // waits for what publish_weights() began: before weights are read outside a forward

    void before_forward(autograd::Unit& unit) override;
    void after_forward(autograd::Unit& unit) override;
    void before_backward(autograd::Unit& unit) override;
    void after_backward(autograd::Unit& unit) override;
    void gradient_ready(autograd::Parameter& parameter) override;

  private:
    struct State {
        std::unique_ptr<FlatUnit> flat;
        std::vector<size_t> users;  // units, in the order of the forward; more than one when a matrix is tied
        std::vector<comm::Work> gather;
        bool gathering = false;  // under way, or done and not waited for
        bool resting = false;    // gathered and not in use: goes when another one is needed
        size_t ready = 0;        // parameters whose gradient is complete in this microbatch
        bool reduced = false;    // in this step
        comm::Work reduction;    // ZeRO-0: the all_reduce; else the reduce_scatter
        Tensor received;         // where a later microbatch's shard arrives before it is added
        comm::Work replicas;     // all_reduce of the shard over dp_replicate
    };

    bool sharded_weights() const { return options_.zero == Zero::weights; }
    State& owner(const autograd::Parameter* parameter) { return *states_[owner_.at(parameter)]; }
    size_t index(const autograd::Unit& unit) const { return index_.at(&unit); }
    bool updates() const { return !server_ || server_->serves(); }
    void start_gather(State& state);
    static void finish_gather(State& state);
    bool needed(size_t unit) const { return !backward_ || units_[unit]->backward_reads_weights; }
    void acquire(size_t unit);
    void prefetch(size_t unit);
    void rest(size_t unit);
    void need_gradients(size_t unit);
    void start_reduction(State& state);
    void finish_reduction(State& state);

    ops::Context& ctx_;
    const Groups& groups_;
    DataParallelOptions options_;
    std::optional<ParameterServer> server_;
    std::vector<std::unique_ptr<State>> states_;
    std::vector<autograd::Unit*> units_;
    std::vector<std::vector<State*>> uses_;  // by unit: the states that hold its parameters
    std::unordered_map<const autograd::Unit*, size_t> index_;
    std::unordered_map<const autograd::Parameter*, size_t> owner_;
    State* in_flight_ = nullptr;  // at most one reduce_scatter, so that memory does not depend on timing
    bool training_ = false, backward_ = false, last_microbatch_ = true;
};

}  // namespace tutti::parallel
