#include "tutti/train/trainer.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "tutti/base/json.h"
#include "tutti/base/timing.h"
#include "tutti/comm/run.h"
#include "tutti/engine/step.h"
#include "tutti/hf/export.h"
#include "tutti/infer/stored_model.h"
#include "tutti/kernels/backends.h"
#include "tutti/models/flops.h"
#include "tutti/rehearsal/card.h"
#include "tutti/rehearsal/present.h"
#include "tutti/report/report.h"
#include "tutti/spec/identity.h"
#include "tutti/spec/learning_rate.h"
#include "tutti/spec/rules.h"
#include "tutti/spec/stages.h"
#include "tutti/spec/toml.h"
#include "tutti/train/checkpointing.h"
#include "tutti/train/console.h"
#include "tutti/train/evaluation.h"
#include "tutti/train/first_step.h"
#include "tutti/train/run_clock.h"
#include "tutti/train/run_directory.h"
#include "tutti/train/run_peak.h"
#include "tutti/train/session.h"
#include "tutti/train/start_checks.h"
#include "tutti/train/step_metrics.h"
#include "tutti/train/trace_file.h"

namespace tutti::train {

namespace {

using Clock = Session::Clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Everything with which one rank trains a stage, in the order in which it is built. A run without stages is its only
// one. The next stage goes on with the same engine where its tensors are the same; else a new Run continues from the
// checkpoint with which this one ends.
class Run {
  public:
    Run(Session& session, size_t stage, const std::string& resume);
    TrainOutcome train();

  private:
    engine::Machine prepare();
    rehearsal::Rehearsal rehearse_stages(const rehearsal::Target& target, comm::Communicator& ranks, Device& device);
    bool goes_on();
    void tell_stage();
    bool ends_run() const { return outcome_.preempted || state_.step >= run_.train.steps; }
    const data::DataSet* data() const { return data_ ? &*data_ : nullptr; }
    void warn_of_placement(comm::Communicator& ranks, const rehearsal::Rehearsal& rehearsed);
    std::optional<RunState> resume(const std::string& mode);
    void compare_tokenizers();
    void one_step();
    bool is_stop_asked();
    bool is_on_first(bool condition);
    void take_up_log();
    bool evaluates(int64_t step) const;
    void log(const engine::StepResult& result);
    void begin_line();
    double bubble();
    std::optional<double> evaluate_now();
    void stop_after_skipped_steps(const engine::StepResult& result);
    void finish();
    void tell_end();
    void write_results(const std::string& sample_text);
    Json first_step() const;
    std::string totals(const std::string& sample_text);
    void tell_first_step();

    bool first_rank() const { return world_.rank() == 0; }

    Session& session_;
    const TrainOptions& options_;
    size_t stage_;
    spec::RunSpec run_;  // the stage
    comm::World& world_;
    Console& console_;
    Clock::time_point begin_ = Clock::now();

    std::optional<data::DataSet> data_;
    FirstStep first_step_;
    engine::Engine engine_;
    const models::ModelCounts counts_ = models::counts_of(engine_.model, run_.train.seq_len, run_.recompute.policy);
    Checkpointing checkpoints_;
    RunState state_;
    std::optional<RunDirectory> directory_;  // of the first rank
    std::optional<TraceFile> trace_;         // when asked for
    std::optional<RunPeak> peak_;            // from the start of the training on
    std::optional<RunClock> clock_;          // likewise

