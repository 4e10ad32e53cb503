// ops/context.h: what a rank computes with: its device, the kernels for it, and the meter of these kernels. Passed as
// an argument; never global.
#pragma once

#include "tutti/kernels/kernel_table.h"
#include "tutti/kernels/work.h"
#include "tutti/tensor/tensor.h"

namespace tutti::ops {

// Called around every kernel that a context runs: a clock (ops/kernel_times.h), or the program of a rehearsal.
class Meter {
  public:
    virtual ~Meter() = default;
    virtual void before_kernel(Device&) {}
    // `kernel`: the entry of the kernel table, "norm_forward".
    virtual void after_kernel(Device& device, const char* kernel, const kernels::Work& work) = 0;
    // True when kernels must be launched one by one: a step then runs without CUDA graphs.
    virtual bool needs_single_launches() const { return false; }
};

// The counts that the host reads because the work that follows has their shape: how many rows go to which expert, and
// come from which rank. `counted` is what the device counted. The tensors of a rehearsal have no values, so a rehearsal
// replaces them by assumptions.
class ShapingValues {
  public:
    using Counts = std::vector<int64_t>;
    virtual ~ShapingValues() = default;
    virtual bool exist() const { return true; }  // false: tensors have no values
    // (E): choices of each expert by N rows of k.
    virtual Counts loads(Counts counted, [[maybe_unused]] int64_t N, [[maybe_unused]] int64_t k) const {
        return counted;
    }
    // (E): those of `load` that experts accept, when P ranks share a capacity.
    virtual Counts accepted(Counts counted, [[maybe_unused]] const Counts& load, [[maybe_unused]] int64_t capacity,
                            [[maybe_unused]] int64_t P) const {
        return counted;
    }
    // (P n): n counts of each of the P ranks of a group, of which this rank's are `own` (n).
    virtual Counts of_ranks(Counts counted, [[maybe_unused]] const Counts& own) const { return counted; }
};
inline const ShapingValues kValuesOfTensors;

// Which weights are kept packed for further products (ops/weight_forms.h).
enum class Packing : uint8_t { never, where_it_pays, always };

struct Context {
    Device& device;
    const kernels::KernelTable& kernels;
    Meter* meter = nullptr;  // nullptr: none
    Packing packing = Packing::where_it_pays;
    bool keeps_forms = false;     // of weights from one product to the next (ops/weight_forms.h)
    int64_t weights_version = 0;  // a form made under another one is of other weights
    const ShapingValues* values = &kValuesOfTensors;
};

// Calls one kernel; Error, naming the kernel, when the back end lacks it.
template <class Kernel, class... Args>
auto call(Context& ctx, Kernel kernels::KernelTable::*entry, const char* name, Args&&... args) {
    const Kernel kernel = ctx.kernels.*entry;
    check(kernel != nullptr, name, " has no ", ctx.kernels.name, " kernel");
    if constexpr (std::is_void_v<decltype(kernel(ctx.device.stream(), std::forward<Args>(args)...))>)
        if (ctx.meter != nullptr) {
            ctx.meter->before_kernel(ctx.device);
            kernel(ctx.device.stream(), args...);
            return ctx.meter->after_kernel(ctx.device, name, kernels::work_of_call(name, args...));
        }
    return kernel(ctx.device.stream(), std::forward<Args>(args)...);
}

// Runs `kernel(stream)`, a kernel that is in no table. It reads and writes tensors of the context's device, of which a
// CPU's can be reached by Tensor::view(), and allocates nothing. A rehearsal counts the work and leaves it out. `name`
// must outlive the meter.
template <class Kernel>
void call_own(Context& ctx, const char* name, const kernels::Work& work, const Kernel& kernel) {
    if (ctx.meter != nullptr) ctx.meter->before_kernel(ctx.device);
    if (ctx.values->exist()) kernel(ctx.device.stream());
    if (ctx.meter != nullptr) ctx.meter->after_kernel(ctx.device, name, work);
}

}  // namespace tutti::ops
