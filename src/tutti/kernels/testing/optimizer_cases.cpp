// kernels/testing/optimizer_cases.cpp: the update rules on one parameter and on many, with and without the bf16 copy of
// the weights, with every type of moments, masters and gradients.

#include "tutti/base/dynamic_map.h"
#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

struct Types {
    DType copy = DType::f32;  // rounded, of the master; f32: none
    DType m = DType::f32, v = DType::f32, master = DType::f32, gradient = DType::f32;
    bool stochastic = true;  // bf16 moments; masters always are

    std::string name() const {
        std::string text = concat(copy);
        if (m != DType::f32 || v != DType::f32) text += concat(" m ", m, " v ", v, stochastic ? "" : " to nearest");
        if (master != DType::f32) text += concat(" master ", master);
        if (gradient != DType::f32) text += concat(" gradient ", gradient);
        return text;
    }
};

// A 16-bit value must be the rounded master weight of the same table, bit for bit.
void report_value(Arena& arena, const OptimizerPiece& piece, const std::function<double(int64_t)>& tolerance) {
    if (!piece.value.defined()) return;
    const DType type = piece.value.dtype;
    arena.result("value", piece.value, [&](int64_t i) { return tolerance(i) + rounding(type, value(piece.value, i)); });
    Output off{"value minus rounded master", {}, {}};
    for (int64_t i = 0; i < piece.master.numel(); ++i) {
        const float master = on_host(piece.master).as<float>()[i];
        off.values.push_back(value(piece.value, i) - static_cast<double>(type == DType::bf16
                                                                             ? static_cast<float>(bf16(master))
                                                                             : static_cast<float>(f16(master))));
    }
    off.tolerance.assign(off.values.size(), 0);
    arena.result(std::move(off));
}

Moment make_moment(Arena& arena, int64_t n, DType type, bool has_sign, size_t number, bool stochastic) {
    const std::string name = concat(has_sign ? "m" : "v", number);
    Moment moment{.key = type == DType::bf16 && stochastic ? random_key(number, name) : 0};
    if (type == DType::u8) {
        std::vector<double> codes, largest;
        for (int64_t i = 0; i < n; ++i)
            codes.push_back(static_cast<double>(mix64(moment.key + static_cast<uint64_t>(i) + number) % 256));
        for (int64_t b = 0; b * kStateBlock < n; ++b) largest.push_back(0.01 * static_cast<double>(b % 3));
        moment.values = arena.from({n}, DType::u8, codes);
        moment.largest = arena.from({static_cast<int64_t>(largest.size())}, DType::f32, largest);
        return moment;
    }
    moment.values = arena.normal({n}, type, name.c_str(), 0.1);
    for (int64_t i = 0; !has_sign && i < n; ++i) {
        if (type == DType::f32) {
            float& x = on_host(moment.values).as<float>()[i];
            x *= x;
        } else {
            bf16& x = on_host(moment.values).as<bf16>()[i];
            x = bf16(static_cast<float>(x) * static_cast<float>(x));
        }
    }
    return moment;
}

// Parameters of these sizes with the state of some steps, every third one without decay. Their elements are rows of 24,
// 40 apart, of a global tensor, from an element on that is no multiple of 8.
std::vector<OptimizerPiece> make_pieces(Arena& arena, const std::vector<int64_t>& sizes, const Types& types,
                                        bool second) {
    std::vector<OptimizerPiece> pieces;
    for (const int64_t n : sizes) {
        const size_t k = pieces.size();
        const auto normal = [&](const char* what, DType type) {
            return arena.normal({n}, type, concat(what, k).c_str());
        };
        OptimizerPiece& piece = pieces.emplace_back();
        piece.master = normal("p", types.master);
        piece.gradient = normal("g", types.gradient);
        if (types.copy != DType::f32) piece.value = arena.empty({n}, types.copy);
        piece.m = make_moment(arena, n, types.m, true, k, types.stochastic);
        if (second) piece.v = make_moment(arena, n, types.v, false, k, types.stochastic);
        piece.weight_decay = k % 3 == 2 ? 0 : 0.1f;
        piece.master_key = types.master == DType::bf16 ? random_key(k, "p") : 0;
        piece.elements = {.first = 1003, .width = 24, .stride = 40};
    }
    return pieces;
}

