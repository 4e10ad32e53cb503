// bench/array.h: what the programs here that time kernels share (cpu_*.cpp): operands, medians, and the instruction set
// that an argument names.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tutti/kernels/kernel_table.h"
#include "tutti/tensor/view.h"

// Numbers between -1.1 and 1.1 in huge pages, as HostMemory gives them; std::free(view.data) gives them back.
inline tutti::View array(tutti::DType type, const tutti::Shape& shape) {
    const size_t page = 2 << 20, bytes = (static_cast<size_t>(shape.numel() * size_of(type)) + page) / page * page;
    void* data = std::aligned_alloc(page, bytes);
    madvise(data, bytes, MADV_HUGEPAGE);
    const tutti::View x(data, type, shape);
    for (int64_t i = 0; i < shape.numel(); ++i) {
        const float value = static_cast<float>(i % 37 - 18) / 16;
        type == tutti::DType::f32 ? void(x.as<float>()[i] = value) : void(x.as<tutti::bf16>()[i] = tutti::bf16(value));
    }
    return x;
}

inline double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

// nullptr: the best one. Ends the program where this machine lacks it.
inline tutti::kernels::Isa isa_named(const char* name) {
    using tutti::kernels::Isa;
    Isa isa = tutti::kernels::best_isa();
    while (name != nullptr && std::strcmp(name, tutti::kernels::name_of(isa)) != 0) {
        if (isa == Isa::avx2) std::fprintf(stderr, "this machine has no %s\n", name), std::exit(2);
        isa = static_cast<Isa>(static_cast<int>(isa) - 1);
    }
    return isa;
}
