// parallel/whole_matrices.h: whole matrices for update rules (optim/rule.h), from the pieces of any layout: ZeRO-0 to
// 3, HSDP, tensor and expert parallelism. Each matrix belongs to one of the ranks that hold a model's stages together
// (along tp, cp and dp_shard; replicas and other stages that hold the matrix do the same by themselves). One all_to_all
// brings the pieces to the owners, one brings the results back, in waves of bounded memory; the gather of a wave runs
// beside the computation of the wave before.
#pragma once

#include <span>
#include <vector>

#include "tutti/optim/rule.h"
#include "tutti/parallel/flat_unit.h"
#include "tutti/parallel/groups.h"

namespace tutti::parallel {

// A parameter with the axes of its shards, in the buffers of `flat`, as parameter number `index`.
struct ShardedParameter {
    const autograd::Parameter* parameter = nullptr;
    const FlatUnit* flat = nullptr;
    size_t index = 0;
    mesh::Axes cut;
    std::vector<mesh::Block> matrices;
};

class WholeMatrices final : public optim::WholeMatrices {
  public:
    // `parameters` are the same on all ranks of the group, which making this object may create. An owner holds at most
    // `wave_values` values of matrices at a time, or one matrix, and as many that arrive.
    WholeMatrices(ops::Context& ctx, Groups& groups, std::vector<ShardedParameter> parameters, int64_t wave_values);

    void transform(std::span<const optim::Piece> pieces, std::span<const Tensor> values, DType type,
                   const Transform& transform) override;

  private:
    struct Matrix {
        const ShardedParameter* of = nullptr;
        mesh::Block block;
        int owner = 0;  // in the group
        size_t wave = 0;
    };
    // A rectangle that one rank holds of a matrix that another owns.
    struct Slice {
        const Matrix* matrix = nullptr;
        int peer = 0;          // the other rank, in the group
        mesh::HeldBlock held;  // in the holder's piece
        mesh::Block block;     // the matrix's elements of `held`
        bool source = true;    // of copies on several ranks, the one that goes to the owner
    };
    using Place = std::function<Tensor(const Slice&)>;  // of a slice's elements, in a piece or in a whole matrix

    void assign_owners(int64_t wave_values);
    std::vector<mesh::HeldBlock> blocks_of(const ShardedParameter& p, int rank) const;
    bool is_source(const Matrix& matrix, int rank) const;
    void add_slices(std::vector<Slice>& slices, const Matrix& matrix, int holder, int peer) const;
    std::span<const Matrix> of_wave(size_t wave) const;
    std::span<const Matrix> own(size_t wave) const;  // of these, this rank's
    std::vector<Slice> held(size_t wave) const;      // slices of this rank's pieces, by owner
    std::vector<Slice> owned(size_t wave) const;     // slices of this rank's matrices, by holder

    struct Exchange {
        Tensor sent, received;
        std::vector<Slice> arriving;
        comm::Work work;
    };
    Exchange begin(DType type, const std::vector<Slice>& leaving, const Place& from, std::vector<Slice> arriving);
    void finish(Exchange& exchange, const Place& to);

    ops::Context& ctx_;
    const Groups& groups_;
    comm::Communicator& ranks_;
    std::vector<ShardedParameter> parameters_;
    std::vector<Matrix> matrices_;  // by wave, then by owner
    size_t waves_ = 0;
};

}  // namespace tutti::parallel
