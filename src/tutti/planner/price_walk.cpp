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
      run_(*l.run),
      p_(run_.parallel),
      masters_gathered_(p_.zero == 3 && l.of_value(Purpose::weights) == 0),
      value_(static_cast<double>(size_of(spec::compute_dtype(run_)))),
      stored_(static_cast<double>(size_of(spec::gradient_dtype(run_)))),
      reduced_(static_cast<double>(size_of(spec::reduce_dtype(run_)))),
      hidden_(l.probe->hidden) {
    const auto tp = static_cast<int>(p_.tp), etp = static_cast<int>(p_.ep * p_.etp);
    const auto shards = static_cast<int>(l.shards), expert_shards = static_cast<int>(l.expert_shards);
    const auto replicas = static_cast<int>(l.replicas);
    sets_[kExperts] = {&UnitProbe::experts, l.expert_shards, l.experts_over,
                       prices_.group(replicas, expert_shards * etp)};
    sets_[kDense] = {&UnitProbe::dense, l.shards, l.dense_over, prices_.group(replicas, shards * tp)};
    size_t units = 0;
    for (const Stage* stage : stages) units += stage->units.size();
    units_.reserve(units);
    for (const Stage* stage : stages) {
        runs_.push_back({units_.size(), units_.size() + stage->units.size(), stage, microbatches});
        for (const UnitProbe* probe : stage->units)
            units_.push_back({.probe = probe,
                              .left = microbatches,
                              .is_head = probe == &l.probe->head,
                              .is_embedding = probe == &l.probe->embedding,
                              .dense = probe->dense,
                              .experts = probe->experts});
    }
    for (Unit& unit : units_) unit.of_values = &unit;
    const auto embedding = std::ranges::find_if(units_, &Unit::is_embedding);
    const auto head = std::ranges::find_if(units_, &Unit::is_head);
    if (run_.model.tie_embeddings && embedding != units_.end() && head != units_.end()) {
        tied_ = true;
        tied_in_stage_ = stages.size() == 1;
        embedding->dense = 0;
        embedding->of_values = &*head;
        if (!tied_in_stage_) head->left *= 2;
    }
    if (from == From::middle) {
        for (Unit& unit : units_) {
            unit.has_gradients.fill(p_.zero < 2);
            unit.was_reduced.fill(true);
        }
        for (Run& run : runs_) run.has_gathered = run.has_gradients = true;
    } else if (p_.zero == 1 || p_.zero == 2) {
        for (const Unit& unit : units_)
            if (!unit.of_values->gathering) begin_gather(*unit.of_values);
    }
    if (sets_[kDense].shards <= 1) return;
    const double bytes = 4 * static_cast<double>(run_.model.width);
    norm_seconds_ =
        p_.zero == 0 ? prices_.all_reduce(bytes, sets_[kDense].over) : prices_.gather(bytes, sets_[kDense].over);
}

// --- Time

Pricer::Walk::Operation Pricer::Walk::begin(double& free, double seconds) const {
    const Operation operation{std::max(free, clock_.now), seconds};
    free = operation.begin + seconds;
    return operation;
}

void Pricer::Walk::wait_for(const Operation& o) {
    if (o.seconds == 0 && o.begin <= clock_.now) return;
    clock_.now = clock_.end_of_wait(o.begin, o.begin + o.seconds, prices_.physics().contention);
}

// --- Weights

void Pricer::Walk::begin_gather(Unit& unit) {
    for (size_t s = 0; s < kSets; ++s) {
        Set& set = sets_[s];
        const double values = unit.of(set);
        if (values != set.gathered_values) {
            const double bytes = value_ * values;
            double seconds = bytes > 0 && set.shards > 1 ? prices_.gather(bytes, set.over) : 0;
            if (run_.offload.params) seconds = std::max(seconds, prices_.host_copy(bytes / set.shards));
            set.gathered_values = values;
            set.gather_seconds = seconds;
        }
        if (masters_gathered_) clock_.compute(prices_.pass((4 + value_) * values / set.shards));  // rounds them
        unit.gather[s] = begin(set.free, set.gather_seconds);
    }
    unit.gathering = unit.gathered = true;
    if (p_.zero == 3) bytes_ += value_ * (unit.dense + unit.experts);
}

