#include "tutti/parallel/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "tutti/ops/ops.h"
#include "tutti/ops/quantize.h"
#include "tutti/parallel/whole_matrices.h"

namespace tutti::parallel {

using autograd::Parameter;
using autograd::Pass;
using autograd::PassKind;
using autograd::Training;
using autograd::Unit;
using mesh::Axes;
using mesh::Axis;

namespace {

// Axes over which state is sharded; along the other axes of Parameter::copies state is replicated.
constexpr Axes kSharding{Axis::dp_shard, mesh::kCp, Axis::edp};

bool has(const std::vector<Parameter*>& some, const Parameter* p) { return std::ranges::find(some, p) != some.end(); }

// Whether the gradient of `p` is complete at the end of the unit's forward.
bool is_early(const Unit& unit, const Parameter* p) { return has(unit.gradients_in_forward, p); }

bool is_backward(const Pass& pass) { return pass.kind == PassKind::backward || pass.kind == PassKind::backward_input; }

}  // namespace

// ZeRO-0 adds in the order of the other stages, which have the same bits: over the axes of the shards, then over the
// rest. HSDP's replicas lie outside of the shards in one tree over both, so one sum will do.
SumAxes axes_of_sum(const mesh::Mesh& mesh, Zero zero, Axes partial, bool between_stages) {
    const bool in_one =
        zero == Zero::none && !between_stages && mesh.size(partial - kSharding - Axis::dp_replicate) == 1;
    const Axes first = in_one ? Axes() : partial & kSharding;
    return {zero == Zero::none ? Axes() : partial & kSharding, first, partial - first, in_one};
}

DataParallel::DataParallel(ops::Context& ctx, const std::vector<std::vector<Unit*>>& runs, Groups& groups,
                           const DataParallelOptions& options)
    : ctx_(ctx), groups_(groups), options_(options) {
    std::unordered_map<const Parameter*, int> users;
    for (const std::vector<Unit*>& run : runs)
        for (const Unit* unit : run)
            for (const Parameter* p : unit->parameters) ++users[p];
    // Parameters that are reduced at the same time over the same ranks share a buffer. A parameter of several units has
    // a separate buffer; so do gradients that are complete in the forward, before the unit's others, such as loads of
    // experts, and weights that are gathered as codes. Frozen parameters have no gradients.
    using Codes = std::optional<comm::Communicator*>;  // the ranks that have parts of a scale
    using Kind = std::tuple<Axes, Axes, std::vector<int>, bool, Training, Codes, const Parameter*>;
    runs_ = runs.size();
    for (size_t r = 0; r < runs.size(); ++r)
        for (Unit* unit : runs[r]) {
            std::vector<std::pair<Kind, std::vector<Parameter*>>> kinds;
            for (Parameter* p : unit->parameters) {
                if (states_of_.contains(p)) continue;
                const Codes codes = p->gathered ? Codes(p->gathered->ranks) : std::nullopt;
                const Kind kind{p->partial,
                                p->copies,
                                p->pipeline_ranks,
                                is_early(*unit, p),
                                p->training,
                                codes,
                                users.at(p) > 1 ? p : nullptr};
                auto place = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == kind; });
                if (place == kinds.end()) place = kinds.insert(place, {kind, {}});
                place->second.push_back(p);
            }
            for (const auto& [kind, parameters] : kinds) add_state(parameters);
            const size_t u = units_.size();
            places_[unit] = u;
            std::vector<State*>& used = units_.emplace_back(UnitState{unit, r, {}}).states;
            for (const Parameter* p : unit->parameters) {
                State& state = state_of(p);
                if (std::find(used.begin(), used.end(), &state) != used.end()) continue;
                used.push_back(&state);
                if (state.runs.empty() || state.runs.back() != r) state.runs.push_back(r);
                state.users.push_back(u);
            }
        }
    allocate_magnitudes();
    all_gather_weights();
}

