// kernels/testing/attention_cases.cpp: attention forward and backward: head dims, grouped queries, Tq != Tk with an
// offset, causal and full, windows and documents, q, k and v inside one packed projection or stored head by head; parts
// of a sequence as in ring attention, and the merge of two such parts; capped scores; sinks.
#include <algorithm>
#include <cstring>

#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

enum class Layout { whole, packed, heads_first };
enum class Results { like_inputs, f32, added };  // added: the backward adds to f32

struct Form {
    int64_t B, Tq, Tk, H, Hkv, D;
    bool causal = true;
    int64_t query_offset = 0;
    Layout layout = Layout::whole;
    double amplitude = 1;     // of the scores
    int64_t unseen_keys = 0;  // backward: keys that lse and o count but k and v lack, as in ring attention
    int64_t window = 0;
    std::array<int64_t, 3> documents = {};  // lengths of documents, repeated; none: no first_key
    DType dtype = DType::f32;
    int64_t key_offset = 0;
    Results results = Results::like_inputs;
    float cap = 0;   // of the scores
    int64_t Dv = 0;  // width of values, where not D

    int64_t value_width() const { return Dv > 0 ? Dv : D; }
    DType result_type() const { return results == Results::like_inputs ? dtype : DType::f32; }
};

// Documents of one token, shorter than a vector, and crossing tiles in both directions.
constexpr std::array<int64_t, 3> kMixed = {1, 40, 150}, kShort = {3, 1, 12}, kSingles = {1, 1, 1};

constexpr std::array<Form, 42> kForms = {{
    {1, 1, 1, 1, 1, 64},
    {2, 3, 3, 2, 2, 64},
    {2, 17, 17, 3, 3, 32},
    {1, 63, 63, 2, 1, 80},
    {1, 70, 70, 2, 1, 36},
    {1, 33, 65, 1, 1, 256, true, 32},
    {1, 65, 65, 4, 2, 64, true, 0, Layout::packed},
    {1, 127, 127, 2, 2, 128, true, 0, Layout::packed},
    {1, 64, 64, 2, 2, 64, true, 0, Layout::heads_first},
    {1, 17, 17, 6, 3, 80, false, 0, Layout::heads_first},
    {2, 65, 65, 3, 3, 64, false},
    {1, 17, 65, 4, 2, 64, true, 48},   // queries at the end of the sequence, all keys
    {2, 1, 127, 4, 1, 64, true, 126},  // one new token
    {1, 65, 33, 2, 2, 64, false},      // a block of keys
    {1, 33, 65, 2, 1, 32, true, 0},    // keys that no query attends to
    {1, 40, 17, 2, 2, 64, true, -5},   // queries that attend to no key
    {1, 300, 300, 2, 1, 64, true},     // several tiles in both directions
    {1, 65, 1000, 1, 1, 32, false},
    {1, 130, 257, 3, 1, 128, true, 127},
    {1, 65, 65, 2, 2, 64, true, 0, Layout::packed, 12},   // scores of tens: exp needs the maximum subtracted
    {1, 300, 300, 2, 1, 64, true, 0, Layout::whole, 60},  // scores of 100, the maximum varies by tile
    {1, 33, 40, 2, 1, 64, false, 0, Layout::whole, 1, 25},
    {1, 300, 300, 2, 1, 64, true, 0, Layout::whole, 1, 0, 70},    // whole tiles on both sides of the window
    {2, 333, 333, 1, 1, 32, true, 0, Layout::packed, 1, 0, 129},  // a window that is a multiple of the tile
    {1, 65, 65, 2, 2, 64, true, 0, Layout::whole, 1, 0, 1},
    {1, 33, 33, 2, 1, 64, true, 0, Layout::whole, 1, 0, 100},  // a window longer than the sequence
    {1, 17, 300, 4, 2, 64, true, 283, Layout::whole, 1, 0, 150},
    {2, 1, 300, 2, 2, 64, true, 299, Layout::whole, 1, 0, 37},   // one new token
    {1, 40, 130, 1, 1, 32, false, 60, Layout::whole, 1, 0, 33},  // not causal: the window limits only the first key
    {2, 300, 300, 2, 1, 64, true, 0, Layout::whole, 1, 0, 0, kMixed},
    {1, 127, 127, 2, 2, 64, true, 0, Layout::packed, 1, 0, 0, kShort},
    {1, 65, 65, 3, 1, 32, true, 0, Layout::whole, 1, 0, 0, kSingles},
    {2, 1, 127, 4, 4, 64, true, 126, Layout::whole, 1, 0, 0, kMixed},
    {2, 259, 259, 2, 2, 32, true, 0, Layout::heads_first, 1, 0, 20, kMixed},  // a window and documents
    {1, 33, 40, 2, 1, 64, false, 0, Layout::whole, 1, 25, 0, kShort},         // a block of keys, not causal
    {1, 70, 70, 2, 1, 256, true, 0, Layout::packed},
    {1, 33, 65, 2, 2, 192, false, 0, Layout::whole, 1, 9},
    {1, 48, 48, 2, 1, 40, true, 0, Layout::heads_first},  // whole 16-byte words, but not whole tiles
    {1, 130, 130, 2, 1, 24, true, 0, Layout::packed, 1, 0, 50},
    {1, 330, 330, 2, 1, 128, true},  // each ring buffer of tiles wraps, in all directions
    {1, 200, 200, 4, 2, 96, true, 0, Layout::packed, 1, 0, 140, kMixed},
    {1, 70, 400, 2, 1, 128, false, 0, Layout::heads_first, 20, 30},
}};

