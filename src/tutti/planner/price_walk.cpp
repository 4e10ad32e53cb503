#include "tutti/planner/price_walk.h"

#include <algorithm>
#include <utility>

#include "tutti/base/to_size.h"
#include "tutti/kernels/work.h"

namespace tutti::planner {

namespace {

// Bytes of memory for a value that is added to a shard, as a rehearsal counts them.
double bytes_of_addition() {
    constexpr int64_t kMany = 1024;
    float value = 0;
    const View many(&value, DType::f32, {kMany});
    return kernels::work_of_call("accumulate", many, many).bytes / kMany;
}

}  // namespace

Pricer::Walk::Walk(const Pricer& pricer, const Layout& l, std::span<const Stage* const> stages, double microbatches,
                   From from)
    : prices_(pricer.prices_),
      layout_(l),
      run_(*l.run),
      p_(run_.parallel),
      masters_gathered_(p_.zero == 3 && l.of_value(Purpose::weights) == 0),
      launch_(pricer.probes_.launch()),
      value_(static_cast<double>(size_of(spec::compute_dtype(run_)))),
      stored_(static_cast<double>(size_of(spec::gradient_dtype(run_)))),
      reduced_(static_cast<double>(size_of(spec::reduce_dtype(run_)))),
      hidden_(l.probe->hidden) {
    size_t units = 0, states = 0;
    for (const Stage* stage : stages) {
        units += stage->units.size();
        for (const UnitProbe* probe : stage->units) states += probe->states.size();
    }
    units_.reserve(units);
    states_.reserve(states);
    of_units_.reserve(states);
    State* shared = nullptr;
    for (const Stage* stage : stages) {
        Run& run = runs_.emplace_back(Run{units_.size(), units_.size() + stage->units.size(), stage, microbatches});
        for (const UnitProbe* probe : stage->units) {
            units_.push_back({probe, of_units_.size(), probe == &l.probe->head, probe == &l.probe->embedding});
            for (const UnitProbe::State& of : probe->states) {
                const Layout::Sum& sum = l.sums[of.sum];
                if (sum.of->is_shared && shared != nullptr) {  // embedding and head are here
                    tied_ = true;
                    tied_in_stage_ = stages.size() == 1;
                    if (!tied_in_stage_) shared->left += microbatches;
                    of_units_.push_back(shared);
                } else {
                    states_.push_back({&sum, microbatches});
                    of_units_.push_back(&states_.back());
                    if (sum.of->is_shared) shared = &states_.back();
                }
                run.has_early = run.has_early || of.is_early;
            }
        }
    }
    if (from == From::middle) {
        for (State& state : states_) {
            state.has_gradients = p_.zero < 2;
            state.was_reduced = true;
        }
        for (Run& run : runs_) run.has_gathered = run.has_gradients = true;
    } else if (p_.zero == 1 || p_.zero == 2) {
        for (State& state : states_) begin_gather(state);
    }
}

// --- Time

Pricer::Walk::Operation Pricer::Walk::begin(double& free, double seconds) const {
    if (seconds == 0) return {clock_.now, 0};  // of one rank
    const Operation operation{std::max(free, clock_.now), seconds};
    free = operation.begin + seconds;
    return operation;
}

void Pricer::Walk::wait_for(const Operation& o) {
    if (o.seconds == 0 && o.begin <= clock_.now) return;
    clock_.now = clock_.end_of_wait(o.begin, o.begin + o.seconds, prices_.physics().contention);
}

// --- Weights

void Pricer::Walk::begin_gather(State& state) {
    const Layout::Sum& sum = *state.sum;
    if (masters_gathered_) run_kernel((4 + value_) * sum.of->values / sum.shards);  // rounds them
    state.gather = begin(shards_free_[sum.of->of_experts() ? 1 : 0], sum.gather);
    state.gathering = state.gathered = true;
    if (p_.zero == 3) bytes_ += value_ * sum.of->values;
}

// Frees what is idle but the unit.
void Pricer::Walk::use(const Unit& unit, bool reads) {
    if (p_.zero == 3) {
        for (State* state : states_of(unit)) state->is_idle = false;
        for (State* state : idle_)
            if (std::exchange(state->is_idle, false)) {
                bytes_ -= value_ * state->sum->of->values;
                state->gathered = false;
            }
        idle_.clear();
        if (reads) prefetch(unit);
    }
    for (State* state : states_of(unit))
        if (std::exchange(state->gathering, false)) wait_for(state->gather);
}

void Pricer::Walk::prefetch(const Unit& unit) {
    if (p_.zero < 3) return;
    for (State* state : states_of(unit)) {
        state->is_idle = false;
        if (!state->gathered) begin_gather(*state);
    }
}

// After its use. A stage that uses a matrix twice keeps it until the end of its backward.
void Pricer::Walk::set_idle(const Unit& unit, bool is_forward) {
    if (p_.zero < 3) return;
    for (State* state : states_of(unit)) {
        if (!state->gathered || (is_in_both(*state) && (is_forward || unit.is_head))) continue;
        state->is_idle = true;
        idle_.push_back(state);
    }
}

// --- Gradients

bool Pricer::Walk::need_gradients(const Unit& unit, bool is_early) {
    bool is_new = false;
    for (size_t s = 0; s < unit.probe->states.size(); ++s) {
        if (unit.probe->states[s].is_early != is_early) continue;
        State& state = *of_units_[unit.first + s];
        for (size_t i = 0; i < reductions_.size();)
            if (reductions_[i].state == &state)
                finish_reduction(i);
            else
                ++i;
        is_new = is_new || !state.has_gradients || stored_ != made_;
        if (stored_ != made_ || !std::exchange(state.has_gradients, true)) bytes_ += made_ * state.sum->of->values;
    }
    return is_new;
}

// The gradients of a microbatch are complete.
void Pricer::Walk::complete(State& state, const Run& run) {
    --state.left;
    if (stored_ != made_) {
        bytes_ -= made_ * state.sum->of->values;
        if (!std::exchange(state.has_gradients, true)) bytes_ += stored_ * state.sum->of->values;
    }
    if (p_.zero >= 2 || state.left <= 0) begin_reduction(state, is_awaited(run));
}

// A backward waits for earlier reductions where the memory of gradients is bounded in each microbatch, and in the last
// backward of the first stage.
bool Pricer::Walk::is_awaited(const Run& run) const {
    const auto has_ended = [&](const Run& r) { return &r == &run || r.left <= 0; };
    return p_.zero >= 2 || (run.stage->is_first && std::ranges::all_of(runs_, has_ended));
}

void Pricer::Walk::begin_reduction(State& state, bool awaited) {
    const Layout::Sum& sum = *state.sum;
    double& free = shards_free_[sum.of->of_experts() ? 1 : 0];
    if (sum.in_one) return sums_.push_back({begin(free, sum.reduce), &state, 0, false});
    if (awaited) finish_until(to_size(p_.reductions - 1));
    const double bytes = reduced_ * sum.of->values;
    const bool adds = std::exchange(state.was_reduced, true) && p_.zero >= 2;
    double of_operation = adds ? made_ * sum.shard : 0;
    if (p_.zero >= 2 && !adds) bytes_ += stored_ * sum.shard;
    if (p_.zero > 0 && reduced_ != stored_) {  // rounded before they are sent
        run_kernel((stored_ + reduced_) * sum.of->values);
        of_operation += bytes;
        if (p_.zero >= 2 && std::exchange(state.has_gradients, false)) bytes_ -= stored_ * sum.of->values;
    }
    bytes_ += of_operation;
    note(0);
    reductions_.push_back({begin(free, sum.reduce), &state, of_operation, adds});
}

void Pricer::Walk::finish_reduction(size_t place) {
    const Reduction r = reductions_[place];
    const Layout::Sum& sum = *r.state->sum;
    reductions_.erase(reductions_.begin() + static_cast<std::ptrdiff_t>(place));
    wait_for(r.operation);
    bytes_ -= r.bytes;
    static const double kAddition = bytes_of_addition();
    if (r.adds) run_kernel(kAddition * sum.of->values / sum.shards);
    if (p_.zero >= 2 && std::exchange(r.state->has_gradients, false)) bytes_ -= stored_ * sum.of->values;
    // What two ranks of the pipeline share is summed by both after all passes: Pricer::sum_of_ends().
    if (r.state->left <= 0 && sum.add > 0 && !is_shared_with_another_rank(*r.state))
        sums_.push_back({begin(beyond_free_[sum.of->of_layers > 1 ? 1 : 0], sum.add), r.state, 0, false});
}

void Pricer::Walk::finish_until(size_t most) {
    while (reductions_.size() > most) finish_reduction(0);
}

// Sums over all ranks, and those beyond the shards, are waited for in the order of the model, the reverse of that of
// their begins.
void Pricer::Walk::finish_gradients() {
    finish_until(0);
    std::ranges::stable_sort(sums_, {}, &Reduction::state);
    for (const Reduction& sum : sums_) wait_for(sum.operation);
    sums_.clear();
}

// --- Passes

// `more`: seconds of its kernels.
void Pricer::Walk::run_kernels(const Piece& piece, double more) {
    if (piece.launches > 0) {
        // A launch waits until the kernel before those in the queue has begun.
        const double until = launched_ - simulate::kLaunchesAhead * launch_;
        begun_.push_back({launched_, clock_.now});
        while (oldest_ + 2 < begun_.size() && begun_[oldest_ + 1].launched <= until) ++oldest_;
        if (const auto [launched, when] = begun_[oldest_]; launched < until) {
            const Begun& next = begun_[oldest_ + 1];
            host_ = std::max(host_, when + (next.when - when) * (until - launched) / (next.launched - launched));
        }
        wait_until(host_ + piece.launched - piece.seconds);
        host_ += piece.launches;
        launched_ += piece.launches;
    }
    clock_.compute(piece.seconds + more);
    if (piece.launches > 0) begun_.push_back({launched_, clock_.now});
    clock_.now += piece.idle;
    passed_ += piece.seconds + more + piece.idle;
}

// Beside a pass.
void Pricer::Walk::run_kernel(double bytes) {
    const double seconds = prices_.launch_gap() + prices_.pass(bytes);
    run_kernels({.seconds = seconds, .launches = launch_, .launched = launch_ + seconds});
    passed_ -= seconds;
}

void Pricer::Walk::begin_copy(double bytes) {
    copies_.push_back(std::max(clock_.now, copies_.empty() ? 0 : copies_.back()) + prices_.host_copy(bytes));
}

void Pricer::Walk::leave(const UnitProbe& unit) {
    for (const double bytes : unit.leaving) begin_copy(bytes);
}

// `copies` false: nothing of the unit is on the host. `is_new`: its gradients.
void Pricer::Walk::run_pieces(const Unit& unit, const Run& run, const UnitPass& pass, bool copies, bool is_new) {
    using Then = Piece::Then;
    note(pass.peak);
    for (const Piece& piece : pass.pieces) {
        run_kernels(piece, is_new ? piece.new_gradients : 0);
        if (piece.then == Then::gradients_are_complete) {
            State& state = *of_units_[unit.first + piece.state];
            if (unit.is_head && is_in_both(state)) continue;  // those of the embedding are to come
            bytes_ += piece.bytes;
            complete(state, run);
            bytes_ -= piece.bytes;
            note(piece.peak);
        } else if (copies && piece.then == Then::copy_begins) {
            begin_copy(piece.bytes);
        } else if (copies && piece.then == Then::copy_is_awaited && piece.after < copies_.size()) {
            wait_until(copies_[copies_.size() - 1 - piece.after]);
        }
    }
}

void Pricer::Walk::begin_forward(Run& run, bool turns_round) {
    if (p_.zero >= 2) finish_until(0);
    run.stays = turns_round && run.end > run.begin ? units_[run.end - 1].probe->offloaded() : 0;
    offloaded_ += run.stage->offloaded - run.stays;
    waiting_ = std::max(waiting_, offloaded_);
}

void Pricer::Walk::forward_unit(size_t u, const Run& run) {
    const Unit& unit = units_[u];
    if (u > run.begin) leave(*units_[u - 1].probe);
    use(unit);
    if (u + 1 < run.end) prefetch(units_[u + 1]);
    const bool is_new = need_gradients(unit, true);
    run_pieces(unit, run, unit.probe->forward, true, is_new);
    bytes_ += unit.probe->kept;
    set_idle(unit, true);
}

void Pricer::Walk::backward_unit(size_t u, const Run& run, bool input_only) {
    const Unit& unit = units_[u];
    const bool is_offloaded = u + 1 < run.end || run.stays == 0;
    if (is_offloaded)
        for (const double bytes : unit.probe->returning) begin_copy(bytes);
    use(unit, !unit.is_embedding);
    run_pieces(unit, run, unit.probe->recompute, is_offloaded, false);
    if (u > run.begin && !units_[u - 1].is_embedding) prefetch(units_[u - 1]);
    const bool is_new = !input_only && need_gradients(unit, false);
    run_pieces(unit, run, input_only ? unit.probe->input : unit.probe->backward, is_offloaded, is_new);
    bytes_ -= unit.probe->kept - (input_only ? unit.probe->kept_for_weight : 0);
    set_idle(unit, false);
}

// Whether data parallelism does nothing in a pass: between the first and the last microbatch of ZeRO-0 and 1, as all
// weights have been gathered, all gradients have their memory, and none is complete.
bool Pricer::Walk::is_plain(const Run& run, bool is_forward) const {
    if (p_.zero >= 2 || stored_ != made_ || tied_ || run.stage->offloaded > 0 || run.begin == run.end) return false;
    return is_forward ? run.has_gathered && !run.has_early : run.has_gradients && run.left > 0;
}

void Pricer::Walk::run_plain(const Pass& of) {
    note(of.peak);
    run_kernels(of.piece);
    bytes_ += of.bytes;
}

// Before a pass unit by unit.
void Pricer::Walk::count_plain(Run& run) {
    for (size_t u = run.begin; u < run.end; ++u)
        for (size_t s = 0; s < units_[u].probe->states.size(); ++s)
            if (!units_[u].probe->states[s].is_early) of_units_[units_[u].first + s]->left -= run.plain;
    run.plain = 0;
}

void Pricer::Walk::forward(size_t stage, bool turns_round) {
    Run& run = runs_[stage];
    begin_forward(run, turns_round);
    if (is_plain(run, true)) return run_plain(run.stage->f);
    run.has_gathered = true;
    for (size_t u = run.begin; u < run.end; ++u) forward_unit(u, run);
    bytes_ += run.stays;
    if (run.stays == 0 && run.end > run.begin) leave(*units_[run.end - 1].probe);
}

void Pricer::Walk::take_early() {
    for (const Run& run : runs_)
        for (size_t u = run.begin; u < run.end; ++u) {
            if (run.has_early) need_gradients(units_[u], true);
            for (size_t s = 0; s < units_[u].probe->states.size(); ++s) {
                State& state = *of_units_[units_[u].first + s];
                if (units_[u].probe->states[s].is_early && !is_in_both(state)) complete(state, run);
            }
        }
}

void Pricer::Walk::backward(size_t stage, bool input_only) {
    Run& run = runs_[stage];
    offloaded_ -= run.stage->offloaded - run.stays;
    bytes_ -= run.stays;
    if (input_only && is_plain(run, true)) return run_plain(run.stage->i);
    if (!input_only) --run.left;
    if (!input_only && is_plain(run, false)) {
        ++run.plain;
        return run_plain(run.stage->b);
    }
    if (!input_only) run.has_gradients = true;
    count_plain(run);
    // The gradient of the output is held until the end.
    const double held = run.end > run.begin && !units_[run.end - 1].is_head ? hidden_ : 0;
    for (size_t u = run.end; u-- > run.begin;) {
        backward_unit(u, run, input_only);
        if (u + 1 == run.end) bytes_ += held;
    }
    if (run.end > run.begin) bytes_ -= held;
    run.stays = 0;
}

void Pricer::Walk::backward_weight(size_t stage) {
    Run& run = runs_[stage];
    --run.left;
    if (is_plain(run, false)) {
        ++run.plain;
        return run_plain(run.stage->w);
    }
    run.has_gradients = true;
    count_plain(run);
    for (size_t u = run.end; u-- > run.begin;) {
        const Unit& unit = units_[u];
        const bool is_new = need_gradients(unit, false);
        run_pieces(unit, run, unit.probe->weight, true, is_new);
        bytes_ -= unit.probe->kept_for_weight;
    }
}

void Pricer::Walk::overlap(size_t forward_stage, size_t backward_stage) {
    Run& f = runs_[forward_stage];
    Run& b = runs_[backward_stage];
    --b.left;
    count_plain(b);
    begin_forward(f, false);
    size_t next = b.end;
    for (size_t u = f.begin; u < f.end; ++u) {
        forward_unit(u, f);
        if (next > b.begin) backward_unit(--next, b, false);
    }
    while (next > b.begin) backward_unit(--next, b, false);
    offloaded_ -= b.stage->offloaded;
}

}  // namespace tutti::planner