void DataParallel::add_state(const std::vector<Parameter*>& parameters) {
    const Axes copies = parameters.front()->copies;
    auto state = std::make_unique<State>();
    const std::vector<int>& stages = parameters.front()->pipeline_ranks;
    state->between_stages = stages.size() > 1;
    const auto [cut, first_sum, rest, in_one] =
        axes_of_sum(groups_.mesh(), options_.zero, parameters.front()->partial, state->between_stages);
    state->cut = cut;
    state->replicas = &groups_.over(rest, stages);
    if (!in_one) state->shards = &groups_.over(first_sum);
    const bool first = stages.empty() || stages.front() == groups_.coordinate(Axis::pp);
    FlatOptions flat{.zero = options_.zero,
                     .grain = options_.grain,
                     .frozen = parameters.front()->frozen(),
                     .owned = first && groups_.coordinate(copies - cut) == 0,
                     .compute = parameters.front()->type(options_.compute),
                     .gradients = stored_gradients(*parameters.front()),
                     .seed = options_.seed,
                     .masters = options_.masters,
                     .masters_device = options_.masters_device,
                     .weights_device = options_.weights_device};
    if (options_.zero != Zero::none) {
        flat.shards = state->shards->size();
        flat.shard = state->shards->rank();
    }
    state->flat = std::make_unique<FlatUnit>(ctx_, parameters, flat);
    for (const Parameter* p : parameters) states_of_[p] = state.get();
    if (!state->frozen()) reserve_reductions(*state);
    states_.push_back(std::move(state));
}

// A gradient that counts, such as the load of an expert, is exact.
DType DataParallel::stored_gradients(const Parameter& p) const {
    return p.training == Training::counted ? DType::f32 : options_.gradients;
}

// In which shards are sent to be added.
DType DataParallel::sent_gradients(const Parameter& p) const {
    const DType stored = stored_gradients(p);
    return stored == DType::f32 && p.training == Training::updated ? options_.reduce : stored;
}

void DataParallel::reserve_reductions(const State& state) {
    const Parameter& p = *state.flat->parameters().front();
    const DType stored = stored_gradients(p), sent = options_.zero == Zero::none ? stored : sent_gradients(p);
    if (state.shards != nullptr) {
        state.shards->reserve_reductions(ctx_.device, sent, stored);
        if (reduces_each_microbatch()) state.shards->reserve_reductions(ctx_.device, sent, DType::f32);
    }
    state.replicas->reserve_reductions(ctx_.device, stored, stored);
}

void DataParallel::allocate_magnitudes() {
    for (const auto& state : states_) {
        if (state->flat->coded() == nullptr) continue;
        comm::Communicator* const parts = state->flat->parameters().front()->gathered->ranks;
        auto place = std::ranges::find_if(
            magnitudes_, [&](const Magnitudes& m) { return m.shards == state->shards && m.parts == parts; });
        if (place == magnitudes_.end()) place = magnitudes_.insert(place, {state->shards, parts, {}, {}});
        place->states.push_back(state.get());
    }
    for (Magnitudes& m : magnitudes_) {
        int64_t groups = 0;
        for (const State* state : m.states) groups += state->flat->coded()->groups();
        m.all = ops::empty(ctx_, {groups}, DType::i32, Purpose::optimizer);
        for (comm::Communicator* ranks : {m.shards, m.parts})
            if (ranks != nullptr) ranks->reserve_reductions(ctx_.device, DType::i32, DType::i32);
        int64_t first = 0;
        for (State* state : m.states) {
            CodedWeights& coded = *state->flat->coded();
            coded.set_magnitudes(m.all.narrow(0, first, coded.groups()));
            first += coded.groups();
        }
    }
}

// One maximum for the weights of all units: a group may lie in several shards, a tensor on several ranks.
void DataParallel::find_magnitudes() {
    for (const Magnitudes& m : magnitudes_) {
        ops::clear_magnitudes(ctx_, m.all);
        for (const State* state : m.states) state->flat->add_magnitudes();
        m.shards->all_reduce(m.all, comm::Reduce::max).wait();
        if (m.parts != nullptr) m.parts->all_reduce(m.all, comm::Reduce::max).wait();
    }
}

std::vector<optim::ParameterShard> DataParallel::parameter_shards() const {
    std::vector<optim::ParameterShard> all;
    for (const auto& state : states_)
        for (optim::ParameterShard& piece : state->flat->parameter_shards()) all.push_back(std::move(piece));
    return all;
}

std::vector<DataParallel::Together> DataParallel::states() const {
    std::vector<Together> all;
    for (const auto& state : states_) {
        Together& together = all.emplace_back(Together{state->flat.get(), {}});
        for (const size_t user : state->users) together.units.push_back(units_[user].unit);
    }
    return all;
}

