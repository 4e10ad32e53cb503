// kernels/reference/rope.cpp: rotary position embedding (Su et al. 2021), pairs (k, k + D/2). See kernels.h.
#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/kernels.h"

namespace tutti::kernels::reference {

// (y_k, y_{k+D/2}) = (x_k cos - x_{k+D/2} sin, x_{k+D/2} cos + x_k sin), angle of (position, k); inverse: minus angle
void rope(const Stream&, View x, View positions, View cosines, View sines, bool inverse, View y) {
    const int64_t N = x.shape[0], H = x.shape[1], D = x.shape[2];
    for (int64_t n = 0; n < N; ++n)
        for (int64_t h = 0; h < H; ++h)
            for (int64_t k = 0; k < D / 2; ++k) {
                const int64_t position = load_index(positions, n);
                const double cosine = load(cosines, offset(cosines, position, k));
                const double sine = load(sines, offset(sines, position, k)) * (inverse ? -1 : 1);
                const double first = load(x, offset(x, n, h, k)), second = load(x, offset(x, n, h, k + D / 2));
                store(y, offset(y, n, h, k), first * cosine - second * sine);
                store(y, offset(y, n, h, k + D / 2), second * cosine + first * sine);
            }
}

void rope_table(const Stream&, View frequencies, double amplitude, View cosines, View sines) {
    for (int64_t p = 0; p < cosines.shape[0]; ++p)
        for (int64_t k = 0; k < cosines.shape[1]; ++k) {
            const double angle = static_cast<double>(p) * load(frequencies, k);
            store(cosines, offset(cosines, p, k), amplitude * std::cos(angle));
            store(sines, offset(sines, p, k), amplitude * std::sin(angle));
        }
}

}  // namespace tutti::kernels::reference
