// kernels/cases/optimizer_cases.cpp: AdamW and SGD, with and without the bf16 copy of the weights.
#include "tutti/kernels/cases/cases.h"

namespace tutti::kernels::cases {

namespace {

// A bf16 value must be the table's own master, rounded: bit for bit.
void report_value(Arena& arena, const View& value_view, const View& master,
                  const std::function<double(int64_t)>& tolerance) {
    if (!value_view.defined()) return;
    arena.result("value", value_view,
                 [&](int64_t i) { return tolerance(i) + rounding(DType::bf16, value(value_view, i)); });
    Output off{"value minus rounded master", {}, {}};
    for (int64_t i = 0; i < master.numel(); ++i)
        off.values.push_back(value(value_view, i) - bf16_value(bf16_bits(master.as<float>()[i])));
    off.tolerance.assign(off.values.size(), 0);
    arena.result(std::move(off));
}

void add_adamw(std::vector<Case>& all, int64_t n, bool copy) {
    add(all, "adamw", &KernelTable::adamw, concat(copy ? "bf16" : "f32", " (", n, ")"),
        [=](const auto& table, const auto& stream, Arena& arena) {
            std::vector<double> squares = values(arena.normal({n}, DType::f32, "v", 0.1));
            for (double& s : squares) s *= s;
            const AdamW a{.master = arena.normal({n}, DType::f32, "p"),
                          .m = arena.normal({n}, DType::f32, "m", 0.1),
                          .v = arena.from({n}, DType::f32, squares),
                          .gradient = arena.normal({n}, DType::f32, "g"),
                          .value = copy ? arena.empty({n}, DType::bf16) : View(),
                          .lr = 0.01f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .correction1 = 1 - 0.9f * 0.9f * 0.9f,
                          .correction2 = 1 - 0.95f * 0.95f * 0.95f,
                          .grad_scale = 0.5f};
            const std::vector<double> p = values(a.master), m = values(a.m), v = values(a.v), g = values(a.gradient);
            arena.start();
            table.adamw(stream, a);
            const auto m_error = [&](int64_t i) {  // two products, a sum, the scale of g
                const auto at = static_cast<size_t>(i);
                return 6 * u * (0.9 * std::abs(m[at]) + 0.1 * 0.5 * std::abs(g[at])) + FLT_MIN;
            };
            const auto p_error = [&](int64_t i) {
                // The root halves the 6 u of v; two quotients, a root, a sum and the product with lr: under 12 u.
                const double root = std::sqrt(value(a.v, i) / a.correction2) + a.eps;
                const double direction = std::abs(value(a.m, i)) / a.correction1 / root;
                const double decay = a.weight_decay * std::abs(p[static_cast<size_t>(i)]);
                return a.lr * (m_error(i) / a.correction1 / root + 12 * u * direction + 4 * u * decay) +
                       3 * u * std::abs(p[static_cast<size_t>(i)]);
            };
            arena.result("m", a.m, m_error);
            arena.result("v", a.v, [&](int64_t i) { return 6 * u * value(a.v, i) + FLT_MIN; });  // positive terms
            arena.result("master", a.master, p_error);
            report_value(arena, a.value, a.master, p_error);
        });
}

void add_sgd(std::vector<Case>& all, int64_t n, bool copy) {
    add(all, "sgd", &KernelTable::sgd, concat(copy ? "bf16" : "f32", " (", n, ")"),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const Sgd s{.master = arena.normal({n}, DType::f32, "p"),
                        .momentum_buffer = arena.normal({n}, DType::f32, "u", 0.1),
                        .gradient = arena.normal({n}, DType::f32, "g"),
                        .value = copy ? arena.empty({n}, DType::bf16) : View(),
                        .lr = 0.1f,
                        .momentum = 0.9f,
                        .weight_decay = 0.1f,
                        .grad_scale = 0.5f};
            const std::vector<double> p = values(s.master), before = values(s.momentum_buffer), g = values(s.gradient);
            arena.start();
            table.sgd(stream, s);
            const auto u_error = [&](int64_t i) {  // three products, two sums
                const auto at = static_cast<size_t>(i);
                return 5 * u * (0.9 * std::abs(before[at]) + 0.5 * std::abs(g[at]) + 0.1 * std::abs(p[at]));
            };
            const auto p_error = [&](int64_t i) {
                return s.lr * (u_error(i) + 2 * u * std::abs(value(s.momentum_buffer, i))) +
                       3 * u * std::abs(p[static_cast<size_t>(i)]);
            };
            arena.result("momentum_buffer", s.momentum_buffer, u_error);
            arena.result("master", s.master, p_error);
            report_value(arena, s.value, s.master, p_error);
        });
}

}  // namespace

void add_optimizers(std::vector<Case>& all) {
    for (const bool copy : {false, true})
        for (const int64_t n : kLengths) {
            add_adamw(all, n, copy);
            add_sgd(all, n, copy);
        }
}

}  // namespace tutti::kernels::cases
