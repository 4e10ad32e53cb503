// planner/probe.cpp: the short run that is rehearsed for a layout, and what is read from it.
#include "tutti/planner/probe.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/parallel/data_parallel.h"
#include "tutti/schedule/generators.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/rules.h"

namespace tutti::planner {

namespace {

using rehearsal::Program;

// Kinds of layers, in the order of their first layer.
std::pair<std::vector<size_t>, std::vector<int64_t>> kinds_of(const spec::ModelSpec& model) {
    std::vector<spec::LayerSpec> kinds;
    std::vector<size_t> kind_of_layer;
    std::vector<int64_t> first;
    for (const spec::LayerSpec& layer : spec::all_layers(model)) {
        const auto known = std::find(kinds.begin(), kinds.end(), layer);
        kind_of_layer.push_back(to_size(known - kinds.begin()));
        if (known != kinds.end()) continue;
        first.push_back(static_cast<int64_t>(kind_of_layer.size()) - 1);
        kinds.push_back(layer);
    }
    return {kind_of_layer, first};
}

// The ranks of the grid of the layers alone: tensor, context and expert parallelism, with as few replicas as experts
// allow, but two copies of all, so that gradients are reduced.
int ranks_of_layers(spec::RunSpec& run) {
    spec::ParallelSpec& p = run.parallel;
    const auto of_replica = static_cast<int>(p.tp * p.cp), experts = static_cast<int>(p.ep * p.etp);
    for (int dp = 2; dp <= 2 * experts; ++dp) {
        p.dp_shard = dp;
        if (dp * of_replica > experts && spec::ep_fits(run, dp * of_replica)) return dp * of_replica;
    }
    throw Error(concat("ep ", p.ep, " does not fit"));
}

// Appends a piece, as one with the last, if nothing follows that.
void join(std::vector<Piece>& pieces, Piece next) {
    if (!pieces.empty() && pieces.back().then == Piece::Then::ends) {
        next.prepend(pieces.back());
        pieces.pop_back();
    }
    pieces.push_back(next);
}

void join_pieces(UnitProbe& unit) {
    for (UnitPass* pass : {&unit.forward, &unit.recompute, &unit.input, &unit.weight, &unit.backward}) {
        for (const Piece& piece : std::exchange(pass->pieces, {})) join(pass->pieces, piece);
        for (Piece& piece : pass->pieces) piece.new_gradients = std::max(0.0, piece.new_gradients);
    }
}

// A piece of a pass, with its place in a program and that of the pass.
struct Cut {
    size_t pass, place;
    Piece piece = {};
    bool is_whole = false;
};

// By pass, what each kernel of the last microbatch takes more in the first one, whose gradients are new. Kernels that
// only the first one has, as some gradients begin as zeros, count to the one behind them. `seconds`: of the calls.
std::vector<std::vector<double>> more_where_new(const rehearsal::PartsRehearsal& of, std::span<const double> seconds) {
    const Program& program = of.whole.program;
    const auto calls_of = [&](size_t begin, size_t end) {
        std::vector<std::vector<size_t>> by_pass(program.places.size());
        for (size_t i = begin; i < end; ++i)
            if (const auto* run = std::get_if<rehearsal::RunKernel>(&program.actions[i].what))
                by_pass[program.actions[i].place].push_back(run->call);
        return by_pass;
    };
    const auto first = calls_of(0, of.parts.last), last = calls_of(of.parts.last, program.actions.size());
    std::vector<std::vector<double>> more(program.places.size());
    for (size_t pass = 0; pass < more.size(); ++pass) {
        auto next = first[pass].begin();
        for (const size_t call : last[pass]) {
            double& difference = more[pass].emplace_back(-seconds[call]);
            const auto found = std::find_if(next, first[pass].end(), [&](size_t other) {
                return program.calls[other].kernel == program.calls[call].kernel;
            });
            if (found == first[pass].end()) continue;
            for (; next <= found; ++next) difference += seconds[*next];
        }
    }
    return more;
}

// Cuts the passes of the last microbatch, which is all that is left of `program`, into pieces, in order, each with a
// place of its own and the seconds of its kernels.
std::vector<Cut> cut(const rehearsal::PartsRehearsal& rehearsed, Program& program,
                     const simulate::TimelinePrices& prices) {
    using Then = Piece::Then;
    program = rehearsed.whole.program;
    program.actions.erase(program.actions.begin(),
                          program.actions.begin() + static_cast<std::ptrdiff_t>(rehearsed.parts.last));
    std::vector<size_t> kernels(program.places.size());
    std::vector<double> seconds;  // of the calls
    for (const rehearsal::KernelCall& call : program.calls) seconds.push_back(prices.kernel(call));
    const std::vector<std::vector<double>> more = more_where_new(rehearsed, seconds);
    std::vector<Cut> cuts;
    std::vector<size_t> latest(program.places.size());  // of a pass, in `cuts`, from 1
    const auto open = [&](size_t pass) -> Cut& {
        if (latest[pass] == 0 || cuts[latest[pass] - 1].is_whole) {
            cuts.push_back({pass, program.places.size()});
            latest[pass] = cuts.size();
            program.places.push_back("");
        }
        return cuts[latest[pass] - 1];
    };
    auto unit = rehearsed.parts.passes.begin();
    size_t completions = 0;  // of the unit
    const auto complete_before = [&](size_t action) {
        for (; unit != rehearsed.parts.passes.end(); ++unit, completions = 0)
            for (; completions < unit->completions.size(); ++completions) {
                if (unit->completions[completions].action > action) return;
                Cut& last = open(unit->place);
                last.piece.then = Then::gradients_are_complete;
                last.is_whole = true;
            }
    };
    std::vector<uint64_t> copies;
    for (size_t i = 0; i < program.actions.size(); ++i) {
        rehearsal::Action& action = program.actions[i];
        const size_t pass = action.place;
        complete_before(rehearsed.parts.last + i);
        auto& [of, place, piece, is_whole] = open(pass);
        action.place = place;
        if (const auto* run = std::get_if<rehearsal::RunKernel>(&action.what)) {
            piece.seconds += seconds[run->call];
            piece.launches += prices.launch;
            piece.launched = std::max(piece.launched, piece.launches) + seconds[run->call];
            piece.new_gradients += more[pass][kernels[pass]++];
        } else if (const auto* begin = std::get_if<rehearsal::BeginCopy>(&action.what)) {
            piece.then = Then::copy_begins;
            piece.bytes = begin->bytes;
            copies.push_back(begin->number);
        } else if (const auto* wait = std::get_if<rehearsal::WaitForCopy>(&action.what)) {
            const auto known = std::ranges::find(copies.rbegin(), copies.rend(), wait->number);
            if (known == copies.rend()) continue;  // of the microbatch before
            piece.then = Then::copy_is_awaited;
            piece.after = to_size(known - copies.rbegin());
        }
        is_whole = piece.then != Then::ends || std::holds_alternative<rehearsal::WaitForOperation>(action.what);
    }
    return cuts;
}

// The run that is rehearsed for the layers of `run`, with a layer of each kind that is neither the first nor the last:
// `kinds`, the first layer of each.
spec::RunSpec short_run(const spec::RunSpec& run, std::span<const int64_t> kinds, bool splits) {
    spec::RunSpec small = run;
    // A layer waits for copies of those before it, whose memory it takes.
    const int64_t more = run.offload.activations ? 4 : 2;
    small.model.layers = std::min<int64_t>(run.model.layers, std::max<int64_t>(3, kinds.back() + more));
    if (spec::recompute_of(run.recompute.policy, run.model.layers).segment > small.model.layers)
        small.recompute.policy = concat("every:", small.model.layers);
    small.parallel.pp = small.parallel.virtual_stages = small.parallel.dp_replicate = 1;
    small.parallel.stage_layers = "";
    small.parallel.schedule = splits ? "zb-h1" : "1f1b";
    small.parallel.zero = 0;
    small.parallel.reductions = 1;
    small.offload.optimizer = small.offload.params = false;
    return small;
}

// Of an activation between layers.
double hidden_bytes(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    return static_cast<double>(size_of(spec::compute_dtype(run))) *
           static_cast<double>(run.train.micro_batch * run.train.seq_len / p.cp) *
           static_cast<double>(run.model.width) / static_cast<double>(p.tp > 1 && p.sequence_parallel ? p.tp : 1);
}

}  // namespace

size_t groups_that_sum(const spec::RunSpec& run, const mesh::Mesh& mesh, std::span<const SummedTogether> sums,
                       bool ends_are_shared) {
    std::set<std::pair<mesh::Axes, bool>> groups;  // with other stages of the pipeline
    const auto add = [&](mesh::Axes over, bool between_stages) {
        if (between_stages || (!over.empty() && mesh.size(over) > 1))
            groups.emplace(parallel::axes_of_group(mesh, over), between_stages);
    };
    for (const auto& [values, axes, of_layers, is_shared] : sums)
        for (const bool between_stages : {false, true}) {
            if (between_stages && (!ends_are_shared || !is_shared)) continue;
            const parallel::SumAxes sum = parallel::axes_of_sum(
                mesh, parallel::Zero{static_cast<uint8_t>(run.parallel.zero)}, axes, between_stages);
            if (!sum.in_one) add(sum.first, false);
            add(sum.second, between_stages);
        }
    // Of layers: engine.cpp.
    add(mesh::kTp, false);
    if (run.parallel.cp_method == "all_gather") add(mesh::Axis::cp_ring, false);
    if (run.model.moe.experts > 0) {
        add(mesh::kTp | mesh::kCp, false);
        if (run.model.moe.aux_loss == "global") add(mesh::kTp | mesh::kCp | mesh::kDp, false);
    }
    return groups.size();
}

namespace {

// A rank's last microbatch of two, with its seconds.
struct Microbatch {
    rehearsal::PartsRehearsal of;
    std::vector<Cut> cuts;
    std::vector<double> seconds;  // by place of the cuts
};

// On each of `ranks`, which wait for one another: the one that is busy or waits for longest, with the memory of the
// fullest.
Microbatch rehearse_slowest(const spec::RunSpec& run, const rehearsal::Target& target, int world,
                            const std::vector<int>& ranks, simulate::TimelinePrices prices) {
    prices.host = nullptr;
    std::vector<Microbatch> all;
    std::vector<Program> microbatches;
    for (const int rank : ranks) {
        auto& [of, cuts, seconds] = all.emplace_back();
        of = rehearsal::rehearse_parts(run, target, world, rank);
        cuts = cut(of, microbatches.emplace_back(), prices);
    }
    prices.launch = 0;  // a walk has the host
    const std::vector<std::vector<double>> seconds = simulate::lay_out(ranks, microbatches, prices, false).of_place;
    for (size_t i = 0; i < all.size(); ++i) all[i].seconds = seconds[i];
    Microbatch& slowest = *std::ranges::max_element(
        all, {}, [](const Microbatch& m) { return std::accumulate(m.seconds.begin(), m.seconds.end(), 0.0); });
    Microbatch& fullest = *std::ranges::max_element(all, {}, [](const Microbatch& m) {
        return std::ranges::max(m.of.parts.passes, {}, &rehearsal::UnitPass::peak).peak;
    });
    std::swap(slowest.of.parts.passes, fullest.of.parts.passes);
    return std::move(slowest);
}

// What a rehearsal says of its units: the embedding, the layers, the head.
class Reading {
  public:
    explicit Reading(const Microbatch& microbatch)
        : microbatch_(microbatch), program_(microbatch.of.whole.program), parts_(microbatch.of.parts) {
        for (const std::string& place : program_.places) {
            const size_t name = place.find(" of ");
            if (name == std::string::npos) {
                passes_.push_back({Kind::none});
                continue;
            }
            const auto unit = std::ranges::find(parts_.units, place.substr(name + 4));
            passes_.push_back({place.starts_with("forward")           ? Kind::forward
                               : place.starts_with("recompute")       ? Kind::recompute
                               : place.starts_with("backward weight") ? Kind::weight
                                                                      : Kind::input,
                               to_size(unit - parts_.units.begin())});
        }
        units_.resize(parts_.units.size());
    }

