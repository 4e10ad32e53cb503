#include "tutti/parallel/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tutti/ops/ops.h"

namespace tutti::parallel {

using autograd::Parameter;
using autograd::Unit;

DataParallel::DataParallel(ops::Context& ctx, std::vector<Unit*> units, const Groups& groups,
                           const DataParallelOptions& options)
    : ctx_(ctx), groups_(groups), options_(options), units_(std::move(units)) {
    if (options.parameter_server) {
        check(options.zero == Zero::none, "a parameter server keeps the state: nothing is left to cut into shards");
        server_.emplace(ctx, *groups.dp);
    }
    FlatOptions flat{.zero = options.zero,
                     .updates = updates(),
                     .compute = options.compute,
                     .seed = options.seed,
                     .masters_home = options.masters_home,
                     .weights_home = options.weights_home};
    if (options.zero != Zero::none) {
        flat.shards = groups.dp_shard->size();
        flat.shard = groups.dp_shard->rank();
    }
    uses_.resize(units_.size());
    for (size_t u = 0; u < units_.size(); ++u) {
        index_[units_[u]] = u;
        std::vector<Parameter*> owned;  // a tied matrix belongs to the unit that uses it first
        for (Parameter* p : units_[u]->parameters)
            if (owner_.try_emplace(p, states_.size()).second) owned.push_back(p);
        if (!owned.empty()) {
            states_.push_back(std::make_unique<State>());
            states_.back()->flat = std::make_unique<FlatUnit>(ctx, owned, flat);
        }
        for (const Parameter* p : units_[u]->parameters) {
            State& state = owner(p);
            if (std::find(uses_[u].begin(), uses_[u].end(), &state) != uses_[u].end()) continue;
            uses_[u].push_back(&state);
            state.users.push_back(u);
        }
    }
    publish_weights();
}

std::vector<optim::Piece> DataParallel::pieces() const {
    std::vector<optim::Piece> all;
    for (const auto& state : states_)
        for (optim::Piece& piece : state->flat->pieces()) all.push_back(std::move(piece));
    return all;
}

bool DataParallel::saves() const {
    if (server_) return server_->serves();
    return groups_.dp_replicate->rank() == 0 && (options_.zero != Zero::none || groups_.dp_shard->rank() == 0);
}

// --- the step --------------------------------------------------------------------------------------------------------

void DataParallel::begin_step() {
    for (const auto& state : states_) {
        state->reduced = false;
        if (options_.keep_gradients) {  // what is recorded once runs for every microbatch: it can only add
            if (!state->flat->has_gradients()) state->flat->take_gradients();
            state->flat->zero_gradients();
        } else {
            state->flat->drop_gradients();
            state->flat->drop_gradient_shard();
        }
    }
}

void DataParallel::begin_microbatch(bool last) {
    if (in_flight_) finish_reduction(*in_flight_);  // of the microbatch before
    training_ = true;
    backward_ = false;
    last_microbatch_ = last;
    for (const auto& state : states_) state->ready = 0;
}

void DataParallel::begin_evaluation() { training_ = backward_ = false; }

void DataParallel::finish_gradients() {
    training_ = false;
    for (const auto& state : states_)
        if (!state->reduced) {  // no parameter of it was used: zeros are summed, so that all ranks do the same
            if (!state->flat->has_gradients()) state->flat->take_gradients();
            start_reduction(*state);
        }
    for (const auto& state : states_) finish_reduction(*state);
    for (const auto& state : states_) state->replicas.wait();
    if (server_) server_->finish();
}

double DataParallel::gradient_norm() {
    ops::Sum sum(ctx_);
    if (updates())
        for (const auto& state : states_) sum.add_squares(state->flat->gradient_shard());
    ExactSum squares = sum.take();
    if (options_.zero != Zero::none) groups_.dp_shard->sum(squares);
    if (server_) groups_.dp->sum(squares);  // which is the server's
    return std::sqrt(squares.value());
}

std::string DataParallel::first_non_finite() {
    std::vector<const Parameter*> order;
    for (const auto& state : states_)
        order.insert(order.end(), state->flat->parameters().begin(), state->flat->parameters().end());
    auto bad = static_cast<double>(order.size());
    for (const optim::Piece& piece : pieces()) {
        ops::Sum squares(ctx_);
        squares.add_squares(piece.gradient());
        if (std::isfinite(squares.take().value())) continue;
        bad = static_cast<double>(std::find(order.begin(), order.end(), piece.parameter) - order.begin());
        break;
    }
    const auto first = static_cast<size_t>(-groups_.dp->max(-bad));
    return first < order.size() ? order[first]->name : "";
}

void DataParallel::publish_weights() {
    if (options_.zero == Zero::none && !server_) return;
    for (const auto& state : states_) {
        if (sharded_weights()) {  // what is still gathered is out of date
            state->resting = false;
            state->flat->drop_weights();
            continue;
        }
        start_gather(*state);
    }
}

void DataParallel::load_masters(const std::function<void()>& load) {
    settle();  // the weights may be their own masters, and others still reading them
    load();
    for (const auto& state : states_) state->flat->round_masters();
    publish_weights();
}

void DataParallel::settle() {
    for (const auto& state : states_)
        if (!sharded_weights()) finish_gather(*state);
}

// --- weights ---------------------------------------------------------------------------------------------------------

void DataParallel::start_gather(State& state) {
    if (sharded_weights()) state.flat->take_weights();
    const Tensor& weights = state.flat->weights();
    if (server_)
        state.gather = server_->pull(weights);
    else
        state.gather.push_back(groups_.dp_shard->all_gather(state.flat->weight_shard(), weights));
    state.gathering = true;
}

void DataParallel::finish_gather(State& state) {
    if (!std::exchange(state.gathering, false)) return;
    for (comm::Work& work : state.gather) work.wait();
    state.gather.clear();
}

// Weights of a unit, complete. What rested goes first, so that at most the unit in use and the next one are gathered. A
// unit that is used again at once, such as the last one when the backward turns round, finds its weights still there.
void DataParallel::acquire(size_t unit) {
    if (sharded_weights()) {
        for (State* state : uses_[unit]) state->resting = false;
        for (const auto& state : states_)
            if (std::exchange(state->resting, false)) state->flat->drop_weights();
        prefetch(unit);
    }
    for (State* state : uses_[unit]) finish_gather(*state);
}

void DataParallel::prefetch(size_t unit) {
    if (!sharded_weights() || unit >= uses_.size() || !needed(unit)) return;
    for (State* state : uses_[unit]) {
        state->resting = false;
        if (!state->flat->weights().defined()) start_gather(*state);
    }
}

// A matrix that several units use stays from its first use to its last.
void DataParallel::rest(size_t unit) {
    for (State* state : uses_[unit]) {
        const size_t last_use = backward_ ? state->users.front() : state->users.back();
        const bool turns_round = training_ && !backward_ && state->users.size() > 1;
        if (unit == last_use && !turns_round) state->resting = true;
    }
}

void DataParallel::before_forward(Unit& unit) {
    const size_t u = index(unit);
    acquire(u);
    if (!backward_) prefetch(u + 1);
    // The head makes its weight gradient in the forward, chunk by chunk with the logits (nn::head_loss).
    if (training_ && u + 1 == uses_.size()) need_gradients(u);
}

void DataParallel::after_forward(Unit& unit) { rest(index(unit)); }

void DataParallel::before_backward(Unit& unit) {
    backward_ = true;
    const size_t u = index(unit);
    acquire(u);
    prefetch(u - 1);  // of the first unit: none
    need_gradients(u);
}

void DataParallel::after_backward(Unit& unit) { rest(index(unit)); }

// --- gradients -------------------------------------------------------------------------------------------------------

void DataParallel::need_gradients(size_t unit) {
    for (State* state : uses_[unit])
        if (!state->flat->has_gradients()) state->flat->take_gradients();
}

void DataParallel::gradient_ready(Parameter& parameter) {
    State& state = owner(&parameter);
    if (++state.ready < state.flat->parameters().size()) return;
    const bool each = options_.zero >= Zero::gradients && options_.reduce_each_microbatch;
    if (each || last_microbatch_) start_reduction(state);
}

void DataParallel::start_reduction(State& state) {
    FlatUnit& flat = *state.flat;
    flat.complete_gradients();
    if (server_) {
        server_->push(flat.gradients());
    } else if (options_.zero == Zero::none) {
        state.reduction = groups_.dp->all_reduce(flat.gradients());
    } else {
        if (in_flight_) finish_reduction(*in_flight_);
        if (state.reduced)
            state.received = ops::empty(ctx_, flat.gradient_shard().shape(), DType::f32, Purpose::communication);
        else
            flat.take_gradient_shard();
        state.reduction =
            groups_.dp_shard->reduce_scatter(flat.gradients(), state.reduced ? state.received : flat.gradient_shard());
        in_flight_ = &state;
    }
    state.reduced = true;
}

void DataParallel::finish_reduction(State& state) {
    state.reduction.wait();
    if (in_flight_ != &state) return;
    in_flight_ = nullptr;
    if (state.received.defined())
        ops::accumulate(ctx_, std::exchange(state.received, {}), state.flat->gradient_shard());
    if (options_.zero >= Zero::gradients) state.flat->drop_gradients();
    if (last_microbatch_) state.replicas = groups_.dp_replicate->all_reduce(state.flat->gradient_shard());
}

}  // namespace tutti::parallel
