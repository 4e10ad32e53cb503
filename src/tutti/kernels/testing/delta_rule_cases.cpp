// kernels/testing/delta_rule_cases.cpp: the gated delta rule, the scan of Mamba-2, and their decay, forward and
// backward.
#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

struct RuleForm {
    DType type = DType::f32;
    int64_t B = 1, T = 1, Hk = 1, Hv = 1, Dk = 8, Dv = 8;
    bool documents = false;  // several documents in a sequence
    bool packed = false;     // queries, keys and values side by side
    bool ends = false;       // a state before the first token, and a gradient of the state after the last
    double decay = 0.1;      // the size of ln alpha
    bool scan = false;       // of Mamba-2

    std::string name() const {
        return concat(type, " (", B, ", ", T, ") ", Hv, " heads of ", Dv, ", ", Hk, " of ", Dk, ", decay ", decay,
                      scan ? " scan" : "", documents ? " documents" : "", packed ? " packed" : "",
                      ends ? " states" : "");
    }
    Shape keys() const { return {B, T, Hk, Dk}; }
    Shape values() const { return {B, T, Hv, Dv}; }
    Shape states() const { return {B, Hv, Dk, Dv}; }
};

View make_positions(Arena& arena, const RuleForm& f) {
    std::vector<double> all;
    for (int64_t n = 0; n < f.B; ++n) {
        int64_t position = f.ends ? 7 : 0;
        for (int64_t t = 0; t < f.T; ++t, ++position) {
            if (f.documents && t > 0 && (t * t + n) % 11 == 0) position = 0;
            all.push_back(static_cast<double>(position));
        }
    }
    return arena.from({f.B, f.T}, DType::i32, all);
}

View non_positive(Arena& arena, const RuleForm& f) {
    std::vector<double> all = values(arena.normal({f.B, f.T, f.Hv}, DType::f32, "g", f.decay));
    for (double& g : all) g = -std::abs(g);
    return arena.from({f.B, f.T, f.Hv}, DType::f32, all);
}

// Steps between 0 and some tenths: a state then stays of the size of the values.
View steps(Arena& arena, const RuleForm& f) {
    std::vector<double> all = values(arena.normal({f.B, f.T, f.Hv}, DType::f32, "steps", 0.1));
    for (double& dt : all) dt = std::abs(dt);
    return arena.from({f.B, f.T, f.Hv}, DType::f32, all);
}

DeltaRule make(Arena& arena, const RuleForm& f, const KernelTable& table, const Stream& stream, bool backward) {
    DeltaRule rule{
        .corrects = !f.scan,
        .g = non_positive(arena, f),
        .b = f.scan ? steps(arena, f) : arena.normal({f.B, f.T, f.Hv}, f.type, "b"),
        .skip = f.scan ? arena.normal({f.Hv}, f.type, "skip") : View(),
        .positions = make_positions(arena, f),
        .before = f.ends ? arena.normal(f.states(), DType::f32, "before") : View(),
        .workspace = arena.workspace(table.delta_rule_workspace(stream, f.keys(), f.values(), !f.scan, backward))};
    if (f.packed) {
        const int64_t keys = f.Hk * f.Dk;
        const View all = arena.normal({f.B, f.T, 2 * keys + f.Hv * f.Dv}, f.type, "packed");
        const auto part = [&](int64_t first, const Shape& shape) {
            View x = all;
            x.shape = shape;
            x.data = static_cast<std::byte*>(all.data) + first * size_of(f.type);
            x.strides = {all.stride(0), all.stride(1), shape[3], 1};
            return x;
        };
        rule.query = part(0, f.keys());
        rule.key = part(keys, f.keys());
        rule.value = part(2 * keys, f.values());
    } else {
        rule.query = arena.normal(f.keys(), f.type, "query");
        rule.key = arena.normal(f.keys(), f.type, "key");
        rule.value = arena.normal(f.values(), f.type, "value");
    }
    return rule;
}

// A step never makes a state larger (keys are units, 0 < beta < 1, alpha <= 1), so the error of each of its sums, of
// Dk, Dv or as many terms as a chunk has tokens, reaches a later result at its own size: with T steps one sum of that
// many terms of the size of the largest values. Those of a gradient add up over T tokens, as do its errors. Of the scan
// the state grows with the sum of the steps, some tens, and with it what the largest value is.
void report(Arena& arena, const RuleForm& f, const char* name, const View& y) {
    double largest = 0;
    for (const double v : values(y)) largest = std::max(largest, std::abs(v));
    const double error = sum_error(f.T + f.Dk + f.Dv + 64) * largest;
    arena.result(name, y, [=](int64_t i) { return error + rounding(y.dtype, value(y, i)); });
}

