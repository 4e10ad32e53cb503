// kernels/cpu/exact_sum.cpp: sums without rounding, the same for all instruction sets: integers that go to places which
// the term chooses. 5 ns a term; a gradient has one term per 256 values. Called by: table.cpp.
#include "tutti/base/exact_sum.h"

#include "tutti/kernels/cpu/fill.h"

namespace tutti::kernels {

namespace {

void exact_sum(const Stream&, View values, View words) {
    auto& total = *words.as<ExactSum::Words>();
    ExactSum sum = ExactSum::of(total);
    const auto add_all = [&](const auto* terms) {
        for (int64_t i = 0; i < values.numel(); ++i) sum.add(static_cast<double>(terms[i]));
    };
    values.dtype == DType::f32 ? add_all(values.as<const float>()) : add_all(values.as<const double>());
    total = sum.words();
}

}  // namespace

void fill_exact_sum(KernelTable& table) { table.exact_sum = exact_sum; }

}  // namespace tutti::kernels