std::vector<double> decoded(const Moment& moment, const DynamicMap& map) {
    std::vector<double> x = moment.values.defined() ? values(moment.values) : std::vector<double>{};
    if (moment.values.dtype == DType::u8)
        for (size_t i = 0; i < x.size(); ++i)
            x[i] = static_cast<double>(map.values[static_cast<size_t>(x[i])]) *
                   value(moment.largest, static_cast<int64_t>(i) / kStateBlock);
    return x;
}

// Values of a piece before the step, for the bounds.
struct Before {
    explicit Before(const OptimizerPiece& piece)
        : p(values(piece.master)),
          g(values(piece.gradient)),
          m(decoded(piece.m, kSignedMap)),
          v(decoded(piece.v, kUnsignedMap)) {}
    std::vector<double> p, g, m, v;
};

// One unit in the last place of bf16: an error that f32 makes can change the direction of a stochastic rounding.
double one_unit(DType type, double value) { return type == DType::bf16 ? 2 * rounding(DType::bf16, value) : 0; }

void report_moment(Arena& arena, const char* name, const Moment& moment, const std::function<double(int64_t)>& error) {
    if (moment.values.dtype != DType::u8) {
        arena.result(name, moment.values,
                     [&](int64_t i) { return error(i) + one_unit(moment.values.dtype, value(moment.values, i)); });
        return;
    }
    arena.may_change(moment.values);
    // Near a midpoint either code is right.
    const DynamicMap& map = *name == 'v' ? kUnsignedMap : kSignedMap;
    Output off{concat(name, " decoded"), decoded(moment, map), {}};
    for (int64_t i = 0; arena.with_tolerance() && i < moment.values.numel(); ++i) {
        const uint8_t code = on_host(moment.values).as<uint8_t>()[i];
        const double gap = std::max(code > 0 ? map.values[code] - map.values[code - 1] : 0,
                                    code < 255 ? map.values[code + 1] - map.values[code] : 0);
        off.tolerance.push_back(gap * value(moment.largest, i / kStateBlock) + error(i));
    }
    arena.result(std::move(off));
    arena.result(concat(name, " largest"), moment.largest, [&](int64_t b) {
        double most = 0;
        for (int64_t i = b * kStateBlock; i < std::min(moment.values.numel(), (b + 1) * kStateBlock); ++i)
            most = std::max(most, error(i));
        return most + u * value(moment.largest, b);
    });
}

void report_master(Arena& arena, const OptimizerPiece& piece, const std::function<double(int64_t)>& error) {
    arena.result("master", piece.master,
                 [&](int64_t i) { return error(i) + one_unit(piece.master.dtype, value(piece.master, i)); });
    report_value(arena, piece, error);
}

// For the case's name: the sizes, or their number.
std::string name_of(const std::vector<int64_t>& sizes, const Types& types) {
    return concat(types.name(), sizes.size() == 1 ? concat(" (", sizes[0], ")") : concat(" ", sizes.size(), " pieces"));
}

void add_adamw(std::vector<Case>& all, const std::vector<int64_t>& sizes, const Types& types) {
    add(all, "adamw", &KernelTable::adamw, name_of(sizes, types),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const std::vector<OptimizerPiece> pieces = make_pieces(arena, sizes, types, true);
            const std::vector<Before> all_before(pieces.begin(), pieces.end());
            const AdamW a{.pieces = pieces,
                          .lr = 0.01f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .correction1 = 1 - 0.9f * 0.9f * 0.9f,
                          .correction2 = 1 - 0.95f * 0.95f * 0.95f,
                          .grad_scale = 0.5f};
            arena.start();
            table.adamw(stream, a);
            for (size_t k = 0; k < pieces.size(); ++k) {
                const Before& before = all_before[k];
                const auto at = [&](const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; };
                const auto new_m = [&](int64_t i) { return 0.9 * at(before.m, i) + 0.1 * 0.5 * at(before.g, i); };
                const auto new_v = [&](int64_t i) {
                    return 0.95 * at(before.v, i) + 0.05 * 0.25 * at(before.g, i) * at(before.g, i);
                };
                const auto m_error = [&](int64_t i) {  // two products, a sum, the scale of g
                    return 6 * u * (0.9 * std::abs(at(before.m, i)) + 0.1 * 0.5 * std::abs(at(before.g, i))) + FLT_MIN;
                };
                const auto v_error = [&](int64_t i) { return 6 * u * new_v(i) + FLT_MIN; };  // all > 0
                const auto p_error = [&](int64_t i) {
                    // The root halves the 6 u of v; two quotients, a root, a sum and the product with lr: under 12 u.
                    const double p = std::abs(at(before.p, i));
                    const double root = std::sqrt(new_v(i) / a.correction2) + a.eps;
                    const double direction = std::abs(new_m(i)) / a.correction1 / root;
                    const double decay = pieces[k].weight_decay * p;
                    return a.lr * (m_error(i) / a.correction1 / root + 12 * u * direction + 4 * u * decay) + 3 * u * p;
                };
                report_moment(arena, "m", pieces[k].m, m_error);
                report_moment(arena, "v", pieces[k].v, v_error);
                report_master(arena, pieces[k], p_error);
            }
        });
}

