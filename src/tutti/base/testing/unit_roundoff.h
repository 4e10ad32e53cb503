// base/testing/unit_roundoff.h: the unit roundoff of a type, from which tests derive tolerances.
#pragma once

#include "tutti/base/dtype.h"

namespace tutti {

// u: |round(x) - x| <= u |x|.
constexpr double unit_roundoff(DType t) {
    switch (t) {
        case DType::f64: return 0x1p-53;
        case DType::f32: return 0x1p-24;
        case DType::f16: return 0x1p-11;
        case DType::bf16: return 0x1p-8;
        default: return 0;
    }
}

}  // namespace tutti
