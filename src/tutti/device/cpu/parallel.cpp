#include "tutti/device/cpu/parallel.h"

namespace tutti {

void run_tasks(int threads, int64_t tasks, void (*task)(void* context, int64_t index), void* context) {
    if (threads <= 1 || tasks <= 1) {
        for (int64_t i = 0; i < tasks; ++i) task(context, i);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
#endif
    for (int64_t i = 0; i < tasks; ++i) task(context, i);
}

}  // namespace tutti
