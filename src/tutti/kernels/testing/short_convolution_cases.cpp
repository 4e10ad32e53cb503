// kernels/testing/short_convolution_cases.cpp: the gated short convolution, forward, backward and its state.
#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

struct Form {
    DType type = DType::f32;
    int64_t B = 1, T = 1, C = 1, K = 3;
    bool documents = false;  // several documents in a sequence
    bool bias = false;
    bool packed = false;  // b | c | x side by side, and the rows of every tensor a slice of longer tensors
    bool before = false;  // tokens before the first one: sequences reach one of them or all of them
    bool after = false;   // gradients from tokens after the last one
    Numbers numbers = Numbers::normal;

    std::string name() const {
        return concat(type, " (", B, ", ", T, ", ", C, ") ", K, " taps", documents ? " documents" : "",
                      bias ? " bias" : "", packed ? " packed" : "", before ? " before" : "", after ? " after" : "",
                      cases::name_of(numbers));
    }
};

// Position of row t of sequence n in its document.
View make_positions(Arena& arena, const Form& f) {
    const int64_t padding = f.packed ? 3 : 0;
    std::vector<double> all;
    for (int64_t n = 0; n < f.B; ++n) {
        int64_t position = f.before ? n % 2 == 0 ? 1 : 100 : 0;
        for (int64_t t = 0; t < f.T + padding; ++t, ++position) {
            if (f.documents && t > 0 && (t * t + n) % 5 == 0) position = 0;
            all.push_back(static_cast<double>(position));
        }
    }
    return slice(arena.from({f.B, f.T + padding}, DType::i32, all), 1, 0, f.T);
}

struct Sections {
    View b, c, x;
};

// Sections of (B, T, C) each; packed: T rows of a tensor (B, T + 2, 3 C).
Sections sections(const Form& f, const View& whole) {
    const View rows = f.packed ? slice(whole, 1, 1, f.T) : whole;
    return {slice(rows, 2, 0, f.C), slice(rows, 2, f.C, f.C), slice(rows, 2, 2 * f.C, f.C)};
}
Shape shape_of_sections(const Form& f) { return {f.B, f.T + (f.packed ? 2 : 0), 3 * f.C}; }

struct Inputs {
    ShortConvolution f;
    View dz, after;
};

Inputs make(Arena& arena, const Form& f) {
    const auto given = [&](const Shape& shape, DType t, const char* name) {
        return numbers(arena, f.numbers, shape, t, name);
    };
    const auto [b, c, x] = sections(f, given(shape_of_sections(f), f.type, "p"));
    const Shape halo{f.B, f.K - 1, f.C};
    Inputs in{.f = {.b = b,
                    .c = c,
                    .x = x,
                    .w = given({f.C, f.K}, f.type, "w"),
                    .bias = f.bias ? given({f.C}, f.type, "bias") : View(),
                    .positions = make_positions(arena, f),
                    .before = f.before ? given(halo, DType::f32, "before") : View()},
              .dz = given({f.B, f.T, f.C + (f.packed ? 4 : 0)}, f.type, "dz"),
              .after = f.after ? given(halo, DType::f32, "after") : View()};
    in.dz = slice(in.dz, 2, 0, f.C);
    return in;
}

// The absolute values of a view, in f64: the reference's result for them bounds the sizes of all terms.
View absolute(Arena& arena, const View& x) {
    if (!x.defined()) return {};
    std::vector<double> sizes = values(x);
    for (double& v : sizes) v = std::abs(v);
    return arena.from(x.shape, DType::f64, sizes);
}
Inputs absolute(Arena& arena, const Inputs& in) {
    return {.f = {.b = absolute(arena, in.f.b),
                  .c = absolute(arena, in.f.c),
                  .x = absolute(arena, in.f.x),
                  .w = absolute(arena, in.f.w),
                  .bias = absolute(arena, in.f.bias),
                  .positions = in.f.positions,
                  .before = absolute(arena, in.f.before)},
            .dz = absolute(arena, in.dz),
            .after = absolute(arena, in.after)};
}

// A product of three to five factors, summed over K taps, a start and a bias: K + 6 operations, and the rounding of the
// result.
void report(Arena& arena, const char* name, const View& y, const View& sizes, int64_t K) {
    arena.result(name, y, [&](int64_t i) {
        return static_cast<double>(K + 6) * u * value(sizes, i) + rounding(y.dtype, value(y, i));
    });
}

ShortConvolution arguments_on_host(const ShortConvolution& f) {
    using F = ShortConvolution;
    return on_host(f, &F::b, &F::c, &F::x, &F::w, &F::bias, &F::positions, &F::before);
}
ShortConvolutionBackward gradients_on_host(const ShortConvolutionBackward& g) {
    using G = ShortConvolutionBackward;
    return on_host(g, &G::dz, &G::db, &G::dc, &G::dx, &G::after, &G::dbefore);
}

void add_forward(std::vector<Case>& all, const Form& form) {
    add(all, "short_convolution_forward", &KernelTable::short_convolution_forward, form.name(),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const Inputs in = make(arena, form), sizes = absolute(arena, in);
            const Shape rows{form.B, form.T, form.C + (form.packed ? 2 : 0)};
            const View z = slice(arena.empty(rows, form.type), 2, 0, form.C);
            const View size = arena.from(in.f.x.shape, DType::f64, values(in.f.x));
            reference_table().short_convolution_forward({}, arguments_on_host(sizes.f), on_host(size));
            arena.start();
            table.short_convolution_forward(stream, in.f, z);
            report(arena, "z", z, size, form.K);
        });
}

