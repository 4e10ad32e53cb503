// kernels/cpu/portable.cpp: kernels that are the same code for every instruction set: sums without rounding, cosines
// and sines of rotary embedding, and a token from a row of logits.
#include <algorithm>
#include <cmath>

#include "tutti/base/dtype.h"
#include "tutti/base/exact_sum.h"
#include "tutti/device/cpu/parallel.h"
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/sampling.h"

namespace tutti::kernels {

namespace {

// Integers that go to places which the term chooses: 5 ns a term; a gradient has one term per 256 values.
void exact_sum(const Stream&, View values, View words) {
    auto& total = *words.as<ExactSum::Words>();
    ExactSum sum = ExactSum::of(total);
    const auto add_all = [&](const auto* terms) {
        for (int64_t i = 0; i < values.numel(); ++i) sum.add(static_cast<double>(terms[i]));
    };
    values.dtype == DType::f32 ? add_all(values.as<const float>()) : add_all(values.as<const double>());
    total = sum.words();
}

// The functions of the C library, in double. Runs once per model.
constexpr int64_t kAngles = 512;  // worth a thread: some 20 us

void rope_table(const Stream& stream, View frequencies, double amplitude, View cosines, View sines) {
    const int64_t half = cosines.shape[1];
    const auto* const frequency = frequencies.as<const double>();
    parallel_for(stream, cosines.shape[0], kAngles / std::max<int64_t>(half, 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p) {
            float *const cosine = cosines.as<float>() + p * cosines.stride(0), *const sine = sines.as<float>() +
                                                                                             p * sines.stride(0);
            for (int64_t k = 0; k < half; ++k) {
                const double angle = static_cast<double>(p) * frequency[k];
                cosine[k] = static_cast<float>(amplitude * std::cos(angle));
                sine[k] = static_cast<float>(amplitude * std::sin(angle));
            }
        }
    });
}

// --- decay: two functions of the C library for each of some tens of values of a token ---

template <class T>
double number(const View& x, int64_t i) {
    return static_cast<double>(static_cast<float>(x.as<const T>()[i]));
}
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

// The step of an element, its slope to x + dt_bias, and -e^a_log.
struct Step {
    double dt, slope, rate;
};
// body(step) with the type of x, where step(i, h) is that of element i, of head h.
template <class Body>
void with_steps(const Decay& f, const Body& body) {
    const auto run = [&]<class T>(T) {
        body(T{}, [&](int64_t i, int64_t h) {
            const double shifted = number<T>(f.x, i) + number<T>(f.dt_bias, h), dt = softplus(shifted);
            const double least = f.range.least, most = f.range.most;
            return Step{std::clamp(dt, least, most), dt < least || dt > most ? 0 : sigmoid(shifted),
                        -std::exp(number<T>(f.a_log, h))};
        });
    };
    if (f.x.dtype == DType::bf16)
        run(bf16{});
    else if (f.x.dtype == DType::f16)
        run(f16{});
    else
        run(float{});
}
// The gradient of x.
double step_backward(const Step& s, const View& dg, const View& ddt, int64_t i) {
    return (number<float>(dg, i) * s.rate + (ddt.defined() ? number<float>(ddt, i) : 0)) * s.slope;
}

constexpr int64_t kDecays = 256;  // worth a thread

void decay_forward(const Stream& stream, const Decay& f, View g, View dt) {
    const int64_t H = f.a_log.numel();
    with_steps(f, [&](auto, const auto& step) {
        parallel_for(stream, f.x.numel(), kDecays, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const Step s = step(i, i % H);
                g.as<float>()[i] = static_cast<float>(s.rate * s.dt);
                if (dt.defined()) dt.as<float>()[i] = static_cast<float>(s.dt);
            }
        });
    });
}

void decay_backward_input(const Stream& stream, const Decay& f, View dg, View ddt, View dx) {
    const int64_t H = f.a_log.numel();
    with_steps(f, [&]<class T>(T, const auto& step) {
        parallel_for(stream, f.x.numel(), kDecays, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i)
                dx.as<T>()[i] = T(static_cast<float>(step_backward(step(i, i % H), dg, ddt, i)));
        });
    });
}

