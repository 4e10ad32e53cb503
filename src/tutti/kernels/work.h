// kernels/work.h: the least that one call of a kernel can cost: floating-point operations, and the bytes that the
// kernel must read and write, each moved once. Measured times are compared with this bound.
#pragma once

#include <array>
#include <compare>
#include <concepts>
#include <string>
#include <string_view>
#include <tuple>

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

// The problem of a kernel. text() gives, for a matrix product, M x K x N with its transposes, accumulation and epilogue
// ("1024 x 768 x 3072, b transposed"), and for a grouped one all rows and the number of groups; for attention "8 x
// 1024, 12 heads of 64"; for other kernels the first operand, "8 x 1024 x 768".
struct ProblemShape {
    enum class Kind : uint8_t { none, operand, product, attention };
    Kind kind = Kind::none;
    uint8_t rank = 0;    // of `sizes`
    int64_t groups = 0;  // of rows, each with a separate matrix; 0: one product
    bool transpose_a = false, transpose_b = false, accumulate = false;
    Epilogue epilogue = Epilogue::none;
    std::array<int64_t, Shape::kMaxDims> sizes{};

    std::string text() const;
    auto operator<=>(const ProblemShape&) const = default;
};

struct Work {
    double flops = 0;  // of matrix products; other kernels are limited by memory
    double bytes = 0;
    ProblemShape shape = {};

    Work& operator+=(const Work& other);
    // The larger of the times for arithmetic and for memory traffic at these rates, in seconds. A kernel whose operands
    // are in a cache may be faster.
    double floor_s(double flops_per_s, double bytes_per_s) const;
};

Work work_of(const View& operand);  // read or written
Work work_of(const Gemm& gemm);
// Counts the visible pairs of query and key; first_key is ignored.
Work work_of(const AttentionForward& attention);
Work work_of(const AttentionBackward& attention);
Work work_of(const NormForward& norm);
Work work_of(const NormBackward& norm);
Work work_of(const ShortConvolution& convolution);
Work work_of(const ShortConvolutionBackward& convolution);
// The recurrence itself: three products of a state and a vector for each token and value head.
Work work_of(const Decay& decay);
Work work_of(const DeltaRule& rule);
Work work_of(const DeltaRuleBackward& gradients);
Work work_of(const Quantize& quantize);
Work work_of(const QuantizeRun& run);
Work work_of(const Dequantize& dequantize);
Work work_of(const Dropout& mask);
Work work_of(const Normal& normal);
Work work_of(const CrossEntropy& loss);
Work work_of(const Sample& sample);
Work work_of(const Routing& routing);
Work work_of(const RoutingBackward& routing);
Work work_of(const SortChoices& sort);
Work work_of(const AcceptChoices& accept);
Work work_of(const GroupedGemm& gemm);
Work work_of(const AdamW& update);
Work work_of(const Sgd& update);
Work work_of(const Lion& update);
Work work_of(const MuonMomentum& update);
Work work_of(const MuonDescent& update);
Work work_of(std::integral auto) { return {}; }
Work work_of(std::floating_point auto) { return {}; }
inline Work work_of(Gate) { return {}; }
// Of the matrix only the rows that `tokens` names, each once: read in the forward, read and written in the backward.
Work work_of_embedding(const View& tokens, const View& rows_or_matrix, int64_t first_row, const View& matrix_or_rows,
                       bool backward);
// Of the tables the rows of so many positions at most; of x the channels that turn are read, and written in their
// place.
Work work_of_rope(const View& x, const View& positions, const View& cosines, const View& sines, bool inverse,
                  bool adjacent);

// The work of `call(entry, arguments...)`.
template <class... Args>
Work work_of_call(std::string_view entry, const Args&... args) {
    if constexpr (requires { work_of_embedding(args..., false); })
        if (entry.starts_with("embedding")) return work_of_embedding(args..., entry == "embedding_backward");
    if constexpr (requires { work_of_rope(args...); })
        if (entry == "rope") return work_of_rope(args...);
    Work work;
    ((work += work_of(args)), ...);
    // Operands that are read, and written in their place.
    const bool both = entry == "attention_merge" || entry == "attention_sinks";
    const bool first = both || entry == "soft_cap" || entry == "scale";
    const bool second = both || entry == "accumulate";
    if (first) work.bytes += work_of(std::get<0>(std::tie(args...))).bytes;
    if constexpr (sizeof...(Args) > 1)
        if (second) work.bytes += work_of(std::get<1>(std::tie(args...))).bytes;
    return work;
}

}  // namespace tutti::kernels
