// 04: ranks as threads, and collectives. A rank is a thread of this process here and may be a process elsewhere, with
// the same code.
//   04_ranks_and_a_collective
// Every rank has 2^18 values; an all_reduce adds them over the ranks. The sum is compared with one in double, the
// bits with those of reduce_scatter and all_gather, the bytes that a rank sent with 2 (n-1)/n S. Prints all three.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tutti/base/philox.h"
#include "tutti/base/units.h"
#include "tutti/comm/threads/thread_world.h"

using namespace tutti;

constexpr int64_t kValues = 1 << 18;

// Value i of rank r: any rank can compute those of all others, because random numbers here have no state.
float value_of(int rank, int64_t i) { return normal(random_key(1234, "example", rank), static_cast<uint64_t>(i)); }

void sum_over(int ranks) {
    comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& world) {
        const auto device = make_cpu_device(1);
        const auto group = world.everyone("everyone");
        std::vector<float> own;
        for (int64_t i = 0; i < kValues; ++i) own.push_back(value_of(world.rank(), i));

        // An operation starts at once and is complete after its wait(); between the two a rank may compute.
        const Tensor x = Tensor::from_host<float>(*device, {kValues}, own, Purpose::communication);
        comm::Work work = group->all_reduce(x);
        double largest = 0;
        std::vector<double> expected(kValues, 0);
        for (int r = 0; r < ranks; ++r)
            for (int64_t i = 0; i < kValues; ++i) expected[i] += value_of(r, i);
        work.wait();
        const std::vector<float> sum = x.to_host<float>();
        for (int64_t i = 0; i < kValues; ++i) largest = std::max(largest, std::abs(sum[i] - expected[i]));
        // Normal values stay below 6: each of ranks - 1 additions rounds a sum below 6 ranks by 2^-24 of it at most.
        const double tolerance = 0x1p-24 * 6 * ranks * (ranks - 1);
        check(largest <= tolerance, "rank ", world.rank(), ": required: sums in double within ", tolerance, ", got ",
              largest);

        // The same in two operations, which is how ZeRO does it: each rank sums one part, then all parts come together.
        const Tensor again = Tensor::from_host<float>(*device, {kValues}, own, Purpose::communication);
        const int64_t part = kValues / ranks;
        const Tensor shard = again.narrow(0, group->rank() * part, part);
        group->reduce_scatter(again, shard).wait();
        group->all_gather(shard, again).wait();
        check(again.to_host<float>() == sum, "rank ", world.rank(),
              ": required: reduce_scatter and all_gather give the bits of all_reduce, got others");

        const int64_t sent = group->traffic(comm::Kind::all_reduce).sent, formula = 2 * (ranks - 1) * x.bytes() / ranks;
        check(sent == formula, "rank ", world.rank(), ": required: 2 (n-1)/n S = ", formula, " bytes, counted ", sent);
        if (world.rank() == 0)
            std::printf("%d ranks: largest difference from double %.1e, one sum's bits in two ways, %s sent by each\n",
                        ranks, largest, format_bytes(sent).c_str());
    });
}

int main() try {
    for (const int ranks : {1, 2, 4, 8}) sum_over(ranks);
} catch (const Error& error) {
    std::fprintf(stderr, "04_ranks_and_a_collective: %s\n", error.what());
    return error.exit_code();
}
