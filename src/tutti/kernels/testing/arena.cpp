#include "tutti/kernels/testing/arena.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "tutti/kernels/reference/element.h"

namespace tutti::kernels::cases {

namespace {

constexpr std::byte kGuardByte{0xA5};
constexpr std::byte kNotANumber{0xFF};

// Offset, in elements, of element i in row-major order.
int64_t offset_of(const View& x, int64_t i) {
    if (x.contiguous()) return i;
    int64_t offset = 0;
    for (int dim = x.shape.rank() - 1; dim >= 0; --dim) {
        offset += i % x.shape[dim] * x.stride(dim);
        i /= x.shape[dim];
    }
    return offset;
}

// body(offset) of all elements, in row-major order. A division for each element would take most of a test's time.
template <class Body>
void for_offsets(const View& x, Body&& body) {
    const int64_t columns = x.columns(), step = x.shape.rank() == 0 ? 1 : x.stride(-1);
    for (int64_t i = 0; i < x.numel(); i += columns)
        for (int64_t c = 0, row = offset_of(x, i); c < columns; ++c) body(row + c * step);
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

double at(const View& x, int64_t offset) {
    if (size_of(x.dtype) == 1) return x.as<uint8_t>()[offset];  // codes of 8 bits, too
    const bool is_index = x.dtype == DType::i64 || x.dtype == DType::i32;
    return is_index ? static_cast<double>(reference::load_index(x, offset)) : reference::load(x, offset);
}

}  // namespace

double value(const View& x, int64_t i) { return at(on_host(x), offset_of(x, i)); }

std::vector<double> values(const View& on_device) {
    const View x = on_host(on_device);
    std::vector<double> all;
    all.reserve(static_cast<size_t>(x.numel()));
    for_offsets(x, [&](int64_t offset) { all.push_back(at(x, offset)); });
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
    Block made{{size, kGuardByte, memory}, nullptr, {}, {}};
    if (place_.arrays != nullptr) {
        made.array = place_.arrays->take(size);
        copies()[made.array] = {size, made.memory.data()};
    }
    void* begin = const_cast<std::byte*>(made.begin()) + guard;
    size_t room = size - static_cast<size_t>(guard);
    blocks_.emplace(made.begin(), std::move(made));
    begin = static_cast<std::byte*>(std::align(64, 1, begin, room)) + shift;
    const View x(begin, dtype, shape);
    std::fill_n(on_host(x).as<std::byte>(), bytes, kNotANumber);
    return x;
}

Arena::~Arena() {
    for (const auto& [begin, block] : blocks_) {
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
    for (auto& [begin, block] : blocks_) {
        block.before.assign(block.memory.begin(), block.memory.end());
        if (block.array != nullptr) place_.arrays->copy_in(block.array, block.memory.data(), block.memory.size());
    }
    started_ = true;
}

Arena::Block& Arena::block_of(const View& x) {
    const auto* const data = x.as<const std::byte>();
    const auto next = blocks_.upper_bound(data);
    check(next != blocks_.begin() && data < std::prev(next)->first + std::prev(next)->second.memory.size(),
          "a view of no array of this arena");
    return std::prev(next)->second;
}

void Arena::copy_out(Block& block) const {
    if (started_ && block.array != nullptr)
        place_.arrays->copy_out(block.memory.data(), block.array, block.memory.size());
}

void Arena::copy_all_out() {
    for (auto& [begin, block] : blocks_) copy_out(block);
    copied_ = started_;
}

void Arena::may_change(const View& on_device) {
    if (on_device.numel() == 0) return;  // it may lie in no array
    Block& block = block_of(on_device);
    place_.wait();
    if (copied_)
        copy_out(block);
    else
        copy_all_out();
    const View y = on_host(on_device);
    block.may_change.resize(block.memory.size());
    const auto first = block.may_change.begin() + (y.as<std::byte>() - block.memory.data());
    const int64_t bytes = size_of(y.dtype);
    if (y.contiguous())
        std::fill_n(first, y.numel() * bytes, std::byte{1});
    else
        for_offsets(y, [&](int64_t offset) { std::fill_n(first + offset * bytes, bytes, std::byte{1}); });
}

void Arena::result(std::string name, const View& y, const std::function<double(int64_t)>& tolerance) {
    may_change(y);
    Output output{std::move(name), values(y), {}};
    for (int64_t i = 0; with_tolerance_ && i < y.numel(); ++i) output.tolerance.push_back(tolerance(i));
    outputs_.push_back(std::move(output));
}

std::vector<Output> Arena::finish() {
    place_.wait();
    copy_all_out();
    double damaged = 0;
    for (auto& [begin, block] : blocks_) {
        check(block.before.size() == block.memory.size(), "a kernel case must call start() before the kernel");
        if (std::ranges::equal(block.memory, block.before)) continue;
        block.may_change.resize(block.memory.size());
        const std::byte *now = block.memory.data(), *before = block.before.data(), *may = block.may_change.data();
        uint32_t changed = 0;  // `&`: the loop has no branches, and many bytes at a time
        for (size_t i = 0; i < block.memory.size(); ++i)
            changed += static_cast<uint32_t>(now[i] != before[i]) & static_cast<uint32_t>(may[i] == std::byte{0});
        damaged += changed;
    }
    outputs_.push_back({"bytes changed outside of the results", {damaged}, {0}});
    return std::move(outputs_);
}

}  // namespace tutti::kernels::cases