// A rule with momentum alone: factors of m, g and p in what the momentum becomes and in what p loses.
template <class Step>
void add_rule(std::vector<Case>& all, const char* op, void (*KernelTable::*entry)(const Stream&, const Step&),
              const std::vector<int64_t>& sizes, const Types& types, Step step) {
    add(all, op, entry, name_of(sizes, types), [=](const auto& table, const auto& stream, Arena& arena) {
        const std::vector<OptimizerPiece> pieces = make_pieces(arena, sizes, types, false);
        const std::vector<Before> all_before(pieces.begin(), pieces.end());
        Step s = step;
        s.pieces = pieces;
        arena.start();
        (table.*entry)(stream, s);
        for (size_t k = 0; k < pieces.size(); ++k) {
            const Before& before = all_before[k];
            const auto size = [&](int64_t i) {  // of the terms of the momentum
                const auto at = static_cast<size_t>(i);
                return std::abs(before.m[at]) + std::abs(before.g[at]) +
                       pieces[k].weight_decay * std::abs(before.p[at]);
            };
            const auto m_error = [&](int64_t i) { return 5 * u * size(i); };  // three products, two sums
            const auto p_error = [&](int64_t i) {
                // The sign of Lion's mean is right unless the mean is lost in rounding.
                const auto at = static_cast<size_t>(i);
                const double decay = pieces[k].weight_decay * std::abs(before.p[at]);
                const bool lost =
                    std::is_same_v<Step, Lion> && std::abs(0.9 * before.m[at] + 0.1 * 0.5 * before.g[at]) < m_error(i);
                return s.lr * (7 * u * size(i) + 4 * u * (1 + decay) + (lost ? 2 : 0)) + 3 * u * std::abs(before.p[at]);
            };
            report_moment(arena, "momentum", pieces[k].m, m_error);
            report_master(arena, pieces[k], p_error);
        }
    });
}

// From 0, with rate -1 and without momentum and decay, masters and momentum become the gradients, whose rounding has
// the same bits in every table.
void add_rounding(std::vector<Case>& all, const std::vector<int64_t>& sizes) {
    add(all, "sgd", &KernelTable::sgd, concat("stochastic rounding ", sizes.size(), " pieces"),
        [=](const auto& table, const auto& stream, Arena& arena) {
            std::vector<OptimizerPiece> pieces =
                make_pieces(arena, sizes, {.m = DType::bf16, .master = DType::bf16}, false);
            for (OptimizerPiece& piece : pieces) {
                std::fill_n(on_host(piece.master).as<uint16_t>(), piece.master.numel(), uint16_t{0});
                std::fill_n(on_host(piece.m.values).as<uint16_t>(), piece.master.numel(), uint16_t{0});
                piece.weight_decay = 0;
            }
            arena.start();
            table.sgd(stream, {.pieces = pieces, .lr = -1, .momentum = 0});
            for (const OptimizerPiece& piece : pieces) {
                arena.result("master", piece.master, [](int64_t) { return 0; });
                arena.result("momentum", piece.m.values, [](int64_t) { return 0; });
            }
        });
}

