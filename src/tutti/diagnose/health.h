// diagnose/health.h: finds ranks, devices and links of a cluster that are slow or compute wrong bits. measure_health()
// takes figures, and the pure function judge() draws conclusions from them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/comm/world.h"
#include "tutti/device/device.h"
#include "tutti/ops/context.h"

namespace tutti::diagnose {

// Rates of each rank, measured on all ranks at the same time.
enum class Figure : uint8_t { bf16_products, f32_products, memory, to_device, from_device };
inline constexpr size_t kFigures = 5;
const char* name_of(Figure figure);                      // "bf16_products", as in JSON
std::string format_rate_of(Figure figure, double rate);  // "712.3 TFLOP/s", "3.91 TB/s"

// Trivially copyable, to be sent between ranks.
struct RankHealth {
    std::array<char, 64> host{};
    std::array<char, 96> device{};         // Device::model(); ranks with the same model are peers
    std::array<double, kFigures> rates{};  // 0: not measured, as copies to and from a CPU
    int64_t wrong_rows = 0;                // of products with known values
    int64_t repeats = 0, changed = 0;      // repetitions of one product; those with other bits than the first
    uint64_t digest = 0;                   // of the first repetition's bits

    double rate(Figure figure) const { return rates[to_size(figure)]; }
    std::string host_name() const { return host.data(); }
    std::string device_name() const { return device.data(); }
};

// The link of two ranks, measured in both directions at once.
struct LinkHealth {
    double bytes_per_s = 0;   // of each direction
    double latency_s = 0;     // half a round trip of four bytes
    int64_t wrong_words = 0;  // received words of four bytes with wrong bits
};

struct ClusterHealth {
    std::vector<RankHealth> ranks;
    std::vector<LinkHealth> links;  // (N, N): the link to rank b, the column, as rank a, the row, measured it
    int64_t all_reduce_bytes = 0;
    double all_reduce_s = 0;
    // Bytes that each rank of a ring sends per second.
    double all_reduce_bus_rate() const {
        return 2.0 * (size() - 1) / size() * static_cast<double>(all_reduce_bytes) / all_reduce_s;
    }

    int size() const { return static_cast<int>(ranks.size()); }
    const RankHealth& rank(int r) const { return ranks[to_size(r)]; }
    const LinkHealth& link(int a, int b) const { return links[to_size(a) * ranks.size() + to_size(b)]; }
    bool same_host(int a, int b) const { return rank(a).host == rank(b).host; }
};

struct HealthFinding {
    std::string what;        // a Figure's name; "link", "latency"; "wrong_product", "wrong_link"
    std::vector<int> ranks;  // one; the two of a link; or several of which at least one is wrong
    double share = 0;        // speed as a share of the peers' median; 0: wrong bits
    std::string text, advice;
};

struct Verdict {
    std::vector<HealthFinding> findings;  // wrong before slow
    std::vector<std::string> notes;       // figures that could not be judged
};

// Slow: below 1 - margin of the median of the peers, which are for a rank the others with the same device, and for a
// link the others within a host or between hosts. Latencies vary more, so their margin is a half at least. A rank with
// mostly slow links is named itself in place of its links. Wrong: a product or message with wrong bits, or with other
// bits than most equal devices have. A pure function.
Verdict judge(const ClusterHealth& cluster, double margin);

// The pairs of ranks round by round; every two ranks meet once. A tournament has ranks - 1 rounds of pairs at once for
// an even number of ranks; for an odd one each rank is without a partner once. one_by_one() has a round for each pair.
using Round = std::vector<std::pair<int, int>>;  // first < second
std::vector<Round> tournament(int ranks);
std::vector<Round> one_by_one(int ranks);

struct HealthOptions {
    double seconds = 20;  // for all measurements, approximately
    LocalRank local;
    bool one_by_one = false;
};
// Collective over the world, every rank with its own context; all ranks get the result. Messages pass through host
// memory.
ClusterHealth measure_health(comm::World& world, ops::Context& ctx, const HealthOptions& options);

}  // namespace tutti::diagnose
