#include "tutti/parallel/apply.h"

namespace tutti::parallel {

using autograd::Parameter;
using autograd::Role;
using mesh::Axes;
using mesh::Axis;
using mesh::kTp;

namespace {

// Whether tensor parallelism divides the groups of a Role::head_group.
bool divides_groups(const Parameter& p, const mesh::Mesh& mesh) { return p.shape[0] / p.grain % mesh.size(kTp) == 0; }

mesh::Placement placement_of(const Parameter& p, const mesh::Mesh& mesh) {
    switch (p.role) {
        case Role::column: return {{.axes = kTp, .grain = p.grain, .sections = p.sections}};
        case Role::head_group:
            if (!divides_groups(p, mesh)) return {};
            return {{.axes = kTp, .grain = p.grain}};
        case Role::key_value: return {{.axes = Axis::tp_part, .grain = p.grain, .sections = p.sections}};
        case Role::row: return {{.axes = kTp, .dim = 1, .grain = p.grain}};
        case Role::vocabulary: return {{.axes = kTp, .grain = kVocabularyGrain, .padded = true}};
        case Role::expert_column: return {{.axes = Axis::ep}, {.axes = Axis::etp, .dim = 1}};
        case Role::expert_row: return {{.axes = Axis::ep}, {.axes = Axis::etp, .dim = 2}};
        case Role::expert: return {{.axes = Axis::ep}};
        case Role::replicated:
        case Role::position:
        case Role::norm:
        case Role::every_head:
        case Role::router:
        case Role::expert_bias: return {};
    }
    throw Error("unknown role of a parameter");
}

// Axes beyond data parallelism along which the gradient of `p` is a partial sum.
Axes partial_of(const Parameter& p, const mesh::Mesh& mesh, bool sequence_parallel) {
    switch (p.role) {
        case Role::head_group: return divides_groups(p, mesh) ? Axes() : Axes(kTp);  // of the heads of this rank
        case Role::key_value: return Axis::tp_copy;  // partial over the queries of this rank that share the head
        case Role::every_head: return kTp;           // of the heads that the rank has
        case Role::position:
        case Role::norm: return sequence_parallel ? kTp : Axes();  // partial over the rows of this rank
        case Role::router:
        case Role::expert_bias: return kTp;  // partial over the rows that this rank routes
        case Role::replicated:
        case Role::column:
        case Role::row:
        case Role::vocabulary:
        case Role::expert_column:
        case Role::expert_row:
        case Role::expert: return {};
    }
    throw Error("unknown role of a parameter");
}

}  // namespace

mesh::Part part_of(const Parameter& p, const mesh::Mesh& mesh, int rank) {
    return mesh::part_of(mesh, rank, p.shape, placement_of(p, mesh), p.name);
}

void apply(const std::vector<Parameter*>& parameters, const mesh::Mesh& mesh, int rank,
           const autograd::TensorParallel& tensor_parallel, const autograd::ExpertParallel& expert_parallel) {
    const auto if_several = [&](Axes axes) { return mesh.size(axes) > 1 ? axes : Axes(); };
    for (Parameter* p : parameters) {
        Axes cut;
        for (const mesh::Shard& shard : placement_of(*p, mesh)) cut = cut | shard.axes;
        p->local = part_of(*p, mesh, rank);
        p->copies = mesh::kDp | if_several(mesh::kCp) | if_several(kTp - cut);
        p->partial = mesh::kDp | if_several(mesh::kCp) | if_several(partial_of(*p, mesh, tensor_parallel.sequence));
        if (p->of_experts()) {
            p->partial = mesh::kExpertData;  // over the tokens of all ranks that hold the expert
            p->copies = mesh::kExpertData | if_several(Axes(Axis::etp) - cut);
        }
        p->tensor_parallel = tensor_parallel;
        p->expert_parallel = expert_parallel;
    }
}

}  // namespace tutti::parallel