    // `sums`: those of the units.
    std::vector<UnitProbe> units(bool splits, const mesh::Mesh& mesh, std::vector<SummedTogether>& sums) {
        read_states(mesh, sums);
        read_pieces();
        read_forward_bytes();
        read_backward_bytes(splits);
        // A matrix that embedding and head share, where each has its own: the head's forward completes it.
        UnitProbe& head = units_.back();
        for (size_t s = 0; s < head.states.size(); ++s) {
            if (!sums[head.states[s].sum].is_shared) continue;
            head.states[s].is_early = true;
            head.forward.pieces.push_back(
                {.then = Piece::Then::gradients_are_complete, .state = s, .bytes = head.kept, .peak = head.kept});
        }
        for (UnitProbe& unit : units_) {
            unit.backward = unit.input;
            unit.backward.pieces.insert(unit.backward.pieces.end(), unit.weight.pieces.begin(),
                                        unit.weight.pieces.end());
        }
        return std::move(units_);
    }

    // Seconds of the update and the norm, of a value.
    double update(const simulate::TimelinePrices& prices) const {
        double values = 0, seconds = 0;
        for (const rehearsal::SummedTogether& state : parts_.states) values += static_cast<double>(state.values);
        for (const rehearsal::Action& action : program_.actions) {
            const rehearsal::KernelCall* call = program_.call_of(action);
            const std::string& place = program_.places[action.place];
            if (call != nullptr && (place == "optimizer" || place == "gradient norm"))
                seconds += prices.kernel(*call) / values;
        }
        return seconds;
    }

