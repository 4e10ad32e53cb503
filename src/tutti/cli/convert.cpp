// cli/convert.cpp: `tutti convert`. Weights from one place and format to another.
#include "tutti/infer/convert.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/cli/command.h"
#include "tutti/cli/stop_signals.h"

namespace tutti::cli {

namespace {

struct ConvertArguments {
    std::string from, to, format, dtype;  // format, dtype "": see infer/convert.h
    std::optional<int64_t> max_shard_size;
    bool allow_loss = false;
};

int convert(const ConvertArguments& arguments, const Io& io) {
    infer::ConvertOptions options{.from = arguments.from,
                                  .to = arguments.to,
                                  .format = arguments.format,
                                  .allow_loss = arguments.allow_loss,
                                  .max_shard_bytes = arguments.max_shard_size};
    const StopSignals signals([](int) {});
    options.between_tensors = [&signals] { signals.throw_if_requested(); };
    if (!arguments.dtype.empty()) options.dtype = dtype_from(arguments.dtype);
    const infer::ConvertOutcome outcome = infer::convert(options);
    const std::string unfit = arguments.dtype.empty() ? "" : concat("values that do not fit ", arguments.dtype);
    const bool broken = std::ranges::any_of(outcome.losses, [](const auto& of) { return of.second.not_finite > 0; });
    if (!outcome.losses.empty())
        io.err << "warning: " << unfit
               << (!broken         ? ""
                   : unfit.empty() ? "weights that are not finite"
                                   : ", or are not finite")
               << ":" << hf::describe(outcome.losses) << '\n';
    for (const std::string& warning : outcome.warnings) io.err << "warning: " << warning << '\n';
    if (io.json) {
        auto losses = Json::object();
        for (const auto& [name, loss] : outcome.losses)
            losses[name] = {
                {"became_infinite", loss.infinite}, {"became_zero", loss.zero}, {"not_finite", loss.not_finite}};
        io.print(Json{{"from", outcome.from},
                      {"to", arguments.to},
                      {"format", outcome.format},
                      {"step", outcome.step},
                      {"parameters", outcome.parameters},
                      {"files", outcome.files},
                      {"losses", losses}});
        return 0;
    }
    io.out << outcome.from << " -> " << arguments.to << " (" << outcome.format << ", " << outcome.parameters
           << " parameters)\n";
    for (const std::string& file : outcome.files) io.out << "  " << file << '\n';
    io.next({concat("tutti generate ", quoted_for_shell(arguments.to), " --prompt TEXT")});
    return 0;
}

}  // namespace

Command convert_command(Arguments& all, const Io& io) {
    auto& a = all.add<ConvertArguments>();
    const Options options = {
        required(
            {"--from", "DIR", "", "directory of a run, of a checkpoint or of a Hugging Face model", &a.from, kPath}),
        required({"--to", "DIR", "", "new directory; appears complete or not at all", &a.to, kPath}),
        {"--format", "F", "", "hf or tutti [the one that --from is not]", &a.format, Choices{"hf", "tutti"}},
        {"--dtype", "TYPE", "", "f32, bf16 or f16 [each tensor's own]", &a.dtype, Choices{"f32", "bf16", "f16"}},
        {"--allow-loss", "", "", "allow values that become infinite in TYPE", &a.allow_loss, {}, {"--dtype"}},
        {"--max-shard-size", "SIZE", "5GB", "hf: largest file, in bytes or as 500MB", &a.max_shard_size, ByteCount{}}};
    return command_of("convert", "convert weights to or from a Hugging Face directory", a, io, convert, options,
                      "Examples:\n"
                      "  tutti convert --from runs/mine --to exported            # transformers loads it\n"
                      "  tutti convert --from runs/mine --to exported --dtype bf16 --max-shard-size 2GB\n"
                      "  tutti convert --from models/Qwen3-0.6B --to runs/qwen3");
}

}  // namespace tutti::cli
