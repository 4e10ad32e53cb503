// kernels/epilogue.h: the epilogue of a product as a separate kernel, for implementations without fused epilogues: one
// more pass over memory, in place if z has no separate view.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

// The product without its epilogue: stores z where apply_epilogue() reads it.
inline Gemm without_epilogue(Gemm g) {
    const bool keeps_z = g.epilogue == Epilogue::gelu || g.epilogue == Epilogue::swiglu;
    if (keeps_z && g.x.defined()) g.c = g.x;
    g.epilogue = Epilogue::none;
    return g;
}

// Applies the epilogue of g to z, if g has one.
inline void apply_epilogue(const KernelTable& table, const Stream& stream, const Gemm& g) {
    const View& z = without_epilogue(g).c;
    switch (g.epilogue) {
        case Epilogue::none: return;
        case Epilogue::gelu: return table.gelu_forward(stream, z, g.c);
        case Epilogue::gelu_backward: return table.gelu_backward(stream, z, g.x, g.c);
        case Epilogue::swiglu: return table.swiglu_forward(stream, g.activation, g.gate, z, g.c);
        case Epilogue::swiglu_backward: return table.swiglu_backward(stream, g.activation, z, g.gate, g.x, g.c, g.dup);
    }
}

}  // namespace tutti::kernels
