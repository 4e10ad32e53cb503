// tests/cuda/emulation/launch.h: device/cuda/launch.h on the CPU. That header includes this one after struct Grid.
#pragma once

#include "tests/cuda/emulation/block.h"
#include "tests/cuda/emulation/graph.h"

namespace tutti {

template <class T>
using GridConstant = const T&;

template <class... P, class... A>
void launch(void (*kernel)(P...), const Grid& grid, const Stream& stream, const A&... arguments) {
    (emulation::check_argument(arguments), ...);
    emulation::count_launch();
    emulation::load_module(reinterpret_cast<const void*>(kernel));
    const auto run = [kernel, values = std::tuple<std::remove_cvref_t<P>...>(arguments...),
                      shape = emulation::GridShape{grid.blocks, grid.threads, grid.shared_bytes, grid.blocks_wait,
                                                   emulation::schedule_of_launch()}] {
        emulation::run_grid(shape, [&] { std::apply(kernel, values); });
    };
    if (!emulation::captured(native(stream), run)) emulation::enqueue(native(stream), run);
}

template <class T>
T& block_shared() {
    static constexpr char kTag = 0;  // its address stands for T
    return *static_cast<T*>(emulation::shared_variable(&kTag, sizeof(T), alignof(T)));
}
inline std::byte* dynamic_shared() { return emulation::dynamic_shared(); }

}  // namespace tutti
