// kernels/testing/arena.h: the memory of one case. Guard bytes surround every array, results begin as NaN, and all
// other bytes must be unchanged afterwards: a kernel that writes too much or too little is detected.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tutti/kernels/testing/kernel_cases.h"

namespace tutti::kernels::cases {

// Where the test reads and writes what is at `data`, in an array of an arena.
const void* on_host(const void* data);
inline View on_host(View x) {
    x.data = const_cast<void*>(on_host(static_cast<const void*>(x.data)));
    return x;
}
// The same of these views of a kernel's arguments.
template <class Arguments, std::same_as<View>... Views>
Arguments on_host(Arguments arguments, Views Arguments::*... views) {
    ((arguments.*views = on_host(arguments.*views)), ...);
    return arguments;
}
// Element i, in row-major order, of a view with any strides and any type.
double value(const View& x, int64_t i);
std::vector<double> values(const View& x);
// Indices [begin, begin + size) of one dim.
View slice(View x, int dim, int64_t begin, int64_t size);
// Dims 1 and 2 swapped: (B, H, T, D) memory as (B, T, H, D).
View swap_middle(View x);

class Arena {
  public:
    Arena(const Place& place, bool with_tolerance) : place_(place), with_tolerance_(with_tolerance) {}
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    bool with_tolerance() const { return with_tolerance_; }

    // shift + scale * (standard normal number i of the stream `purpose`), rounded to the type.
    View normal(const Shape& shape, DType dtype, const char* purpose, double scale = 1, double shift = 0);
    // Given values, in row-major order; integer types too.
    View from(const Shape& shape, DType dtype, const std::vector<double>& given);
    View empty(const Shape& shape, DType dtype);  // all bits set: NaN
    View workspace(int64_t floats);               // f32; no check of what the kernel leaves there

    // Call after the last input and before the kernel, which may change only the memory that result() names.
    void start();
    // tolerance(i) belongs to element i of y; not called in an arena without tolerances.
    void result(std::string name, const View& y, const std::function<double(int64_t)>& tolerance);
    void result(Output output) { outputs_.push_back(std::move(output)); }
    void may_change(const View& y);  // waits; an Output says what is in this memory
    std::vector<Output> finish();

  private:
    struct Block {
        std::pmr::vector<std::byte> memory;  // guard, data, guard
        std::byte* array = nullptr;          // of the device, which has the values from start() on; null: `memory` has
        std::vector<std::byte> before;       // the memory at start()
        std::vector<std::byte> may_change;   // by byte: 0 or 1; empty: none

        const std::byte* begin() const { return array != nullptr ? array : memory.data(); }
    };

    Block& block_of(const View& x);
    void copy_out(Block& block) const;
    void copy_all_out();

    const Place& place_;
    bool with_tolerance_, started_ = false, copied_ = false;
    std::map<const std::byte*, Block> blocks_;  // by begin(): some cases have hundreds
    std::vector<Output> outputs_;
};

}  // namespace tutti::kernels::cases