ShortConvolutionBackward gradients(Arena& arena, const Form& form, DType type, const Inputs& in) {
    const auto [db, dc, dx] = sections(form, arena.empty(shape_of_sections(form), type));
    return {.dz = in.dz, .db = db, .dc = dc, .dx = dx, .after = in.after};
}

void add_backward_input(std::vector<Case>& all, const Form& form) {
    add(all, "short_convolution_backward_input", &KernelTable::short_convolution_backward_input, form.name(),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const Inputs in = make(arena, form), sizes = absolute(arena, in);
            const ShortConvolutionBackward size = gradients(arena, form, DType::f64, sizes);
            reference_table().short_convolution_backward_input({}, arguments_on_host(sizes.f), gradients_on_host(size));
            const ShortConvolutionBackward g = gradients(arena, form, form.type, in);
            arena.start();
            table.short_convolution_backward_input(stream, in.f, g);
            report(arena, "db", g.db, size.db, form.K);
            report(arena, "dc", g.dc, size.dc, form.K);
            report(arena, "dx", g.dx, size.dx, form.K);
        });
}

void add_backward_before(std::vector<Case>& all, const Form& form) {
    add(all, "short_convolution_backward_before", &KernelTable::short_convolution_backward_before, form.name(),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const Inputs in = make(arena, form), sizes = absolute(arena, in);
            const Shape halo{form.B, form.K - 1, form.C};
            const View size = arena.empty(halo, DType::f64), dbefore = arena.empty(halo, DType::f32);
            reference_table().short_convolution_backward_before({}, arguments_on_host(sizes.f), on_host(sizes.dz),
                                                                on_host(size));
            arena.start();
            table.short_convolution_backward_before(stream, in.f, in.dz, dbefore);
            report(arena, "dbefore", dbefore, size, form.K);
        });
}

// dw = sum of B T terms and the previous value, each term a few operations.
void add_backward_weight(std::vector<Case>& all, const Form& form) {
    add(all, "short_convolution_backward_weight", &KernelTable::short_convolution_backward_weight, form.name(),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const Inputs in = make(arena, form), sizes = absolute(arena, in);
            const View dw = numbers(arena, form.numbers, {form.C, form.K}, DType::f32, "dw");
            const View dbias = form.bias ? numbers(arena, form.numbers, {form.C}, DType::f32, "dbias") : View();
            const View size = absolute(arena, dw), bias_size = absolute(arena, dbias);
            reference_table().short_convolution_backward_weight({}, arguments_on_host(sizes.f), on_host(sizes.dz),
                                                                on_host(size), on_host(bias_size));
            arena.start();
            table.short_convolution_backward_weight(stream, in.f, in.dz, dw, dbias);
            const double error = sum_error(form.B * form.T + 8);
            arena.result("dw", dw, [&](int64_t i) { return error * value(size, i); });
            if (form.bias) arena.result("dbias", dbias, [&](int64_t i) { return error * value(bias_size, i); });
        });
}

// Products b x of `tokens` tokens, after those of `before`: one product each.
void add_state(std::vector<Case>& all, const Form& form) {
    for (int64_t tokens = 0; tokens < form.K; ++tokens)
        add(all, "short_convolution_state", &KernelTable::short_convolution_state,
            concat(form.name(), ", ", tokens, " tokens"), [=](const auto& table, const auto& stream, Arena& arena) {
                const ShortConvolution f = make(arena, form).f;
                const int64_t given = std::min(tokens, form.T), first = given == 0 ? 0 : form.T - given;
                const View b = slice(f.b, 1, first, given), x = slice(f.x, 1, first, given);
                const View state = arena.empty({form.B, form.K - 1, form.C}, DType::f32);
                arena.start();
                table.short_convolution_state(stream, b, x, f.before, state);
                arena.result("state", state, [](int64_t) { return 0; });
            });
}

std::vector<Form> forms() {
    std::vector<Form> all;
    for (const DType t : kActivationTypes) {
        for (const int64_t K : {1, 2, 3, 4, 5, 16})
            for (const bool bias : {false, true})
                all.push_back({.type = t, .B = 2, .T = 21, .C = 19, .K = K, .bias = bias});
        for (const int64_t C : {1, 16, 65, 600, 1030})
            for (const bool packed : {false, true})
                all.push_back({.type = t, .B = 2, .T = 7, .C = C, .documents = true, .packed = packed});
        for (const int64_t K : {2, 3, 4, 7})
            for (const int64_t T : {6, 40}) {
                const Form f{.type = t, .B = 3, .T = T, .C = 33, .K = K, .before = true};
                Form of_all = f;
                of_all.documents = of_all.bias = of_all.packed = of_all.after = true;
                Form whole = of_all;
                whole.numbers = Numbers::whole;
                all.insert(all.end(), {f, of_all, whole});
            }
        all.push_back({.type = t, .B = 2, .T = 1, .C = 40, .before = true});  // as in generation
        all.push_back({.type = t, .B = 2, .T = 1, .C = 40});
        all.push_back({.type = t, .B = 1, .T = 700, .C = 48, .documents = true, .bias = true, .before = true});
        all.push_back({.type = t, .B = 2, .T = 0, .C = 24});
    }
    return all;
}

}  // namespace

void add_short_convolution(std::vector<Case>& all) {
    for (const Form& form : forms()) {
        add_forward(all, form);
        add_backward_input(all, form);
        add_backward_weight(all, form);
        if (form.before) add_backward_before(all, form);
        if (form.K > 1 && form.K < 8) add_state(all, form);
    }
}

}  // namespace tutti::kernels::cases