void decay_backward_weight(const Stream& stream, const Decay& f, View dg, View ddt, View da_log, View ddt_bias) {
    const int64_t H = f.a_log.numel();
    with_steps(f, [&](auto, const auto& step) {
        parallel_for(stream, H, 1, [&](int64_t begin, int64_t end) {
            for (int64_t h = begin; h < end; ++h) {
                double of_log = 0, of_bias = 0;
                for (int64_t i = h; i < f.x.numel(); i += H) {
                    const Step s = step(i, h);
                    of_log += number<float>(dg, i) * s.rate * s.dt;
                    of_bias += step_backward(s, dg, ddt, i);
                }
                da_log.as<float>()[h] += static_cast<float>(of_log);
                ddt_bias.as<float>()[h] += static_cast<float>(of_bias);
            }
        });
    });
}

// A few passes over a row and two exponentials per logit, beside a forward pass that reads all weights.
template <class T>
struct Row {
    const T* logits;
    int64_t vocab;
    float largest;
    float temperature;

    float at(int64_t i) const { return static_cast<float>(logits[i]); }
    uint64_t weight(int64_t i) const { return sampling_weight(at(i), largest, temperature); }
};

// Measures: how many, or how likely.
template <class T, class Measure>
uint32_t cut_at(const Row<T>& row, uint32_t floor, uint64_t need, Measure measure) {
    Cut cut{.need = need};
    for (int shift = Cut::kKeyBits - Cut::kDigitBits; shift >= 0; shift -= Cut::kDigitBits) {
        uint64_t histogram[Cut::kDigits] = {};
        for (int64_t i = 0; i < row.vocab; ++i) {
            const uint32_t key = order_key(row.at(i));
            if (key >= floor && cut.matches(key, shift)) histogram[Cut::digit(key, shift)] += measure(i);
        }
        cut.find_digit(histogram);
    }
    return cut.prefix;
}

template <class T>
uint64_t total_weight(const Row<T>& row, uint32_t floor) {
    uint64_t total = 0;
    for (int64_t i = 0; i < row.vocab; ++i)
        if (order_key(row.at(i)) >= floor) total += row.weight(i);
    return total;
}

template <class T>
int32_t draw_token(const Sample& s, const T* logits, uint64_t draw) {
    Row<T> row{logits, s.vocab, -INFINITY, s.temperature};
    for (int64_t i = 0; i < s.vocab; ++i) {
        const float x = row.at(i);
        if (std::isnan(x)) return -1;
        row.largest = std::max(row.largest, x);
    }
    if (!std::isfinite(row.largest)) return -1;
    uint32_t floor = 0;
    if (s.top_k > 0 && s.top_k < s.vocab)
        floor = cut_at(row, floor, static_cast<uint64_t>(s.top_k), [](int64_t) { return uint64_t{1}; });
    if (s.top_p < 1)
        floor =
            cut_at(row, floor, share_of(s.top_p, total_weight(row, floor)), [&](int64_t i) { return row.weight(i); });
    uint64_t left = s.temperature > 0 ? uniform_below(s.key, draw, total_weight(row, floor)) : 0;
    for (int64_t i = 0;; ++i) {
        if (order_key(row.at(i)) < floor) continue;
        const uint64_t weight = row.weight(i);
        if (left < weight) return static_cast<int32_t>(i);
        left -= weight;
    }
}

void sample(const Stream& stream, const Sample& s) {
    const auto draw_rows = [&]<class T>(const T* logits) {
        parallel_for(stream, s.logits.shape[0], 1, [&](int64_t begin, int64_t end) {
            for (int64_t n = begin; n < end; ++n)
                s.tokens.as<int32_t>()[n] = draw_token(s, logits + n * s.logits.stride(0),
                                                       static_cast<uint64_t>(s.draws.as<const int64_t>()[n]));
        });
    };
    switch (s.logits.dtype) {
        case DType::bf16: return draw_rows(s.logits.as<const bf16>());
        case DType::f16: return draw_rows(s.logits.as<const f16>());
        default: return draw_rows(s.logits.as<const float>());
    }
}

}  // namespace

void fill_portable(KernelTable& table) {
    table.exact_sum = exact_sum;
    table.rope_table = rope_table;
    table.decay_forward = decay_forward;
    table.decay_backward_input = decay_backward_input;
    table.decay_backward_weight = decay_backward_weight;
    table.sample = sample;
}

}  // namespace tutti::kernels