// Frees what is idle but the unit that is used next.
void Pricer::Walk::release_idle(const Unit& but) {
    for (Unit* unit : idle_)
        if (unit != &but && unit->is_idle) {
            bytes_ -= value_ * (unit->dense + unit->experts);
            unit->gathered = unit->is_idle = false;
        }
    idle_.clear();
}

void Pricer::Walk::use(Unit& unit) {
    if (p_.zero == 3) {
        unit.is_idle = false;
        release_idle(unit);
        if (!unit.gathered) begin_gather(unit);
    }
    if (!std::exchange(unit.gathering, false)) return;
    for (const Operation& gather : unit.gather) wait_for(gather);
}

void Pricer::Walk::prefetch(const Unit& unit) {
    if (p_.zero < 3) return;
    unit.of_values->is_idle = false;
    if (!unit.of_values->gathered) begin_gather(*unit.of_values);
}

// After its use.
void Pricer::Walk::set_idle(Unit& unit) {
    if (p_.zero < 3 || !unit.gathered) return;
    unit.is_idle = true;
    idle_.push_back(&unit);
}

// --- Gradients

bool Pricer::Walk::need_gradients(Unit& unit) {
    for (size_t i = 0; i < reductions_.size();)
        if (reductions_[i].unit == &unit)
            finish_reduction(i);
        else
            ++i;
    bool is_new = false;
    for (size_t s = 0; s < kSets; ++s) {
        const double values = unit.of(sets_[s]);
        is_new = is_new || (values > 0 && !unit.has_gradients[s]);
        if (stored_ != made_ || !std::exchange(unit.has_gradients[s], true)) bytes_ += made_ * values;
    }
    return is_new || stored_ != made_;
}

namespace {

// The pieces of a pass until the gradients of experts are complete, and the rest.
std::pair<std::span<const Piece>, std::span<const Piece>> at_experts(std::span<const Piece> pieces) {
    const auto place = std::ranges::find(pieces, Piece::Then::experts_are_complete, &Piece::then);
    const auto until = to_size(place - pieces.begin()) + (place == pieces.end() ? 0 : 1);
    return {pieces.first(until), pieces.subspan(until)};
}

}  // namespace

// The unit's gradients of a microbatch are complete: those of experts in the middle of the pass, all behind the rest.
// `freed`: bytes of what the pass's are above, which are gone at its end.
void Pricer::Walk::contribute(Unit& unit, const Run& run, const UnitPass& pass, double freed, bool is_new) {
    --unit.left;
    bytes_ += freed + pass.at_experts;
    contribute_set(unit, kExperts, run);
    bytes_ -= freed + pass.at_experts;
    note(freed + pass.peak_behind);
    run_pieces(at_experts(pass.pieces).second, true, is_new);
    contribute_set(unit, kDense, run);
    // Norms of layers, whose gradients are summed over tp too, are reduced last, and by themselves.
    const bool is_layer = !unit.is_head && !unit.is_embedding;
    if (is_layer && reduces(unit) && p_.tp > 1 && p_.sequence_parallel) reduce_norms(unit, run);
}

void Pricer::Walk::contribute_set(Unit& unit, size_t set, const Run& run) {
    const double values = unit.of(sets_[set]);
    if (stored_ != made_) {
        bytes_ -= made_ * values;
        if (!std::exchange(unit.has_gradients[set], true)) bytes_ += stored_ * values;
    }
    if (reduces(unit) && values > 0) begin_reduction(unit, set, is_awaited(run));
}

// A backward waits for earlier reductions where the memory of gradients is bounded in each microbatch, and in the last
// backward of the first stage.
bool Pricer::Walk::is_awaited(const Run& run) const {
    const auto has_ended = [&](const Run& r) { return &r == &run || r.left <= 0; };
    return p_.zero >= 2 || (p_.zero == 1 && run.stage->is_first && std::ranges::all_of(runs_, has_ended));
}

void Pricer::Walk::reduce_norms(Unit& unit, const Run& run) {
    Set& dense = sets_[kDense];
    if (p_.zero == 0 && dense.shards <= 1) return;
    if (is_awaited(run)) finish_until(to_size(p_.reductions - 1));
    reductions_.push_back({begin(dense.free, norm_seconds_), &dense, &unit, 0, 0, false});
}