void add_muon(std::vector<Case>& all, const std::vector<int64_t>& sizes, const Types& types, DType update) {
    const auto name = concat(name_of(sizes, types), ", update ", update);
    add(all, "muon_momentum", &KernelTable::muon_momentum, name,
        [=](const auto& table, const auto& stream, Arena& arena) {
            std::vector<OptimizerPiece> pieces = make_pieces(arena, sizes, {.m = types.m}, false);
            const std::vector<Before> all_before(pieces.begin(), pieces.end());
            for (OptimizerPiece& piece : pieces) {
                piece.update = arena.empty(piece.gradient.shape, update);
                piece.master = {};
            }
            arena.start();
            table.muon_momentum(stream, {.pieces = pieces, .momentum = 0.95f, .grad_scale = 0.5f});
            for (size_t k = 0; k < pieces.size(); ++k) {
                const auto error = [&](int64_t i) {
                    const auto at = static_cast<size_t>(i);
                    return 5 * u * (std::abs(all_before[k].m[at]) + std::abs(all_before[k].g[at])) + FLT_MIN;
                };
                report_moment(arena, "momentum", pieces[k].m, error);
                arena.result("update", pieces[k].update,
                             [&](int64_t i) { return 2 * error(i) + rounding(update, value(pieces[k].update, i)); });
            }
        });
    add(all, "muon_descent", &KernelTable::muon_descent, name,
        [=](const auto& table, const auto& stream, Arena& arena) {
            std::vector<OptimizerPiece> pieces = make_pieces(arena, sizes, types, false);
            const std::vector<Before> all_before(pieces.begin(), pieces.end());
            for (OptimizerPiece& piece : pieces) {
                piece.update = arena.normal(piece.gradient.shape, update, "x", 0.1);
                piece.gradient = {};
                piece.m = {};
                piece.update_scale = 1.5f;
            }
            arena.start();
            table.muon_descent(stream, {.pieces = pieces, .lr = 0.01f});
            for (size_t k = 0; k < pieces.size(); ++k)
                report_master(arena, pieces[k], [&](int64_t i) {
                    return 5 * u * (std::abs(all_before[k].p[static_cast<size_t>(i)]) + 1);
                });
        });
}

}  // namespace

void add_optimizers(std::vector<Case>& all) {
    const auto add_all = [&](const std::vector<int64_t>& sizes, const Types& types) {
        add_adamw(all, sizes, types);
        add_rule(all, "sgd", &KernelTable::sgd, sizes, types, Sgd{.lr = 0.1f, .momentum = 0.9f, .grad_scale = 0.5f});
        add_rule(all, "lion", &KernelTable::lion, sizes, types,
                 Lion{.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .grad_scale = 0.5f});
    };
    // More pieces than one GPU launch takes, some of them empty; pieces of several blocks end with whole words, in the
    // middle of a word, and at the end of a block.
    std::vector<int64_t> many(600);
    for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i * 7 % 19);
    many[100] = 4096 + 24;
    many[300] = 2048 + 13;
    many[500] = 3 * 2048;
    for (const DType copy : kActivationTypes) {
        for (const int64_t n : kLengths) add_all({n}, {.copy = copy});
        add_all(many, {.copy = copy});
    }
    add_rounding(all, {40001});
    add_rounding(all, many);
    constexpr DType f32 = DType::f32, bf16 = DType::bf16, f16 = DType::f16, u8 = DType::u8;
    for (const auto& sizes : {std::vector<int64_t>{520}, std::vector<int64_t>{40001}, many}) {
        for (const Types& types :
             {Types{bf16, bf16, f32}, Types{bf16, bf16, bf16}, Types{f32, bf16, bf16, f32, f32, false},
              Types{bf16, u8, u8}, Types{f32, u8, bf16}, Types{f32, f32, u8}, Types{bf16, f32, f32, f32, bf16},
              Types{f32, f32, f32, bf16}, Types{f32, u8, u8, bf16, bf16}, Types{f16, bf16, u8},
              Types{f16, f32, f32, f32, bf16}})
            add_all(sizes, types);
        for (const DType update : {f32, bf16}) {
            add_muon(all, sizes, {.copy = bf16}, update);
            add_muon(all, sizes, {.copy = f16}, update);
            add_muon(all, sizes, {.m = bf16, .master = bf16}, update);
        }
    }
}

}  // namespace tutti::kernels::cases
