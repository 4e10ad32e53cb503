#include "tutti/train/checkpointing.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <sstream>
#include <thread>

#include "tutti/base/json.h"
#include "tutti/base/strings.h"
#include "tutti/engine/engine.h"
#include "tutti/spec/identity.h"
#include "tutti/spec/stages.h"
#include "tutti/spec/toml.h"
#include "tutti/train/memory_copies.h"
#include "tutti/train/stored_types.h"

namespace tutti::train {

using checkpoint::CheckpointReader;
using checkpoint::DamagedError;
using checkpoint::HostMemory;
using checkpoint::HostState;
using checkpoint::IoError;
using checkpoint::Manifest;
using checkpoint::OnDamage;

namespace {

std::set<std::string> lines_of(const std::string& text) {
    std::set<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.insert(line);
    return lines;
}

std::string lines(const std::vector<std::string>& texts) {
    std::string all;
    for (const std::string& text : texts) all += text + "\n";
    return all;
}

// A line that all of these texts have, or "".
std::string common_line(const std::vector<std::string>& texts) {
    std::set<std::string> common = lines_of(texts.front());
    for (const std::string& text : texts) {
        const auto others = lines_of(text);
        std::erase_if(common, [&](const std::string& line) { return !others.contains(line); });
    }
    return common.empty() ? "" : *common.begin();
}

}  // namespace

std::vector<checkpoint::TensorSlice> state_slices(const engine::Engine& engine) {
    std::vector<checkpoint::TensorSlice> slices;
    for (optim::StateTensor& s : engine.optimizer.state())
        slices.push_back({std::move(s.name), s.shape, std::move(s.blocks), s.values, s.owned});
    if (engine.scales)  // equal on all ranks
        for (const nn::DelayedScales::State& s : engine.scales->state())
            slices.push_back({s.name, s.values.shape(), mesh::whole_part(s.values.shape()).blocks, s.values,
                              engine.groups.rank() == 0});
    return slices;
}

std::string checkpoint_directory(const spec::RunSpec& run, const std::string& out) {
    return run.checkpoint.dir.empty() ? out + "/checkpoints" : run.checkpoint.dir;
}

int64_t newest_step(const std::string& directory) {
    checkpoint::PosixFileSystem files;
    const auto stored = checkpoint::Store(files, directory, checkpoint::Access::read, [](const std::string&) {}).list();
    return stored.empty() ? 0 : stored.front().step;
}

Checkpointing::Checkpointing(Setup setup)
    : setup_(std::move(setup)), files_(setup_.files != nullptr ? *setup_.files : own_files_) {
    const Agreement opened = agree([&] {
        if (rank() != 0) return std::string();
        store_ = std::make_unique<checkpoint::Store>(files_, setup_.directory, checkpoint::Access::write, setup_.warn);
        store_->set_fence(setup_.fence);
        return std::string();
    });
    if (opened.failure) opened.failure->raise();
    comm::Communicator* all = alone() ? nullptr : setup_.ranks;
    save_ = std::make_unique<JointSave>(all, [this](const std::string& error) { report(error); });
    copy_ = std::make_unique<JointSave>(all, [](const std::string&) {});  // the copy before is good
}

Checkpointing::~Checkpointing() = default;

Agreement Checkpointing::agree(const std::function<std::string()>& body) const {
    return train::agree(alone() ? nullptr : setup_.ranks, body);
}

// --- resuming: rank 0 names a checkpoint, all load their part of it and report the outcome, until one is good

RunState state_of(const CheckpointReader& reader) {
    const auto json = Json::parse(reader.manifest().state);
    check<UsageError>(
        json.contains("identity"), reader.path(),
        " holds weights only, no optimizer state; it cannot be resumed. To start a run from it, `tutti convert` "
        "it to a Hugging Face directory and name that in [model] hf, with another --out");
    RunState state;
    state.step = reader.manifest().step;
    state.updates = json.at("updates").get<int64_t>();
    state.tokens = json.at("tokens").get<int64_t>();
    state.skipped = json.at("skipped").get<int64_t>();
    state.skipped_in_a_row = json.at("skipped_in_a_row").get<int64_t>();
    state.seconds = json.at("seconds").get<double>();
    state.config = json.value("config", "");
    state.identity = json.at("identity").text();
    if (const Json* scale = json.find("loss_scale"))
        state.loss_scale = {.value = scale->at("value").get<double>(),
                            .good = scale->at("good").get<int64_t>(),
                            .hysteresis = scale->at("hysteresis").get<int64_t>()};
    return state;
}

// The run, or its stage, that made step `step`.
spec::RunSpec Checkpointing::run_at(int64_t step) const {
    const std::vector<spec::RunSpec> stages = spec::stages_of(setup_.run);
    return stages[spec::stage_at(stages, step)];
}

RunState Checkpointing::load(const CheckpointReader& reader, const std::vector<checkpoint::TensorSlice>& slices) {
    const Manifest& manifest = reader.manifest();
    RunState state = state_of(reader);
    const auto differing = spec::identity_problems(run_at(state.step), state.identity);
    check<UsageError>(
        differing.empty(), reader.path(), " belongs to another run; these keys differ:\n  ", joined(differing, "\n  "),
        "\nUse another --out to start anew, or the config of that run. To go on from these weights with another "
        "batch, length or optimizer: `tutti convert --from ",
        quoted_for_shell(reader.path()), " --to DIR --format hf`, then model.hf = DIR and another --out");
    const std::string fingerprint = setup_.data_fingerprint(state.step);
    // Earlier versions compared the tokens alone.
    const bool is_same =
        manifest.data_fingerprint == fingerprint || fingerprint.starts_with(manifest.data_fingerprint + "-");
    check<DataError>(is_same, reader.path(), ": the training data is not what this run was trained on (fingerprint ",
                     fingerprint, ", was ", manifest.data_fingerprint,
                     "): its tokens, its loss mask or the beginnings of its documents are others; use the same files, "
                     "or another --out");
    load_converted(reader, slices);
    return state;
}

// The texts of the result are the tensors that a rank has no slice of. `reader` null: this rank opens the checkpoint.
Agreement Checkpointing::load_together(const std::string& word, const CheckpointReader* reader, RunState& state) {
    std::optional<CheckpointReader> opened;
    const auto open = [&] {
        if (reader == nullptr && MemoryCopies::is_word(word))
            reader = &opened.emplace(setup_.memory->source(word));
        else if (reader == nullptr)
            reader = &opened.emplace(files_, word);
        resumed_from_ = reader->path();
    };
    // Where there is no checkpoint on disk, the first weights must be as they were when a copy proves damaged.
    has_touched_ = false;
    if (MemoryCopies::is_word(word)) {
        const Agreement sound = agree([&] {
            open();
            reader->verify_share(rank(), ranks());
            return std::string();
        });
        if (sound.failure) return sound;
    }
    has_touched_ = true;
    std::vector<std::string> anew;
    Agreement loaded = agree([&] {
        open();
        const auto slices = setup_.slices();
        state = load(*reader, slices);
        reader->verify_share(rank(), ranks());
        anew = begun_anew(*reader, slices);
        return lines(left_over(*reader, slices));
    });
    if (loaded.failure) return loaded;
    const Agreement named = agree([&] { return anew.empty() ? std::string() : anew.front(); });
    const auto any = std::find_if(named.texts.begin(), named.texts.end(), [](const auto& text) { return text != ""; });
    if (rank() == 0 && any != named.texts.end())
        setup_.warn(concat(reader->path(), " has Muon's momentum for ", *any,
                           " and other taps of convolutions: AdamW updates them now, and begins with moments of 0"));
    return loaded;
}

std::optional<RunState> Checkpointing::follow() {
    std::optional<RunState> state;
    for (;;) {
        const Agreement word = agree([] { return std::string(); });
        if (word.failure) Failure{word.failure->kind, word.failure->message, ""}.raise();  // as rank 0 raises it
        if (word.texts.front().empty()) return state;
        word_ = word.texts.front();
        // Rank 0 decides after a failure: its next message names an older checkpoint, or the error.
        if (load_together(word_, nullptr, state.emplace()).failure) state.reset();
    }
}

void Checkpointing::choose(const std::string& mode, const checkpoint::LoadInto& load_into) {
    if (mode == "never") {
        check<UsageError>(store_->list().empty(), setup_.directory,
                          " holds checkpoints of an earlier run and --resume is never; "
                          "choose another --out, or --resume auto");
    } else if (mode == "auto" || mode == "strict") {
        const auto loaded = store_->load_newest(load_into, mode == "strict" ? OnDamage::stop : OnDamage::fall_back);
        check<DataError>(loaded || mode == "auto", setup_.directory, " holds no checkpoint and --resume is strict");
    } else {
        store_->set_aside_newer(store_->load(mode, load_into).manifest.step);
    }
}

// Copies that are newer than every checkpoint on disk, the newest first. False where none can be loaded.
bool Checkpointing::choose_in_memory(const std::function<void(const CheckpointReader&, const std::string&)>& load) {
    if (setup_.memory == nullptr) return false;
    const auto stored = store_->list();
    const int64_t on_disk = stored.empty() ? 0 : stored.front().step;
    while (const auto source = setup_.memory->next_after(on_disk, setup_.warn)) {
        try {
            load(CheckpointReader(source), setup_.memory->word());
            return true;
        } catch (const DamagedError& error) {
            check(!has_touched_ || on_disk > 0, source->path(), " could be loaded in part only: ", error.what(),
                  "; there is no checkpoint on disk, and a new start finds what is left");
            setup_.warn(concat(source->path(), " is passed over: ", error.what()));
        }
    }
    return false;
}

std::optional<RunState> Checkpointing::resume(const std::string& mode) {
    const std::optional<RunState> state = rank() == 0 ? lead(mode) : follow();
    from_memory_ = state && MemoryCopies::is_word(word_);
    if (setup_.memory != nullptr) setup_.memory->continue_from(from_memory_ ? word_ : "");
    if (!state || from_memory_) return state;
    newest_ = word_;
    saved_step_ = state->step;
    return state;
}

std::optional<RunState> Checkpointing::lead(const std::string& mode) {
    std::optional<RunState> state;
    const auto load = [&](const CheckpointReader& reader, const std::string& word) {
        word_ = word;
        agree([&] { return word; });
        const Agreement loaded = load_together(word, &reader, state.emplace());
        if (loaded.failure) {
            state.reset();
            loaded.failure->raise();
        }
        const std::string unwanted = common_line(loaded.texts);
        check<DataError>(unwanted.empty(), reader.path(), ": holds ", unwanted,
                         ", which this run does not have; was it another optimizer or model?");
    };
    try {
        const bool any = mode == "auto" || mode == "strict";
        if (!any || !choose_in_memory(load))
            choose(mode, [&](const CheckpointReader& reader) { load(reader, reader.path()); });
    } catch (const std::exception&) {
        if (!alone()) agree([]() -> std::string { throw; });
        throw;
    }
    agree([] { return std::string(); });  // no more
    return state;
}

// --- saving: stages that all ranks go through together

void Checkpointing::start(const RunState& state, bool background) {
    wait_for_save();  // a requested checkpoint is never left out
    saving_step_ = state.step;
    // Without a background the step loop waits, so the weights stand still while they are written.
    auto held = std::make_shared<const HostState>(setup_.slices(), background ? HostMemory::copy : HostMemory::borrow);
    Manifest manifest = part_of(state, *held);
    save_->start(work(std::move(held), std::move(manifest)));
    if (!background) wait_for_save();
}

JointSave::Work Checkpointing::work(std::shared_ptr<const HostState> held, Manifest part) {
    return {.begin =
                [this, step = part.step] {
                    attempt_ = {};
                    attempt_ = store_->begin(step);
                    return attempt_.path;
                },
            .write =
                [this, held = std::move(held), part = std::move(part)](const std::string& directory) {
                    return write_part(files_, directory, held->file(rank(), ranks()), part);
                },
            .commit =
                [this, pinned = proven_](const std::vector<std::string>& parts) {
                    const std::string path = store_->commit(attempt_, merge_parts(parts));
                    prune(setup_.run.checkpoint.keep, pinned);
                    return path;
                }};
}

Manifest Checkpointing::part_of(const RunState& state, const HostState& held) const {
    return {.step = state.step,
            .config_digest = {},
            .data_fingerprint = setup_.data_fingerprint(state.step),
            .state = state_json(state),
            .files = {},
            .tensors = held.tensors()};
}

void Checkpointing::copy(const RunState& state) {
    if (setup_.memory == nullptr) return;
    wait_for_copy();
    copying_step_ = state.step;
    const bool beside = setup_.run.checkpoint.async;
    if (copied_)
        copied_->update(setup_.slices());
    else
        copied_ = std::make_shared<HostState>(setup_.slices(), beside ? HostMemory::copy : HostMemory::borrow);
    copy_->start(setup_.memory->work(rank(), ranks(), copied_, part_of(state, *copied_)));
    if (!beside) wait_for_copy();
}

void Checkpointing::poll_copy() {
    const auto ended = copy_->poll();
    if (!ended) return;
    const std::string failure = setup_.memory->end(copying_step_, *ended, rank());
    const bool failed_before = std::exchange(copy_failed_, !failure.empty());
    if (store_ && failed_before && failure.empty())
        setup_.warn(concat("the state is copied in memory again, at step ", copying_step_));
    if (store_ && !failed_before && !failure.empty())
        setup_.warn(concat("the state of step ", copying_step_, " could not be copied in memory: ", failure,
                           "; training continues, the last good copy is of step ", setup_.memory->saved_step(),
                           "; later failures are not said one by one"));
}

std::string Checkpointing::state_json(const RunState& state) const {
    Json json = {{"identity", spec::identity_of(run_at(state.step))},
                 {"config", spec::to_toml(setup_.run)},
                 {"updates", state.updates},
                 {"tokens", state.tokens},
                 {"skipped", state.skipped},
                 {"skipped_in_a_row", state.skipped_in_a_row},
                 {"seconds", state.seconds}};
    if (setup_.memory != nullptr) json["generation"] = setup_.memory->generation();
    if (const auto& scale = state.loss_scale)
        json["loss_scale"] = {{"value", scale->value}, {"good", scale->good}, {"hysteresis", scale->hysteresis}};
    return json.dump();
}

void Checkpointing::prune(int64_t keep, const std::string& pinned) {
    try {
        store_->prune(keep, pinned);
    } catch (const DataError& error) {  // the new checkpoint is good
        setup_.warn(concat("older checkpoints could not be deleted: ", error.what()));
    }
}

void Checkpointing::saw_finite_step(int64_t step) {
    if (saved_step_ < step) proven_ = newest_;
}

void Checkpointing::save(const RunState& state) { start(state, setup_.run.checkpoint.async); }

// All ranks try equally often, by no clock: they must agree on when to give up.
std::string Checkpointing::save_last(const RunState& state, double seconds, const std::function<bool()>& stop) {
    wait();
    if (saved_step_ == state.step && state.step > 0) {
        // A start before may have been killed between this save and the pruning. Without a step since then it is not
        // known whether these weights are sound, so the checkpoint before them stays.
        if (store_)
            prune(proven_.empty() ? std::max<int64_t>(2, setup_.run.checkpoint.keep) : setup_.run.checkpoint.keep,
                  proven_);
        return "";
    }
    const double pause = std::clamp(seconds / 10, 0.01, 10.0);
    last_ = true;
    bool stopped = false;
    for (double waited = 0;; waited += pause) {
        start(state, false);
        if (failure_.empty() || stopped || waited + pause > seconds) break;
        if (store_) {
            prune(std::max<int64_t>(1, setup_.run.checkpoint.keep - 1), proven_);
            setup_.warn(
                fmt::format("the last state of the run (step {}) is not on disk: {}. The run tries again for "
                            "{:.0f} s (checkpoint.last_wait_s) or until a signal, then once more",
                            state.step, failure_, seconds - waited));
        }
        const int looks = static_cast<int>(std::ceil(pause / 0.1));
        for (int look = 0; look < looks && !stopped; ++look) {
            std::this_thread::sleep_for(std::chrono::duration<double>(pause / looks));
            stopped = stop();
        }
    }
    last_ = false;
    return failure_;
}

void Checkpointing::poll() {
    poll_save();
    poll_copy();
}

void Checkpointing::poll_save() {
    const auto ended = save_->poll();
    if (!ended) return;
    if (!ended->failure) {
        newest_ = ended->texts.front();
        saved_step_ = saving_step_;
    }
    end_save(ended->failure);
}

void Checkpointing::wait_for_save() {
    for (poll_save(); !save_->idle(); poll_save()) save_->rest();
}

void Checkpointing::wait_for_copy() {
    for (poll_copy(); !copy_->idle(); poll_copy()) copy_->rest();
}

void Checkpointing::wait() {
    wait_for_save();
    wait_for_copy();
}

void Checkpointing::end_save(const std::optional<Failure>& failure) {
    failure_ = failure ? failure->text() : "";
    if (!failure) return;
    if (store_) {
        store_->abandon(attempt_);
        setup_.fence();  // a run that goes on elsewhere ends here
    }
    report(failure->text());
}

void Checkpointing::report(const std::string& error) {
    ++failures_;
    if (store_ && !last_)
        setup_.warn(concat("a checkpoint could not be written: ", error, "; training continues, the last good one is ",
                           newest_.empty() || files_.kind(newest_) == checkpoint::FileKind::none ? "none" : newest_));
}

}  // namespace tutti::train