// Parts of a sequence: a block of queries, and keys from another block.
constexpr Form part(Form form, int64_t key_offset, Results results = Results::like_inputs) {
    form.key_offset = key_offset;
    form.results = results;
    return form;
}
constexpr std::array<Form, 17> kParts = {{
    part({1, 65, 65, 2, 1, 64, true, 65}, 65),     // keys of the same block
    part({2, 65, 130, 1, 1, 64, true, 260}, 130),  // keys of an earlier block
    part({1, 65, 70, 2, 2, 80, true, 10}, 40),     // keys of a later block
    part({1, 40, 70, 2, 2, 64, true, 10}, 50, Results::added),
    part({1, 70, 90, 2, 1, 32, true, 0}, -20),
    part({1, 70, 150, 2, 1, 32, true, -7, Layout::whole, 1, 0, 40}, -90),
    part({1, 200, 150, 1, 1, 32, true, 300, Layout::whole, 1, 0, 280}, 120),
    part({1, 33, 65, 2, 2, 64, true, 1 << 30}, (1 << 30) - 40),
    part({1, 33, 65, 2, 1, 64, true, 1 << 30, Layout::whole, 1, 0, 100}, 0),  // far behind the keys
    part({2, 70, 130, 1, 1, 64, true, 200, Layout::whole, 1, 0, 0, kMixed}, 70),
    part({2, 70, 70, 2, 2, 32, true, 150, Layout::whole, 1, 0, 0, kMixed}, 150, Results::added),
    part({2, 65, 127, 2, 1, 36, false, 200, Layout::whole, 1, 0, 120, kMixed}, 100),
    part({2, 1, 300, 2, 2, 64, true, 400, Layout::whole, 1, 0, 250, kMixed}, 130),  // one new token
    part({1, 1, 30, 2, 1, 64, true, 70}, 90, Results::f32),
    part({1, 1, 127, 2, 1, 80, true, 126}, 0, Results::f32),
    part({1, 70, 130, 2, 1, 128, true, 60, Layout::heads_first}, 0, Results::f32),
    part({1, 65, 65, 2, 1, 256, true, 0, Layout::packed}, 0, Results::added),
}};

constexpr Form capped(Form form, float cap) {
    form.cap = cap;
    return form;
}
constexpr std::array<Form, 7> kCapped = {{
    capped({2, 17, 17, 3, 3, 32}, 2),
    capped({1, 300, 300, 2, 1, 64, true, 0, Layout::packed, 12}, 5),  // scores far beyond the cap
    capped({1, 65, 65, 2, 1, 256, true, 0, Layout::whole, 1, 0, 20}, 1),
    capped({1, 70, 70, 2, 1, 36, false, 0, Layout::heads_first, 3}, 50),
    capped({2, 1, 300, 4, 4, 64, true, 299, Layout::whole, 4}, 3),  // one new token
    capped({1, 330, 330, 2, 1, 128, true, 0, Layout::whole, 2, 0, 0, kMixed}, 4),
    capped(part({2, 65, 130, 1, 1, 64, true, 260}, 130, Results::added), 2),
}};

