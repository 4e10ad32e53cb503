// kernels/cpu/isa/embedding.cpp: rows of a table by token number, and their gradients.
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

void embedding_forward(const Stream& stream, View tokens, View weight, int64_t first_row, View y) {
    const int64_t height = size(weight, 0), width = columns(weight);
    with_type(weight.dtype, [&](auto weight_type) {
        with_type(y.dtype, [&](auto y_type) {
            const auto* table = weight.as<typename decltype(weight_type)::type>();
            auto* out = y.as<typename decltype(y_type)::type>();
            parallel_for(stream, numel(tokens), row_grain(width), [&](int64_t begin, int64_t end) {
                for (int64_t n = begin; n < end; ++n) {
                    const int64_t row = index_at(tokens, n) - first_row;
                    auto* to = out + n * width;
                    if (row < 0 || row >= height) {
                        for_vectors(0, width, [=](int64_t c, auto part) { store(zero(), to + c, part); });
                        continue;
                    }
                    const auto* from = table + row * width;
                    for_vectors(0, width, [=](int64_t c, auto part) { store(load(from + c, part), to + c, part); });
                }
            });
        });
    });
}

// Threads share out the columns: each adds all rows in the order of n, and no two write the same place.
void embedding_backward(const Stream& stream, View tokens, View dy, int64_t first_row, View dweight) {
    const int64_t height = size(dweight, 0), width = columns(dweight), count = numel(tokens);
    float* table = dweight.as<float>();
    with_type(dy.dtype, [&](auto type) {
        const auto* gradients = dy.as<typename decltype(type)::type>();
        const int64_t vectors = (width + kLanes - 1) / kLanes;
        parallel_for(stream, vectors, row_grain(count * kLanes), [&](int64_t begin, int64_t end) {
            const int64_t first = begin * kLanes, last = smaller(width, end * kLanes);
            for (int64_t n = 0; n < count; ++n) {
                const int64_t row = index_at(tokens, n) - first_row;
                if (row < 0 || row >= height) continue;
                const auto* from = gradients + n * width;
                float* to = table + row * width;
                for_vectors(first, last, [=](int64_t c, auto part) {
                    store(load(to + c, part) + load(from + c, part), to + c, part);
                });
            }
        });
    });
}

}  // namespace

void fill_embedding(KernelTable& table) {
    table.embedding_forward = embedding_forward;
    table.embedding_backward = embedding_backward;
}

}  // namespace tutti::kernels::TUTTI_ISA