void add_rule(std::vector<Case>& all, const RuleForm& form) {
    add(all, "delta_rule_forward", &KernelTable::delta_rule_forward, form.name(),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const DeltaRule f = make(arena, form, table, stream, false);
            const View o = arena.empty(form.values(), form.type), after = arena.empty(form.states(), DType::f32);
            arena.start();
            table.delta_rule_forward(stream, f, o, after);
            report(arena, form, "o", o);
            report(arena, form, "after", after);
        });
    add(all, "delta_rule_backward", &KernelTable::delta_rule_backward, form.name(),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const DeltaRule f = make(arena, form, table, stream, true);
            const DeltaRuleBackward b{.dout = arena.normal(form.values(), form.type, "dout"),
                                      .after = form.ends ? arena.normal(form.states(), DType::f32, "dafter") : View(),
                                      .dquery = arena.empty(form.keys(), form.type),
                                      .dkey = arena.empty(form.keys(), form.type),
                                      .dvalue = arena.empty(form.values(), form.type),
                                      .dg = arena.empty({form.B, form.T, form.Hv}, DType::f32),
                                      .db = arena.empty({form.B, form.T, form.Hv}, form.scan ? DType::f32 : form.type),
                                      .dbefore = form.ends ? arena.empty(form.states(), DType::f32) : View()};
            arena.start();
            table.delta_rule_backward(stream, f, b);
            report(arena, form, "dquery", b.dquery);
            report(arena, form, "dkey", b.dkey);
            report(arena, form, "dvalue", b.dvalue);
            report(arena, form, "dg", b.dg);
            report(arena, form, "db", b.db);
            if (form.ends) report(arena, form, "dbefore", b.dbefore);
        });
    if (!form.scan) return;
    // A sum of B T Dv products.
    add(all, "delta_rule_backward_skip", &KernelTable::delta_rule_backward_skip, form.name(),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const View v = make(arena, form, table, stream, false).value;
            const View dout = arena.normal(form.values(), form.type, "dout");
            const View dskip = arena.normal({form.Hv}, DType::f32, "dskip");
            std::vector<double> sizes(static_cast<size_t>(form.Hv), 4);
            for (int64_t i = 0; i < dout.numel(); ++i)
                sizes[static_cast<size_t>(i / form.Dv % form.Hv)] += 6 * std::abs(value(dout, i));
            arena.start();
            table.delta_rule_backward_skip(stream, dout, v, dskip);
            arena.result("dskip", dskip, [&](int64_t h) {
                return sum_error(form.B * form.T * form.Dv + 20) * sizes[static_cast<size_t>(h)];
            });
        });
}

struct DecayCase {
    Decay f;
    View dg, ddt;  // ddt undefined: no steps
};
DecayCase make_decay(Arena& arena, DType t, int64_t N, int64_t H, bool steps) {
    return {{.x = arena.normal({N, H}, t, "x", 3),
             .a_log = arena.normal({H}, t, "a_log", 0.7, 0.5),
             .dt_bias = arena.normal({H}, t, "dt_bias"),
             .range = steps ? StepRange{0.25F, 1.5F} : StepRange{}},
            arena.normal({N, H}, DType::f32, "dg"),
            steps ? arena.normal({N, H}, DType::f32, "ddt") : View()};
}
// Whether rounding may put the step of element i on the other side of a bound: its gradient is then 0 or not.
bool near_bound(const Decay& f, int64_t i) {
    const int64_t h = i % f.a_log.numel();
    const double shifted = value(f.x, i) + value(f.dt_bias, h),
                 dt = std::log1p(std::exp(-std::abs(shifted))) + std::max(shifted, 0.0);
    const auto near = [&](double bound) { return std::abs(dt - bound) < 1e-5; };
    return near(f.range.least) || near(f.range.most);
}

