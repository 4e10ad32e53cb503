// kernels/testing/optimizer_cases.cpp: AdamW and SGD on one parameter and on many, with and without the bf16 copy of
// the weights.
#include <span>

#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

// A bf16 value must be the rounded master weight of the same table, bit for bit.
void report_value(Arena& arena, const OptimizerPiece& piece, const std::function<double(int64_t)>& tolerance) {
    if (!piece.value.defined()) return;
    arena.result("value", piece.value,
                 [&](int64_t i) { return tolerance(i) + rounding(DType::bf16, value(piece.value, i)); });
    Output off{"value minus rounded master", {}, {}};
    for (int64_t i = 0; i < piece.master.numel(); ++i)
        off.values.push_back(value(piece.value, i) - bf16_value(bf16_bits(piece.master.as<float>()[i])));
    off.tolerance.assign(off.values.size(), 0);
    arena.result(std::move(off));
}

// Parameters of these sizes with the state of some steps, every third one without decay.
std::vector<OptimizerPiece> make_pieces(Arena& arena, const std::vector<int64_t>& sizes, bool copy) {
    std::vector<OptimizerPiece> pieces;
    for (const int64_t n : sizes) {
        const auto normal = [&](const char* what, double scale) {
            return arena.normal({n}, DType::f32, concat(what, pieces.size()).c_str(), scale);
        };
        const View p = normal("p", 1), g = normal("g", 1), m = normal("m", 0.1), v = normal("v", 0.1);
        for (float& x : std::span(v.as<float>(), static_cast<size_t>(n))) x *= x;
        const View value = copy ? arena.empty({n}, DType::bf16) : View();
        pieces.push_back({p, g, value, m, v, pieces.size() % 3 == 2 ? 0 : 0.1f});
    }
    return pieces;
}

// Values of a piece before the step, for the bounds.
struct Before {
    explicit Before(const OptimizerPiece& piece)
        : p(values(piece.master)), g(values(piece.gradient)), m(values(piece.m)) {}
    std::vector<double> p, g, m;
};

// For the case's name: the sizes, or their number.
std::string name_of(const std::vector<int64_t>& sizes, bool copy) {
    return concat(copy ? "bf16" : "f32",
                  sizes.size() == 1 ? concat(" (", sizes[0], ")") : concat(" ", sizes.size(), " pieces"));
}

void add_adamw(std::vector<Case>& all, const std::vector<int64_t>& sizes, bool copy) {
    add(all, "adamw", &KernelTable::adamw, name_of(sizes, copy),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const std::vector<OptimizerPiece> pieces = make_pieces(arena, sizes, copy);
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
                const OptimizerPiece& piece = pieces[k];
                const Before& before = all_before[k];
                const auto m_error = [&](int64_t i) {  // two products, a sum, the scale of g
                    const auto at = static_cast<size_t>(i);
                    return 6 * u * (0.9 * std::abs(before.m[at]) + 0.1 * 0.5 * std::abs(before.g[at])) + FLT_MIN;
                };
                const auto p_error = [&](int64_t i) {
                    // The root halves the 6 u of v; two quotients, a root, a sum and the product with lr: under 12 u.
                    const double p = std::abs(before.p[static_cast<size_t>(i)]);
                    const double root = std::sqrt(value(piece.v, i) / a.correction2) + a.eps;
                    const double direction = std::abs(value(piece.m, i)) / a.correction1 / root;
                    const double decay = piece.weight_decay * p;
                    return a.lr * (m_error(i) / a.correction1 / root + 12 * u * direction + 4 * u * decay) + 3 * u * p;
                };
                arena.result("m", piece.m, m_error);
                arena.result("v", piece.v, [&](int64_t i) { return 6 * u * value(piece.v, i) + FLT_MIN; });  // all > 0
                arena.result("master", piece.master, p_error);
                report_value(arena, piece, p_error);
            }
        });
}

void add_sgd(std::vector<Case>& all, const std::vector<int64_t>& sizes, bool copy) {
    add(all, "sgd", &KernelTable::sgd, name_of(sizes, copy), [=](const auto& table, const auto& stream, Arena& arena) {
        const std::vector<OptimizerPiece> pieces = make_pieces(arena, sizes, copy);
        const std::vector<Before> all_before(pieces.begin(), pieces.end());
        const Sgd s{.pieces = pieces, .lr = 0.1f, .momentum = 0.9f, .grad_scale = 0.5f};
        arena.start();
        table.sgd(stream, s);
        for (size_t k = 0; k < pieces.size(); ++k) {
            const OptimizerPiece& piece = pieces[k];
            const Before& before = all_before[k];
            const auto m_error = [&](int64_t i) {  // three products, two sums
                const auto at = static_cast<size_t>(i);
                return 5 * u *
                       (0.9 * std::abs(before.m[at]) + 0.5 * std::abs(before.g[at]) +
                        piece.weight_decay * std::abs(before.p[at]));
            };
            const auto p_error = [&](int64_t i) {
                return s.lr * (m_error(i) + 2 * u * std::abs(value(piece.m, i))) +
                       3 * u * std::abs(before.p[static_cast<size_t>(i)]);
            };
            arena.result("momentum", piece.m, m_error);
            arena.result("master", piece.master, p_error);
            report_value(arena, piece, p_error);
        }
    });
}

}  // namespace

void add_optimizers(std::vector<Case>& all) {
    // More pieces than one GPU launch takes, some of them empty; pieces of several blocks end with whole words, in the
    // middle of a word, and at the end of a block.
    std::vector<int64_t> many(600);
    for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i * 7 % 19);
    many[100] = 4096 + 24;
    many[300] = 2048 + 13;
    many[500] = 3 * 2048;
    for (const bool copy : {false, true}) {
        for (const int64_t n : kLengths) {
            add_adamw(all, {n}, copy);
            add_sgd(all, {n}, copy);
        }
        add_adamw(all, many, copy);
        add_sgd(all, many, copy);
    }
}

}  // namespace tutti::kernels::cases