constexpr Form narrow(Form form, int64_t Dv) {
    form.Dv = Dv;
    return form;
}
// Values narrower than queries and keys, as in latent attention: DeepSeek's 192 and 128, and odd ones.
constexpr std::array<Form, 9> kNarrow = {{
    narrow({1, 70, 70, 2, 2, 192}, 128),
    narrow({2, 130, 130, 2, 1, 96, true, 0, Layout::packed}, 40),
    narrow({1, 300, 300, 2, 2, 64, true, 0, Layout::heads_first, 12, 0, 70}, 1),
    narrow({1, 33, 65, 3, 3, 12, true, 32}, 6),
    narrow({2, 65, 65, 2, 1, 36, false, 0, Layout::whole, 1, 12}, 35),
    narrow({2, 1, 300, 4, 4, 192, true, 299}, 128),  // one new token
    narrow(part({2, 65, 130, 2, 2, 24, true, 260}, 130, Results::added), 17),
    narrow(part({1, 130, 130, 2, 1, 128, true, 60, Layout::packed}, 0, Results::f32), 64),
    narrow(capped({1, 200, 200, 2, 1, 48, true, 0, Layout::packed, 2, 0, 0, kMixed}, 4), 32),
}};

// Position at which the document of query i begins. Each batch entry starts elsewhere in the cycle of lengths.
int64_t first_key(const Form& f, int64_t b, int64_t i) {
    int64_t begin = 0;
    for (auto d = static_cast<size_t>(b);; ++d) {
        const int64_t end = begin + f.documents[d % f.documents.size()];
        if (i + f.query_offset < end) return begin;
        begin = end;
    }
}
View first_keys(Arena& arena, const Form& f) {
    if (f.documents[0] == 0) return {};
    std::vector<double> keys;
    for (int64_t b = 0; b < f.B; ++b)
        for (int64_t i = 0; i < f.Tq; ++i) keys.push_back(static_cast<double>(first_key(f, b, i)));
    return arena.from({f.B, f.Tq}, DType::i32, keys);
}

std::string label(const Form& f) {
    constexpr const char* kLayouts[] = {"", " packed", " heads first"};
    constexpr const char* kResults[] = {"", " to f32", " added to f32"};
    return concat(f.dtype, " B ", f.B, " Tq ", f.Tq, " Tk ", f.Tk, " H ", f.H, "/", f.Hkv, " D ", f.D,
                  f.Dv ? concat(" Dv ", f.Dv) : "", f.causal ? " causal" : "",
                  f.query_offset ? concat(" offset ", f.query_offset) : "", kLayouts[static_cast<int>(f.layout)],
                  f.amplitude != 1 ? concat(" scores of ", f.amplitude) : "",
                  f.unseen_keys ? concat(" of ", f.Tk + f.unseen_keys, " keys") : "",
                  f.window ? concat(" window ", f.window) : "",
                  f.documents[0] ? concat(" documents of ", f.documents[0], ", ", f.documents[1], ", ...") : "",
                  f.key_offset ? concat(" keys from ", f.key_offset) : "", f.cap > 0 ? concat(" cap ", f.cap) : "",
                  kResults[static_cast<int>(f.results)]);
}

struct Projections {
    View q, k, v;
};

// Projections in the form's layout, random or NaN. `packed` needs Tq = Tk.
Projections make(Arena& arena, const Form& f, int64_t Tk, bool random) {
    const auto array = [&](const Shape& shape, const char* purpose) {
        return random ? arena.normal(shape, f.dtype, purpose) : arena.empty(shape, f.dtype);
    };
    if (f.layout == Layout::packed) {
        const View qkv = array({f.B, f.Tq, f.H + 2 * f.Hkv, f.D}, "qkv");
        return {slice(qkv, 2, 0, f.H), slice(qkv, 2, f.H, f.Hkv),
                slice(slice(qkv, 2, f.H + f.Hkv, f.Hkv), 3, f.D - f.value_width(), f.value_width())};
    }
    if (f.layout == Layout::heads_first)
        return {swap_middle(array({f.B, f.H, f.Tq, f.D}, "q")), swap_middle(array({f.B, f.Hkv, Tk, f.D}, "k")),
                swap_middle(array({f.B, f.Hkv, Tk, f.value_width()}, "v"))};
    return {array({f.B, f.Tq, f.H, f.D}, "q"), array({f.B, Tk, f.Hkv, f.D}, "k"),
            array({f.B, Tk, f.Hkv, f.value_width()}, "v")};
}

AttentionMask mask_of(Arena& arena, const Form& f) {
    return {f.causal, f.query_offset, f.key_offset, f.window, first_keys(arena, f)};
}

float scale_of(const Form& f) { return static_cast<float>(f.amplitude / std::sqrt(static_cast<double>(f.D))); }

// Row t of head h of batch entry b.
std::vector<double> row(const View& x, int64_t b, int64_t t, int64_t h) {
    return values(slice(slice(slice(x, 0, b, 1), 1, t, 1), 2, h, 1));
}

struct Dot {
    double value = 0, size = 0;  // sum a b, sum |a b|
};