std::unique_ptr<optim::WholeMatrices> DataParallel::gather_whole(const optim::Rules& rules, int64_t wave_values) const {
    if (!rules.need_whole_matrices()) return nullptr;
    std::vector<ShardedParameter> all;
    for (const auto& state : states_)
        for (size_t i = 0; i < state->flat->parameters().size(); ++i) {
            const Parameter& p = *state->flat->parameters()[i];
            const optim::UpdateRule& rule = rules.of(p);
            if (rule.whole_matrices()) all.push_back({&p, state->flat.get(), i, state->cut, rule.matrices(p)});
        }
    return std::make_unique<WholeMatrices>(ctx_, groups_, std::move(all), wave_values);
}

// --- the step --------------------------------------------------------------------------------------------------------

void DataParallel::begin_step(int64_t microbatches) { begin_step(std::vector<int64_t>(runs_, microbatches)); }

void DataParallel::begin_step(const std::vector<int64_t>& microbatches) {
    incomplete_of_.assign(runs_, 0);
    incomplete_ = 0;
    for (const auto& state : states_) {
        state->expected = 0;
        // Codes that an evaluation left are of the scales of its time.
        if (state->flat->coded() && std::exchange(state->idle, false)) state->flat->free_weights();
        if (state->frozen()) continue;
        for (const size_t run : state->runs) state->expected += microbatches.at(run);
        if (state->expected > 0) ++incomplete_of_[state->runs.back()], ++incomplete_;
        state->contributions = 0;
        state->ready = 0;
        state->reduced = false;
        if (options_.keep_gradients) {  // a recorded graph runs for every microbatch, so it can only add
            if (!state->flat->takes_gradients()) state->flat->allocate_gradients();
            state->flat->zero_gradients();
        } else {
            state->flat->free_gradients();
            state->flat->free_gradient_shard();
        }
    }
}

void DataParallel::finish_gradients() {
    for (const auto& state : states_)
        if (!state->complete()) {  // a parameter was not used: all ranks sum the existing gradients, or zeros
            need_gradients(*state);
            add_contributions(*state, state->expected - state->contributions);
            start_reduction(*state);
        }
    while (!in_flight_.empty()) finish_reduction(*in_flight_.front());
    for (const auto& state : states_)
        if (state->between_stages && !state->frozen()) start_replica_reduction(*state);
    for (const auto& state : states_) {
        state->reduction.wait();
        state->replica_reduction.wait();
    }
}

double DataParallel::gradient_norm() {
    ops::Sum sum(ctx_);
    for (const auto& state : states_)
        if (state->flat->owned() && state->flat->parameters().front()->training == Training::updated)
            sum.add_squares(state->flat->gradient_shard());
    ExactSum squares = sum.take();
    groups_.world().sum(squares);
    return std::sqrt(squares.value());
}

std::string DataParallel::first_non_finite() {
    constexpr double kUnit = 1e6;  // more parameters than a unit has
    std::unordered_map<const Parameter*, double> places;
    for (const UnitState& u : units_)
        for (size_t i = 0; i < u.unit->parameters.size(); ++i)
            places.try_emplace(u.unit->parameters[i],
                               kUnit * static_cast<double>(u.unit->place) + static_cast<double>(i));
    double place = std::numeric_limits<double>::infinity();
    std::string bad;
    for (const optim::ParameterShard& piece : parameter_shards()) {
        if (piece.parameter->frozen()) continue;
        ops::Sum squares(ctx_);
        squares.add_squares(piece.gradient());
        if (std::isfinite(squares.take().value()) || places.at(piece.parameter) >= place) continue;
        place = places.at(piece.parameter);
        bad = piece.parameter->name;
    }
    const double first = -groups_.world().max(-place);
    const bool mine = std::isfinite(place) && place == first;
    for (const std::string& name : comm::gather_texts(groups_.world(), mine ? bad : ""))
        if (!name.empty()) return name;
    return "";
}

void DataParallel::all_gather_weights() {
    if (options_.zero == Zero::none) return;
    find_magnitudes();
    for (const auto& state : states_) {
        if (sharded_weights()) {  // gathered weights are out of date
            state->idle = false;
            state->flat->free_weights();
        } else if (!std::exchange(state->published, state->frozen())) {
            start_all_gather(*state);
        }
    }
}

