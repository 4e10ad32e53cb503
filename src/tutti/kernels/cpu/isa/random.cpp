// kernels/cpu/isa/random.cpp: standard normal numbers and the mask of dropout, by global index: the words of
// base/philox.h bit for bit, in the order of their indices. Philox makes four consecutive words per block; here as many
// blocks at once as there are lanes, transposed.
#include "tutti/base/philox.h"
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

constexpr int64_t kWordBatch = 4 * kLanes;      // made at once
constexpr int64_t kWordsMade = 8 * kWordBatch;  // room for those made ahead of their use: 1 or 2 KB on the stack

// Ten rounds on the even lanes of c. A product keeps its low word in the even lane and its high word is shifted there:
// odd lanes fill up with words that nothing reads, which is cheaper than keeping all lanes busy and sorting the halves.
[[gnu::always_inline]] inline void philox_rounds(RandomKey key, Words (&c)[4]) {
    const Words multiplier0 = broadcast_word(0xD2511F53u), multiplier1 = broadcast_word(0xCD9E8D57u);
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int i = 0; i < 10; ++i) {
        const Words p0 = multiply_even(c[0], multiplier0), p1 = multiply_even(c[2], multiplier1);
        c[0] = exclusive_or(odd_to_even(p1), c[1], broadcast_word(k0));
        c[2] = exclusive_or(odd_to_even(p0), c[3], broadcast_word(k1));
        c[1] = p1;
        c[3] = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

// words[0, kWordBatch) = the 32-bit words of blocks [block, block + kLanes), in the order of their indices.
[[gnu::always_inline]] inline void philox_batch(RandomKey key, uint64_t block, Words lane_blocks, uint32_t* words) {
    const Words low = broadcast_word(static_cast<uint32_t>(block)) + lane_blocks;
    const Words carry = one_where_less(low, lane_blocks);
    const Words high = broadcast_word(static_cast<uint32_t>(block >> 32)) + carry;
    Words even[4] = {low, high, broadcast_word(0), broadcast_word(0)};
    Words odd[4] = {odd_to_even(low), odd_to_even(high), broadcast_word(0), broadcast_word(0)};
    philox_rounds(key, even);
    philox_rounds(key, odd);
    Words c[4];
    for (int i = 0; i < 4; ++i) c[i] = interleave_even(even[i], odd[i]);
    transpose_groups(c);
    for (int64_t i = 0; i < 4; ++i) store_words(c[i], words + i * kLanes);
}

// Lane 4k + i holds block i kLanes/4 + k: then the transposed vectors are already in order.
inline Words blocks_of_lanes() {
    alignas(64) uint32_t blocks[kLanes];
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        blocks[lane] = (lane % 4) * static_cast<uint32_t>(kLanes / 4) + lane / 4;
    return load_words(blocks);
}

// words[0, count) = the words of the stream from block `block` on. Whole batches are made: room for kWordsMade is
// needed and enough for count <= kWordsMade.
inline void philox_words(RandomKey key, uint64_t block, int64_t count, uint32_t* words) {
    const Words lane_blocks = blocks_of_lanes();
    for (int64_t made = 0; made < count; made += kWordBatch)
        philox_batch(key, block + static_cast<uint64_t>(made / 4), lane_blocks, words + made);
}

// y[j] = std * normal(key, first + j). Flattened: box_muller must not remain as a function of this instruction set.
[[gnu::flatten]] void draw_row(RandomKey key, float std, uint64_t first, float* y, int64_t n) {
    alignas(64) uint32_t words[kWordsMade];
    alignas(64) float normals[kWordsMade];
    int64_t done = 0;
    while (done < n) {
        const uint64_t index = first + static_cast<uint64_t>(done);
        const int64_t offset = static_cast<int64_t>(index % 4);  // within a block; 0 after the first chunk
        const int64_t count = smaller(n - done, kWordsMade - offset);
        philox_words(key, index / 4, offset + count, words);
        // Whole batches: a loop of constant length, which the compiler turns into vectors.
        for (int64_t batch = 0; batch < offset + count; batch += kWordBatch)
            for (int64_t i = batch; i < batch + kWordBatch; i += 2)
                box_muller(words[i], words[i + 1], normals[i], normals[i + 1]);
        const Vec factor = broadcast(std);
        for_vectors(0, count, [&](int64_t i, auto part) {
            store(load(normals + offset + i, part) * factor, y + done + i, part);
        });
        done += count;
    }
}

void normal(const Stream& stream, const Normal& d) {
    const int64_t width = columns(d.y);
    parallel_for(stream, rows(d.y), row_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
            draw_row(d.key, d.std, static_cast<uint64_t>(d.first + r * d.row_step),
                     d.y.as<float>() + r * stride(d.y, 0), width);
    });
}

// y = x / (1 - probability) where kept, else 0.
template <class T>
void drop_row(const Dropout& d, uint64_t first_index, const T* x, T* y, int64_t n) {
    alignas(64) uint32_t words[kWordsMade];
    const Vec probability = broadcast(d.probability);
    const Vec factor = broadcast(static_cast<float>(1 / (1 - static_cast<double>(d.probability))));
    int64_t column = 0;
    while (column < n) {
        const uint64_t index = first_index + static_cast<uint64_t>(column);
        const int64_t offset = static_cast<int64_t>(index % 4);  // within a block; 0 after the first chunk
        const int64_t count = smaller(n - column, kWordsMade - offset);
        philox_words(d.key, index / 4, offset + count, words);
        const uint32_t* row_words = words + offset;
        for_vectors(0, count, [=](int64_t i, auto part) {
            const Vec chance = load_uniform(row_words + i, part);
            store(zero_unless(chance >= probability, load(x + column + i, part) * factor), y + column + i, part);
        });
        column += count;
    }
}

void dropout(const Stream& stream, View x, const Dropout& d, View y) {
    const int64_t width = columns(x);
    with_type(x.dtype, [&]<class T>(Type<T>) {
        parallel_for(stream, rows(x), row_grain(width), [&](int64_t begin, int64_t end) {
            for (int64_t n = begin; n < end; ++n) {
                const int64_t first = index_at(d.row_index, n) * d.columns_total + d.column_offset;
                drop_row(d, static_cast<uint64_t>(first), x.as<T>() + n * width, y.as<T>() + n * width, width);
            }
        });
    });
}

}  // namespace

void fill_random(KernelTable& table) {
    table.normal = normal;
    table.dropout = dropout;
}

}  // namespace tutti::kernels::TUTTI_ISA
