// kernels/cpu/isa/optimizer.cpp: update rules in one pass over memory; the same pass writes the 16-bit copy that
// the model reads. A rule is a function of vectors in f32; what is stored in another type goes through buffers of one
// block.
#include "tutti/base/dynamic_map.h"
#include "tutti/kernels/cpu/isa/parts.h"
#include "tutti/kernels/cpu/isa/random_words.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

bool is_f32(const View& view) { return !view.defined() || view.dtype == DType::f32; }

// --- values of a block of elements, read to f32 and written back ---

constexpr int64_t kBlock = kStateBlock;

void read(const View& from, int64_t begin, int64_t n, float* to) {
    with_type(from.dtype, [&]<class T>(Type<T>) {
        const T* x = from.as<T>() + begin;
        for_vectors(0, n, [=](int64_t i, auto part) { store(load(x + i, part), to + i, part); });
    });
}

// to[i] = stochastic_bf16_bits(x[i], rounding_bits(key, element i of the piece)) for i of [begin, begin + n).
void round_stochastically(const float* x, const GlobalElements& elements, RandomKey key, int64_t begin, int64_t n,
                          uint16_t* to) {
    alignas(64) uint32_t words[kBlock / 2 + 2 * kWordBatch];
    for (int64_t done = 0; done < n;) {  // run by run of consecutive elements
        const int64_t row = (begin + done) / elements.width, column = (begin + done) % elements.width;
        const int64_t count = smaller(n - done, elements.width - column);
        const auto first = static_cast<uint64_t>(elements.first + row * elements.stride + column);
        const auto skipped = static_cast<int64_t>(first % 8);
        philox_words(key, first / 8, (skipped + count + 7) / 8 * 4, words);
        const auto* random = reinterpret_cast<const uint16_t*>(words) + skipped;
        for (int64_t i = 0; i < count; ++i) {
            uint32_t bits;
            __builtin_memcpy(&bits, x + done + i, sizeof(bits));
            const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
            const uint32_t sum = bits + (finite ? random[i] : 0x7fffu + (bits >> 16 & 1u)), high = sum >> 16;
            const uint32_t quiet = bits >> 16 | 0x40u;  // of a NaN
            const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u, too_large = finite && (high & 0x7f80u) == 0x7f80u;
            to[done + i] = static_cast<uint16_t>(is_nan ? quiet : too_large ? high - 1 : high);
        }
        done += count;
    }
}

void write(const float* x, const View& to, const GlobalElements& elements, RandomKey key, int64_t begin, int64_t n) {
    if (to.dtype == DType::bf16 && key != 0)
        return round_stochastically(x, elements, key, begin, n, to.as<uint16_t>() + begin);
    with_type(to.dtype, [&]<class T>(Type<T>) {
        T* y = to.as<T>() + begin;
        for_vectors(0, n, [=](int64_t i, auto part) { store(load(x + i, part), y + i, part); });
    });
}

// A map with a table that finds codes: the sign, the exponent and seven bits of a share's fraction name a cell, in
// which there is at most one midpoint. All shares below 2^-23 are in the first cell: no midpoint but that beside 0 is
// there.
struct Codes {
    static constexpr uint32_t kFirst = 0x3400, kLast = 0x3f80;  // 2^-23 and 1, without their low 16 bits

    consteval explicit Codes(bool has_sign) : map(has_sign) {
        const auto value = [](uint32_t high) { return __builtin_bit_cast(float, high << 16); };
        for (uint32_t cell = kFirst; cell <= kLast; ++cell) {
            const float low = cell == kFirst ? 0 : value(cell);
            least[0][cell - kFirst] = map.code_of(low);
            least[1][cell - kFirst] = map.code_of(-value(cell + 1));
            for (const bool negative : {false, true}) {  // an error of the compiler, if a cell had two
                const int before = least[negative][cell - kFirst];
                const int most = map.code_of(negative ? -low : value(cell + 1));
                if (most > before + 1) throw "a cell with two midpoints";
            }
        }
        std::copy(std::begin(map.midpoints), std::end(map.midpoints), std::begin(next));
        next[255] = __builtin_inff();
    }

    DynamicMap map;
    uint8_t least[2][kLast - kFirst + 1] = {};  // by sign and cell: the code of its least share
    float next[256] = {};                       // by code: the midpoint above it

    uint8_t of(float share) const {
        const auto bits = __builtin_bit_cast(uint32_t, share);
        const uint32_t high = bits >> 16 & 0x7fffu, cell = high < kFirst ? kFirst : high > kLast ? kLast : high;
        const uint8_t code = least[bits >> 31][cell - kFirst];
        return static_cast<uint8_t>(code + (share > next[code] ? 1 : 0));
    }
};

constexpr Codes kSigned{true}, kUnsigned{false};  // of this instruction set's namespace

