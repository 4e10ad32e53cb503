#include "tutti/device/on_cores.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "tutti/base/refused.h"
#include "tutti/base/to_size.h"
#include "tutti/device/device.h"

namespace tutti {

void for_each_on_cores(size_t count, const std::function<void(size_t)>& work) {
    std::vector<std::exception_ptr> failures(count);
    std::atomic<size_t> next{0};
    const auto claim = [&] {
        for (size_t i = next++; i < count; i = next++) try {
                work(i);
            } catch (...) {
                failures[i] = std::current_exception();
            }
    };
    {
        std::vector<std::jthread> helpers;
        const size_t threads = std::min(to_size(std::max(1, available_cores())), count);
        for (size_t t = 1; t < threads; ++t)
            helpers.push_back(start_thread<std::jthread>("shares the work of this rank", claim));
        claim();
    }
    for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
}

}  // namespace tutti
