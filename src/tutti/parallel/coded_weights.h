// parallel/coded_weights.h: the weights of a flat unit as codes of 8 bits, which a gather brings in place of numbers
// (precision.gather, ZeRO-3). The values of a group that share a scale may lie in several shards. So each rank finds
// the largest magnitudes of its part of every group, one maximum over the ranks completes them, and each rank casts the
// values of its own shard, wherever it is cut. Codes and divisors are those of casting the gathered values, since a
// maximum and a cast are exact.
#pragma once

#include <vector>

#include "tutti/autograd/parameter.h"
#include "tutti/ops/context.h"

namespace tutti::parallel {

class CodedWeights {
  public:
    // The elements [begin, end) of a parameter's part, which lie at `at` of this rank's shard.
    struct Piece {
        size_t parameter;
        int64_t begin, end, at;
    };
    // `parameters` have Parameter::gathered, of one format; `type` is that of their values.
    CodedWeights(ops::Context& ctx, std::vector<autograd::Parameter*> parameters, const std::vector<Piece>& pieces,
                 DType type);

    DType format() const { return parameters_.front()->gathered->format; }
    // Groups of all parameters, and where their largest magnitudes are: (groups) i32, which outlive this object's use.
    int64_t groups() const { return groups_; }
    void set_magnitudes(const Tensor& magnitudes) { magnitudes_ = magnitudes; }

    // magnitudes = max(magnitudes, those of the values of this rank's shard).
    void add_magnitudes(const Tensor& shard) const;
    // Once magnitudes are complete: casts the shard, and sets Parameter::codes, whose codes are Parameter::value.
    void cast(const Tensor& shard, const Tensor& codes) const;
    void set_codes() const;

  private:
    // A matrix: a parameter, or an expert of a stack. Its groups are counted from its first element.
    struct Matrix {
        autograd::Parameter* parameter;
        Shape shape;
        int64_t first_group;
    };
    // Elements of a matrix from `first` on, which lie at `at` of the shard.
    struct Run {
        size_t matrix;
        int64_t first, n, at;
    };
    kernels::QuantizeRun run_of(const Run& run, const Tensor& shard) const;
    Tensor magnitudes_of(size_t parameter) const;

    ops::Context& ctx_;
    std::vector<autograd::Parameter*> parameters_;
    DType type_;
    std::vector<int64_t> first_groups_;  // of each parameter
    std::vector<Matrix> matrices_;
    std::vector<Run> runs_;
    int64_t groups_ = 0;
    Tensor magnitudes_;
};

}  // namespace tutti::parallel