Dot dot(const std::vector<double>& a, const std::vector<double>& b) {
    Dot sum;
    for (size_t d = 0; d < a.size(); ++d) {
        sum.value += a[d] * b[d];
        sum.size += std::abs(a[d] * b[d]);
    }
    return sum;
}

// Keys that query i attends to: [first, end).
struct Keys {
    int64_t first, end;
};
Keys visible_keys(const Form& f, int64_t b, int64_t i) {
    const int64_t last = i + f.query_offset - f.key_offset;
    Keys keys{0, f.causal ? std::clamp<int64_t>(last + 1, 0, f.Tk) : f.Tk};
    if (f.window > 0) keys.first = std::max(keys.first, last - f.window + 1);
    if (f.documents[0] > 0) keys.first = std::max(keys.first, first_key(f, b, i) - f.key_offset);
    keys.first = std::min(keys.first, keys.end);
    return keys;
}

// Error bound of rows that are sums of terms factor * x. A table may round the factors, P and dS, to the activation's
// type before the products with rows of v, k and q, as 16-bit matrix units require. Like those of a sum (sum_error),
// these roundings add up at worst linearly, and stay below 8 roots of their squares but for odds of 3e-14. A factor
// that is subnormal in f16 is off by half of 2^-24, a smaller one by itself.
class RowErrors {
  public:
    RowErrors(const Form& f, int64_t rows, int64_t width)
        : width_(static_cast<size_t>(width)),
          packing_(f.dtype == DType::f32 ? 0 : unit_roundoff(f.dtype)),
          subnormal_(f.dtype == DType::f16 ? 0x1p-25 : 0),
          plain_(static_cast<size_t>(rows) * width_),
          packed_(plain_.size()),
          squares_(plain_.size()) {}
    // Adds the term factor * x to a row; `error` bounds the error of the factor, of which a table may round factor /
    // unit.
    void add(int64_t row, double factor, double error, const std::vector<double>& x, double unit = 1) {
        error += std::min(unit * subnormal_, std::abs(factor));
        for (size_t d = 0; d < width_; ++d) {
            const size_t at = static_cast<size_t>(row) * width_ + d;
            plain_[at] += error * std::abs(x[d]);
            packed_[at] += std::abs(factor * x[d]);
            squares_[at] += factor * factor * x[d] * x[d];
        }
    }
    // The bound of element i when every term of the row also has a relative error of `relative`.
    double of(int64_t i, double relative) const {
        const auto at = static_cast<size_t>(i);
        return plain_[at] + relative * packed_[at] + packing_ * std::min(packed_[at], 8 * std::sqrt(squares_[at]));
    }

  private:
    size_t width_;
    double packing_, subnormal_;
    std::vector<double> plain_, packed_, squares_;
};

// All rows of one head, so that each row is read once per bound.
std::vector<std::vector<double>> rows(const View& x, int64_t b, int64_t h) {
    std::vector<std::vector<double>> all;
    for (int64_t t = 0; t < x.shape[1]; ++t) all.push_back(row(x, b, t, h));
    return all;
}

// A score, and a bound on the error of its computed value, where a dot product of D terms is off by sum_error(D + 3).
// With a cap c, S = c tanh(s / c) is at most as far off as s, and by the errors of tanh and of the products, of which
// the argument's counts once more.
struct Score {
    double S, error;
};
Score score_of(const Form& f, float scale, const Dot& product) {
    const double s = scale * product.value, error = sum_error(f.D + 3) * scale * product.size;
    if (f.cap == 0) return {s, error};
    const double S = f.cap * std::tanh(s / f.cap);
    return {S, error + (2 * kMath + 4 * u) * std::abs(S)};
}

// Forward. S = scale q.k is off by sum_error(D + 3) scale sum|q k|; e = exp(S - m) relative by that, 3 u |S - m| and
// kMath: this is delta_j. O = sum e v / sum e: each term of the numerator by delta_j, the denominator relative by
// sum_j P delta_j, sums of up to Tk terms each with a rescaling per tile, sum_error(4 Tk + 8) together. lse: the
// denominator's relative error, and kMath.
struct ForwardBound {
    RowErrors o;
    std::vector<double> o_relative, lse;  // by row (b, i, h); by (b, h, i)
};