    // Counts the operations outside of passes over units.
    void read_exchanges(LayerProbe& of) const {
        for (const rehearsal::Action& action : program_.actions) {
            const auto* begin = std::get_if<rehearsal::BeginOperation>(&action.what);
            if (begin == nullptr || passes_[action.place].kind != Kind::none) continue;
            ++of.exchanges;
            of.exchanged += static_cast<double>(begin->operation.bytes);
        }
    }

    // Beside state and activations.
    double beside() const {
        const MemoryByPurpose& bytes = program_.memory.front().bytes;
        return static_cast<double>(bytes.total() - bytes[Purpose::weights] - bytes[Purpose::gradients] -
                                   bytes[Purpose::optimizer]);
    }

  private:
    // input: a backward, where it is split that of the input; none: outside of units.
    enum class Kind { none, forward, recompute, input, weight };
    struct PassOfUnit {
        Kind kind;
        size_t unit = 0;
    };

    static UnitPass& pass_of(UnitProbe& unit, Kind kind) {
        return kind == Kind::forward     ? unit.forward
               : kind == Kind::recompute ? unit.recompute
               : kind == Kind::weight    ? unit.weight
                                         : unit.input;
    }

    void read_states(const mesh::Mesh& mesh, std::vector<SummedTogether>& sums) {
        for (size_t s = 0; s < parts_.states.size(); ++s) {
            const rehearsal::SummedTogether& state = parts_.states[s];
            const mesh::Axes rest = parallel::axes_of_sum(mesh, parallel::Zero::optimizer, state.partial, false).second;
            const SummedTogether sum{static_cast<double>(state.values), state.partial,
                                     mesh.size(rest - mesh::Axes(mesh::Axis::dp_replicate)), state.units.size() > 1};
            const auto known = std::ranges::find(sums, sum);
            const size_t place = to_size(known - sums.begin());
            if (known == sums.end()) sums.push_back(sum);
            for (const std::string& unit : state.units) {
                const size_t u = to_size(std::ranges::find(parts_.units, unit) - parts_.units.begin());
                units_[u].states.push_back({place});
                states_.resize(units_.size());
                states_[u].push_back(s);
            }
        }
    }

