// cli/inspect.cpp: `tutti inspect`: the tensors of a checkpoint; with --precision the numbers that a model's products
// multiply and what formats make of them (train/precision_lab.h); with --number the bits of one number.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <filesystem>

#include "tutti/base/digits.h"
#include "tutti/base/dtype.h"
#include "tutti/base/error.h"
#include "tutti/base/float8.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/checkpoint/store.h"
#include "tutti/checkpoint/training_state.h"
#include "tutti/cli/command.h"
#include "tutti/cli/forecast.h"
#include "tutti/infer/stored_model.h"
#include "tutti/spec/validate.h"
#include "tutti/train/precision_lab.h"
#include "tutti/train/shared_data.h"
#include "tutti/train/verify.h"

namespace tutti::cli {

namespace {

struct InspectArguments : RunArguments {  // `config`: what to inspect
    bool precision = false;
    std::string number;
    int64_t steps = 1;  // with precision; the last one is measured
    std::string svg;    // file for the picture; "": none
    bool force = false;
};

namespace fs = std::filesystem;

// --- --number -------------------------------------------------------------------------------------------------------

// A format of numbers with one sign bit; the fraction is last.
struct NumberFormat {
    const char* name;
    int exponent_bits, fraction_bits;
    uint32_t (*code)(float x);
    float (*value)(uint32_t code);
};

// To nearest, ties to even, of the 10 leading bits of the fraction; the code has 19 bits.
uint32_t tf32_code(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    return std::isfinite(x) ? (u + 0xfffu + (u >> 13 & 1u)) >> 13 : u >> 13;
}

constexpr std::array<NumberFormat, 6> kNumberFormats = {{
    {"f32", 8, 23, [](float x) { return std::bit_cast<uint32_t>(x); },
     [](uint32_t c) { return std::bit_cast<float>(c); }},
    {"tf32", 8, 10, tf32_code, [](uint32_t c) { return std::bit_cast<float>(c << 13); }},
    {"bf16", 8, 7, [](float x) { return uint32_t{bf16_bits(x)}; },
     [](uint32_t c) { return bf16_value(static_cast<uint16_t>(c)); }},
    {"f16", 5, 10, [](float x) { return uint32_t{f16_bits(x)}; },
     [](uint32_t c) { return f16_value(static_cast<uint16_t>(c)); }},
    {"e4m3", 4, 3, [](float x) { return uint32_t{float8_code(x, kE4m3)}; },
     [](uint32_t c) { return float8_value(static_cast<uint8_t>(c), kE4m3); }},
    {"e5m2", 5, 2, [](float x) { return uint32_t{float8_code(x, kE5m2)}; },
     [](uint32_t c) { return float8_value(static_cast<uint8_t>(c), kE5m2); }},
}};

std::string bits_of(uint32_t code, int first, int count) {
    std::string bits;
    for (int i = first + count - 1; i >= first; --i) bits += (code >> i & 1u) != 0 ? '1' : '0';
    return bits;
}

int inspect_number(const std::string& text, const Io& io) {
    const auto given = parse_number<double>(text);
    check<UsageError>(given.has_value(), "--number ", text, ": required a number such as 0.3952, -1e-7 or inf");
    const double number = *given;
    const auto x = static_cast<float>(number);
    Json formats = Json::array();
    std::string table = left("", 7) + left("sign", 6) + left("exponent", 10) + left("fraction", 25) + "value\n";
    for (const NumberFormat& f : kNumberFormats) {
        const uint32_t code = f.code(x);
        const auto value = static_cast<double>(f.value(code));
        const std::string sign = bits_of(code, f.exponent_bits + f.fraction_bits, 1),
                          exponent = bits_of(code, f.fraction_bits, f.exponent_bits),
                          fraction = bits_of(code, 0, f.fraction_bits);
        const double apart = value / number - 1;
        const bool has_error = std::isfinite(apart) && apart != 0;
        table += left(f.name, 7) + left(sign, 6) + left(exponent, 10) + left(fraction, 25) +
                 (has_error ? left(fmt::format("{:.9g}", value), 18) + fmt::format("{:+.3g} %", 100 * apart)
                            : fmt::format("{:.9g}", value)) +
                 '\n';
        formats.push_back({{"format", f.name},
                           {"sign", sign},
                           {"exponent", exponent},
                           {"fraction", fraction},
                           {"value", std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value))}});
    }
    io.print({{"number", text}, {"formats", formats}});
    io.text() << table;
    return 0;
}

// --- --precision ----------------------------------------------------------------------------------------------------

