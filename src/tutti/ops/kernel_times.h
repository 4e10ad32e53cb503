// ops/kernel_times.h: how long the kernels of a run take, by entry of the table and by shape, beside the least that
// they can cost. Context::times points to one while somebody measures; `tutti bench step --kernels` does.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tutti/device/device.h"
#include "tutti/kernels/work.h"

namespace tutti::ops {

class KernelTimes {
  public:
    struct Row {
        std::string kernel, shape;
        int64_t calls = 0;
        double seconds = 0;
        kernels::Work work;  // of all calls together
    };

    // Runs `kernel` with the device idle before and after it.
    template <class Kernel>
    void measure(Device& device, const char* name, const kernels::Work& work, const Kernel& kernel) {
        device.synchronize();
        const auto begin = std::chrono::steady_clock::now();
        kernel();
        device.synchronize();
        add(name, work, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::vector<Row> rows() const;  // those that took longest first
    double seconds() const;         // of all

  private:
    void add(const std::string& name, const kernels::Work& work, double seconds);
    std::map<std::pair<std::string, std::string>, Row> rows_;
};

}  // namespace tutti::ops
