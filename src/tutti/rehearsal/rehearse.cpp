#include "tutti/rehearsal/rehearse.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/comm/meta/meta_world.h"
#include "tutti/device/on_cores.h"
#include "tutti/engine/products.h"
#include "tutti/engine/step.h"
#include "tutti/kernels/meta/meta_table.h"
#include "tutti/rehearsal/assumed_values.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/rules.h"

namespace tutti::rehearsal {

namespace {

// A kernel on a problem, by which a program stores calls once.
struct CallKey {
    const char* kernel;
    kernels::Work work;

    bool operator==(const CallKey& other) const {
        return kernel == other.kernel && work.flops == other.work.flops && work.bytes == other.work.bytes &&
               work.shape == other.work.shape;
    }
    struct Hash {
        size_t operator()(const CallKey& key) const {
            size_t hash = std::hash<const void*>()(key.kernel);
            for (const double part : {key.work.flops, key.work.bytes}) hash = 31 * hash + std::hash<double>()(part);
            return hash;
        }
    };
};

// Records the program and the place of the peak of memory while the step runs.
class Recorder final : public ops::Meter, public Tracer, public comm::CommunicationObserver, public CopyObserver {
  public:
    // Drops the record of the engine's construction.
    void start(Allocator& memory) {
        memory_ = &memory;
        memory.reset_peaks();
        peak_ = memory.total().peak;
        program_.actions.clear();
        program_.memory.clear();
        program_.calls.clear();
        known_calls_.clear();
        program_.places = {"step"};
        place_ = kStep;
        peak_place_ = kStep;
    }
    size_t actions() const { return program_.actions.size(); }
    // From now on the peak of every pass over a unit is recorded, and where `gradients`, by their memory, are complete;
    // the peaks of the step are not.
    void record_passes(std::vector<UnitPass>* passes, std::unordered_map<const Buffer*, size_t> gradients) {
        passes_ = passes;
        gradients_ = std::move(gradients);
    }
    // Actions [begin, end) stand for `times` repetitions.
    void repeat(size_t begin, size_t end, int64_t times) {
        for (size_t i = begin; i < end; ++i) program_.actions[i].times = times;
    }
    Program take_program() { return std::move(program_); }
    std::string peak_place() {
        look_at_peak();
        return program_.places[peak_place_];
    }

    void after_kernel(Device&, const char* kernel, const kernels::Work& work) override {
        const auto [known, is_new] = known_calls_.try_emplace({kernel, work}, program_.calls.size());
        if (is_new) program_.calls.push_back({kernel, work});
        add(RunKernel{known->second});
    }

    uint64_t copies(int64_t bytes) override {
        add(BeginCopy{++copies_, static_cast<double>(bytes)});
        return copies_;
    }
    // The allocator may call while it is locked: its usage must not be asked for here.
    void joins(uint64_t copy) override { program_.actions.push_back({WaitForCopy{copy}, place_}); }

    // A rehearsal has no times.
    void add(const What&, int64_t, int64_t) override {}
    void end_on_gpu(size_t, const TimeSpan&) override {}

    // Operations of parallelism between the passes over two units belong to the next unit.
    size_t begin(const What& what) override {
        if (what.activity == Activity::communication || what.activity == Activity::wait ||
            what.activity == Activity::begin || what.activity == Activity::step || what.activity == Activity::action)
            return kNone;
        look_at_peak();
        std::string text(what.name);
        if (!what.of.empty()) text.append(" of ").append(what.of);
        const auto [known, is_new] = places_.try_emplace(text, program_.places.size());
        if (is_new) program_.places.push_back(text);
        place_ = known->second;
        note_memory();
        if (what.of.empty()) return place_;
        for (size_t i = program_.actions.size(); i > 0 && program_.actions[i - 1].place == kStep; --i)
            program_.actions[i - 1].place = place_;
        if (peak_place_ == kStep) peak_place_ = place_;
        if (passes_ != nullptr) {
            memory_->reset_peaks();
            passes_->push_back({place_, memory_->total().current});
        }
        return place_;
    }
    void end(size_t span) override {
        if (span == kNone) return;
        look_at_peak();
        note_memory();
        if (UnitPass* pass = current_pass()) {
            note_peak(*pass);
            pass->end = memory_->total().current;
        }
        place_ = kStep;
    }