void read(const Moment& moment, const Codes& codes_of, int64_t block, int64_t n, float* to) {
    if (moment.values.dtype != DType::u8) return read(moment.values, block * kBlock, n, to);
    const uint8_t* codes = moment.values.as<uint8_t>() + block * kBlock;
    const float largest = moment.largest.as<float>()[block];
    for (int64_t i = 0; i < n; ++i) to[i] = codes_of.map.values[codes[i]] * largest;
}

void write(const float* x, const Moment& moment, const Codes& codes_of, const GlobalElements& elements, int64_t block,
           int64_t n) {
    if (moment.values.dtype != DType::u8) return write(x, moment.values, elements, moment.key, block * kBlock, n);
    Vec most = zero();
    for_vectors(0, n, [&](int64_t i, auto part) {
        const Vec value = load(x + i, part);  // 0 beyond the tail
        most = max(most, max(value, zero() - value));
    });
    const float largest = reduce_max(most);
    moment.largest.as<float>()[block] = largest;
    uint8_t* codes = moment.values.as<uint8_t>() + block * kBlock;
    const bool guards = codes_of.map.values[0] == 0;  // a value above 0 never gets the code of 0
    alignas(64) float share[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) share[i] = i < n && largest > 0 ? x[i] / largest : 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint8_t code = codes_of.of(share[i]);
        codes[i] = guards && code == 0 && x[i] > 0 ? 1 : code;
    }
}

// --- rules ---

// rule(p, g, m, v, decay) changes p, m and v.
template <bool kSecond, class Rule>
void update_f32(const Stream& stream, const OptimizerPiece& piece, Vec grad_scale, Rule rule) {
    const float* gradient = piece.gradient.as<float>();
    float *master = piece.master.as<float>(), *first = piece.m.values.as<float>();
    float* second = kSecond ? piece.v.values.as<float>() : nullptr;
    const Vec decay = broadcast(piece.weight_decay);
    const auto update = [=](int64_t i, auto part) {
        Vec p = load(master + i, part), m = load(first + i, part), v = zero();
        if constexpr (kSecond) v = load(second + i, part);
        rule(p, load(gradient + i, part) * grad_scale, m, v, decay);
        store(m, first + i, part);
        if constexpr (kSecond) store(v, second + i, part);
        store(p, master + i, part);
        return p;
    };
    if (piece.value.defined()) {
        with_type(piece.value.dtype, [&]<class T>(Type<T>) {
            T* value = piece.value.as<T>();
            for_vectors_parallel(stream, numel(piece.master),
                                 [=](int64_t i, auto part) { store(update(i, part), value + i, part); });
        });
    } else {
        for_vectors_parallel(stream, numel(piece.master), [=](int64_t i, auto part) { update(i, part); });
    }
}

template <bool kSecond, class Rule>
void update_any(const Stream& stream, const OptimizerPiece& piece, Vec grad_scale, Rule rule) {
    const int64_t n = numel(piece.master);
    const Vec decay = broadcast(piece.weight_decay);
    parallel_for(stream, (n + kBlock - 1) / kBlock, kGrain / kBlock, [&](int64_t begin, int64_t end) {
        alignas(64) float p[kBlock], g[kBlock], m[kBlock], v[kBlock];
        for (int64_t block = begin; block < end; ++block) {
            const int64_t at = block * kBlock, count = smaller(kBlock, n - at);
            read(piece.master, at, count, p);
            read(piece.gradient, at, count, g);
            read(piece.m, kSigned, block, count, m);
            if constexpr (kSecond) read(piece.v, kUnsigned, block, count, v);
            for_vectors(0, count, [&](int64_t i, auto part) {
                Vec new_p = load(p + i, part), new_m = load(m + i, part), new_v = zero();
                if constexpr (kSecond) new_v = load(v + i, part);
                rule(new_p, load(g + i, part) * grad_scale, new_m, new_v, decay);
                store(new_p, p + i, part);
                store(new_m, m + i, part);
                if constexpr (kSecond) store(new_v, v + i, part);
            });
            write(m, piece.m, kSigned, piece.elements, block, count);
            if constexpr (kSecond) write(v, piece.v, kUnsigned, piece.elements, block, count);
            write(p, piece.master, piece.elements, piece.master_key, at, count);
            if (piece.value.defined()) write(p, piece.value, piece.elements, 0, at, count);
        }
    });
}

template <bool kSecond, class Rule>
void update(const Stream& stream, const OptimizerPiece* pieces, int64_t count, float grad_scale, Rule rule) {
    for (int64_t k = 0; k < count; ++k) {
        const OptimizerPiece& piece = pieces[k];
        if (is_f32(piece.master) && is_f32(piece.gradient) && is_f32(piece.m.values) && is_f32(piece.v.values))
            update_f32<kSecond>(stream, piece, broadcast(grad_scale), rule);
        else
            update_any<kSecond>(stream, piece, broadcast(grad_scale), rule);
    }
}