ForwardBound bound(const Form& f, const AttentionForward& a) {
    const int64_t group = f.H / f.Hkv;
    const double sums = sum_error(4 * f.Tk + 8);
    ForwardBound out{RowErrors(f, f.B * f.Tq * f.H, f.value_width()),
                     std::vector<double>(static_cast<size_t>(f.B * f.Tq * f.H)),
                     {}};
    for (int64_t b = 0; b < f.B; ++b)
        for (int64_t h = 0; h < f.H; ++h) {
            const auto q = rows(a.q, b, h), k = rows(a.k, b, h / group), v = rows(a.v, b, h / group);
            for (int64_t i = 0; i < f.Tq; ++i) {
                const auto [first, end] = visible_keys(f, b, i);
                const int64_t row = (b * f.Tq + i) * f.H + h;
                std::vector<Score> s;
                double m = -INFINITY, total = 0, relative = 0;
                for (int64_t j = first; j < end; ++j) {
                    s.push_back(score_of(f, a.scale, dot(q[static_cast<size_t>(i)], k[static_cast<size_t>(j)])));
                    m = std::max(m, s.back().S);
                }
                for (const Score& score : s) total += std::exp(score.S - m);
                for (int64_t j = first; j < end; ++j) {
                    const Score& score = s[static_cast<size_t>(j - first)];
                    const double difference = score.S - m, P = std::exp(difference) / total;
                    const double delta = score.error - 3 * u * difference + kMath;
                    relative += P * delta;
                    out.o.add(row, P, P * delta, v[static_cast<size_t>(j)]);
                }
                const double lse = s.empty() ? 0 : m + std::log(total);
                out.o_relative[static_cast<size_t>(row)] = relative + sums;
                out.lse.push_back(!s.empty() ? relative + sums + (kMath + 2 * u) * (std::abs(lse) + std::abs(m)) : 0);
            }
        }
    return out;
}

void run_forward(const Form& f, const KernelTable& table, const Stream& stream, Arena& arena) {
    const auto [q, k, v] = make(arena, f, f.Tk, true);
    const AttentionForward a{.q = q,
                             .k = k,
                             .v = v,
                             .o = arena.empty({f.B, f.Tq, f.H, f.value_width()}, f.result_type()),
                             .lse = arena.empty({f.B, f.H, f.Tq}, DType::f32),
                             .scale = scale_of(f),
                             .cap = f.cap,
                             .mask = mask_of(arena, f),
                             .workspace = arena.workspace(table.attention_workspace(stream, q.shape, k.shape, false))};
    arena.start();
    table.attention_forward(stream, a);
    const ForwardBound error = arena.with_tolerance() ? bound(f, a) : ForwardBound{RowErrors(f, 0, 0), {}, {}};
    arena.result("o", a.o, [&](int64_t i) {
        return error.o.of(i, error.o_relative[static_cast<size_t>(i / f.value_width())]) +
               rounding(a.o.dtype, value(a.o, i));
    });
    arena.result("lse", a.lse, [&](int64_t i) {
        const double lse = value(a.lse, i);
        return std::isinf(lse) ? 0 : error.lse[static_cast<size_t>(i)] + rounding(DType::f32, lse);
    });
}

// Backward. P = exp(S - lse) is off by delta relative: the error of S, 3 u (|S| + |lse|) and kMath. dS = P (dP - D_i)
// with two dot products of D terms: its error is delta |dS| + P sum_error(D + 4) (sum|dy v| + sum|dy o|). A P below the
// least normal float, or near it, may be 0: then delta is 1. A cap c multiplies dS by 1 - (S / c)^2, which is off by
// 2 |S| / c^2 times the error of S, and 4 u. Then sums: of the visible keys for dq, of group Tq queries
// for dk and dv.
struct BackwardBound {
    RowErrors dq, dk, dv;
};

BackwardBound bound(const Form& f, const AttentionBackward& a) {
    const int64_t group = f.H / f.Hkv, key_rows = f.B * f.Tk * f.Hkv;
    BackwardBound out{RowErrors(f, f.B * f.Tq * f.H, f.D), RowErrors(f, key_rows, f.D),
                      RowErrors(f, key_rows, f.value_width())};
    for (int64_t b = 0; b < f.B; ++b)
        for (int64_t h = 0; h < f.H; ++h) {
            const int64_t g = h / group;
            const auto q = rows(a.q, b, h), k = rows(a.k, b, g), v = rows(a.v, b, g);
            const auto o = rows(a.o, b, h), dy = rows(a.dy, b, h);
            for (int64_t i = 0; i < f.Tq; ++i) {
                const auto query = static_cast<size_t>(i);
                const Dot D_i = dot(dy[query], o[query]);
                const double lse = value(a.lse, (b * f.H + h) * f.Tq + i);
                const auto [first, end] = visible_keys(f, b, i);
                for (int64_t j = first; j < end; ++j) {
                    const auto key = static_cast<size_t>(j);
                    const Dot s = dot(q[query], k[key]), dP = dot(dy[query], v[key]);
                    const auto [S, S_error] = score_of(f, a.scale, s);
                    const double P = std::exp(S - lse), share = f.cap > 0 ? S / f.cap : 0, slope = 1 - share * share;
                    const double uncapped = P * (dP.value - D_i.value), dS = uncapped * slope;
                    const double normal = S_error + 3 * u * (std::abs(S) + std::abs(lse)) + kMath;
                    const double delta = P < 0x1p-125 ? 1 : normal;
                    const double slope_error = f.cap > 0 ? 2 * std::abs(share) / f.cap * S_error + 4 * u : 0;
                    const double dS_error = delta * std::abs(dS) + slope_error * std::abs(uncapped) +
                                            P * sum_error(f.D + 4) * (dP.size + D_i.size);
                    const int64_t key_row = (b * f.Tk + j) * f.Hkv + g;
                    out.dq.add((b * f.Tq + i) * f.H + h, a.scale * dS, a.scale * dS_error, k[key], a.scale);
                    out.dk.add(key_row, a.scale * dS, a.scale * dS_error, q[query], a.scale);
                    out.dv.add(key_row, P, P * delta, dy[query]);
                }
            }
        }
    return out;
}