void Pricer::Walk::begin_reduction(Unit& unit, size_t s, bool awaited) {
    Set& set = sets_[s];
    const double values = unit.of(set), bytes = reduced_ * values;
    if (awaited) finish_until(to_size(p_.reductions - 1));
    if (values != set.reduced_values) {
        set.reduced_values = values;
        set.shard = shard_of(values, set.shards);
        set.reduce_seconds = set.shards <= 1 ? 0.0
                             : p_.zero == 0  ? prices_.all_reduce(bytes, set.over)
                                             : prices_.gather(bytes, set.over);
    }
    const bool adds = std::exchange(unit.was_reduced[s], true) && p_.zero >= 2;
    double of_operation = adds ? made_ * set.shard : 0;
    if (p_.zero >= 2 && !adds) bytes_ += stored_ * set.shard;
    if (p_.zero > 0 && reduced_ != stored_) {  // rounded before they are sent
        clock_.compute(prices_.pass((stored_ + reduced_) * values));
        of_operation += bytes;
        if (p_.zero >= 2 && std::exchange(unit.has_gradients[s], false)) bytes_ -= stored_ * values;
    }
    bytes_ += of_operation;
    note(0);
    reductions_.push_back({begin(set.free, set.reduce_seconds), &set, &unit, values, of_operation, adds});
}

void Pricer::Walk::finish_reduction(size_t place) {
    const Reduction r = reductions_[place];
    reductions_.erase(reductions_.begin() + static_cast<std::ptrdiff_t>(place));
    wait_for(r.operation);
    if (r.values == 0) return;
    bytes_ -= r.bytes;
    const auto s = to_size(r.set - sets_.data());
    static const double kAddition = bytes_of_addition();
    if (r.adds) clock_.compute(prices_.pass(kAddition * r.values / r.set->shards));
    if (p_.zero >= 2 && std::exchange(r.unit->has_gradients[s], false)) bytes_ -= stored_ * r.values;
    // What two ranks of the pipeline share is summed by both after all passes: Pricer::sum_of_ends().
    if (r.unit->left > 0 || r.set->copies.ranks <= 1 || is_shared_with_another_rank(*r.unit)) return;
    const double bytes = stored_ * r.values / (p_.zero > 0 ? r.set->shards : 1);
    sums_.push_back({begin(sums_end_, prices_.all_reduce(bytes, r.set->copies)), r.set, r.unit, 0, 0, false});
}

void Pricer::Walk::finish_until(size_t most) {
    while (reductions_.size() > most) finish_reduction(0);
}

// Sums over replicas, and all of ZeRO-0, are waited for in the order of the model, the reverse of that of their begins.
void Pricer::Walk::finish_gradients() {
    if (p_.zero == 0) std::ranges::stable_sort(reductions_, {}, &Reduction::unit);
    finish_until(0);
    std::ranges::stable_sort(sums_, {}, &Reduction::unit);
    for (const Reduction& sum : sums_) wait_for(sum.operation);
    sums_.clear();
}

// The head's matrix, whose gradients a forward completes.
void Pricer::Walk::take_head(Unit& unit, const Run& run) {
    --unit.left;
    contribute_set(unit, kDense, run);
}

// The norm before the head's matrix, whose gradients were there in the forward.
void Pricer::Walk::end_head(Unit& unit, const Run& run) {
    if (p_.zero >= 2 || run.left <= 0) reduce_norms(unit, run);
}

// --- Passes

void Pricer::Walk::pass(double seconds, double idle) {
    clock_.compute(seconds);
    clock_.now += idle;
    passed_ += seconds + idle;
}

void Pricer::Walk::begin_copy(double bytes) {
    copies_.push_back(std::max(clock_.now, copies_.empty() ? 0 : copies_.back()) + prices_.host_copy(bytes));
}

void Pricer::Walk::leave(const UnitProbe& unit) {
    for (const double bytes : unit.leaving) begin_copy(bytes);
}

// `copies` false: nothing of the unit is on the host. `is_new`: its gradients.
void Pricer::Walk::run_pieces(std::span<const Piece> pieces, bool copies, bool is_new) {
    using Then = Piece::Then;
    for (const Piece& piece : pieces) {
        pass(piece.seconds + (is_new ? piece.new_gradients : 0), piece.idle);
        if (!copies) continue;
        if (piece.then == Then::copy_begins) begin_copy(piece.bytes);
        if (piece.then == Then::copy_is_awaited && piece.after < copies_.size())
            wait_until(copies_[copies_.size() - 1 - piece.after]);
    }
}

