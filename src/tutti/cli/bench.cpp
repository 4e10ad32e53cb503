// cli/bench.cpp: `tutti bench`: what all benchmarks share, and the JSON document.
#include "tutti/cli/bench.h"

#include <algorithm>

#include "tutti/base/build_info.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/cli/io.h"

namespace tutti::cli {

namespace {

const char* name_of(BenchArguments::Kind kind) {
    switch (kind) {
        case BenchArguments::Kind::gemm: return "gemm";
        case BenchArguments::Kind::attention: return "attention";
        case BenchArguments::Kind::memory: return "memory";
        case BenchArguments::Kind::step: return "step";
    }
    return "";
}

ComputeType compute_type_of(const BenchArguments& a) {
    return a.kind == BenchArguments::Kind::step ? spec::compute_type_of(step_run(a)) : *compute_type_from(a.dtype);
}

BenchResult run_kind(Bench& bench) {
    switch (bench.arguments.kind) {
        case BenchArguments::Kind::gemm: return bench_gemm(bench);
        case BenchArguments::Kind::attention: return bench_attention(bench);
        case BenchArguments::Kind::memory: return bench_memory(bench);
        case BenchArguments::Kind::step: return bench_step(bench);
    }
    throw Error("unknown benchmark");
}

void add(Json& object, const BenchRecord& record) {
    for (const auto& [key, value] : record)
        std::visit([&object, &key = key](const auto& v) { object[key] = v; }, value);
}

Json to_json(const Bench& bench, const BenchResult& result) {
    Json document = {{"bench", name_of(bench.arguments.kind)},
                     {"version", build_info().version},
                     {"machine", bench.device->kind() == DeviceKind::cpu ? cpu_model() : bench.device->name()},
                     {"threads", bench.device->stream().threads},
                     {"kernels", bench.ctx.kernels.name},
                     {"gemm_engine", bench.ctx.kernels.gemm_engines()},
                     {"dtype", std::string(tutti::name_of(bench.compute_type))}};
    add(document, result.summary);
    document["rows"] = Json::array();
    for (const BenchRecord& row : result.rows) add(document["rows"].push_back(Json::object()), row);
    document["notes"] = result.notes;
    return document;
}

}  // namespace

Bench::Bench(const BenchArguments& arguments_, std::ostream& text_)
    : arguments(arguments_),
      text(text_),
      device(make_device(arguments_.device, arguments_.threads)),
      compute_type(compute_type_of(arguments_)),
      ctx{*device, kernels::table_for(*device, compute_type)},
      dtype(storage_of(compute_type)),
      end(seconds_now() + (arguments_.seconds > 0 ? arguments_.seconds : 20)) {}

void Bench::note(BenchResult& result, const std::string& words) const {
    text << words << std::endl;
    result.notes.push_back(words);
}

int bench(const BenchArguments& arguments, const Io& io) {
    warn_of_threads(io, arguments.threads);
    Bench bench(arguments, io.text(arguments.json));
    bench.text << "tutti bench " << name_of(arguments.kind) << ": " << bench.compute_type << ", "
               << bench.device->name() << "\nkernels " << bench.ctx.kernels.name << ", matrix products "
               << bench.ctx.kernels.gemm_engines() << ", " << format_bytes(bench.device->free_bytes())
               << " of memory available\n"
               << std::endl;
    const BenchResult result = run_kind(bench);
    if (arguments.json) io.out << to_json(bench, result).dump(2) << '\n';
    return 0;
}

// --- peak ------------------------------------------------------------------------------------------------------------

void Peak::see_gemm(double flops_per_s, const std::string& shape) {
    if (flops_per_s <= gemm) return;
    gemm = flops_per_s;
    gemm_shape = shape;
}

std::string Peak::origin() const { return gemm > device.flops_per_s ? "matrix product " + gemm_shape : device.origin; }

Peak measure_peak(Bench& bench, double seconds) {
    Peak peak;
    peak.device = bench.device->peak(bench.compute_type, seconds);
    return peak;
}

void add_peak(BenchRecord& record, const Peak& peak) {
    record.emplace_back("peak_flops_per_s", peak.flops_per_s());
    record.emplace_back("peak_origin", peak.origin());
    record.emplace_back("device_peak_flops_per_s", peak.device.flops_per_s);
    record.emplace_back("best_gemm_flops_per_s", peak.gemm);
    record.emplace_back("best_gemm_shape", peak.gemm_shape);
}

// --- columns ---------------------------------------------------------------------------------------------------------

BenchRecord timing_record(const Timing& t) {
    return {{"median_s", t.median}, {"min_s", t.min}, {"max_s", t.max}, {"runs", int64_t{t.runs}}};
}

std::string timing_heading() {
    return right("median", 10) + right("fastest", 10) + right("slowest", 10) + right("runs", 6);
}

std::string timing_columns(const Timing& t) {
    return right(format_time(t.median), 10) + right(format_time(t.min), 10) + right(format_time(t.max), 10) +
           right(std::to_string(t.runs), 6);
}

}  // namespace tutti::cli