void run_backward(const Form& f, const KernelTable& table, const Stream& stream, Arena& arena) {
    const auto [q, all_k, all_v] = make(arena, f, f.Tk + f.unseen_keys, true);
    const Shape of_result{f.B, f.Tq, f.H, f.value_width()}, of_lse{f.B, f.H, f.Tq};
    const AttentionMask mask = mask_of(arena, f);
    static struct {
        std::string form;
        std::vector<double> o, lse;
    } forward;  // of the latest form, which each table is run with
    if (forward.form != label(f)) {
        const Place host;
        Arena own(host, false);
        AttentionForward a{.q = on_host(q),
                           .k = on_host(all_k),
                           .v = on_host(all_v),
                           .o = own.empty(of_result, f.result_type()),
                           .lse = own.empty(of_lse, DType::f32),
                           .scale = scale_of(f),
                           .cap = f.cap,
                           .mask = mask};
        a.mask.first_key = on_host(mask.first_key);
        reference_table().attention_forward({}, a);
        forward = {label(f), values(a.o), values(a.lse)};
    }
    const View o = arena.from(of_result, f.result_type(), forward.o), lse = arena.from(of_lse, DType::f32, forward.lse);
    const View k = slice(all_k, 1, 0, f.Tk), v = slice(all_v, 1, 0, f.Tk);
    Form of_results = f;
    of_results.dtype = f.result_type();
    const auto [dq, dk, dv] = make(arena, of_results, f.Tk, f.results == Results::added);
    const AttentionBackward a{.q = q,
                              .k = k,
                              .v = v,
                              .o = o,
                              .lse = lse,
                              .dy = arena.normal(of_result, f.dtype, "dy"),
                              .dq = dq,
                              .dk = dk,
                              .dv = dv,
                              .scale = scale_of(f),
                              .cap = f.cap,
                              .mask = mask,
                              .accumulate = f.results == Results::added,
                              .workspace = arena.workspace(table.attention_workspace(stream, q.shape, k.shape, true))};
    arena.start();
    table.attention_backward(stream, a);
    const BackwardBound error = arena.with_tolerance()
                                    ? bound(f, a)
                                    : BackwardBound{RowErrors(f, 0, 0), RowErrors(f, 0, 0), RowErrors(f, 0, 0)};
    const auto report = [&](const char* name, const View& dx, const RowErrors& errors, int64_t terms) {
        arena.result(name, dx, [&, terms](int64_t i) {
            return errors.of(i, sum_error(terms + 4)) + rounding(dx.dtype, value(dx, i));
        });
    };
    report("dq", a.dq, error.dq, f.Tk);
    report("dk", a.dk, error.dk, f.H / f.Hkv * f.Tq);
    report("dv", a.dv, error.dv, f.H / f.Hkv * f.Tq);
}

template <class Entry, class Run>
void add_forms(std::vector<Case>& all, const char* op, Entry KernelTable::*entry, Run run) {
    std::vector<Form> forms(kForms.begin(), kForms.end());
    forms.insert(forms.end(), kParts.begin(), kParts.end());
    forms.insert(forms.end(), kCapped.begin(), kCapped.end());
    forms.insert(forms.end(), kNarrow.begin(), kNarrow.end());
    for (const DType t : kActivationTypes)
        for (Form f : forms) {
            f.dtype = t;
            add(all, op, entry, label(f), [f, run](const KernelTable& table, const Stream& stream, Arena& arena) {
                run(f, table, stream, arena);
            });
        }
}

