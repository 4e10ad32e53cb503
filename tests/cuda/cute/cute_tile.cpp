#include "tests/cuda/cute/cute_tile.h"

#include <cstddef>

// CuTe takes addresses of shared memory from nvcc's function, here from the pointer itself.
#define CUTE_CVTA_GENERIC_TO_SHARED_ACTIVATED 1
static size_t __cvta_generic_to_shared(const void* pointer) { return reinterpret_cast<size_t>(pointer); }

#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

namespace tutti::kernels {

namespace {

using Element = uint16_t;  // only its size counts
using cute::Int;
using cute::SM90::GMMA::Major;

// Element (m, k) at (row, column).
template <int kRows, int kD>
using KMajor =
    decltype(cute::tile_to_shape(cute::SM90::GMMA::Layout_K_SW128_Atom<Element>{}, cute::Shape<Int<kRows>, Int<kD>>{}));
// Element (n, k) at (column, row).
template <int kRows, int kD>
using NMajor = decltype(cute::tile_to_shape(cute::SM90::GMMA::Layout_MN_SW128_Atom<Element>{},
                                            cute::Shape<Int<kD>, Int<kRows>>{}, cute::Step<cute::_2, cute::_1>{}));

// Descriptor of the part (mn, k) of parts of (kSize, 16) elements.
template <Major kMajor, int kSize, class Layout>
uint64_t describe(uint32_t address, const Layout& layout, int mn, int k) {
    const auto tile =
        cute::make_tensor(cute::make_smem_ptr(reinterpret_cast<Element*>(static_cast<uintptr_t>(address))), layout);
    const auto parts = cute::zipped_divide(tile, cute::make_shape(Int<kSize>{}, Int<16>{}));
    return cute::MakeTensor<cute::SM90::GMMA::smem_desc<kMajor>>{}(parts)(0, cute::make_coord(mn, k));
}

}  // namespace

template <int kRows, int kD>
uint32_t CuteTile<kRows, kD>::offset(int row, int column) {
    const auto layout = cute::as_position_independent_swizzle_layout(KMajor<kRows, kD>{});
    return static_cast<uint32_t>(layout(row, column) * sizeof(Element));
}
template <int kRows, int kD>
uint64_t CuteTile<kRows, kD>::k_major(uint32_t address, int block, int k) {
    return describe<Major::K, 64>(address, KMajor<kRows, kD>{}, block, k);
}
template <int kRows, int kD>
uint64_t CuteTile<kRows, kD>::n_major(uint32_t address, int k) {
    return describe<Major::MN, kD>(address, NMajor<kRows, kD>{}, 0, k);
}
template <int kRows, int kD>
uint64_t CuteTile<kRows, kD>::n_major(uint32_t address, int k, int slab) {
    return describe<Major::MN, 64>(address, NMajor<kRows, kD>{}, slab, k);
}

// The tiles of attention on Hopper.
template struct CuteTile<192, 64>;
template struct CuteTile<128, 64>;
template struct CuteTile<64, 128>;
template struct CuteTile<128, 128>;

}  // namespace tutti::kernels