    void joins(const comm::Communicator& group) override {
        groups_[&group] = program_.groups.size();
        program_.groups.push_back({group.name(), group.ranks()});
    }
    void begins(const comm::Communicator& group, uint64_t sequence, const comm::Collective& collective) override {
        if (!takes_time(group, collective)) return;
        if (const auto state = gradients_.find(collective.input.buffer().get()); state != gradients_.end())
            return complete(state->second);
        const double from_host = gathers_from_host(collective) ? static_cast<double>(collective.input.bytes()) : 0;
        add(BeginOperation{groups_.at(&group), sequence, collective.summary(), from_host});
    }
    void waits(const comm::Communicator& group, const comm::Operation& operation) override {
        if (takes_time(group, operation.collective()) &&
            !gradients_.contains(operation.collective().input.buffer().get()))
            add(WaitForOperation{groups_.at(&group), operation.sequence(), operation.collective().kind});
    }

  private:
    static constexpr size_t kStep = 0;

    static bool gathers_from_host(const comm::Collective& c) {  // a shard that is offloaded
        return c.kind == comm::Kind::all_gather && &c.input.device() != &c.output.device();
    }
    // One rank alone gathers what it has offloaded, and nothing else.
    static bool takes_time(const comm::Communicator& group, const comm::Collective& c) {
        return group.size() > 1 || gathers_from_host(c);
    }

    template <class What>
    void add(What what) {
        program_.actions.push_back({std::move(what), place_});
    }
    UnitPass* current_pass() {
        const bool is_recorded = passes_ != nullptr && !passes_->empty() && passes_->back().place == place_;
        return is_recorded ? &passes_->back() : nullptr;
    }
    // What follows is a part of the same sum.
    void complete(size_t& state) {
        UnitPass* const pass = current_pass();
        if (const size_t complete = std::exchange(state, kNone); pass != nullptr && complete != kNone) {
            note_peak(*pass);
            pass->completions.push_back({complete, program_.actions.size(), memory_->total().current});
            memory_->reset_peaks();
        }
    }
    void note_peak(UnitPass& pass) {
        (pass.completions.empty() ? pass.peak : pass.completions.back().peak) = memory_->total().peak;
    }
    void note_memory() {
        if (memory_ == nullptr) return;
        Program::Memory now{.place = place_, .bytes = {}, .action = program_.actions.size()};
        for (const Purpose purpose : kAllPurposes) now.bytes[purpose] = memory_->usage(purpose).current;
        program_.memory.push_back(now);
    }
    void look_at_peak() {
        if (memory_ == nullptr || memory_->total().peak <= peak_) return;
        peak_ = memory_->total().peak;
        peak_place_ = place_;
    }

    Program program_{.places = {"step"}};
    std::unordered_map<std::string, size_t> places_;
    std::unordered_map<CallKey, size_t, CallKey::Hash> known_calls_;
    std::unordered_map<const comm::Communicator*, size_t> groups_;
    Allocator* memory_ = nullptr;
    std::vector<UnitPass>* passes_ = nullptr;
    std::unordered_map<const Buffer*, size_t> gradients_;  // places in Parts::states, kNone once they are complete
    int64_t peak_ = 0;
    uint64_t copies_ = 0;
    size_t place_ = kStep, peak_place_ = kStep;
};

// The state of the step at the start of a microbatch.
struct Mark {
    size_t actions;
    std::vector<parallel::GroupTraffic> traffic;
};

class MarkedBatches final : public engine::Batches {
  public:
    MarkedBatches(std::unique_ptr<engine::Batches> inner, std::function<void()> mark)
        : inner_(std::move(inner)), mark_(std::move(mark)) {}
    nn::Batch microbatch(int64_t step, int64_t index) override {
        mark_();
        return inner_->microbatch(step, index);
    }
    int64_t valid_tokens(int64_t step) override { return inner_->valid_tokens(step); }
    int64_t valid_tokens_of(int64_t step, int64_t index) override { return inner_->valid_tokens_of(step, index); }