void DataParallel::load_masters(const std::function<void()>& load) {
    wait_for_weights();  // the weights may be the masters, and other ranks may still be reading them
    load();
    for (const auto& state : states_) {
        state->flat->round_masters();
        state->published = false;
    }
    all_gather_weights();
}

void DataParallel::wait_for_weights() {
    for (const auto& state : states_)
        if (!sharded_weights()) finish_gather(*state);
}

// --- weights ---------------------------------------------------------------------------------------------------------

void DataParallel::start_all_gather(State& state) {
    if (sharded_weights()) state.flat->allocate_weights();
    state.gather.push_back(state.shards->all_gather(state.flat->weight_shard(), state.flat->weights()));
    state.gathering = true;
}

void DataParallel::finish_gather(State& state) {
    if (!std::exchange(state.gathering, false)) return;
    comm::wait_all(state.gather);
}

// Waits until the unit's weights are complete. Idle units are freed first, so that at most the unit in use and the next
// one are gathered. A unit that is used again at once, such as the last one at the start of the backward, is not freed.
void DataParallel::unshard_unit(size_t unit, const Pass& pass) {
    if (sharded_weights()) {
        for (State* state : units_[unit].states) state->idle = false;
        free_idle_weights();
        prefetch(unit, units_[unit].run, pass);
    }
    for (State* state : units_[unit].states) finish_gather(*state);
}

// Prefetches nothing beyond the ends of the run: the next pass may belong to any other run.
void DataParallel::prefetch(size_t unit, size_t run, const Pass& pass) {
    if (!sharded_weights() || unit >= units_.size() || units_[unit].run != run) return;
    if (is_backward(pass) && !units_[unit].unit->backward_reads_weights) return;
    for (State* state : units_[unit].states) {
        state->idle = false;
        if (!state->flat->weights().defined()) start_all_gather(*state);
    }
}

// A matrix that several units of a run use stays gathered from its first to its last use.
void DataParallel::reshard_unit(size_t unit, const Pass& pass) {
    if (!sharded_weights()) return;
    for (State* state : units_[unit].states) {
        if (state->unsharded > 0) continue;
        const auto in_run = [&](size_t user) { return units_[user].run == units_[unit].run; };
        const size_t first = *std::find_if(state->users.begin(), state->users.end(), in_run);
        const size_t last = *std::find_if(state->users.rbegin(), state->users.rend(), in_run);
        const bool forward = pass.kind == PassKind::forward;
        const bool turns_round = forward && pass.training && first != last;
        if (unit != (forward ? last : first) || turns_round) continue;
        state->idle = true;
        idle_.push_back(state);
    }
}

void DataParallel::free_idle_weights() {
    for (State* state : std::exchange(idle_, {}))
        if (std::exchange(state->idle, false)) state->flat->free_weights();
}

void DataParallel::unshard(size_t i) {
    if (!sharded_weights()) return;
    for (const auto& state : states_) {
        if (std::find(state->runs.begin(), state->runs.end(), i) == state->runs.end()) continue;
        ++state->unsharded;
        state->idle = false;
        if (!state->flat->weights().defined()) start_all_gather(*state);
    }
}

void DataParallel::reshard(size_t i) {
    if (!sharded_weights()) return;
    for (const auto& state : states_) {
        if (std::find(state->runs.begin(), state->runs.end(), i) == state->runs.end()) continue;
        check(state->unsharded > 0, "reshard of stage ", i, " of the rank: is not unsharded");
        if (--state->unsharded > 0) continue;
        finish_gather(*state);
        state->flat->free_weights();
    }
}

void DataParallel::before(Unit& unit, const Pass& pass) {
    const size_t u = places_.at(&unit);
    const bool begins = u == 0 || units_[u - 1].run != units_[u].run;
    if (pass.kind == PassKind::forward && begins && reduces_each_microbatch())  // of the previous pass
        while (!in_flight_.empty()) finish_reduction(*in_flight_.front());
    if (pass.kind != PassKind::backward_weight) unshard_unit(u, pass);
    if (pass.kind == PassKind::forward) prefetch(u + 1, units_[u].run, pass);
    if (is_backward(pass)) prefetch(u - 1, units_[u].run, pass);  // the first unit has none
    const bool in_forward = pass.kind == PassKind::forward && pass.training;
    if (!in_forward && pass.kind != PassKind::backward && pass.kind != PassKind::backward_weight) return;
    for (const Parameter* p : unit.parameters)
        if (!p->frozen() && (in_forward == is_early(unit, p) || has(unit.gradients_in_both, p)))
            need_gradients(state_of(p));
}

