// diagnose/health.h: which rank, device or link of a cluster is slow or computes wrong bits: figures, taken by
// measure_health(), and what judge() concludes from them, which is a pure function.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tutti/comm/world.h"
#include "tutti/device/device.h"
#include "tutti/ops/context.h"

namespace tutti::diagnose {

// What each rank measures by itself, all at the same time; all are rates.
enum class Figure : uint8_t { bf16_products, f32_products, memory, to_device, from_device };
inline constexpr size_t kFigures = 5;
const char* name_of(Figure figure);                      // "bf16_products", as in JSON
std::string format_rate_of(Figure figure, double rate);  // "712.3 TFLOP/s", "3.91 TB/s"

// Trivially copyable: ranks send it to each other.
struct RankHealth {
    std::array<char, 64> host{};
    std::array<char, 96> device{};         // Device::model(): ranks with the same one are peers
    std::array<double, kFigures> rates{};  // 0: a CPU has no copies to and from it
    int64_t wrong_rows = 0;                // of products whose values are known
    int64_t repeats = 0, changed = 0;      // of a product with the same operands; those with other bits than the first
    uint64_t digest = 0;                   // of the first's bits

    double rate(Figure figure) const { return rates[static_cast<size_t>(figure)]; }
    std::string host_name() const { return host.data(); }
    std::string device_name() const { return device.data(); }
};

// Of two ranks: both directions at once.
struct LinkHealth {
    double bytes_per_s = 0;   // of each direction
    double latency_s = 0;     // half a round trip of four bytes
    int64_t wrong_words = 0;  // of four bytes, of what arrived
};

struct ClusterHealth {
    std::vector<RankHealth> ranks;
    std::vector<LinkHealth> links;  // (N, N): what rank a, the row, saw of its link to rank b
    int64_t all_reduce_bytes = 0;
    double all_reduce_s = 0;
    // Sent by each rank per second when the ranks stand in a ring.
    double all_reduce_bus_rate() const {
        return 2.0 * (size() - 1) / size() * static_cast<double>(all_reduce_bytes) / all_reduce_s;
    }

    int size() const { return static_cast<int>(ranks.size()); }
    const RankHealth& rank(int r) const { return ranks[static_cast<size_t>(r)]; }
    const LinkHealth& link(int a, int b) const {
        return links[static_cast<size_t>(a) * ranks.size() + static_cast<size_t>(b)];
    }
    bool same_host(int a, int b) const { return rank(a).host == rank(b).host; }
};

struct HealthFinding {
    std::string what;        // a Figure's name; "link", "latency"; "wrong_product", "wrong_link"
    std::vector<int> ranks;  // one; the two of a link; those of which at least one is wrong
    double share = 0;        // of the median of its peers, as a speed; 0: wrong, whatever its speed
    std::string text, advice;
};

struct Verdict {
    std::vector<HealthFinding> findings;  // the wrong before the slow
    std::vector<std::string> notes;       // what could not be judged
};

// Slow is what reaches less than 1 - margin of the median of its peers: for a rank the others with the same device, for
// a link the others within a host or between hosts. Of latencies, which spread more, at least half is allowed. A rank
// of which most links are slow is named itself, and its links are not. Wrong is a product or a message with other bits
// than it must have; with equal devices, also other bits than most. A pure function.
Verdict judge(const ClusterHealth& cluster, double margin);

// Who meets whom, round by round; every two ranks meet once. A tournament: all pairs of a round at once, ranks - 1
// rounds of an even number, each rank without a partner once of an odd one. Or a round for each pair.
using Round = std::vector<std::pair<int, int>>;  // first < second
std::vector<Round> tournament(int ranks);
std::vector<Round> one_by_one(int ranks);

struct HealthOptions {
    double seconds = 20;  // for everything, about
    LocalRank local;
    bool one_by_one = false;
};
// Collective over the world, every rank with its own context; all get the result. Messages pass through the memory of
// the host.
ClusterHealth measure_health(comm::World& world, ops::Context& ctx, const HealthOptions& options);

}  // namespace tutti::diagnose
