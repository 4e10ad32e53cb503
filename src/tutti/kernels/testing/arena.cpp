#include "tutti/kernels/testing/arena.h"

#include <algorithm>
#include <cstring>

#include "tutti/kernels/reference/element.h"

namespace tutti::kernels::cases {

namespace {

constexpr std::byte kGuardByte{0xA5};
constexpr std::byte kNotANumber{0xFF};

// Offset, in elements, of element i in row-major order.
int64_t offset_of(const View& x, int64_t i) {
    int64_t offset = 0;
    for (int dim = x.shape.rank() - 1; dim >= 0; --dim) {
        offset += i % x.shape[dim] * x.stride(dim);
        i /= x.shape[dim];
    }
    return offset;
}

}  // namespace

double value(const View& x, int64_t i) {
    const int64_t offset = offset_of(x, i);
    if (size_of(x.dtype) == 1) return x.as<uint8_t>()[offset];  // codes of 8 bits, too
    const bool is_index = x.dtype == DType::i64 || x.dtype == DType::i32;
    return is_index ? static_cast<double>(reference::load_index(x, offset)) : reference::load(x, offset);
}

std::vector<double> values(const View& x) {
    std::vector<double> all(static_cast<size_t>(x.numel()));
    for (int64_t i = 0; i < x.numel(); ++i) all[static_cast<size_t>(i)] = value(x, i);
    return all;
}

View slice(View x, int dim, int64_t begin, int64_t size) {
    x.data = x.as<std::byte>() + begin * x.stride(dim) * size_of(x.dtype);
    x.shape[dim] = size;
    return x;
}

View swap_middle(View x) {
    std::swap(x.shape[1], x.shape[2]);
    std::swap(x.strides[1], x.strides[2]);
    return x;
}

// Arrays of a multiple of 16 elements begin on a cache line, as whole tensors do. Half of the others do too, so that
// vectors end in the middle; the other half begin one element later, as rows of a narrowed tensor may.
View Arena::empty(const Shape& shape, DType dtype) {
    const int64_t bytes = shape.numel() * size_of(dtype), rest = shape.numel() % 16;
    const int64_t shift = rest == 0 || rest >= 8 ? 0 : size_of(dtype), guard = place_.guard_bytes;
    const auto size = static_cast<size_t>(bytes + shift + 2 * guard + 64);
    Block& block = blocks_.emplace_back(Block{{size, kGuardByte, place_.memory}, {}, {}});
    void* begin = block.memory.data() + guard;
    size_t room = block.memory.size() - guard;
    begin = static_cast<std::byte*>(std::align(64, 1, begin, room)) + shift;
    std::fill_n(static_cast<std::byte*>(begin), bytes, kNotANumber);
    return View(begin, dtype, shape);
}

View Arena::normal(const Shape& shape, DType dtype, const char* purpose, double scale, double shift) {
    const View x = empty(shape, dtype);
    const RandomKey key = random_key(2024, purpose);
    for (int64_t i = 0; i < x.numel(); ++i)
        reference::store(x, i, shift + scale * tutti::normal(key, static_cast<uint64_t>(i)));
    return x;
}

View Arena::from(const Shape& shape, DType dtype, const std::vector<double>& given) {
    const View x = empty(shape, dtype);
    for (int64_t i = 0; i < x.numel(); ++i) {
        const double v = given[static_cast<size_t>(i)];
        if (dtype == DType::i32)
            x.as<int32_t>()[i] = static_cast<int32_t>(v);
        else if (dtype == DType::i64)
            x.as<int64_t>()[i] = static_cast<int64_t>(v);
        else if (size_of(dtype) == 1)
            x.as<uint8_t>()[i] = static_cast<uint8_t>(v);
        else
            reference::store(x, i, v);
    }
    return x;
}

View Arena::workspace(int64_t floats) {
    const View x = empty({floats}, DType::f32);
    may_change(x);
    return x;
}

void Arena::start() {
    for (Block& block : blocks_) block.before.assign(block.memory.begin(), block.memory.end());
}

void Arena::may_change(const View& y) {
    place_.wait();
    for (Block& block : blocks_) {
        const std::byte* begin = block.memory.data();
        if (y.as<std::byte>() < begin || y.as<std::byte>() >= begin + block.memory.size()) continue;
        block.may_change.resize(block.memory.size());
        for (int64_t i = 0; i < y.numel(); ++i) {
            const int64_t at = y.as<std::byte>() - begin + offset_of(y, i) * size_of(y.dtype);
            for (int64_t byte = at; byte < at + size_of(y.dtype); ++byte)
                block.may_change[static_cast<size_t>(byte)] = true;
        }
    }
}

void Arena::result(std::string name, const View& y, const std::function<double(int64_t)>& tolerance) {
    may_change(y);
    Output output{std::move(name), values(y), {}};
    for (int64_t i = 0; with_tolerance_ && i < y.numel(); ++i) output.tolerance.push_back(tolerance(i));
    outputs_.push_back(std::move(output));
}

std::vector<Output> Arena::finish() {
    place_.wait();
    double damaged = 0;
    for (Block& block : blocks_) {
        check(block.before.size() == block.memory.size(), "a kernel case must call start() before the kernel");
        block.may_change.resize(block.memory.size());
        for (size_t i = 0; i < block.memory.size(); ++i)
            damaged += block.memory[i] != block.before[i] && !block.may_change[i];
    }
    outputs_.push_back({"bytes changed outside of the results", {damaged}, {0}});
    return std::move(outputs_);
}

}  // namespace tutti::kernels::cases