    TrainOutcome outcome_;
    Clock::time_point logged_at_ = Clock::now();
    int64_t logged_step_ = 0;
    bool warned_of_targets_ = false, evaluation_stopped_ = false;
    std::vector<parallel::GroupUsage> logged_usage_;
    pipeline::Executor::Seconds logged_seconds_;
};

// "pp 1, dp_shard 0": the rank's place along the axes of several ranks.
std::string place_of(const parallel::Groups& groups) {
    std::string text;
    for (const mesh::AxisSize& a : groups.mesh().axes())
        if (a.size > 1) text += concat(text.empty() ? "" : ", ", mesh::name_of(a.axis), " ", groups.coordinate(a.axis));
    return text;
}

// Rehearses this stage and all later ones, so that none of them fails for want of memory. Returns that of this stage.
rehearsal::Rehearsal Run::rehearse_stages(const rehearsal::Target& target, comm::Communicator& ranks, Device& device) {
    const std::vector<spec::RunSpec>& stages = session_.stages;
    std::vector<rehearsal::Rehearsal> rehearsed;
    for (size_t i = stage_; i < stages.size(); ++i)
        rehearsed.push_back(
            i > stage_ && spec::have_equal_steps(stages[i - 1], stages[i])
                ? rehearsed.back()
                : rehearsal::rehearse(stages[i], target, world_.size(), world_.rank(), options_.factories));
    if (first_rank()) {
        std::vector<const rehearsal::Rehearsal*> all;
        for (const rehearsal::Rehearsal& r : rehearsed) all.push_back(&r);
        console_.text(rehearsal::render_card(run_, rehearsed.front(), rehearsal::stage_lines(options_.run, stage_, all),
                                             data_ ? data_->tokenizer->description() : ""));
    }
    for (size_t i = 0; i < rehearsed.size(); ++i) {
        const spec::RunSpec& stage = stages[stage_ + i];
        const auto warn = [&](const std::string& message) { console_.warn(spec::of_stage(stage, message)); };
        try {
            const int copies =
                session_.memory ? spec::copies_in_memory(stage, options_.launch.local_size < world_.size()) : 0;
            check_memory(ranks, needs_of(stage, rehearsed[i].memory, device, copies), options_.force, warn);
        } catch (const UsageError& error) {
            throw UsageError(spec::of_stage(stage, error.what()));
        }
    }
    return std::move(rehearsed.front());
}

// Before anything is allocated: what the rank is going to hold and to send, and whether all ranks together fit.
engine::Machine Run::prepare() {
    auto machine = engine::machine_of(run_, comm::local_rank(options_.launch, world_), options_.out + "/offload");
    const auto ranks = world_.everyone("data, kernels and memory");
    for (const auto& data : session_.data) check_same(*ranks, kinds_of(data, machine));
    if (!options_.force) check_least_memory(*ranks, run_, options_.factories, *machine.device);
    rehearsal::Target target = rehearsal::target_of(machine);
    target.through_host = !engine::communicates_on_devices(run_, world_, *machine.device);
    auto rehearsed = rehearse_stages(target, *ranks, *machine.device);
    if (first_rank() && data_)
        for (const std::string& warning : data_->warnings) console_.warn(warning);
    if (machine.tuning)
        console_.text(concat("matrix products: ", machine.tuning->products.size(), " measured algorithms of ",
                             machine.tuning->library, " from ", run_.train.gemm_tuning));
    if (const auto& times = machine.attention.tuning)
        console_.text(concat("attention: ", times->requests.size(), " measured requests from ",
                             run_.train.attention_tuning, times->library.empty() ? ", without cuDNN" : ", with ",
                             times->library));
    warn_of_placement(*ranks, rehearsed);
    machine.device->memory().open_arena(rehearsed.memory.arena);
    first_step_.expect(std::move(rehearsed), first_rank());
    return machine;
}

void Run::warn_of_placement(comm::Communicator& ranks, const rehearsal::Rehearsal& rehearsed) {
    if (run_.parallel.tp == 1) return;
    const std::vector<std::string> hosts = comm::gather_texts(ranks, host_name());
    const std::string warning = rehearsal::placement_warning(parallel::make_mesh(run_, ranks.size()), hosts,
                                                             rehearsal::sent_in(rehearsed, mesh::kTp));
    if (first_rank() && !warning.empty()) console_.warn(warning);
}

Run::Run(Session& session, size_t stage, const std::string& resume_mode)
    : session_(session),
      options_(session.options),
      stage_(stage),
      run_(session.stages[stage]),
      world_(session.world),
      console_(session.console),
      data_(session.data[stage]),
      engine_(run_, world_, prepare(), engine::training_batches(run_, data()), options_.factories),
      checkpoints_(
          {.run = options_.run,
           .directory = checkpoint_directory(options_.run, options_.out),
           .data_fingerprint =
               [&session](int64_t step) { return fingerprint(session.data[spec::stage_at(session.stages, step)]); },
           .slices = [this] { return state_slices(engine_); },
           .warn = [this](const std::string& message) { console_.warn(message); },
           .fence = [this] { session_.generation.require_newest(); },
           .ranks = &engine_.groups.world(),
           .memory = session.memory.get()}) {
    if (const auto resumed = resume(resume_mode)) {
        state_ = *resumed;
        engine_.optimizer.set_updates(state_.updates);
        if (state_.loss_scale && !spec::fixed_loss_scale(run_)) engine_.loss_scale = *state_.loss_scale;
        console_.text(fmt::format("continuing after step {} from {}", state_.step, checkpoints_.resumed_from()));
        const std::string changed = spec::changed_keys(options_.run, state_.config);
        if (!changed.empty()) console_.text(concat("changed since that checkpoint: ", changed));
        // A schedule that ends elsewhere gives every step another rate: a finished run may leap back up.
        const auto rate = [&](int64_t step) {
            return spec::learning_rate(session_.stages[spec::stage_at(session_.stages, step)], step);
        };
        if (!changed.empty() && state_.step > 0 && state_.step < run_.train.steps)
            console_.text(fmt::format("learning rate of the next step {:.3g}, of the last one {:.3g}",
                                      rate(state_.step + 1), rate(run_.train.steps)));
    } else if (!run_.model.hf.empty()) {
        load_stored_weights(engine_);
        console_.text(fmt::format("starting from the weights of {}", run_.model.hf));
    }
    if (first_rank() && data_) compare_tokenizers();
    outcome_.eval_loss = outcome_.loss = std::numeric_limits<double>::quiet_NaN();
}

// Ids mean what the tokenizer says that made them: that of the stored model, and that of the run so far.
void Run::compare_tokenizers() {
    namespace fs = std::filesystem;
    const auto compare = [&](const std::string& other, const char* what) {
        if (other == run_.data.tokenizer || !fs::exists(other)) return;
        const std::string own = concat("data.tokenizer (", data_->tokenizer->description(), ") ");
        try {
            const auto tokenizer = text::make_tokenizer(other);
            if (tokenizer->fingerprint() == data_->tokenizer->fingerprint()) return;
            console_.warn(concat(own, "makes other ids than ", tokenizer->description(), ", ", what));
        } catch (const Error& error) {
            console_.warn(concat(own, "cannot be compared with that of ", other, ", ", what, ": ", error.what()));
        }
    };
    const std::string& hf = run_.model.hf;
    const bool has_one = fs::exists(hf + "/tokenizer.json") || fs::exists(hf + "/tokenizer.model");
    if (!hf.empty() && has_one) compare(hf, "with which the model of model.hf was trained");
    if (state_.step == 0) return;
    const std::string copy = infer::tokenizer_of_run(options_.out);
    if (!copy.empty()) compare(copy, "with which this run was trained so far");
}

std::optional<RunState> Run::resume(const std::string& mode) {
    std::optional<RunState> resumed;
    engine_.data_parallel->load_masters([&] { resumed = checkpoints_.resume(mode); });
    return resumed;
}

TrainOutcome Run::train() {
    // A run that ended by itself is left as it is; one that was stopped or killed behind its last step ends now.
    const bool finished =
        state_.step >= run_.train.steps && is_on_first(first_rank() && has_results(options_.out, state_.step));
    if (finished)
        console_.text(
            fmt::format("already at step {} of {}; raise train.steps to go on", state_.step, run_.train.steps));
    if (finished || spec::stage_at(session_.stages, state_.step + 1) != stage_) {
        outcome_.step = state_.step;
        outcome_.tokens = state_.tokens;
        outcome_.skipped = state_.skipped;
        outcome_.checkpoint = checkpoints_.newest();
        engine_.data_parallel->wait_for_weights();
        if (finished) tell_end();
        return outcome_;
    }
    if (first_rank() && options_.counts_starts) count_start(options_.out, state_.step, options_.force);
    engine_.groups.world().barrier();
    world_.set_starting(false);
    if (options_.stop && !session_.started) {
        options_.stop->check();
        options_.stop->set_has_to_save();
        options_.stop->set_tell(nullptr);
    }
    if (!session_.started && first_rank())
        session_.tell_origin(state_.step, state_.step == 0 ? "the start" : checkpoints_.resumed_from());
    clock_.emplace(first_rank() ? options_.out : "", state_.step, state_.seconds,
                   session_.started ? begin_ : session_.begin,
                   session_.started                     ? From::stage
                   : checkpoints_.resumed_from_memory() ? From::memory
                                                        : From::disk);
    session_.started = true;
    tell_stage();
    if (first_rank()) {
        directory_.emplace(options_.out, state_.step, run_.log.tensorboard,
                           [this](const std::string& message) { console_.warn(message); });
        directory_->write_config(spec::to_toml(options_.run));
        if (state_.step == 0 && !run_.model.hf.empty()) {  // so that the run stands alone: its exports need them
            checkpoint::PosixFileSystem files;
            hf::copy_side_files(files, run_.model.hf, options_.out + "/hf");
        }
        if (data_ && !data_->tokenizer->file().empty()) directory_->copy_tokenizer(data_->tokenizer->file());
    }
    const bool first_stage = !session_.traced;
    if (first_stage) session_.traced = trace_window(run_, state_.step);
    if (run_.log.trace && state_.step < run_.train.steps &&
        (first_stage || session_.traced->first > state_.step))  // else a stage before was traced
        trace_.emplace(world_, *session_.traced, options_.out + "/trace.json", place_of(engine_.groups),
                       [this](const std::string& message) { console_.warn(message); });
    peak_.emplace(engine_.groups.world(), *engine_.device, spec::compute_type_of(run_));
    take_up_log();
    begin_line();
    do {
        while (state_.step < spec::last_step(run_) && !outcome_.preempted) {
            one_step();
            outcome_.preempted = is_stop_asked() && (state_.step < run_.train.steps || evaluation_stopped_);
        }
    } while (!outcome_.preempted && goes_on());
    finish();
    if (ends_run()) tell_end();
    return outcome_;
}

void Run::tell_end() {
    if (first_rank() && options_.report) options_.report(outcome_);
    engine_.groups.world().barrier();
}

// With the next stage, whose steps have the same tensors.
bool Run::goes_on() {
    if (ends_run() || !spec::have_equal_steps(run_, session_.stages[stage_ + 1])) return false;
    run_ = session_.stages[++stage_];
    data_ = session_.data[stage_];
    engine_.set_batches(engine::training_batches(run_, data()));
    tell_stage();
    return true;
}

void Run::tell_stage() {
    if (run_.place.number > 0) console_.text(spec::stage_status(options_.run, stage_));
}

// Collective: a signal may reach ranks at different times, and they stop together.
bool Run::is_stop_asked() { return engine_.groups.world().max(options_.stop_requested() ? 1 : 0) > 0; }

// Collective: the condition of the first rank; the others' is false.
bool Run::is_on_first(bool condition) { return engine_.groups.world().max(condition ? 1 : 0) > 0; }

void Run::one_step() {
    const auto begin = Clock::now();
    const bool first = outcome_.step == 0;
    engine_.trace = trace_ ? trace_->before(state_.step + 1) : nullptr;
    if (first) first_step_.begin(engine_);
    const engine::StepResult result = engine::train_step(engine_, state_.step + 1);
    ++state_.step;
    state_.updates = engine_.optimizer.updates();
    state_.tokens += result.valid_tokens;
    state_.skipped += result.skipped ? 1 : 0;
    if (!result.overflowed) state_.skipped_in_a_row = result.skipped ? state_.skipped_in_a_row + 1 : 0;
    if (!spec::fixed_loss_scale(run_)) state_.loss_scale = engine_.loss_scale;
    state_.seconds += seconds_since(begin);
    outcome_.step = state_.step;
    outcome_.loss = result.loss;
    if (result.valid_tokens == 0 && !warned_of_targets_) {
        console_.warn(concat("step ", state_.step, " has no target in its ", run_.train.global_batch, " windows of ",
                             run_.train.seq_len,
                             " tokens: such steps change no weight and have no loss. A longer "
                             "train.seq_len or a larger train.global_batch has more"));
        warned_of_targets_ = true;
    }
    if (first) tell_first_step();
    if (!result.skipped) checkpoints_.saw_finite_step(state_.step);

    log(result);
    if (trace_) trace_->after(state_.step);
    stop_after_skipped_steps(result);
    const auto saving = Clock::now();
    const int64_t every = run_.checkpoint.every;
    const int64_t memory_every = run_.checkpoint.memory_every;
    const bool sound = !result.skipped || result.overflowed;
    if (memory_every > 0 && state_.step % memory_every == 0 && sound) checkpoints_.copy(state_);
    if (every > 0 && state_.step % every == 0 && sound) checkpoints_.save(state_);
    checkpoints_.poll();
    clock_->saved(seconds_since(saving));
    console_.progress(state_.step, seconds_since(begin));
}

double Run::bubble() {
    if (run_.parallel.pp == 1) return 0;
    const pipeline::Executor::Seconds now = engine_.executor.seconds();
    const double busy = engine_.groups.world().max(now.busy - logged_seconds_.busy);
    const double whole = engine_.groups.world().max(now.whole - logged_seconds_.whole);
    return whole > 0 ? 1 - busy / whole : 0;
}

// What the start before logged of the last step, and its evaluation if a signal ended that: a stopped run logs what an
// undisturbed one does.
void Run::take_up_log() {
    const Json line = directory_ ? directory_->last_line(state_.step) : Json::object();
    const auto number = [&](const char* key) {
        const Json* value = line.find(key);
        return value && value->is_number() ? value->get<double>() : std::numeric_limits<double>::quiet_NaN();
    };
    outcome_.loss = number("loss");
    outcome_.eval_loss = number("eval_loss");
    const bool lacks = is_on_first(data_ && data_->valid && !line.empty() && line.find("eval_loss") == nullptr);
    if (!lacks || spec::stage_at(session_.stages, state_.step) != stage_ || !evaluates(state_.step)) return;
    const std::optional<double> loss = evaluate_now();
    outcome_.preempted = evaluation_stopped_;
    if (loss) console_.text(fmt::format("evaluation of step {}, which was stopped: {:.4f}", state_.step, *loss));
    if (loss && directory_) directory_->log_evaluation(state_.step, *loss);
}

bool Run::evaluates(int64_t step) const {
    return step == run_.train.steps || (run_.train.eval_every > 0 && step % run_.train.eval_every == 0);
}

void Run::log(const engine::StepResult& result) {
    const int64_t step = state_.step;
    const bool ends_stage = step == spec::last_step(run_);  // a line counts the steps of one stage
    if (!(result.skipped || evaluates(step) || ends_stage || step == 1 || step % run_.log.every == 0)) return;
    const double elapsed = seconds_since(logged_at_);
    const auto waits = comm_per_step(logged_usage_, engine_.groups.usage(), step - logged_step_);  // of that time
    StepMetrics m{.step = step, .tokens = state_.tokens, .result = result, .skipped = state_.skipped};
    m.scaled = spec::fixed_loss_scale(run_) != 1;
    m.stage = run_.place.number;
    m.step_ms = 1000 * elapsed / static_cast<double>(std::max<int64_t>(1, step - logged_step_));
    // Rates of what is computed, with and without a target: masks change from step to step, the work does not.
    const auto positions = static_cast<double>((step - logged_step_) * run_.train.global_batch * run_.train.seq_len);
    m.tokens_per_s = positions / elapsed;
    const double hardware = counts_.hardware.causal();
    peak_->see(hardware * m.tokens_per_s);
    m.mfu = models::mfu(counts_.model.causal(), m.tokens_per_s, peak_->flops_per_s());
    m.hfu = models::mfu(hardware, m.tokens_per_s, peak_->flops_per_s());
    m.mem_peak_bytes = engine_.device->memory().total().peak;
    m.bubble = bubble();
    m.ranks = gather_figures(engine_.groups.world(), m.mem_peak_bytes, waits);
    m.comm = comm_per_step(logged_usage_, engine_.groups.usage(), step - logged_step_);  // with that gather
    if (evaluates(step)) m.eval_loss = evaluate_now();
    m.spent = clock_->spent(state_.seconds);
    if (directory_) directory_->log(m);
    console_.step(m);
    begin_line();
}

// What the next line of the log counts begins here: behind an evaluation, which is no part of its steps.
void Run::begin_line() {
    logged_at_ = Clock::now();
    logged_step_ = state_.step;
    logged_usage_ = engine_.groups.usage();
    logged_seconds_ = engine_.executor.seconds();
    engine_.device->memory().reset_peaks();
}

std::optional<double> Run::evaluate_now() {
    if (!data_ || !data_->valid) return std::nullopt;
    const auto evaluation = evaluation_of(engine_, *data_->valid, [this] { return is_stop_asked(); });
    evaluation_stopped_ = !evaluation;
    if (!evaluation) {
        console_.warn(concat(
            "no eval_loss at step ", state_.step, ": the run was stopped during the evaluation",
            state_.step == spec::last_step(run_) && state_.step < run_.train.steps ? "" : "; the next start makes it"));
        return std::nullopt;
    }
    outcome_.eval_loss = evaluation->loss;
    if (std::isfinite(evaluation->loss)) return evaluation->loss;
    console_.warn(concat("no eval_loss at step ", state_.step, ": it is ", evaluation->loss, ", or none of the ",
                         evaluation->windows, " windows of data.valid has a target; more of them: train.eval_batches"));
    return std::nullopt;
}

void Run::stop_after_skipped_steps(const engine::StepResult& result) {
    if (state_.skipped_in_a_row < run_.train.max_skipped) return;
    checkpoints_.wait();
    throw Error(
        fmt::format("{} steps in a row were not finite (train.max_skipped), the last one in {} at step {}; the "
                    "weights were not changed by them{}. Try a lower optimizer.lr or a longer warm-up, and resume "
                    "from {}",
                    state_.skipped_in_a_row, result.culprit, state_.step,
                    result.loss_scale == 1 ? "" : fmt::format("; the loss scale is {}", result.loss_scale),
                    checkpoints_.proven().empty() ? "the start" : checkpoints_.proven()));
}

void Run::tell_first_step() {
    first_step_.end(engine_, world_);
    if (first_rank()) {
        Json first = first_step();
        first["step"] = state_.step;
        directory_->write_first_step(first.dump(1) + "\n");
        console_.text(first_step_.comparison());
    }
    for (const std::string& text : kernel_warnings(engine_)) console_.warn(text);
}

void Run::finish() {
    console_.clear_bar();
    const auto saving = Clock::now();
    // The signal that has ended the steps leaves time to save; one that comes while the last save waits ends the wait.
    const std::string unsaved = checkpoints_.save_last(state_, run_.checkpoint.last_wait_s,
                                                       [this] { return !outcome_.preempted && is_stop_asked(); });
    clock_->saved(seconds_since(saving));
    outcome_.tokens = state_.tokens;
    outcome_.skipped = state_.skipped;
    outcome_.step = state_.step;
    outcome_.checkpoint = checkpoints_.newest();
    outcome_.seconds = seconds_since(session_.begin);
    engine_.data_parallel->wait_for_weights();
    engine_.device->synchronize();  // for operations of a GPU that only its streams have waited for
    engine_.groups.world().barrier();
    if (trace_) trace_->finish();
    if (ends_run() && state_.skipped_in_a_row > 0)
        console_.warn(
            fmt::format("the run ends with {} not finite and changed no weight: those of step {} may not be "
                        "finite themselves; the newest checkpoint with a finite step behind it is {}",
                        state_.skipped_in_a_row == 1 ? "a step that was"
                                                     : fmt::format("{} steps that were", state_.skipped_in_a_row),
                        state_.step, checkpoints_.proven().empty() ? "none" : checkpoints_.proven()));
    std::string sample_text;
    if (ends_run() && !outcome_.preempted && run_.log.sample_tokens > 0) {
        const auto sample = sample_of(engine_, *data_->tokenizer, [this] { return is_stop_asked(); });
        outcome_.preempted = is_stop_asked();  // then the next start writes the whole sample
        if (!outcome_.preempted) sample_text = sample.value_or("");
        if (!sample) console_.warn("no sample (log.sample_tokens): data.tokenizer is not that of the token files");
    }
    if (directory_) write_results(sample_text);
    if (first_rank() && unsaved.empty()) forget_starts(options_.out);
    check(unsaved.empty(), run_.place.number > 0 ? spec::stage_name(run_) : "the run", " ended at step ", state_.step,
          " and its last state is not on disk: ", unsaved,
          "; mend that or give it another checkpoint.dir, and start it again: it continues from ",
          checkpoints_.newest().empty() ? "the start" : checkpoints_.newest());
}

void Run::write_results(const std::string& sample_text) {
    directory_->write_totals(totals(sample_text));
    if (outcome_.preempted || !ends_run()) return;
    try {
        directory_->write_report(report::render_report(report::read_run(options_.out)));
        console_.text(concat("report: ", options_.out, "/report.html"));
    } catch (const DataError& error) {  // the run is done and its weights are on disk
        console_.warn(concat("no report.html: ", error.what()));
    }
}

// What is known of the run after the first step of this start, or, without one, of the start before.
Json Run::first_step() const {
    return first_step_.has_ended() ? first_step_.to_json(engine_, counts_, *peak_) : directory_->first_step();
}

std::string Run::totals(const std::string& sample_text) {
    Json json = first_step();
    json.update({{"steps", state_.step},
                 {"tokens", state_.tokens},
                 {"skipped", state_.skipped},
                 {"wall_s", state_.seconds},
                 {"seconds", report::to_json(clock_->spent(state_.seconds))},
                 {"time", unix_time()},
                 {"checkpoint", outcome_.checkpoint},
                 {"checkpoint_failures", checkpoints_.failures()},
                 {"preempted", outcome_.preempted}});
    if (engine_.tuning)
        json["gemm_tuning"] = {{"file", run_.train.gemm_tuning},
                               {"library", engine_.tuning->library},
                               {"products", engine_.tuning->products.size()},
                               {"missed", engine_.tuning->missed.size()}};
    if (const auto& times = engine_.attention.tuning)
        json["attention_tuning"] = {{"file", run_.train.attention_tuning},
                                    {"library", times->library},
                                    {"requests", times->requests.size()},
                                    {"missed", times->missed.size()}};
    if (std::isfinite(outcome_.loss)) json["final_loss"] = outcome_.loss;
    if (std::isfinite(outcome_.eval_loss)) json["eval_loss"] = outcome_.eval_loss;
    if (!sample_text.empty()) json["sample"] = sample_text;
    return json.dump(1, Json::InvalidUtf8::replace) + "\n";
}

// While the object lives, a stop request can tell the other ranks of `world`.
class Telling {
  public:
    Telling(comm::Stop* stop, comm::World& world) : stop_(stop) {
        if (stop_) stop_->set_tell([&world](const std::string& reason) { world.abort(reason); });
    }
    ~Telling() {
        if (stop_) stop_->set_tell(nullptr);
    }
    Telling(const Telling&) = delete;
    Telling& operator=(const Telling&) = delete;

