// kernels/cpu/isa/random_words.h: the words of base/philox.h bit for bit, in the order of their indices. Philox makes
// four consecutive words per block; here as many blocks at once as there are lanes, transposed.
#pragma once

#include "tutti/base/philox.h"
#include "tutti/kernels/cpu/isa/loops.h"

namespace tutti::kernels::TUTTI_ISA {

inline constexpr int64_t kWordBatch = 4 * kLanes;      // made at once
inline constexpr int64_t kWordsMade = 8 * kWordBatch;  // room for those made ahead of their use: 1 or 2 KB on the stack

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

}  // namespace tutti::kernels::TUTTI_ISA
