// base/product.h: the three matrix products of a linear layer y = x w^T, x (rows, in), w (out, in), y (rows, out).
#pragma once

#include <cstdint>

namespace tutti {

enum class Product : uint8_t {
    forward,          // y = x w^T
    input_gradient,   // dx = dy w
    weight_gradient,  // dw += dy^T x, f32
};

}  // namespace tutti
