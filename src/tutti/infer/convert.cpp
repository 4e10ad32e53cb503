#include "tutti/infer/convert.h"

#include <filesystem>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/checkpoint/file_writer.h"
#include "tutti/checkpoint/training_state.h"
#include "tutti/hf/export.h"
#include "tutti/infer/stored_model.h"
#include "tutti/models/flops.h"
#include "tutti/spec/families.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/hf/generation.h"
#include "tutti/spec/toml.h"
#include "tutti/text/tokenizer.h"
#include "tutti/text/tokenizer_json.h"

namespace tutti::infer {

namespace fs = std::filesystem;

namespace {

using checkpoint::FileSystem;
using checkpoint::join;

// The special tokens of the run, which the files of the model that it started from may lack. The run's tokenizer may be
// missing: weights do not need it.
spec::HfTokens hf_tokens_of(const StoredModel& stored) {
    if (stored.hugging_face || !spec::traits_of(stored.run.model).tokens) return {};
    const bool there = fs::exists(stored.tokenizer);
    const auto tokenizer = text::make_tokenizer(there ? stored.tokenizer : "bytes");
    const text::SpecialIds ids = stored.special_ids(tokenizer.get());
    return {.bos = ids.bos, .pad = ids.pad, .eos = ids.stop};
}

// Whether AutoTokenizer of transformers (5.24) makes other ids of the tokenizer.json in `directory` than the file says.
bool replaces_tokenizer(const std::string& directory) {
    const std::string tokenizer = join(directory, "tokenizer.json");
    if (!fs::exists(tokenizer)) return false;
    const Json config = Json::parse(read_file(join(directory, "config.json")));
    if (!config.contains("model_type") || config["model_type"] != "qwen2") return false;
    if (text::is_of_sentencepiece(tokenizer)) return true;
    const text::ByteLevelModel model = text::parse_tokenizer_json(read_file(tokenizer), tokenizer);
    return model.split != text::SplitKind::qwen || !model.nfc;
}

// The config that a checkpoint of weights carries: the model's, with the longest context as the sequence length.
spec::RunSpec weights_config(const StoredModel& stored, DType dtype) {
    spec::RunSpec run = stored.run;
    run.model.preset.clear();
    run.model.hf.clear();
    if (!stored.hugging_face) return run;
    run.train.seq_len = stored.max_positions();
    run.precision.compute = name_of(dtype);
    run.data.tokenizer.clear();  // the side files are its tokenizer
    return run;
}

std::vector<std::string> write_tutti(FileSystem& disk, const std::string& directory, const StoredModel& stored,
                                     const models::Model& model, const hf::StoredWeights& weights,
                                     const ConvertOptions& options, hf::Losses& losses) {
    const DType main = options.dtype.value_or(weights.main_dtype(model));
    const std::string config = spec::to_toml(weights_config(stored, main));
    std::vector<std::byte> bytes;  // of the tensor that is being written
    std::vector<checkpoint::TensorToWrite> tensors;
    for (const autograd::Parameter* p : model.parameters()) {
        const DType dtype = options.dtype.value_or(weights.dtype(p->name));
        const auto make = [&bytes, &weights, &losses, &options, p, dtype] {
            if (options.between_tensors) options.between_tensors();
            bytes = weights.read(*p, dtype, losses);
            return std::span<const std::byte>(bytes);
        };
        tensors.push_back(
            {p->name, dtype, {p->shape.begin(), p->shape.end()}, {p->shape.numel() * size_of(dtype), make}});
    }
    checkpoint::Snapshot snapshot{.step = stored.step, .config_digest = {}, .data_fingerprint = {}, .state = {}};
    snapshot.files.push_back(checkpoint::safetensors_file(checkpoint::rank_file_name(0, 1), std::move(tensors)));
    snapshot.state = Json{{"weights_only", true}, {"config", config}}.dump();
    checkpoint::Store(disk, join(directory, "checkpoints"), checkpoint::Access::write, [](const std::string&) {
    }).save(snapshot);
    checkpoint::write_file_atomically(disk, directory, {.name = "config.toml", .head = config});
    std::vector<std::string> files = {"config.toml", "checkpoints"};
    if (!stored.side_files.empty()) {
        hf::copy_side_files(disk, stored.side_files, join(directory, "hf"), options.dtype);
        files.emplace_back("hf");
    }
    return files;
}

}  // namespace

ConvertOutcome convert(const ConvertOptions& options) {
    check<UsageError>(options.format.empty() || options.format == "hf" || options.format == "tutti",
                      "format = ", options.format, ": must be hf, tutti or empty");
    check<UsageError>(!options.max_shard_bytes || *options.max_shard_bytes > 0,
                      "the size of a shard must be positive, got ", options.max_shard_bytes.value_or(0));
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::reference_table()};  // nothing is computed
    checkpoint::PosixFileSystem disk;
    ConvertOutcome outcome;
    const auto write = [&](const StoredModel& stored, const models::Model& model, const hf::StoredWeights& weights) {
        if (stored.hugging_face) stored.special_ids(nullptr);  // refuses ids that `tutti generate` would refuse
        outcome.from = stored.path;
        outcome.step = stored.step;
        outcome.parameters = models::parameter_count(model);
        outcome.format = !options.format.empty() ? options.format : stored.hugging_face ? "tutti" : "hf";
        check<UsageError>(!options.max_shard_bytes || outcome.format == "hf",
                          "--max-shard-size is of Hugging Face files; weights of --format tutti are one file");
        const std::string to = checkpoint::without_slashes(options.to);
        std::error_code missing;
        const bool link = fs::is_symlink(to, missing) && fs::is_directory(to, missing);  // stays
        checkpoint::NewDirectory target(disk, link ? fs::canonical(to).string() : to);
        if (outcome.format == "tutti") {
            outcome.files = write_tutti(disk, target.temporary(), stored, model, weights, options, outcome.losses);
        } else {
            hf::ExportOptions as_hf{.dtype = options.dtype,
                                    .side_files = stored.side_files,
                                    .tokenizer = stored.hugging_face ? "" : stored.tokenizer,
                                    .tokens = hf_tokens_of(stored),
                                    .between_tensors = options.between_tensors};
            // With 256 ids the tokens are bytes; with another vocabulary data.tokenizer may never have been used.
            const bool bytes = stored.tokenizer == "bytes" && spec::traits_of(stored.run.model).tokens;
            if (bytes && stored.run.model.vocab == 256)
                as_hf.tokenizer_json = text::tokenizer_json_of_bytes();
            else if (bytes)
                outcome.warnings.push_back(concat(
                    "no tokenizer is written: data.tokenizer = \"bytes\" has 256 ids and the model ",
                    stored.run.model.vocab, "; copy the tokenizer of its ids into ", options.to, ", if it has one"));
            if (options.max_shard_bytes) as_hf.max_shard_bytes = *options.max_shard_bytes;
            outcome.files = hf::write_directory(disk, target.temporary(), model, weights, as_hf, outcome.losses);
            if (!stored.hugging_face && replaces_tokenizer(target.temporary()))
                outcome.warnings.emplace_back(
                    "transformers takes Qwen2Tokenizer for a config.json of qwen2, whatever class is named; it splits "
                    "texts by another pattern than the tokenizer of this run, and gives other ids: use "
                    "PreTrainedTokenizerFast(tokenizer_file=\"tokenizer.json\") in place of AutoTokenizer");
        }
        check<DataError>(
            !hf::any_infinite(outcome.losses) || options.allow_loss, stored.path, " has values that do not fit ",
            options.dtype.value_or(DType::f32), ":", hf::describe(outcome.losses),
            "\n--dtype f32 keeps them, and bf16 nearly always; --allow-loss writes infinity in their place");
        target.commit();
    };
    open_stored_model(
        options.from, ctx, 1, checkpoint::OnDamage::stop, [](const std::string&) {}, write);
    return outcome;
}

}  // namespace tutti::infer
