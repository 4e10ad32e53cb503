// kernels/cuda/absent.cpp: the table of a build without CUDA: entries and sizes for rehearsals of runs on GPUs. Its
// kernels never run, since such a build has no GPU device. CMake compiles either this file or the others of this
// folder.
#include "tutti/base/error.h"
#include "tutti/kernels/code_units.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/cuda/sizes.h"

namespace tutti::kernels {

const KernelTable& cuda_tf32_table() { return cuda_table(); }

const KernelTable& cuda_table() {
    static const KernelTable table = [] {
        KernelTable t = reference_table();  // like the CUDA table, needs no workspace for products and packs nothing
        t.name = "cuda";
        t.gemm_by_rows = false;
        t.gemm_of_codes = [](const Stream& stream, const Gemm& g) {
            const CodeUnit* unit = unit_of(g);
            return unit != nullptr && has_unit(stream.capability, *unit);
        };
        t.scale_form = form_of_scales;
        cuda::fill_abilities(t);
        t.own_value_width = false;
        t.gemm_implementations = []() -> const char* {
            throw UsageError(
                "this build has no CUDA: install the CUDA toolkit (nvcc) and configure with -DTUTTI_CUDA=ON, or use "
                "train.device = \"cpu\"");
        };
        t.attention_implementations = [] { return "hopper, tensor, plain"; };
        t.attention_workspace = cuda::attention_workspace;
        t.delta_rule_workspace = cuda::delta_rule_workspace;
        return t;
    }();
    return table;
}

}  // namespace tutti::kernels