// A few functions and products: the error of x + dt_bias is at most |x| u + |dt_bias| u, that of e^a_log |a_log| u.
void add_decay(std::vector<Case>& all, DType t, int64_t N, int64_t H, bool steps) {
    const std::string name = concat(t, " (", N, ", ", H, ")", steps ? " with steps" : "");
    const auto error = [](double v) { return 40 * u * (std::abs(v) + 0.01); };
    add(all, "decay_forward", &KernelTable::decay_forward, name,
        [=](const auto& table, const auto& stream, Arena& arena) {
            const DecayCase d = make_decay(arena, t, N, H, steps);
            const View g = arena.empty({N, H}, DType::f32), dt = steps ? arena.empty({N, H}, DType::f32) : View();
            arena.start();
            table.decay_forward(stream, d.f, g, dt);
            arena.result("g", g, [&](int64_t i) { return error(value(g, i)); });
            if (steps) arena.result("dt", dt, [&](int64_t i) { return error(value(dt, i)); });
        });
    add(all, "decay_backward_input", &KernelTable::decay_backward_input, name,
        [=](const auto& table, const auto& stream, Arena& arena) {
            const DecayCase d = make_decay(arena, t, N, H, steps);
            const View dx = arena.empty({N, H}, t);
            arena.start();
            table.decay_backward_input(stream, d.f, d.dg, d.ddt, dx);
            arena.result("dx", dx, [&](int64_t i) {
                const double largest = steps ? 20 : std::abs(value(dx, i));  // of two terms that may cancel
                return near_bound(d.f, i) ? 100 : error(largest) + rounding(t, value(dx, i));
            });
        });
    // Terms of at most |dg| e^a_log (|x| + |dt_bias| + 1), and |ddt|.
    add(all, "decay_backward_weight", &KernelTable::decay_backward_weight, name,
        [=](const auto& table, const auto& stream, Arena& arena) {
            const DecayCase d = make_decay(arena, t, N, H, steps);
            const View da_log = arena.normal({H}, DType::f32, "da_log"), ddt = arena.normal({H}, DType::f32, "ddt");
            std::vector<double> sizes(static_cast<size_t>(H), 4);
            std::vector<double> cuts(static_cast<size_t>(H));
            for (int64_t i = 0; i < N * H; ++i) {
                sizes[static_cast<size_t>(i % H)] +=
                    std::abs(value(d.dg, i)) * std::exp(value(d.f.a_log, i % H)) *
                        (std::abs(value(d.f.x, i)) + std::abs(value(d.f.dt_bias, i % H)) + 1) +
                    (steps ? std::abs(value(d.ddt, i)) : 0);
                if (near_bound(d.f, i)) cuts[static_cast<size_t>(i % H)] += 100;
            }
            arena.start();
            table.decay_backward_weight(stream, d.f, d.dg, d.ddt, da_log, ddt);
            const auto tolerance = [&](int64_t h) {
                return (sum_error(N + 1) + 40 * u) * sizes[static_cast<size_t>(h)] + cuts[static_cast<size_t>(h)];
            };
            arena.result("da_log", da_log, tolerance);
            arena.result("ddt_bias", ddt, tolerance);
        });
}

std::vector<RuleForm> forms() {
    std::vector<RuleForm> all;
    for (const DType t : kActivationTypes) {
        // Heads that tasks take in parts, and such as they take together.
        for (const auto& [Hk, Hv] : {std::pair<int64_t, int64_t>{1, 24}, {2, 16}, {1, 5}, {3, 3}})
            for (const int64_t T : {1, 64, 140})
                all.push_back({.type = t,
                               .B = 2,
                               .T = T,
                               .Hk = Hk,
                               .Hv = Hv,
                               .Dk = 12,
                               .Dv = Hv == 5 ? 33 : 8,
                               .documents = T == 140 && Hk == 1,
                               .packed = Hk == 2,
                               .ends = T != 64,
                               .decay = Hk == 3 ? 20.0 : 0.1,
                               .scan = true});
        all.push_back({.type = t, .T = 70, .Hk = 1, .Hv = 2, .Dk = 128, .Dv = 64, .packed = true, .scan = true});
        for (const int64_t T : {1, 5, 16, 63, 64, 65, 150})
            for (const bool ends : {false, true})
                all.push_back({.type = t, .B = 2, .T = T, .Hk = 2, .Hv = 4, .Dk = 12, .Dv = 20, .ends = ends});
        for (const bool documents : {false, true})
            for (const double decay : {0.0, 0.1, 20.0})
                all.push_back({.type = t,
                               .B = 2,
                               .T = 140,
                               .Hk = 1,
                               .Hv = 3,
                               .Dk = 16,
                               .Dv = 33,
                               .documents = documents,
                               .packed = true,
                               .ends = decay == 0.1,
                               .decay = decay});
        all.push_back({.type = t, .T = 70, .Hk = 1, .Hv = 1, .Dk = 128, .Dv = 128, .documents = true, .packed = true});
        all.push_back({.type = t, .B = 3, .T = 20, .Hk = 3, .Hv = 3, .Dk = 1, .Dv = 3, .documents = true});
        all.push_back(
            {.type = t, .B = 2, .T = 30, .Hk = 2, .Hv = 2, .Dk = 8, .Dv = 8, .documents = true, .ends = true});
    }
    return all;
}

}  // namespace

void add_delta_rule(std::vector<Case>& all) {
    for (const RuleForm& form : forms()) add_rule(all, form);
    for (const DType t : kActivationTypes)
        for (const auto& [N, H] : {std::pair<int64_t, int64_t>{1, 1}, {700, 5}, {37, 32}, {0, 4}})
            for (const bool steps : {false, true}) add_decay(all, t, N, H, steps);
}

}  // namespace tutti::kernels::cases
