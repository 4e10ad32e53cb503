// kernels/epilogue.h: the epilogue of a product as a kernel of its own, for products whose maker has none: one pass
// over memory more, in place where there is no other place. Called by the gemm of cpu/, cuda/ and reference/.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

// The product without its epilogue: z goes where apply_epilogue() will look for it.
inline Gemm without_epilogue(Gemm g) {
    const bool keeps_z = g.epilogue == Epilogue::gelu || g.epilogue == Epilogue::swiglu;
    if (keeps_z && g.x.defined()) g.c = g.x;
    g.epilogue = Epilogue::none;
    return g;
}

// Nothing, where g has none.
inline void apply_epilogue(const KernelTable& table, const Stream& stream, const Gemm& g) {
    const View& z = without_epilogue(g).c;
    switch (g.epilogue) {
        case Epilogue::none: return;
        case Epilogue::gelu: return table.gelu_forward(stream, z, g.c);
        case Epilogue::gelu_backward: return table.gelu_backward(stream, z, g.x, g.c);
        case Epilogue::swiglu: return table.swiglu_forward(stream, g.gate, z, g.c);
        case Epilogue::swiglu_backward: return table.swiglu_backward(stream, z, g.gate, g.x, g.c, g.dup);
    }
}

}  // namespace tutti::kernels