void DataParallel::after(Unit& unit, const Pass& pass) {
    const size_t u = places_.at(&unit);
    if (pass.kind != PassKind::backward_weight) reshard_unit(u, pass);
    for (State* state : units_[u].states)
        if (state->users.size() > 1) state->flat->round_gradients();  // the other units may be far away
}

// --- gradients -------------------------------------------------------------------------------------------------------

// Before the first contribution: other ranks may still read the gradients of a complete state.
void DataParallel::need_gradients(State& state) {
    check(!state.complete(), state.flat->parameters().front()->name, ": more than the ", state.expected,
          " forwards and backwards that the step announced add to its gradient");
    if (state.in_flight) finish_reduction(state);
    if (!state.flat->takes_gradients()) state.flat->allocate_gradients();
}

void DataParallel::gradient_ready(Parameter& parameter, const Pass& pass) {
    State& state = state_of(&parameter);
    if (state.pass.stage != pass.stage || state.pass.microbatch != pass.microbatch) state.ready = 0;
    state.pass = pass;
    if (++state.ready < state.flat->parameters().size()) return;
    state.ready = 0;
    add_contributions(state, 1);
    if (reduces_each_microbatch() || state.complete())
        start_reduction(state);
    else
        state.flat->round_gradients();
}

// Whether the backward waits for earlier reductions before it starts that of `state`. An earlier stage of the pipeline
// waits for the gradient that the backward sends, so the backward itself waits only where the memory of gradients is
// bounded in each microbatch, or where no message follows: in the last backward of a rank, on the first stage. There
// reductions that end early free gradients, or are followed by the sum over replicas beside the backward.
bool DataParallel::is_awaited(const State& state) const {
    if (reduces_each_microbatch()) return true;
    return state.pass.stage == 0 && incomplete_ == incomplete_of_[state.runs.back()];
}

void DataParallel::add_contributions(State& state, int64_t count) {
    state.contributions += count;
    if (count > 0 && state.complete()) --incomplete_of_[state.runs.back()], --incomplete_;
}

void DataParallel::start_reduction(State& state) {
    FlatUnit& flat = *state.flat;
    flat.complete_gradients();
    const bool first = !std::exchange(state.reduced, true);
    if (state.shards == nullptr) return start_replica_reduction(state);
    if (is_awaited(state))
        while (static_cast<int>(in_flight_.size()) >= options_.reductions) finish_reduction(*in_flight_.front());
    in_flight_.push_back(&state);
    state.in_flight = true;
    if (options_.zero == Zero::none) {
        state.reduction = state.shards->all_reduce(flat.gradients());
        return;
    }
    if (first)
        flat.allocate_gradient_shard();
    else
        state.received = ops::empty(ctx_, flat.gradient_shard().shape(), DType::f32, Purpose::communication);
    const DType type = sent_gradients(*flat.parameters().front());
    const bool rounds = type != flat.gradients().dtype();
    if (rounds) {
        state.sent = ops::cast(ctx_, flat.gradients(), type, Purpose::communication);
        if (options_.zero >= Zero::gradients) flat.free_gradients();
    }
    state.reduction = state.shards->reduce_scatter(rounds ? state.sent : flat.gradients(),
                                                   first ? flat.gradient_shard() : state.received);
}

void DataParallel::finish_reduction(State& state) {
    state.reduction.wait();
    in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), &state));  // mostly the first one
    state.in_flight = false;
    state.sent = {};
    if (state.received.defined()) state.flat->add_to_gradient_shard(std::exchange(state.received, {}));
    if (options_.zero >= Zero::gradients) state.flat->free_gradients();
    if (state.complete() && !state.between_stages) start_replica_reduction(state);
}

// The sum over replicas. Other stages reach this sum at other times, and a rank that waited for them would delay its
// messages to them: a sum with other stages begins after all passes.
void DataParallel::start_replica_reduction(State& state) {
    const FlatUnit& flat = *state.flat;
    const Tensor& gradients = options_.zero == Zero::none ? flat.gradients() : flat.gradient_shard();
    state.replica_reduction = state.replicas->all_reduce(gradients);
}

}  // namespace tutti::parallel