    // The completions of a pass, in the pieces. `above`: the bytes that it begins with.
    void read_completions(const rehearsal::UnitPass& pass, size_t unit, std::vector<Piece>& pieces, double above) {
        auto piece = pieces.begin();
        for (const rehearsal::Completion& of : pass.completions) {
            piece = std::ranges::find(piece, pieces.end(), Piece::Then::gradients_are_complete, &Piece::then);
            check(piece != pieces.end(), "a probe completes gradients in its last microbatch alone");
            piece->state = to_size(std::ranges::find(states_[unit], of.state) - states_[unit].begin());
            piece->bytes = static_cast<double>(of.bytes) - above;
            piece->peak = static_cast<double>(of.peak) - above;
            ++piece;
        }
    }

    void read_pieces() {
        for (auto [pass, at, piece, is_whole] : microbatch_.cuts) {
            const auto [kind, u] = passes_[pass];
            if (kind == Kind::none) continue;
            UnitProbe& unit = units_.at(u);
            if (kind == Kind::forward && piece.then == Piece::Then::copy_begins) {  // of the unit before
                units_.at(u - 1).leaving.push_back(piece.bytes);
                piece.then = Piece::Then::ends;
            }
            piece.idle = std::max(0.0, microbatch_.seconds[at] - piece.seconds);
            std::vector<Piece>& pieces = pass_of(unit, kind).pieces;
            if (kind != Kind::forward && unit.recompute.pieces.empty() && pieces.empty() && piece.seconds == 0 &&
                piece.then == Piece::Then::copy_begins) {
                unit.returning.push_back(piece.bytes);
                continue;
            }
            if (!pieces.empty() && pieces.back().idle == 0)
                join(pieces, piece);
            else
                pieces.push_back(piece);
        }
    }

