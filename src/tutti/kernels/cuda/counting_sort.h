// kernels/cuda/counting_sort.h: a stable counting sort without atomics: items of a bucket keep their order. Three
// stages: blocks count their items of each bucket, a scan turns the counts into numbers of earlier items, and each item
// finds its place from these and from the items before it in its block.
#pragma once

#include "tutti/kernels/cuda/team.h"

namespace tutti::kernels::cuda {

inline constexpr int kSortThreads = 512;  // items of a block

// Item i of n has the bucket key(i), in [0, buckets).
template <class Key>
struct Sorting {
    Key key;
    int64_t n;
    int32_t buckets;
    int64_t blocks;
    // (buckets, blocks) and (buckets): items of a bucket in a block, after the scan in the blocks before; and in all.
    int32_t *table, *totals;

    // Of `table` and `totals`, which begin at `workspace`.
    static int64_t workspace_bytes(int64_t n, int64_t buckets) {
        return buckets * (ceil_div(n, kSortThreads) + 1) * static_cast<int64_t>(sizeof(int32_t));
    }
    Sorting(Key key_, int64_t n_, int64_t buckets_, void* workspace)
        : key(key_),
          n(n_),
          buckets(static_cast<int32_t>(buckets_)),
          blocks(ceil_div(n_, kSortThreads)),
          table(static_cast<int32_t*>(workspace)),
          totals(table + buckets_ * blocks) {}
    template <class F>
    void for_pointers(F f) const {
        f(table);
        key.for_pointers(f);
    }
};

struct BucketsOfBlock {
    int32_t of[kSortThreads];
};

struct InBlock {
    int32_t bucket;  // -1 behind the last item
    int32_t before;  // items of the bucket that come before in the block
    bool last;       // of the bucket in the block
};

template <class Key>
__device__ InBlock place_in_block(const Sorting<Key>& s) {
    auto& buckets = block_shared<BucketsOfBlock>();
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kSortThreads + thread;
    InBlock p{i < s.n ? s.key(i) : -1, 0, true};
    buckets.of[thread] = p.bucket;
    __syncthreads();
#pragma unroll 4
    for (int j = 0; j < kSortThreads; ++j) {
        const bool same = buckets.of[j] == p.bucket;
        p.before += same && j < thread ? 1 : 0;
        p.last = p.last && !(same && j > thread);
    }
    return p;
}

template <class Key>
__global__ void __launch_bounds__(kSortThreads) count_kernel(Sorting<Key> s) {
    for (int32_t b = static_cast<int32_t>(threadIdx.x); b < s.buckets; b += kSortThreads)
        s.table[b * s.blocks + blockIdx.x] = 0;
    const InBlock p = place_in_block(s);  // its barrier stands between the zeros and the counts
    if (p.bucket >= 0 && p.last) s.table[p.bucket * s.blocks + blockIdx.x] = p.before + 1;
}

// A warp per bucket.
template <class Key>
__global__ void __launch_bounds__(Team<1>::kBlockThreads) scan_kernel(Sorting<Key> s) {
    const int64_t b = Team<1>::row();
    if (b >= s.buckets) return;
    const int lane = Team<1>::rank();
    int32_t* const of = s.table + b * s.blocks;
    int32_t before = 0;
    for (int64_t begin = 0; begin < s.blocks; begin += kWarp) {
        const int64_t at = begin + lane;
        const int32_t own = at < s.blocks ? of[at] : 0;
        int32_t sum = own;
        for (int step = 1; step < kWarp; step *= 2) {
            const int32_t other = __shfl_sync(kAllLanes, sum, lane >= step ? lane - step : lane);
            if (lane >= step) sum += other;
        }
        if (at < s.blocks) of[at] = before + sum - own;
        before += __shfl_sync(kAllLanes, sum, kWarp - 1);
    }
    if (lane == 0) s.totals[b] = before;
}

struct ThreadSums {
    int32_t of[kSortThreads];
};

// first (buckets + 1): the sum of `totals` before each bucket, and of all. To be read after another barrier.
__device__ inline void sums_before(const int32_t* totals, int32_t buckets, int32_t* first) {
    auto& sums = block_shared<ThreadSums>();
    const int32_t thread = static_cast<int32_t>(threadIdx.x), each = (buckets + kSortThreads - 1) / kSortThreads;
    const auto bounded = [&](int32_t b) { return b < buckets ? b : buckets; };
    const int32_t begin = bounded(thread * each), end = bounded(begin + each);
    int32_t sum = 0;
    for (int32_t b = begin; b < end; ++b) sum += totals[b];
    sums.of[thread] = sum;
    __syncthreads();
    sum = 0;
    for (int32_t t = 0; t < thread; ++t) sum += sums.of[t];
    for (int32_t b = begin; b < end; ++b) {
        first[b] = sum;
        sum += totals[b];
    }
    if (thread == kSortThreads - 1) first[buckets] = sum;
}

// write(i, bucket, place, first) for each item: its place among all is first[bucket] + place.
template <class Key, class Write>
__global__ void __launch_bounds__(kSortThreads) scatter_kernel(Sorting<Key> s, Write write) {
    int32_t* const first = reinterpret_cast<int32_t*>(dynamic_shared());
    sums_before(s.totals, s.buckets, first);
    const InBlock p = place_in_block(s);  // its barrier stands between the sums and their use
    if (p.bucket < 0) return;
    write(static_cast<int64_t>(blockIdx.x) * kSortThreads + threadIdx.x, p.bucket,
          s.table[p.bucket * s.blocks + blockIdx.x] + p.before, first);
}

// Fills `table` and `totals`.
template <class Key>
void count(const Stream& stream, const Sorting<Key>& s) {
    if (s.blocks > 0)
        launch(count_kernel<Key>, {.blocks = dim3(static_cast<unsigned>(s.blocks)), .threads = dim3(kSortThreads)},
               stream, s);
    launch(scan_kernel<Key>, grid_of_rows<Team<1>>(s.buckets), stream, s);
}
template <class Key, class Write>
void scatter(const Stream& stream, const Sorting<Key>& s, const Write& write) {
    if (s.blocks > 0)
        launch(scatter_kernel<Key, Write>,
               {.blocks = dim3(static_cast<unsigned>(s.blocks)),
                .threads = dim3(kSortThreads),
                .shared_bytes = static_cast<size_t>(s.buckets + 1) * sizeof(int32_t)},
               stream, s, write);
}

}  // namespace tutti::kernels::cuda