  private:
    std::unique_ptr<engine::Batches> inner_;
    std::function<void()> mark_;
};

// Adds the counts between two marks, `times` times.
void add_repeated(std::vector<parallel::GroupTraffic>& traffic, const std::vector<parallel::GroupTraffic>& between,
                  int64_t times) {
    for (const parallel::GroupTraffic& more : between) {
        const auto known = std::find_if(traffic.begin(), traffic.end(), [&](const parallel::GroupTraffic& t) {
            return t.group == more.group && t.operation == more.operation;
        });
        known->traffic.calls += times * more.traffic.calls;
        known->traffic.bytes += times * more.traffic.bytes;
        known->traffic.sent += times * more.traffic.sent;
    }
}

MemoryByPurpose peaks_of(Allocator& memory) {
    MemoryByPurpose peaks;
    for (const Purpose purpose : kAllPurposes) peaks[purpose] = memory.usage(purpose).peak;
    return peaks;
}

int64_t saved_bytes(const optim::Optimizer& optimizer) {
    int64_t bytes = 0;
    for (const optim::StateTensor& s : optimizer.state())
        if (s.owned)
            for (const mesh::HeldBlock& held : s.blocks) bytes += held.block.numel() * size_of(s.values.dtype());
    return bytes;
}

// The update reads and writes the state that is on the host, and writes the rounded weights there.
void add_host_bytes(const engine::Engine& engine, Program& program) {
    if (!engine.offload_device) return;
    const Allocator& host = engine.offload_device->memory();
    const bool rounds = spec::compute_dtype(engine.run) != DType::f32;
    const double updated = 2 * static_cast<double>(host.usage(Purpose::optimizer).current) +
                           (rounds ? 1 : 2) * static_cast<double>(host.usage(Purpose::weights).current);
    const auto update_of = [&](const Action& action) {
        return program.places[action.place] == "optimizer" ? program.call_of(action) : nullptr;
    };
    double all = 0;
    for (const Action& action : program.actions)
        if (const KernelCall* call = update_of(action)) all += call->work.bytes;
    std::map<size_t, size_t> on_host;  // calls as they are in the update
    for (Action& action : program.actions) {
        if (const KernelCall* call = update_of(action); call != nullptr && all > 0) {
            size_t& place = std::get<RunKernel>(action.what).call;
            const auto [known, is_new] = on_host.try_emplace(place, program.calls.size());
            if (is_new) program.calls.push_back({call->kernel, call->work, updated * call->work.bytes / all});
            place = known->second;
        }
    }
}

// "group "norm|bias": 25 of 61 parameters, 19.2 k values, lr x 0.5, weight decay 0"; and what a rule of whole matrices
// costs: "12 % of the FLOPs of this rank, 3 exchanges of matrices, 45.6 MB".
void describe_optimizer(engine::Engine& engine, Rehearsal& r) {
    const std::vector<spec::ParameterGroup>& groups = engine.run.optimizer.groups;
    for (size_t i = 0; i < groups.size(); ++i) {
        int64_t parameters = 0, values = 0;
        for (const autograd::Parameter* p : engine.model.parameters())
            if (engine.rules.named_group_of(*p) == i) {
                ++parameters;
                values += p->shape.numel();
            }
        const spec::ParameterGroup& g = groups[i];
        r.optimizer.push_back(concat("group ", spec::toml_text(g.match), ": ", parameters, " of ",
                                     engine.model.parameters().size(), " parameters, ",
                                     format_count(static_cast<double>(values)), " values",
                                     g.lr_scale == 1 ? "" : concat(", lr x ", g.lr_scale),
                                     g.weight_decay ? concat(", weight decay ", *g.weight_decay) : ""));
    }
    if (!engine.rules.need_whole_matrices()) return;
    double flops = 0, bytes = 0;
    int64_t exchanges = 0;
    for (const Action& action : r.program.actions) {
        if (r.program.places[action.place] != "optimizer") continue;
        if (const KernelCall* call = r.program.call_of(action)) flops += call->work.flops;
        const auto* begin = std::get_if<BeginOperation>(&action.what);
        if (begin == nullptr || begin->operation.kind != comm::Kind::all_to_all) continue;
        ++exchanges;
        bytes += static_cast<double>(begin->operation.bytes);
    }
    r.optimizer.push_back(concat("whole matrices: ", format_percent(flops / r.flops), " of the FLOPs of this rank, ",
                                 exchanges, " exchanges of ", format_bytes(bytes)));
}

// "1f1b, 4 stages of 4, 4, 4, 3 layers, 16 microbatches; predicted bubble 15.8 % (busiest rank), at most 4 ..."
void describe_pipeline(const engine::Engine& engine, Rehearsal& r) {
    const pipeline::Pipeline& p = engine.pipeline;
    const auto timeline = schedule::simulate(p.schedule, pipeline::estimated_times(engine.run, engine.model, p.spans));
    std::string layers;
    for (size_t s = 0; s < p.spans.size(); ++s) {
        const bool first = s == 0, last = s + 1 == p.spans.size();
        layers += concat(first ? "" : ", ", p.spans[s].end - p.spans[s].begin - (first ? 1 : 0) - (last ? 1 : 0));
    }
    r.bubble = timeline.makespan > 0 ? timeline.bubble / timeline.makespan : 0;
    r.pipeline =
        concat(engine.run.parallel.schedule, " over ", engine.run.parallel.pp, " ranks, ", p.stages(), " stages of ",
               layers, " layers, ", counted(p.schedule.total_microbatches(), "microbatch"), "; predicted bubble ",
               format_percent(r.bubble), ", activations of at most ",
               counted(*std::max_element(timeline.peak_until_w.begin(), timeline.peak_until_w.end()), "microbatch"),
               " of a stage at once");
}

// The number of microbatches that are run in place of more: the first differs from those between, and the last reduces
// gradients. In a pipeline all of them run, because each depends on the others.
constexpr int64_t kMicrobatches = 3;

// The gradients of each state, by their memory.
std::unordered_map<const Buffer*, size_t> gradients_of(const parallel::DataParallel& data_parallel) {
    std::unordered_map<const Buffer*, size_t> all;
    for (const auto& [values, units] : data_parallel.states())
        all.emplace(values->gradients().defined() ? values->gradients().buffer().get() : nullptr, all.size());
    return all;
}

std::vector<SummedTogether> states_of(const parallel::DataParallel& data_parallel) {
    std::vector<SummedTogether> all;
    for (const auto& [values, units] : data_parallel.states()) {
        SummedTogether& state = all.emplace_back(SummedTogether{.partial = values->parameters().front()->partial});
        for (const autograd::Unit* unit : units) state.units.push_back(unit->name);
        for (const autograd::Parameter* p : values->parameters()) state.values += p->part().shape.numel();
    }
    return all;
}

struct Extent {
    const Rehearsal* other = nullptr;  // of another rank of the run, with its pipeline in words
    Parts* parts = nullptr;            // of a step of two microbatches; null: a step
    bool steps = true;                 // false: what the rank has before the step
};

Rehearsal rehearse_within(const spec::RunSpec& run, const Target& target, int ranks, int rank,
                          const engine::Factories& factories, const Extent& extent) {
    Parts* const parts = extent.parts;
    const int64_t of_microbatch = run.train.micro_batch * spec::data_parallel_ranks(run.parallel, ranks);
    const int64_t microbatches = run.train.global_batch / of_microbatch;
    const bool in_turn = run.parallel.pp == 1 && run.parallel.schedule == "1f1b" && parts == nullptr;
    spec::RunSpec shortened = run;
    if (in_turn) shortened.train.global_batch = of_microbatch * std::min(microbatches, kMicrobatches);

    Recorder recorder;
    const AssumedValues assumed(target.expert_loads);
    std::vector<Mark> marks;
    comm::MetaWorld world(rank, ranks, &recorder, device_sums(run, target, ranks));
    const kernels::KernelTable table = kernels::meta_table(*target.kernels);
    MetaTarget device = target.device;
    // The smallest gap is often one that a copy still reads: a step that offloads its activations would wait for it.
    device.arena = device.arena && !run.offload.activations;
    engine::Engine* at_work = nullptr;
    const auto mark = [&] {
        if (parts != nullptr && marks.size() == 1)
            recorder.record_passes(&parts->passes, gradients_of(*at_work->data_parallel));
        if (in_turn || parts != nullptr) marks.push_back({recorder.actions(), at_work->groups.traffic()});
    };
    engine::Engine engine(
        shortened, world,
        {.device = make_meta_device(device, &recorder),
         .kernels = table,
         .attention = {.kernels = run.train.attention, .tuning = nullptr, .others = {}}},
        [&](ops::Context& ctx, const engine::BatchShard& share) {
            return std::make_unique<MarkedBatches>(engine::blank_batches(ctx, shortened, share), mark);
        },
        factories);
    at_work = &engine;
    engine.ctx.values = &assumed;
    engine.ctx.meter = &recorder;
    engine.trace = &recorder;
    Rehearsal r{.machine = target.device.name, .ranks = ranks, .rank = rank};
    Allocator& memory = engine.device->memory();
    const int64_t saved = saved_bytes(engine.optimizer) + (engine.scales && rank == 0 ? engine.scales->bytes() : 0);
    r.built = memory.total().current;
    r.built_offloaded = engine.offload_device ? engine.offload_device->memory().total().current : 0;
    r.memory.saved = saved;
    if (!extent.steps) return r;
    recorder.start(memory);
    const std::vector<parallel::GroupTraffic> before = engine.groups.traffic();
    engine::train_step(engine, run.place.first);

    r.memory = {.at_peak = memory.at_peak(),
                .peaks = peaks_of(memory),
                .peak_place = recorder.peak_place(),
                .offloaded = engine.offload_device ? engine.offload_device->memory().total().peak : 0,
                .reserved = memory.reserved(),
                .arena = memory.arena_bytes(),
                .saved = saved};
    r.like_others = run.model.moe.experts == 0 && !engine.rules.need_whole_matrices();
    r.memory_capacity = target.device.memory_bytes;
    r.assumed = engine::assumed_products(run, engine.ctx);
    r.counts = models::counts_of(engine.model, run.train.seq_len, run.recompute.policy);
    r.communication = parallel::difference(engine.groups.traffic(), before);
    if (extent.other != nullptr) {
        r.pipeline = extent.other->pipeline;
        r.bubble = extent.other->bubble;
    } else if (run.parallel.pp > 1) {
        describe_pipeline(engine, r);
    }
    if (in_turn && microbatches >= kMicrobatches) {
        const int64_t left_out = microbatches - kMicrobatches;
        add_repeated(r.communication, parallel::difference(marks[2].traffic, marks[1].traffic), left_out);
        // A CUDA graph is recorded in the second microbatch and stands for the last one too.
        recorder.repeat(marks[1].actions, marks[2].actions, 1 + left_out + (run.train.cuda_graphs ? 1 : 0));
    }
    if (parts != nullptr) {
        parts->last = marks.at(1).actions;
        for (const auto& module : engine.model.modules()) parts->units.push_back(module->unit.name);
        parts->states = states_of(*engine.data_parallel);
    }
    r.program = recorder.take_program();
    add_host_bytes(engine, r.program);
    r.flops = r.program.flops();
    describe_optimizer(engine, r);
    return r;
}

// The neighbours of `center` along each axis but those of its chain.
std::set<int> neighbours(const mesh::Mesh& mesh, int center, mesh::Axes chained) {
    constexpr size_t kMostPerAxis = 3;
    std::set<int> ranks;
    for (const std::vector<mesh::AxisSize>& grid : {mesh.axes(), mesh.second_axes()})
        for (const mesh::AxisSize& axis : grid) {
            if (chained.contains(axis.axis)) continue;
            const std::vector<int> along = mesh.group(center, axis.axis);
            const size_t n = std::min(along.size(), kMostPerAxis);
            for (size_t i = 0; i < n; ++i) ranks.insert(along[n == 1 ? 0 : i * (along.size() - 1) / (n - 1)]);
        }
    return ranks;
}

// Whether a neighbour of the fullest rank needs no more than that. Of a model without experts the second grid cuts
// nothing, and its neighbours along cp are those of the first one.
bool is_covered(const spec::RunSpec& run, const Target& target, const mesh::Mesh& mesh, const Rehearsal& fullest,
                int rank) {
    const std::vector<int> along_cp = mesh.group(fullest.rank, mesh::kCp);
    if (mesh.coordinate(rank, mesh::kCp) != mesh.coordinate(fullest.rank, mesh::kCp))
        return std::ranges::find(along_cp, rank) == along_cp.end();
    const bool in_a_pass = fullest.memory.peak_place.find(" of ") != std::string::npos;
    if (!fullest.fits || !in_a_pass) return false;
    const Rehearsal r = rehearse_within(run, target, mesh.size(), rank, {}, {.steps = false});
    return r.built <= fullest.built && r.built_offloaded <= fullest.built_offloaded &&
           r.memory.saved <= fullest.memory.saved;
}

}  // namespace

Rehearsal rehearse(const spec::RunSpec& run, const Target& target, int ranks, int rank,
                   const engine::Factories& factories, const Rehearsal* other) {
    try {
        return rehearse_within(run, target, ranks, rank, factories, {.other = other});
    } catch (const OutOfMemory&) {
        Target unlimited = target;
        unlimited.device.memory_bytes = 0;
        Rehearsal r = rehearse_within(run, unlimited, ranks, rank, factories, {.other = other});
        r.memory_capacity = target.device.memory_bytes;
        r.fits = false;
        return r;
    }
}

bool fits(const spec::RunSpec& run, const Target& target, int ranks, int rank) {
    try {
        rehearse_within(run, target, ranks, rank, {}, {});
        return true;
    } catch (const OutOfMemory&) {
        return false;
    }
}

void check_recipe(const spec::RunSpec& run, const Target& target) {
    const std::unique_ptr<Device> device = make_meta_device(target.device);
    const kernels::KernelTable table = kernels::meta_table(*target.kernels);
    ops::Context ctx{*device, table};
    engine::check_code_units(run, ctx);
}

PartsRehearsal rehearse_parts(const spec::RunSpec& run, const Target& target, int ranks, int rank) {
    spec::RunSpec two = run;
    two.train.global_batch = 2 * run.train.micro_batch * spec::data_parallel_ranks(run.parallel, ranks);
    Target unlimited = target;
    unlimited.device.memory_bytes = 0;
    PartsRehearsal r;
    r.whole = rehearse_within(two, unlimited, ranks, rank, {}, {.parts = &r.parts});
    return r;
}

mesh::Axes chained_axes(const spec::ModelSpec& model) {
    const std::vector<spec::LayerSpec> layers = spec::all_layers(model);
    const bool relays = std::ranges::any_of(layers, [](const auto& layer) { return layer.delta() || layer.scan(); });
    return relays ? mesh::kCp | mesh::Axis::pp : mesh::Axes(mesh::Axis::pp);
}

int with_fullest_experts(const spec::RunSpec& run, const Target& target, int ranks) {
    const std::vector<double>& loads = target.expert_loads;
    if (loads.empty() || run.parallel.ep == 1) return 0;
    const auto local = std::ssize(loads) / static_cast<std::ptrdiff_t>(run.parallel.ep);
    double most = -1;
    int fullest = 0;
    auto first = loads.begin();
    for (const int rank : parallel::make_mesh(run, ranks).group(0, mesh::Axis::ep)) {
        const double load = std::accumulate(first, first + local, 0.0);
        if (load > most) most = load, fullest = rank;
        first += local;
    }
    return fullest;
}

RankRehearsals rehearse_ranks(const spec::RunSpec& run, const Target& target, int ranks, bool all,
                              std::optional<int> through, bool must_fit) {
    const mesh::Mesh mesh = parallel::make_mesh(run, ranks);
    const mesh::Axes chained = chained_axes(run.model);
    RankRehearsals r;
    std::atomic<bool> one_is_too_large = false;
    const auto of_rank = [&](int rank, const Rehearsal* other) {
        if (!must_fit) return rehearse(run, target, ranks, rank, {}, other);
        if (one_is_too_large) return Rehearsal{};
        try {
            return rehearse_within(run, target, ranks, rank, {}, {.other = other});
        } catch (const OutOfMemory&) {
            one_is_too_large = true;
            throw;
        }
    };
    const auto add = [&](const std::vector<int>& more) {
        const size_t before = r.all.size();
        r.all.resize(before + more.size());
        const size_t first = before == 0 ? 1 : 0;  // the others have its pipeline in words
        if (first == 1) r.all.front() = of_rank(more.front(), nullptr);
        for_each_on_cores(more.size() - first,
                          [&](size_t i) { r.all[before + first + i] = of_rank(more[first + i], &r.all.front()); });
    };
    const auto peak = [](const Rehearsal& each) { return each.memory.peak(); };
    const auto fullest = [&] { return to_size(std::ranges::max_element(r.all, {}, peak) - r.all.begin()); };
    const std::vector<int> chain = mesh.group(through ? *through : with_fullest_experts(run, target, ranks), chained);
    add(chain);
    r.chain = chain.size();
    std::set<int> others = neighbours(mesh, through ? *through : r.all[fullest()].rank, chained);
    for (const int rank : chain) others.erase(rank);
    std::vector<int> more(others.begin(), others.end());
    if (const Rehearsal& most = r.all[fullest()]; !all && most.like_others) {
        std::vector<char> covered(more.size());
        for_each_on_cores(more.size(), [&](size_t i) { covered[i] = is_covered(run, target, mesh, most, more[i]); });
        for (size_t i = more.size(); i-- > 0;)
            if (covered[i]) more.erase(more.begin() + static_cast<std::ptrdiff_t>(i));
    }
    add(more);
    r.fullest = fullest();
    for (const Rehearsal& each : r.all) {
        r.fit = r.fit && each.fits;
        r.offloaded = std::max(r.offloaded, each.memory.offloaded);
        r.saved = std::max(r.saved, each.memory.saved);
    }
    return r;
}

LayoutRehearsal rehearse_layout(const spec::RunSpec& run, const Target& target, int ranks, std::optional<int> rank) {
    check<UsageError>(!rank || (0 <= *rank && *rank < ranks), "rank ", rank.value_or(0), " of a run of ", ranks,
                      " ranks: required 0 <= rank < ", ranks);
    RankRehearsals of = rehearse_ranks(run, target, ranks, true, rank);
    std::vector<Rehearsal>& all = of.all;
    LayoutRehearsal layout{.offloaded = of.offloaded, .saved = of.saved};
    for (const Rehearsal& each : all) layout.rehearsed.push_back(each.rank);
    std::ranges::sort(layout.rehearsed);
    for (size_t i = 0; i < all.size() && layout.difference.empty(); ++i)
        for (size_t j = i + 1; j < all.size() && layout.difference.empty(); ++j)
            layout.difference = first_difference(all[i].rank, all[i].program, all[j].rank, all[j].program);
    const auto shown =
        rank ? std::ranges::find(all, *rank, &Rehearsal::rank) - all.begin() : static_cast<std::ptrdiff_t>(of.fullest);
    layout.shown = std::move(all[to_size(shown)]);
    if (!rank) layout.shown.fits = of.fit;
    return layout;
}

int64_t sent_in(const Rehearsal& rehearsal, mesh::Axes axes) {
    int64_t sent = 0;
    for (const parallel::GroupTraffic& t : rehearsal.communication)
        if (t.group == mesh::name_of(axes)) sent += t.traffic.sent;
    return sent;
}

}  // namespace tutti::rehearsal