  private:
    comm::Stop* stop_;
};

TrainOutcome train_stages(Session& session) {
    const TrainOptions& options = session.options;
    std::string resume = options.resume;
    int64_t step = session.stages.size() > 1 ? step_to_continue(session) : 0;
    for (;;) {
        TrainOutcome outcome = Run(session, spec::stage_at(session.stages, step + 1), resume).train();
        if (outcome.preempted || outcome.step >= options.run.train.steps) return outcome;
        step = outcome.step;
        resume = "auto";
    }
}

}  // namespace

TrainOutcome train(const TrainOptions& options) {
    check<UsageError>(!options.out.empty(), "a run needs a directory: give --out DIR");
    TrainOutcome outcome;
    SharedData data;
    comm::WorldOptions of_world = engine::world_options(options.run, options.out + "/flight");
    of_world.stop = options.stop;
    of_world.run_directory = options.out;
    comm::before_ranks_meet(options.launch, of_world, [&] { check_device(options.run.train.device); });
    comm::run(options.launch, options.ranks, of_world, [&](comm::World& world) {
        world.set_starting(true);
        // Ranks that are threads leave with the process.
        const Telling telling(options.launch.size > 1 ? options.stop : nullptr, world);
        check_same(*world.everyone("recipe"), recipe_of(options.run, options.out));
        Session session(options, world, data);
        const TrainOutcome of_rank = train_stages(session);
        if (world.rank() == 0 || options.launch.size > 1) outcome = of_rank;
    });
    return outcome;
}

}  // namespace tutti::train