    // A unit keeps what is there where the next one's forward begins.
    void read_forward_bytes() {
        std::vector<double> begins(units_.size() + 1, -1);
        for (const rehearsal::UnitPass& pass : parts_.passes) {
            const auto [kind, u] = passes_[pass.place];
            if (kind != Kind::forward || begins[u] >= 0) continue;
            begins[u] = static_cast<double>(pass.begin);
            units_[u].forward.peak = static_cast<double>(pass.peak - pass.begin);
            read_completions(pass, u, units_[u].forward.pieces, begins[u]);
            for (const Piece& piece : units_[u].forward.pieces)
                if (piece.then == Piece::Then::gradients_are_complete) units_[u].states[piece.state].is_early = true;
            if (u + 1 == units_.size()) begins[u + 1] = static_cast<double>(pass.end);
        }
        for (size_t u = 0; u < units_.size(); ++u) units_[u].kept = begins[u + 1] - begins[u];
    }

    // A unit's recompute or backward begins where the one behind ended, before offloaded tensors are fetched; behind a
    // recompute when that has freed its tensors.
    void read_backward_bytes(bool splits) {
        std::vector<double> begins(units_.size(), -1);
        double level = -1;
        for (size_t i = 0; i < parts_.passes.size(); ++i) {
            const rehearsal::UnitPass& pass = parts_.passes[i];
            const auto [kind, u] = passes_[pass.place];
            if (kind == Kind::forward) continue;
            UnitProbe& unit = units_.at(u);
            const auto begin = static_cast<double>(pass.begin);
            // A recomputed layer's input is freed behind its pass.
            const bool is_last = i + 1 == parts_.passes.size();
            const auto end = static_cast<double>(is_last ? pass.end : std::min(pass.end, parts_.passes[i + 1].begin));
            const auto read = [&](double above) {
                UnitPass& into = pass_of(unit, kind);
                into.peak = static_cast<double>(pass.peak) - above;
                read_completions(pass, u, into.pieces, above);
            };
            if (kind == Kind::weight) {
                read(begin);
                continue;
            }
            if (begins[u] < 0) begins[u] = level < 0 ? begin : std::min(level, begin);
            level = end;
            // The gradient of the output has taken the place of the output. Units behind may wait for W.
            read(begins[u]);
            if (splits && kind == Kind::input) unit.kept_for_weight = unit.kept - (begins[u] - end);
        }
    }

