#include "tutti/train/checkpointing.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tutti/ops/ops.h"
#include "tutti/spec/print.h"

namespace tutti::train {

using checkpoint::CheckpointReader;
using checkpoint::HostCopy;
using checkpoint::OnDamage;
using checkpoint::Snapshot;

namespace {

std::set<std::string> lines_of(const std::string& text) {
    std::set<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.insert(line);
    return lines;
}

}  // namespace

std::string run_identity(const spec::RunSpec& run) {
    static const std::set<std::string, std::less<>> kKeys = {"seed", "seq_len", "global_batch", "compute", "name"};
    static const std::set<std::string, std::less<>> kLaterModelKeys = {"qkv_bias",
                                                                       "output_bias",
                                                                       "mlp_bias",
                                                                       "head_norm",
                                                                       "window",
                                                                       "rope_scaling.type",
                                                                       "rope_scaling.beta_fast",
                                                                       "rope_scaling.beta_slow",
                                                                       "rope_scaling.attention_factor"};
    const std::set<std::string> unchanged = lines_of(spec::to_toml(spec::RunSpec{}));
    std::istringstream toml(spec::to_toml(run));
    std::string section, identity;
    for (std::string line; std::getline(toml, line);) {
        if (line.starts_with("[")) {
            section = line.substr(1, line.find(']') - 1);
            continue;
        }
        const size_t equals = line.find('=');
        if (equals == std::string::npos) continue;
        const std::string key = line.substr(0, line.find_last_not_of(' ', equals - 1) + 1);
        // Keys that are as they always were are left out: older checkpoints do not name them.
        const bool documents = section == "data" && ((key == "documents" && run.data.documents != "packed") ||
                                                     (key == "eod" && !run.data.eod.empty()));
        const bool model = section.starts_with("model") && key != "preset" && key != "hf" &&
                           !(kLaterModelKeys.contains(key) && unchanged.contains(line));
        const bool fixed = model || (kKeys.contains(key) && section != "checkpoint");
        if (fixed || documents) identity += section + "." + key + " " + line.substr(equals) + "\n";
    }
    return identity;
}

namespace {

// "model.width = 128 (checkpoint: model.width = 64)", one line per difference.
std::string differences(const std::string& now, const std::string& then) {
    const auto a = lines_of(now), b = lines_of(then);
    std::string text;
    for (const std::string& line : a)
        if (!b.contains(line)) text += "\n  this run:   " + line;
    for (const std::string& line : b)
        if (!a.contains(line)) text += "\n  checkpoint: " + line;
    return text;
}

}  // namespace

Checkpointing::Checkpointing(ops::Context& ctx, models::Model& model, optim::Optimizer& optimizer,
                             const spec::RunSpec& run, std::string directory, std::string data_fingerprint, Warn warn)
    : ctx_(ctx),
      model_(model),
      optimizer_(optimizer),
      run_(run),
      directory_(std::move(directory)),
      data_fingerprint_(std::move(data_fingerprint)),
      warn_(std::move(warn)),
      files_(std::make_unique<checkpoint::PosixFileSystem>()),
      store_(std::make_unique<checkpoint::Store>(*files_, directory_, checkpoint::Access::write, warn_)),
      writer_(std::make_unique<checkpoint::AsyncWriter>([this](const std::string& error) { report(error); })) {}

Checkpointing::~Checkpointing() = default;

std::vector<NamedTensor> Checkpointing::tensors() const {
    std::vector<NamedTensor> all;
    for (const autograd::Parameter* p : model_.parameters()) all.push_back({p->name, p->master});
    for (NamedTensor& moment : optimizer_.state()) all.push_back(std::move(moment));
    return all;
}

RunState Checkpointing::restore(const CheckpointReader& reader) {
    const checkpoint::Manifest& manifest = reader.manifest();
    const auto json = nlohmann::json::parse(manifest.state);
    check<UsageError>(
        json.contains("identity"), reader.path(),
        " holds weights only, no optimizer state; it cannot be resumed. Start a run from it: `tutti convert` "
        "it to a Hugging Face directory and name that in [model] hf, with another --out");
    const std::string now = run_identity(run_), then = json.at("identity");
    check<UsageError>(now == then, reader.path(), " belongs to another run; these differ:", differences(now, then),
                      "\nUse another --out to start anew, or the config of that run");
    check<DataError>(manifest.data_fingerprint == data_fingerprint_, reader.path(),
                     ": the training data is not what this run was trained on (fingerprint ", data_fingerprint_,
                     ", was ", manifest.data_fingerprint, "); use the same files, or another --out");
    checkpoint::load_tensors(reader, tensors(), true);
    for (autograd::Parameter* p : model_.parameters())
        if (p->value.dtype() != DType::f32) ops::cast_into(ctx_, p->master, p->value);
    RunState state;
    state.step = manifest.step;
    state.updates = json.at("updates");
    state.tokens = json.at("tokens");
    state.skipped = json.at("skipped");
    state.skipped_in_a_row = json.at("skipped_in_a_row");
    state.seconds = json.at("seconds");
    optimizer_.set_updates(state.updates);
    return state;
}

std::optional<RunState> Checkpointing::resume(const std::string& mode) {
    if (mode == "never") {
        check<UsageError>(store_->list().empty(), directory_,
                          " holds checkpoints of an earlier run and --resume is never; "
                          "choose another --out, or --resume auto");
        return std::nullopt;
    }
    std::optional<RunState> state;
    const auto load = [&](const CheckpointReader& reader) { state = restore(reader); };
    if (mode == "auto" || mode == "strict") {
        const auto loaded = store_->load_newest(load, mode == "strict" ? OnDamage::stop : OnDamage::fall_back);
        if (loaded) newest_ = loaded->path;
        check<DataError>(loaded || mode == "auto", directory_, " holds no checkpoint and --resume is strict");
        return state;
    }
    newest_ = store_->load(mode, load).path;
    store_->set_aside_newer(state->step);
    return state;
}

void Checkpointing::start(const RunState& state, bool background) {
    auto copy = std::make_shared<const HostCopy>(tensors());
    Snapshot snapshot{.step = state.step,
                      .files = {copy->file(0, 1)},
                      .config_digest = {},
                      .data_fingerprint = data_fingerprint_,
                      .state = {}};
    snapshot.state =
        nlohmann::ordered_json{{"identity", run_identity(run_)}, {"config", spec::to_toml(run_)},
                               {"updates", state.updates},       {"tokens", state.tokens},
                               {"skipped", state.skipped},       {"skipped_in_a_row", state.skipped_in_a_row},
                               {"seconds", state.seconds}}
            .dump();
    auto job = [this, copy, snapshot = std::move(snapshot)] {
        written_ = store_->save(snapshot);
        store_->prune(run_.checkpoint.keep);
    };
    writer_->submit(std::move(job));  // waits for the one before: a checkpoint that was asked for is never left out
    if (!background) wait();
}

void Checkpointing::save(const RunState& state) { start(state, run_.checkpoint.async); }

void Checkpointing::save_and_wait(const RunState& state) { start(state, false); }

void Checkpointing::wait() {
    writer_->wait();
    poll();
}

void Checkpointing::poll() {
    while (const auto error = writer_->poll_error()) report(*error);
    if (!writer_->busy() && !written_.empty()) newest_ = std::exchange(written_, {});
}

void Checkpointing::report(const std::string& error) {
    ++failures_;
    warn_(concat("a checkpoint could not be written: ", error, "; training goes on, the last good one is ",
                 newest_.empty() ? "none yet" : newest_));
}

}  // namespace tutti::train
