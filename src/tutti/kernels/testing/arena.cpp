#include "tutti/kernels/testing/arena.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>

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

// Arrays of devices, with their size and their copy on the host.
struct Copy {
    size_t bytes;
    std::byte* host;
};
std::map<const std::byte*, Copy>& copies() {
    static std::map<const std::byte*, Copy> all;
    return all;
}

}  // namespace

const void* on_host(const void* data) {
    if (copies().empty()) return data;
    const auto* const place = static_cast<const std::byte*>(data);
    const auto next = copies().upper_bound(place);
    if (next == copies().begin()) return data;
    const auto& [array, copy] = *std::prev(next);
    return place <= array + copy.bytes ? copy.host + (place - array) : data;
}

namespace {

double host_value(const View& x, int64_t i) {
    const int64_t offset = offset_of(x, i);
    if (size_of(x.dtype) == 1) return x.as<uint8_t>()[offset];  // codes of 8 bits, too
    const bool is_index = x.dtype == DType::i64 || x.dtype == DType::i32;
    return is_index ? static_cast<double>(reference::load_index(x, offset)) : reference::load(x, offset);
}

}  // namespace

double value(const View& x, int64_t i) { return copies().empty() ? host_value(x, i) : host_value(on_host(x), i); }

std::vector<double> values(const View& on_device) {
    const View x = on_host(on_device);
    std::vector<double> all(static_cast<size_t>(x.numel()));
    for (int64_t i = 0; i < x.numel(); ++i) all[static_cast<size_t>(i)] = host_value(x, i);
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
    auto* const memory = place_.arrays != nullptr ? std::pmr::get_default_resource() : place_.memory;
    Block& block = blocks_.emplace_back(Block{{size, kGuardByte, memory}, nullptr, {}, {}});
    if (place_.arrays != nullptr) {
        block.array = place_.arrays->take(size);
        copies()[block.array] = {size, block.memory.data()};
    }
    void* begin = (block.array != nullptr ? block.array : block.memory.data()) + guard;
    size_t room = block.memory.size() - static_cast<size_t>(guard);
    begin = static_cast<std::byte*>(std::align(64, 1, begin, room)) + shift;
    const View x(begin, dtype, shape);
    std::fill_n(on_host(x).as<std::byte>(), bytes, kNotANumber);
    return x;
}

Arena::~Arena() {
    for (const Block& block : blocks_) {
        if (block.array == nullptr) continue;
        copies().erase(block.array);
        place_.arrays->give_back(block.array);
    }
}

View Arena::normal(const Shape& shape, DType dtype, const char* purpose, double scale, double shift) {
    const View made = empty(shape, dtype), x = on_host(made);
    static std::map<std::string, std::vector<double>> drawn;  // each number once, for all cases and tables
    std::vector<double>& numbers = drawn[purpose];
    const RandomKey key = random_key(2024, purpose);
    for (auto i = static_cast<int64_t>(numbers.size()); i < x.numel(); ++i)
        numbers.push_back(tutti::normal(key, static_cast<uint64_t>(i)));
    for (int64_t i = 0; i < x.numel(); ++i) reference::store(x, i, shift + scale * numbers[static_cast<size_t>(i)]);
    return made;
}

View Arena::from(const Shape& shape, DType dtype, const std::vector<double>& given) {
    const View made = empty(shape, dtype), x = on_host(made);
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
    return made;
}

View Arena::workspace(int64_t floats) {
    const View x = empty({floats}, DType::f32);
    may_change(x);
    return x;
}

void Arena::start() {
    for (Block& block : blocks_) {
        block.before.assign(block.memory.begin(), block.memory.end());
        if (block.array != nullptr) place_.arrays->copy_in(block.array, block.memory.data(), block.memory.size());
    }
    started_ = true;
}

// All arrays at first, then that of `data` alone: some cases have hundreds.
void Arena::copy_out(const void* data) {
    place_.wait();
    for (Block& block : blocks_) {
        if (!started_ || block.array == nullptr) continue;
        const auto* const place = static_cast<const std::byte*>(data);
        if (place != nullptr && copied_ && (place < block.array || place >= block.array + block.memory.size()))
            continue;
        place_.arrays->copy_out(block.memory.data(), block.array, block.memory.size());
    }
    copied_ = started_;
}

void Arena::may_change(const View& on_device) {
    copy_out(on_device.data);
    const View y = on_host(on_device);
    for (Block& block : blocks_) {
        const std::byte* begin = block.memory.data();
        if (y.as<std::byte>() < begin || y.as<std::byte>() >= begin + block.memory.size()) continue;
        block.may_change.resize(block.memory.size());
        if (y.contiguous()) {
            std::fill_n(block.may_change.begin() + (y.as<std::byte>() - begin), y.numel() * size_of(y.dtype),
                        std::byte{1});
            continue;
        }
        for (int64_t i = 0; i < y.numel(); ++i) {
            const int64_t at = y.as<std::byte>() - begin + offset_of(y, i) * size_of(y.dtype);
            for (int64_t byte = at; byte < at + size_of(y.dtype); ++byte)
                block.may_change[static_cast<size_t>(byte)] = std::byte{1};
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
    copy_out(nullptr);
    double damaged = 0;
    for (Block& block : blocks_) {
        check(block.before.size() == block.memory.size(), "a kernel case must call start() before the kernel");
        if (std::ranges::equal(block.memory, block.before)) continue;
        block.may_change.resize(block.memory.size());
        const std::byte *now = block.memory.data(), *before = block.before.data(), *may = block.may_change.data();
        int64_t changed = 0;
        for (size_t i = 0; i < block.memory.size(); ++i) changed += now[i] != before[i] && may[i] == std::byte{0};
        damaged += static_cast<double>(changed);
    }
    outputs_.push_back({"bytes changed outside of the results", {damaged}, {0}});
    return std::move(outputs_);
}

}  // namespace tutti::kernels::cases