int inspect_precision(const InspectArguments& a, const Io& io) {
    const bool is_run = fs::is_regular_file(fs::path(a.config) / "config.toml");
    check<UsageError>(is_run || !fs::is_directory(a.config), a.config,
                      ": required a config, or the directory of a run, which has a config.toml");
    RunArguments arguments = a;
    if (is_run) arguments.config = (fs::path(a.config) / "config.toml").string();
    train::LabOptions options{.run = train::one_rank_of(parse_run(arguments, true))};
    require_one_stage(options.run, "--precision");
    spec::validate(options.run, 1);
    if (is_run) {
        options.checkpoints = (fs::path(a.config) / "checkpoints").string();
        const std::string warning = train::use_kept_tokenizer(options.run, a.config);
        if (!warning.empty()) io.err << "warning: " << warning << '\n';
    }
    options.steps = a.steps;
    options.force = a.force;
    options.console = &io.err;
    options.terminal = io.err_terminal;
    const report::PrecisionReading reading = train::measure_precision(options);
    const Json document = report::to_json(reading);
    bool kept = is_run;
    if (is_run) try {
            write_file("TARGET", (fs::path(a.config) / "precision.json").string(), document.dump() + "\n");
        } catch (const DataError& error) {  // of a run of another user, or an archived one
            kept = false;
            io.err << "warning: the figures are not kept for `tutti report`: " << error.what() << '\n';
        }
    if (!a.svg.empty()) write_file("--svg", a.svg, report::precision_svg(reading));
    io.print(document);
    io.text() << report::precision_text(reading);
    if (kept) io.next({"tutti report " + quoted_for_shell(a.config) + "   # with these figures"});
    return 0;
}

// --- a checkpoint ---------------------------------------------------------------------------------------------------

// The checkpoint that a path means: itself, or the newest one of a run or of a directory of checkpoints.
std::string checkpoint_at(const std::string& path, checkpoint::FileSystem& files, const Io& io) {
    const infer::CheckpointPlace place = infer::find_checkpoint(path);
    if (!place.step_path.empty()) return place.step_path;
    const checkpoint::Store store(files, place.directory, checkpoint::Access::read,
                                  [&](const std::string& message) { io.err << "tutti: warning: " << message << '\n'; });
    const auto stored = store.list();
    check<DataError>(!stored.empty(), path, ": required a run or a checkpoint, found none; `tutti convert --from ",
                     quoted_for_shell(path), " --to DIR` makes a checkpoint of a Hugging Face model");
    return stored.front().path;
}

int inspect_checkpoint(const InspectArguments& a, const Io& io) {
    checkpoint::PosixFileSystem files;
    const checkpoint::CheckpointReader reader(files, checkpoint_at(a.config, files, io));
    const checkpoint::Manifest& manifest = reader.manifest();
    Json tensors = Json::array();
    std::string table;
    int64_t total = 0;
    for (const checkpoint::TensorRecord& t : checkpoint::stored_tensors(reader)) {
        const int64_t bytes = t.shape.numel() * size_of(t.dtype);
        total += bytes;
        tensors.push_back(
            {{"name", t.name}, {"dtype", name_of(t.dtype)}, {"shape", concat(t.shape)}, {"bytes", bytes}});
        table += left(t.name, 58) + left(std::string(name_of(t.dtype)), 6) + left(concat(t.shape), 20) +
                 right(format_bytes(bytes), 12) + '\n';
    }
    io.print({{"checkpoint", reader.path()},
              {"step", manifest.step},
              {"files", manifest.files.size()},
              {"bytes", total},
              {"tensors", tensors}});
    io.text() << reader.path() << ": step " << manifest.step << ", " << tensors.size() << " tensors, "
              << format_bytes(total) << " in " << counted(std::ssize(manifest.files), "file") << "\n\n"
              << table;
    return 0;
}

int inspect(const InspectArguments& arguments, const Io& io) {
    if (!arguments.number.empty()) return inspect_number(arguments.number, io);
    if (arguments.precision) return inspect_precision(arguments, io);
    check<UsageError>(!arguments.config.empty(),
                      "TARGET is missing: a checkpoint or the directory of a run; or --number X");
    return inspect_checkpoint(arguments, io);
}

}  // namespace

Command inspect_command(Arguments& all, const Io& io) {
    auto& a = all.add<InspectArguments>();
    const Options options = joined_options(
        {{{"TARGET", "", "", "a checkpoint or a run; with --precision a run or a TOML file", &a.config, kPath},
          {"--precision", "", "", "run steps on one rank; show the numbers of the products and what formats do to them",
           &a.precision}},
         without({"TARGET", "--precision"},
                 {{"--number", "X", "", "show the bits of a number in each format", &a.number}}),
         beside({"--precision"},
                {{"--steps", "N", "1", "steps to run, the last of which is measured", &a.steps, Between{1, 1e12}},
                 {"--svg", "FILE", "", "draw the binary exponents of each tensor", &a.svg, kOutput},
                 {"--model", "NAME|DIR", "", "in place of the config's [model]", &a.model, Suggestions{{}, true}},
                 set_option(a.set, "override a key of the config; repeatable"),
                 stage_option(a),
                 force_option(a.force)})});
    return command_of(
        "inspect", "show a checkpoint's tensors, or numbers in formats of few bits", a, io, inspect, options,
        "With --precision and a run the figures are of its newest checkpoint and are kept in the run's\n"
        "precision.json, which `tutti report` draws. Formats: bf16, f16 and the recipes of 8-bit products.\n\n"
        "Examples:\n"
        "  tutti inspect runs/bible\n"
        "  tutti inspect --precision run.toml --steps 20 --svg exponents.svg\n"
        "  tutti inspect --precision runs/bible --set precision.recipe=delayed\n"
        "  tutti inspect --number 0.3952");
}

}  // namespace tutti::cli