// Two parts; row i is visible to both, to one, to the other, or to neither. For L and o with
// d = lse - lse_part, e^-|d| is off by u |d| and kMath relative, the sum of both and the quotients by that and 2 u;
// each weight by at most twice that, and L by that and the errors of log and of the sum.
void run_merge(const Shape& shape, Layout layout, double distance, const KernelTable& table, const Stream& stream,
               Arena& arena) {
    const int64_t B = shape[0], T = shape[1], H = shape[2], D = shape[3];
    const auto part = [&](const char* purpose, int64_t unseen) {
        std::pair<View, View> x{layout == Layout::heads_first
                                    ? swap_middle(arena.normal({B, H, T, D}, DType::f32, purpose))
                                    : arena.normal(shape, DType::f32, purpose),
                                arena.normal({B, H, T}, DType::f32, concat(purpose, " lse").c_str(), distance, 3)};
        for (int64_t b = 0; b < B; ++b)
            for (int64_t h = 0; h < H; ++h)
                for (int64_t i = 0; i < T; ++i)
                    if (((b + h + i) & unseen) != 0) {
                        on_host(x.second).as<float>()[(b * H + h) * T + i] = -INFINITY;
                        const View row = slice(slice(slice(x.first, 0, b, 1), 1, i, 1), 2, h, 1);
                        std::fill_n(on_host(row).as<float>(), D, 0.0f);
                    }
        return x;
    };
    const auto [o, lse] = part("one", 1);
    const auto [o_part, lse_part] = part("other", 2);
    const auto o_before = values(o), l = values(lse), o_other = values(o_part), l_part = values(lse_part);
    arena.start();
    table.attention_merge(stream, o, lse, o_part, lse_part);
    const auto relative = [&](size_t at) {
        const double d = std::abs(l[at] - l_part[at]);
        return (std::isfinite(d) ? u * d : 0) + kMath + 2 * u;
    };
    arena.result("o", o, [&](int64_t i) {
        const int64_t row = i / D, h = row % H, t = row / H % T, b = row / H / T;
        const auto at = static_cast<size_t>((b * H + h) * T + t);
        const double L = value(lse, static_cast<int64_t>(at));
        if (std::isinf(L)) return 0.0;
        const double terms = std::exp(l[at] - L) * std::abs(o_before[static_cast<size_t>(i)]) +
                             std::exp(l_part[at] - L) * std::abs(o_other[static_cast<size_t>(i)]);
        return (2 * relative(at) + 2 * u) * terms + rounding(DType::f32, value(o, i));
    });
    arena.result("lse", lse, [&](int64_t i) {
        const auto at = static_cast<size_t>(i);
        const double L = value(lse, i), largest = std::max(l[at], l_part[at]);
        if (std::isinf(L)) return 0.0;
        return relative(at) + (kMath + u) * std::abs(L - largest) + rounding(DType::f32, L);
    });
}

View sinks_of(Arena& arena, int64_t H, DType t) { return arena.normal({H}, t, "sinks", 1.5); }

// exp and the quotient as in a merge, whose error the difference of sink and lse adds to; every third row sees no key.
void run_sinks(const Shape& shape, DType t, double distance, const KernelTable& table, const Stream& stream,
               Arena& arena) {
    const int64_t B = shape[0], T = shape[1], H = shape[2], D = shape[3];
    const View o = arena.normal(shape, t, "o"), lse = arena.normal({B, H, T}, DType::f32, "lse", distance, 3);
    const View sinks = sinks_of(arena, H, t);
    for (int64_t row = 0; row < lse.numel(); row += 3) {
        on_host(lse).as<float>()[row] = -INFINITY;
        const int64_t i = row % T, h = row / T % H, b = row / T / H;
        const View seen_by_none = slice(slice(slice(o, 0, b, 1), 1, i, 1), 2, h, 1);
        std::memset(on_host(seen_by_none).data, 0, static_cast<size_t>(D * size_of(t)));
    }
    const std::vector<double> l = values(lse), sink = values(sinks);
    arena.start();
    table.attention_sinks(stream, o, lse, sinks);
    const auto relative = [&](size_t row) {
        const double d = std::abs(l[row] - sink[row / static_cast<size_t>(T) % static_cast<size_t>(H)]);
        return (std::isfinite(d) ? u * d : 0) + kMath + 2 * u;
    };
    arena.result("o", o, [&](int64_t i) {
        const int64_t row = i / D, h = row % H, at = row / H % T, b = row / H / T;
        return (2 * relative(static_cast<size_t>((b * H + h) * T + at)) + u) * std::abs(value(o, i)) +
               rounding(t, value(o, i));
    });
    arena.result("lse", lse, [&](int64_t i) {
        const auto row = static_cast<size_t>(i);
        const double largest = std::max(l[row], sink[row / static_cast<size_t>(T) % static_cast<size_t>(H)]);
        const double L = value(lse, i);
        return relative(row) + (kMath + u) * std::abs(L - largest) + rounding(DType::f32, L);
    });
}

