#include "tutti/infer/stored_model.h"

#include <algorithm>
#include <filesystem>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/checkpoint/digest.h"
#include "tutti/checkpoint/training_state.h"
#include "tutti/data/data_set.h"
#include "tutti/kernels/backends.h"
#include "tutti/parallel/apply.h"
#include "tutti/spec/families.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/hf/generation.h"
#include "tutti/spec/stages.h"
#include "tutti/spec/toml.h"

namespace tutti::infer {

namespace fs = std::filesystem;
using checkpoint::CheckpointReader;

namespace {

constexpr const char* kConfig = "config.json";

// "bytes", or the run's copy of its tokenizer, or the tokenizer that the run named; for weights alone, the tokenizer
// beside them; "": there is none.
std::string find_tokenizer(const std::string& named, const fs::path& run, const std::string& side_files) {
    if (named == "bytes") return named;
    if (named.empty()) return side_files.empty() || tokenizer_of_run(side_files).empty() ? "" : side_files;
    const std::string copy = tokenizer_of_run(run.string());
    return copy.empty() ? named : copy;
}

void use_directory(checkpoint::FileSystem& files, const std::string& path, ops::Context& ctx, int64_t longest,
                   const UseStored& use) {
    checkpoint::verify_sums(files, path);
    StoredModel stored{.hugging_face = true, .path = path, .side_files = path, .tokenizer = path};
    stored.run.model = spec::model_from_hf(path);
    models::Model model = models::make_model(ctx, stored.run.model, std::min(longest, stored.max_positions()));
    const auto weights = hf::StoredWeights::in_directory(files, path, model);
    use(stored, std::move(model), weights);
}

void use_checkpoint(const CheckpointReader& reader, const std::string& run, ops::Context& ctx, int64_t longest,
                    const UseStored& use) {
    StoredModel stored{.path = reader.path()};
    if (fs::exists(fs::path(run) / "hf" / kConfig)) stored.side_files = (fs::path(run) / "hf").string();
    checkpoint::PosixFileSystem files;
    for (const std::string& directory : {run, stored.side_files})
        if (!directory.empty()) checkpoint::verify_sums(files, directory);
    const auto state = Json::parse(reader.manifest().state);
    const auto stages = spec::stages_of(spec::parse_text(state.at("config").get<std::string>(), reader.path()));
    stored.run = stages[spec::stage_at(stages, reader.manifest().step)];
    stored.tokenizer = find_tokenizer(stored.run.data.tokenizer, run, stored.side_files);
    stored.step = reader.manifest().step;
    models::Model model = models::make_model(ctx, stored.run.model, std::min(longest, stored.max_positions()));
    const auto weights = hf::StoredWeights::in_checkpoint(reader, model);
    use(stored, std::move(model), weights);
}

// Sets this rank's part of each parameter. A second call, with an older checkpoint, reuses the groups.
void divide(models::Model& model, comm::World& world, std::unique_ptr<parallel::Groups>& groups) {
    spec::RunSpec run;
    run.model = model.spec();
    run.parallel.tp = world.size();
    if (const int64_t experts = run.model.moe.experts; experts > 0 && experts % world.size() == 0)
        run.parallel.ep = world.size();
    if (!groups) groups = std::make_unique<parallel::Groups>(world, parallel::make_mesh(run, world.size()));
    parallel::apply(model.parameters(), groups->mesh(), world.rank(), {&groups->over(mesh::kTp), false},
                    parallel::expert_parallel_of(*groups));
}

}  // namespace

// A run has both files only where tokenizer.model stands for a tokenizer.json that Tutti cannot read.
std::string tokenizer_of_run(const std::string& run) {
    for (const char* copy : {"tokenizer.model", "tokenizer.json"})
        if (fs::exists(fs::path(run) / copy)) return (fs::path(run) / copy).string();
    return "";
}

text::SpecialIds StoredModel::special_ids(const text::Tokenizer* by) const {
    text::SpecialIds ids;
    // "bytes" may stand in for an unknown tokenizer.
    if (by != nullptr && tokenizer != "bytes") ids = by->special();
    std::vector<int32_t> of_files;
    for (const char* name : {"generation_config.json", kConfig}) {
        const std::string file = side_files + "/" + name;
        const auto text = side_files.empty() || !of_files.empty() ? std::nullopt : read_file_if_there(file);
        if (text) of_files = spec::eos_tokens(*text, file);
    }
    ids.stop.insert(ids.stop.begin(), of_files.begin(), of_files.end());
    if (by != nullptr && !run.data.eod.empty())
        ids.stop.push_back(*data::end_of_document(run.data.eod, *by, run.model.vocab));
    return ids;
}

std::string StoredModel::unsupported_generation_options() const {
    const std::string file = side_files + "/generation_config.json";
    const auto text = side_files.empty() ? std::nullopt : read_file_if_there(file);
    return text ? spec::unsupported_generation_options(*text, file) : "";
}

CheckpointPlace find_checkpoint(const std::string& path_text) {
    const fs::path path = path_text;
    check<DataError>(fs::is_directory(path), path_text, fs::exists(path) ? " is not a directory" : " does not exist",
                     "; give a run directory, a checkpoint or a Hugging Face directory");
    if (fs::exists(path / checkpoint::kManifestName)) {
        const fs::path checkpoints = fs::absolute(path / "").parent_path().parent_path();
        return {{}, path_text, checkpoints.parent_path().string()};
    }
    if (fs::is_directory(path / "checkpoints")) return {(path / "checkpoints").string(), {}, path_text};
    return {path_text, {}, fs::absolute(path / "").parent_path().parent_path().string()};
}

void open_stored_model(const std::string& path, ops::Context& ctx, int64_t longest, checkpoint::OnDamage on_damage,
                       const checkpoint::Warn& warn, const UseStored& use) {
    checkpoint::PosixFileSystem files;
    if (fs::exists(fs::path(path) / kConfig)) return use_directory(files, path, ctx, longest, use);
    const CheckpointPlace place = find_checkpoint(path);
    const auto load = [&](const CheckpointReader& reader) { use_checkpoint(reader, place.run, ctx, longest, use); };
    if (!place.step_path.empty()) {
        const std::string parent = fs::path(place.step_path).parent_path().string();
        checkpoint::Store(files, parent.empty() ? "." : parent, checkpoint::Access::read, warn)
            .load(place.step_path, load);
        return;
    }
    const auto newest =
        checkpoint::Store(files, place.directory, checkpoint::Access::read, warn).load_newest(load, on_damage);
    check<DataError>(newest.has_value(), path, " holds no checkpoint and no ", kConfig);
}

LoadedModel load_model(const std::string& path, const LoadOptions& options) {
    check<UsageError>(options.threads >= 0, "load_model: threads = ", options.threads, ": must be at least 0");
    check<UsageError>(options.longest >= 1, "load_model: longest = ", options.longest, ": must be at least 1");
    const auto asked = dtype_from(options.compute);
    check<UsageError>(options.compute == "auto" || (asked && is_compute_dtype(*asked)),
                      "load_model: compute = ", options.compute, ": must be auto, f32, bf16 or f16");
    LoadedModel loaded;
    loaded.device = make_device(options.device, options.threads, options.local);
    const kernels::KernelTable& table = kernels::table_for(*loaded.device, ComputeType::f32);  // or of 16 bits
    loaded.ctx = std::make_unique<ops::Context>(ops::Context{*loaded.device, table});
    const auto load = [&](const StoredModel& stored, models::Model model, const hf::StoredWeights& weights) {
        check<UsageError>(spec::traits_of(stored.run.model).tokens, stored.path, ": an mlp generates no text");
        loaded.compute = asked                 ? *asked
                         : stored.hugging_face ? weights.main_dtype(model)
                                               : spec::compute_dtype(stored.run);
        if (options.world && options.world->size() > 1) divide(model, *options.world, loaded.groups);
        models::allocate(*loaded.ctx, model, loaded.compute, false);
        weights.load(*loaded.ctx, model);
        loaded.model = std::make_unique<models::Model>(std::move(model));
        loaded.max_positions = std::min(options.longest, stored.max_positions());
        loaded.stored = stored;
    };
    // Several ranks might fall back to different checkpoints, and would then hold parts of different models.
    const bool alone = !options.world || options.world->size() == 1;
    const auto on_damage = alone ? checkpoint::OnDamage::fall_back : checkpoint::OnDamage::stop;
    open_stored_model(path, *loaded.ctx, options.longest, on_damage, options.warn, load);
    return loaded;
}

}  // namespace tutti::infer
