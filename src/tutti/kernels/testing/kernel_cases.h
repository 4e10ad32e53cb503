// kernels/testing/kernel_cases.h: one list of cases, op x dtype x shape, for the tests that compare kernel tables.
// A case makes its inputs (by Philox, so equal on all machines), runs one entry of a table on them and returns the
// outputs with the error that rounding allows. The cases are in *_cases.cpp, one file per family of entries.
#pragma once

#include <cstddef>
#include <functional>
#include <memory_resource>
#include <string>
#include <vector>

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

// The output of a kernel. `tolerance[i]` bounds the difference of values[i] between the reference and any table that
// sums in f32 or wider and rounds once; each case has the derivation. NaN: the element was never written.
struct Output {
    std::string name;
    std::vector<double> values;
    std::vector<double> tolerance;  // of expected() only
};

// Memory of a device that the host cannot access. Copies are done on return.
class DeviceArrays {
  public:
    virtual ~DeviceArrays() = default;
    virtual std::byte* take(size_t bytes) = 0;
    virtual void give_back(std::byte* array) = 0;
    virtual void copy_in(std::byte* array, const std::byte* host, size_t bytes) = 0;
    virtual void copy_out(std::byte* host, const std::byte* array, size_t bytes) = 0;
};

// The place of a case: the stream, memory, and the wait for the stream. With `arrays` the arrays of a case are a
// device's, and the test reads and writes copies of them; `memory` is what kernels and the host can both access.
struct Place {
    Stream stream;
    DeviceArrays* arrays = nullptr;
    std::pmr::memory_resource* memory = std::pmr::get_default_resource();
    std::function<void()> wait = [] {};  // CPU kernels are synchronous
    int64_t guard_bytes = 128;           // before and behind each array: two vectors of the widest ISA
};

struct Case {
    std::string op;                                        // the entry's name: "norm_forward"
    std::string name;                                      // what distinguishes it: "bf16 (7, 127)"
    std::function<const void*(const KernelTable&)> entry;  // the function that runs; null: the table has none
    // The last output counts changed bytes outside the results: must be 0.
    std::function<std::vector<Output>(const KernelTable&, const Place&)> run;
    std::function<std::vector<Output>()> expected;  // run of the reference, with tolerances
};

std::vector<Case> kernel_cases();

}  // namespace tutti::kernels