// Each term is the power times a dot product of D terms; sums over D, then over the rows.
void run_sinks_backward(const Shape& shape, DType t, const KernelTable& table, const Stream& stream, Arena& arena) {
    const int64_t B = shape[0], T = shape[1], H = shape[2], D = shape[3];
    const View o = arena.normal(shape, t, "o"), dy = arena.normal(shape, t, "dy");
    const View lse = arena.normal({B, H, T}, DType::f32, "lse", 2, 3), sinks = sinks_of(arena, H, t);
    const View dsinks = arena.normal({H}, DType::f32, "dsinks");
    const std::vector<double> before = values(dsinks);
    arena.start();
    table.attention_sinks_backward(stream, dy, o, lse, sinks, dsinks);
    arena.result("dsinks", dsinks, [&](int64_t h) {
        double size = 0;
        for (int64_t b = 0; b < B; ++b)
            for (int64_t i = 0; i < T; ++i) {
                double terms = 0;
                for (int64_t d = 0; d < D; ++d) {
                    const int64_t at = ((b * T + i) * H + h) * D + d;
                    terms += std::abs(value(dy, at) * value(o, at));
                }
                const double power = value(sinks, h) - value(lse, (b * H + h) * T + i);
                size += std::exp(power) * terms * (1 + std::abs(power));
            }
        return (sum_error(D) + sum_error(B * T) + kMath) * size + u * std::abs(before[static_cast<size_t>(h)]) +
               rounding(DType::f32, value(dsinks, h));
    });
}

}  // namespace

void add_attention_sinks(std::vector<Case>& all) {
    for (const DType t : kActivationTypes)
        for (const auto& [B, T, H, D] :
             {std::array<int64_t, 4>{1, 1, 1, 1}, {2, 9, 3, 17}, {1, 70, 5, 64}, {3, 33, 2, 80}, {1, 5, 2, 256}}) {
            const Shape shape{B, T, H, D};
            const std::string name = concat(t, " (", B, ", ", T, ", ", H, ", ", D, ")");
            for (const double distance : {2, 60})
                add(all, "attention_sinks", &KernelTable::attention_sinks, concat(name, ", lse within ", distance),
                    [=](const KernelTable& table, const Stream& stream, Arena& arena) {
                        run_sinks(shape, t, distance, table, stream, arena);
                    });
            add(all, "attention_sinks_backward", &KernelTable::attention_sinks_backward, name,
                [=](const KernelTable& table, const Stream& stream, Arena& arena) {
                    run_sinks_backward(shape, t, table, stream, arena);
                });
        }
}

void add_attention_forward(std::vector<Case>& all) {
    add_forms(all, "attention_forward", &KernelTable::attention_forward, run_forward);
}

void add_long_attention(std::vector<Case>& all) {
    constexpr std::array<Form, 2> kLong = {{{1, 2048, 2048, 4, 1, 64, true}, {1, 3000, 3000, 1, 1, 128, true}}};
    for (Form f : kLong) {
        f.dtype = DType::bf16;
        const auto with = [f](auto run) {
            return [f, run](const KernelTable& table, const Stream& stream, Arena& arena) {
                run(f, table, stream, arena);
            };
        };
        add(all, "attention_forward", &KernelTable::attention_forward, label(f), with(run_forward));
        add(all, "attention_backward", &KernelTable::attention_backward, label(f), with(run_backward));
    }
}

void add_attention_merge(std::vector<Case>& all) {
    for (const int64_t D : {1, 17, 64, 80, 256})
        for (const Layout layout : {Layout::whole, Layout::heads_first})
            for (const double distance : {2, 60}) {
                const Shape shape{2, 9, 3, D};
                add(all, "attention_merge", &KernelTable::attention_merge,
                    concat("D ", D, layout == Layout::whole ? "" : " heads first", ", lse within ", distance),
                    [=](const KernelTable& table, const Stream& stream, Arena& arena) {
                        run_merge(shape, layout, distance, table, stream, arena);
                    });
            }
}

void add_attention_backward(std::vector<Case>& all) {
    add_forms(all, "attention_backward", &KernelTable::attention_backward, run_backward);
}

}  // namespace tutti::kernels::cases