int64_t count_of(const auto& step) { return static_cast<int64_t>(step.pieces.size()); }

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr (m / c1 / (sqrt(v / c2) + eps) + decay p)
void adamw(const Stream& stream, const AdamW& a) {
    const Vec b1 = broadcast(a.beta1), b2 = broadcast(a.beta2);
    const Vec rest1 = broadcast(1 - a.beta1), rest2 = broadcast(1 - a.beta2);
    const Vec c1 = broadcast(a.correction1), c2 = broadcast(a.correction2);
    const Vec eps = broadcast(a.eps), lr = broadcast(a.lr);
    update<true>(
        stream, a.pieces.data(), count_of(a),
        a.grad_scale, [=](Vec & p, Vec g, Vec & m, Vec & v, Vec decay) __attribute__((always_inline)) {
            m = fma(b1, m, rest1 * g);
            v = fma(b2, v, rest2 * (g * g));
            const Vec direction = m / c1 / (sqrt(v / c2) + eps);
            p = fma_negative(lr, fma(decay, p, direction), p);
        });
}

// m = momentum m + (g + decay p);  p -= lr m
void sgd(const Stream& stream, const Sgd& s) {
    const Vec momentum = broadcast(s.momentum), lr = broadcast(s.lr);
    update<false>(
        stream, s.pieces.data(), count_of(s),
        s.grad_scale, [=](Vec & p, Vec g, Vec & m, Vec&, Vec decay) __attribute__((always_inline)) {
            m = fma(momentum, m, fma(decay, p, g));
            p = fma_negative(lr, m, p);
        });
}

// u = sign(b1 m + (1 - b1) g);  p -= lr (u + decay p);  m = b2 m + (1 - b2) g
void lion(const Stream& stream, const Lion& l) {
    const Vec b1 = broadcast(l.beta1), b2 = broadcast(l.beta2), lr = broadcast(l.lr);
    const Vec rest1 = broadcast(1 - l.beta1), rest2 = broadcast(1 - l.beta2), one = broadcast(1);
    update<false>(
        stream, l.pieces.data(), count_of(l),
        l.grad_scale, [=](Vec & p, Vec g, Vec & m, Vec&, Vec decay) __attribute__((always_inline)) {
            const Vec mixed = fma(b1, m, rest1 * g);
            const Vec sign = select(mixed > zero(), one, select(mixed < zero(), zero() - one, zero()));
            m = fma(b2, m, rest2 * g);
            p = fma_negative(lr, fma(decay, p, sign), p);
        });
}

// --- Muon ---

// body(block, first element, elements, piece) of every block of every piece.
template <class Body>
void for_blocks(const Stream& stream, const auto& step, Body body) {
    for (int64_t k = 0; k < count_of(step); ++k) {
        const OptimizerPiece& piece = step.pieces.data()[k];
        const int64_t n = numel(piece.update);
        parallel_for(stream, (n + kBlock - 1) / kBlock, kGrain / kBlock, [&](int64_t begin, int64_t end) {
            for (int64_t block = begin; block < end; ++block)
                body(block, block * kBlock, smaller(kBlock, n - block * kBlock), piece);
        });
    }
}

// m = momentum m + g;  update = g + momentum m
void muon_momentum(const Stream& stream, const MuonMomentum& a) {
    const Vec momentum = broadcast(a.momentum), grad_scale = broadcast(a.grad_scale);
    for_blocks(stream, a, [=](int64_t block, int64_t at, int64_t count, const OptimizerPiece& piece) {
        alignas(64) float g[kBlock], m[kBlock];
        read(piece.gradient, at, count, g);
        read(piece.m, kSigned, block, count, m);
        for_vectors(0, count, [&](int64_t i, auto part) {
            const Vec gradient = load(g + i, part) * grad_scale, moment = fma(momentum, load(m + i, part), gradient);
            store(moment, m + i, part);
            store(fma(momentum, moment, gradient), g + i, part);
        });
        write(m, piece.m, kSigned, piece.elements, block, count);
        write(g, piece.update, piece.elements, 0, at, count);
    });
}

// p -= lr (update_scale update + decay p)
void muon_descent(const Stream& stream, const MuonDescent& a) {
    const Vec lr = broadcast(a.lr);
    for_blocks(stream, a, [=](int64_t, int64_t at, int64_t count, const OptimizerPiece& piece) {
        alignas(64) float p[kBlock], x[kBlock];
        read(piece.master, at, count, p);
        read(piece.update, at, count, x);
        const Vec decay = broadcast(piece.weight_decay), scale = broadcast(piece.update_scale);
        for_vectors(0, count, [&](int64_t i, auto part) {
            const Vec before = load(p + i, part);
            store(fma_negative(lr, fma(decay, before, scale * load(x + i, part)), before), p + i, part);
        });
        write(p, piece.master, piece.elements, piece.master_key, at, count);
        if (piece.value.defined()) write(p, piece.value, piece.elements, 0, at, count);
    });
}

}  // namespace

void fill_optimizer(KernelTable& table) {
    table.adamw = adamw;
    table.sgd = sgd;
    table.lion = lion;
    table.muon_momentum = muon_momentum;
    table.muon_descent = muon_descent;
}

}  // namespace tutti::kernels::TUTTI_ISA