void Pricer::Walk::begin_forward(Run& run, bool turns_round) {
    if (p_.zero >= 2) finish_until(0);
    run.stays = turns_round && run.end > run.begin ? units_[run.end - 1].probe->offloaded() : 0;
    offloaded_ += run.stage->offloaded - run.stays;
    waiting_ = std::max(waiting_, offloaded_);
}

void Pricer::Walk::forward_unit(size_t u, const Run& run) {
    Unit& unit = units_[u];
    if (u > run.begin) leave(*units_[u - 1].probe);
    use(*unit.of_values);
    if (u + 1 < run.end) prefetch(units_[u + 1]);
    const bool is_new = unit.is_head && need_gradients(unit);
    note(unit.probe->forward.peak);
    run_pieces(unit.probe->forward.pieces, true, is_new);
    bytes_ += unit.probe->kept;
    // A stage that uses a matrix twice keeps it until the end of its backward.
    if (!(tied_in_stage_ && (unit.is_head || unit.is_embedding))) set_idle(*unit.of_values);
    if (unit.is_head && !tied_in_stage_) take_head(unit, run);
}

void Pricer::Walk::backward_unit(size_t u, const Run& run, bool input_only) {
    Unit& unit = units_[u];
    Unit& of_values = *unit.of_values;
    if (unit.is_embedding)
        release_idle(of_values);
    else
        use(unit);
    if (u > run.begin && !units_[u - 1].is_embedding) prefetch(units_[u - 1]);
    const bool is_new = !input_only && !unit.is_head && need_gradients(of_values);
    const UnitPass& pass = input_only ? unit.probe->input : unit.probe->backward;
    note(pass.peak - unit.probe->kept);
    const bool is_offloaded = u + 1 < run.end || run.stays == 0;
    run_pieces(input_only ? pass.pieces : at_experts(pass.pieces).first, is_offloaded, is_new);
    bytes_ -= unit.probe->kept - (input_only ? unit.probe->kept_for_weight : 0);
    if (!(tied_in_stage_ && unit.is_head)) set_idle(of_values);
    if (input_only) return;
    if (unit.is_head)
        end_head(unit, run);
    else
        contribute(of_values, run, pass, 0, is_new);
}

// Whether data parallelism does nothing in a pass: between the first and the last microbatch of ZeRO-0 and 1, as all
// weights have been gathered, all gradients have their memory, and none is complete.
bool Pricer::Walk::is_plain(const Run& run, bool is_forward) const {
    if (p_.zero >= 2 || stored_ != made_ || tied_ || run.stage->offloaded > 0 || run.begin == run.end) return false;
    const Unit& last = units_[run.end - 1];
    return is_forward ? run.has_gathered && (!last.is_head || (run.has_gradients && last.left > 1))
                      : run.has_gradients && run.left > 0;
}

void Pricer::Walk::run_plain(const Pass& of) {
    note(of.peak);
    pass(of.seconds, of.idle);
    bytes_ += of.bytes;
}

// Before a pass unit by unit.
void Pricer::Walk::count_plain(Run& run) {
    for (size_t u = run.begin; u < run.end; ++u)
        if (!units_[u].is_head) units_[u].left -= run.plain;
    run.plain = 0;
}

void Pricer::Walk::forward(size_t stage, bool turns_round) {
    Run& run = runs_[stage];
    begin_forward(run, turns_round);
    if (is_plain(run, true)) {
        if (units_[run.end - 1].is_head) --units_[run.end - 1].left;
        return run_plain(run.stage->f);
    }
    run.has_gathered = true;
    for (size_t u = run.begin; u < run.end; ++u) forward_unit(u, run);
    bytes_ += run.stays;
    if (run.stays == 0 && run.end > run.begin) leave(*units_[run.end - 1].probe);
}

void Pricer::Walk::take_head() {
    for (const Run& run : runs_)
        for (size_t u = run.begin; u < run.end; ++u)
            if (units_[u].is_head && !tied_in_stage_) need_gradients(units_[u]), take_head(units_[u], run);
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
        Unit& unit = units_[u];
        const bool is_new = !unit.is_head && need_gradients(*unit.of_values);
        note(unit.probe->weight.peak);
        run_pieces(at_experts(unit.probe->weight.pieces).first, true, is_new);
        bytes_ -= unit.probe->kept_for_weight;
        if (unit.is_head)
            end_head(unit, run);
        else
            contribute(*unit.of_values, run, unit.probe->weight, unit.probe->kept_for_weight, is_new);
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
