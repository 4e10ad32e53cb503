// cli/bench/bench.cpp: `tutti bench`: what all benchmarks share, and the JSON document.
#include "tutti/cli/bench/bench.h"

#include "tutti/base/build_info.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/cli/io.h"
#include "tutti/kernels/backends.h"
#include "tutti/spec/model_spec.h"

namespace tutti::cli {

namespace {

ComputeType compute_type_of(const BenchArguments& a) {
    return a.measure == bench_step ? spec::compute_type_of(step_run(a)) : *compute_type_from(a.dtype);
}

Json document_of(const Bench& bench, const BenchResult& result) {
    Json document = {{"bench", bench.arguments.name},
                     {"version", build_info().version},
                     {"machine", bench.device->host_readable() ? cpu_model() : bench.device->name()},
                     {"threads", bench.device->stream().threads},
                     {"kernels", bench.ctx.kernels.name},
                     {"gemm_implementation", bench.ctx.kernels.gemm_implementations()},
                     {"attention_implementation", bench.ctx.kernels.attention_implementations()},
                     {"dtype", std::string(name_of(bench.compute_type))}};
    document.update(result.summary);
    document["rows"] = result.rows;
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
    if (!arguments.cluster.empty()) return predict_products(arguments, io);
    if (arguments.sizes) products_of(*arguments.sizes);
    if (!arguments.model.empty()) spec::preset(arguments.model);  // reports an unknown name before a line is printed
    warn_of_threads(io, arguments.threads);
    Bench bench(arguments, io.text());
    bench.text << "tutti bench " << arguments.name << ": " << bench.compute_type << ", " << bench.device->name()
               << "\nkernels " << bench.ctx.kernels.name << ", matrix products "
               << bench.ctx.kernels.gemm_implementations() << ", attention "
               << bench.ctx.kernels.attention_implementations() << ", " << format_bytes(bench.device->free_bytes())
               << " of memory available\n"
               << std::endl;
    BenchResult result = arguments.measure(bench);
    const double over = -bench.seconds_left();
    if (arguments.seconds > 0 && over > arguments.seconds)
        bench.note(result, concat("--seconds ", arguments.seconds, " is less than the fewest runs take: this took ",
                                  format_duration(arguments.seconds + over)));
    io.print(document_of(bench, result));
    return 0;
}

// --- peak ------------------------------------------------------------------------------------------------------------

void Peak::see_gemm(double flops_per_s, const std::string& shape) {
    if (flops_per_s <= gemm) return;
    gemm = flops_per_s;
    gemm_shape = shape;
}

std::string Peak::origin() const { return gemm > device.flops_per_s ? "matrix product " + gemm_shape : device.origin; }

Json to_json(const Peak& peak) {
    return {{"peak_flops_per_s", peak.flops_per_s()},
            {"peak_origin", peak.origin()},
            {"device_peak_flops_per_s", peak.device.flops_per_s},
            {"best_gemm_flops_per_s", peak.gemm},
            {"best_gemm_shape", peak.gemm_shape}};
}

// --- columns ---------------------------------------------------------------------------------------------------------

Json to_json(const Timing& t) { return {{"median_s", t.median}, {"min_s", t.min}, {"max_s", t.max}, {"runs", t.runs}}; }

std::string timing_heading() {
    return right("median", 10) + right("fastest", 10) + right("slowest", 10) + right("runs", 6);
}

std::string timing_columns(const Timing& t) {
    return right(format_time(t.median), 10) + right(format_time(t.min), 10) + right(format_time(t.max), 10) +
           right(std::to_string(t.runs), 6);
}

}  // namespace tutti::cli