    const Microbatch& microbatch_;
    const Program& program_;
    const rehearsal::Parts& parts_;
    std::vector<PassOfUnit> passes_;           // by place
    std::vector<std::vector<size_t>> states_;  // of each unit, in Parts::states
    std::vector<UnitProbe> units_;
};

}  // namespace

void Piece::prepend(const Piece& before) {
    launched = std::max(before.launched + seconds, before.launches + launched - before.idle);
    launches += before.launches;
    seconds += before.seconds;
    idle += before.idle;
    new_gradients += before.new_gradients;
}

double UnitPass::seconds() const {
    return std::accumulate(pieces.begin(), pieces.end(), 0.0,
                           [](double sum, const Piece& piece) { return sum + piece.seconds + piece.idle; });
}

double UnitPass::most() const {
    double most = peak;
    for (const Piece& piece : pieces) most = std::max(most, piece.peak);
    return most;
}

double UnitProbe::offloaded() const { return std::accumulate(leaving.begin(), leaving.end(), 0.0); }

bool splits_backward(std::string_view schedule) {
    const schedule::Kind* kind = schedule::find_kind(schedule);
    return kind != nullptr && kind->splits;
}

Probes::Probes(rehearsal::Target target, simulate::TimelinePrices prices)
    : target_(std::move(target)), prices_(std::move(prices)) {}

const Probes::Known& Probes::known(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    const bool some = p.pp > 1 && p.schedule == "dualpipe-v";
    return known(run, some || (p.pp > 1 && splits_backward(p.schedule)), some);
}

const Probes::Known& Probes::known(const spec::RunSpec& run, bool splits, bool both) {
    const spec::ParallelSpec& p = run.parallel;
    const Key key(p.tp, p.cp, spec::ulysses_ranks(p), p.ep, p.etp, run.train.micro_batch, p.cp_method,
                  run.recompute.policy, p.sequence_parallel, run.offload.activations, splits, both);
    return known_.get(key, [&] {
        Known made;
        LayerProbe& exact = made.exact;
        if (both) {
            exact = known(run, true, false).exact;
            const LayerProbe& whole = known(run, false, false).exact;
            exact.embedding.backward = whole.embedding.backward;
            exact.head.backward = whole.head.backward;
            for (size_t k = 0; k < exact.kinds.size(); ++k) exact.kinds[k].backward = whole.kinds[k].backward;
        } else {
            exact = probe(run, splits);
        }
        made.rough = exact;
        join_pieces(made.rough.embedding);
        join_pieces(made.rough.head);
        for (UnitProbe& kind : made.rough.kinds) join_pieces(kind);
        return made;
    });
}

size_t Probes::rehearsed() const {
    return to_size(std::ranges::count_if(known_.values(), [](const auto& entry) { return !entry.first.both; }));
}

LayerProbe Probes::probe(const spec::RunSpec& run, bool splits) const {
    const auto [kind_of_layer, first] = kinds_of(run.model);
    spec::RunSpec small = short_run(run, first, splits);
    const int ranks = ranks_of_layers(small);
    const mesh::Mesh mesh = parallel::make_mesh(small, ranks);
    // One rank, or where a state passes from rank to rank all that wait for one another.
    const std::vector<int> along =
        mesh.group(rehearsal::with_fullest_experts(small, target_, ranks), rehearsal::chained_axes(run.model));
    const Microbatch microbatch = rehearse_slowest(small, target_, ranks, along, prices_);
    Reading reading(microbatch);
    LayerProbe result{.kind_of_layer = kind_of_layer,
                      .hidden = hidden_bytes(run),
                      .beside = reading.beside(),
                      .update = reading.update(prices_)};
    reading.read_exchanges(result);
    const std::vector<UnitProbe> units = reading.units(splits, mesh, result.sums);
    if (rehearsal::device_sums(small, target_, ranks))
        result.groups_that_sum = groups_that_sum(small, mesh, result.sums, false);
    result.embedding = units.front();
    result.head = units.back();
    for (const int64_t layer : first) {
        // The last layer of the kind that a layer follows.
        size_t chosen = to_size(layer) + 1;
        for (size_t u = 1; u + 2 < units.size(); ++u)
            if (kind_of_layer[u - 1] == kind_of_layer[to_size(layer)]) chosen = u;
        result.kinds.push_back(units[chosen]);
    }
    // Ranks that pass a state on wait for the first one in the first layer, and in the backward in the last layer.
    for (const auto& [layer, unit] :
         {std::pair(size_t{0}, size_t{1}), {to_size(run.model.layers) - 1, to_size(small.model.layers)}}) {
        if (along.size() == 1 || result.kind_of_layer[layer] != result.kind_of_layer[unit - 1]) continue;
        result.kind_of_layer[layer] = result.kinds.size();
        result.kinds.push_back(units[unit]);
    }
    return result;
}

}  // namespace tutti::planner
