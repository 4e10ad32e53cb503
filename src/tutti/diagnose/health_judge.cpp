// diagnose/health_judge.cpp: judges the figures of `tutti health`: which ranks and links are wrong or slower than their
// peers.
#include <algorithm>
#include <map>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/diagnose/health.h"

namespace tutti::diagnose {

namespace {

constexpr double kLatencyMargin = 0.5;  // at least: latencies spread more than rates

constexpr const char* kSlowProducts =
    "other processes on it (top, nvidia-smi), cores that ranks share, clocks and power limit (a GPU's: nvidia-smi -q "
    "-d CLOCK,PERFORMANCE,POWER,TEMPERATURE)";
constexpr const char* kSlowCopies =
    "generation and width of its PCIe link (nvidia-smi -q | grep -A8 'GPU Link Info'), and the NUMA node of its cores "
    "(nvidia-smi topo -m)";

struct FigureText {
    const char *name, *words, *advice;
};
constexpr FigureText kFigureTexts[] = {  // by Figure
    {"bf16_products", "matrix products in bf16", kSlowProducts},
    {"f32_products", "matrix products in f32", kSlowProducts},
    {"memory", "memory",
     "other processes on its host, memory of another NUMA node (numactl --hardware), a GPU's ECC and remapped rows "
     "(nvidia-smi -q -d ECC,ROW_REMAPPER)"},
    {"to_device", "copies to the device", kSlowCopies},
    {"from_device", "copies from the device", kSlowCopies}};
static_assert(std::size(kFigureTexts) == kFigures);
const FigureText& text_of(Figure figure) { return kFigureTexts[to_size(figure)]; }

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Speeds of ranks with equal devices, or of links of one kind; each is compared with the median of the others.
class Peers {
  public:
    void add(double speed) { speeds_.insert(std::lower_bound(speeds_.begin(), speeds_.end(), speed), speed); }
    // An added speed as a share of the median of the others; nullopt: it has no peers, or was not measured.
    std::optional<double> share(double speed) const {
        if (speed <= 0 || speeds_.size() < 2) return std::nullopt;
        const auto own = to_size(std::lower_bound(speeds_.begin(), speeds_.end(), speed) - speeds_.begin());
        const auto other = [&](size_t i) { return speeds_[i < own ? i : i + 1]; };
        const size_t others = speeds_.size() - 1;
        return speed / (others % 2 == 1 ? other(others / 2) : (other(others / 2 - 1) + other(others / 2)) / 2);
    }

  private:
    std::vector<double> speeds_;  // sorted
};

std::string place_of(const ClusterHealth& c, int rank) {
    return concat("rank ", rank, " (", c.rank(rank).host_name(), ", ", c.rank(rank).device_name(), ")");
}

std::string places_of(const ClusterHealth& c, const std::vector<int>& ranks) {
    return joined(ranks, ", ", " and ", [&](int rank) { return place_of(c, rank); });
}

std::string of_peers(double share) { return format_percent(share) + " of the median of its peers"; }

// --- wrong results ---------------------------------------------------------------------------------------------------

constexpr const char* kTakeOut =
    "take it out of service: it corrupts training silently; then check a GPU's ECC errors (nvidia-smi -q -d ECC, dcgmi "
    "diag -r 3) or the host's memory";

void find_wrong_products(const ClusterHealth& c, Verdict& verdict) {
    for (int r = 0; r < c.size(); ++r) {
        const RankHealth& rank = c.rank(r);
        const auto found = [&](const std::string& text) {
            verdict.findings.push_back({"wrong_product", {r}, 0, concat(place_of(c, r), ": ", text), kTakeOut});
        };
        if (rank.wrong_rows > 0)
            found(concat(rank.wrong_rows, " rows of a matrix product whose values are known are wrong"));
        if (rank.changed > 0)
            found(concat(rank.changed, " of ", rank.repeats,
                         " repeats of a matrix product gave other bits than its first"));
    }
}

// Equal devices give equal bits for equal operands.
void find_other_bits(const ClusterHealth& c, Verdict& verdict) {
    std::map<std::string, std::map<uint64_t, std::vector<int>>> devices;  // ranks by device and digest
    for (int r = 0; r < c.size(); ++r) devices[c.rank(r).device_name()][c.rank(r).digest].push_back(r);
    for (const auto& [device, digests] : devices) {
        if (digests.size() == 1) continue;
        std::vector<int> all, odd;
        bool majority = false;
        for (const auto& [digest, ranks] : digests) all.insert(all.end(), ranks.begin(), ranks.end());
        for (const auto& [digest, ranks] : digests)
            if (2 * ranks.size() > all.size())
                majority = true;
            else
                odd.insert(odd.end(), ranks.begin(), ranks.end());
        std::sort(odd.begin(), odd.end());
        verdict.findings.push_back(
            {"wrong_product", odd, 0,
             concat(places_of(c, odd), majority ? ": other bits than most peers for the same product"
                                                : ": they disagree on the bits of the same product"),
             kTakeOut});
    }
}

void find_wrong_links(const ClusterHealth& c, Verdict& verdict) {
    for (int a = 0; a < c.size(); ++a)
        for (int b = a + 1; b < c.size(); ++b) {
            const int64_t wrong = c.link(a, b).wrong_words + c.link(b, a).wrong_words;
            if (wrong > 0)
                verdict.findings.push_back(
                    {"wrong_link",
                     {a, b},
                     0,
                     concat(places_of(c, {a, b}), ": ", wrong, " words of a message did not arrive as they were sent"),
                     "take the link out of service; then the error counters of its ports"});
        }
}

// --- slow ranks and links --------------------------------------------------------------------------------------------

void find_slow_ranks(const ClusterHealth& c, Figure figure, double margin, Verdict& verdict) {
    const auto rate = [&](int r) { return c.rank(r).rates[to_size(figure)]; };
    std::map<std::string, Peers> devices;
    for (int r = 0; r < c.size(); ++r) devices[c.rank(r).device_name()].add(rate(r));
    for (int r = 0; r < c.size(); ++r) {
        const auto share = devices[c.rank(r).device_name()].share(rate(r));
        if (!share || *share >= 1 - margin) continue;
        const std::string text = concat(place_of(c, r), ": ", text_of(figure).words, " at ",
                                        format_rate_of(figure, rate(r)), ", ", of_peers(*share));
        verdict.findings.push_back({name_of(figure), {r}, *share, text, text_of(figure).advice});
    }
}

struct LinkKind {
    const char *what, *words;
    double margin;
    double (*speed)(const LinkHealth&);
    std::string (*text)(const LinkHealth&);
};

void find_slow_links(const ClusterHealth& c, const LinkKind& kind, Verdict& verdict) {
    const int n = c.size();
    std::map<bool, Peers> peers;  // within a host, between hosts
    for (int a = 0; a < n; ++a)
        for (int b = a + 1; b < n; ++b) peers[c.same_host(a, b)].add(kind.speed(c.link(a, b)));
    struct Link {
        int a, b;
        double share;
    };
    std::vector<Link> links;
    std::vector<std::vector<double>> shares(to_size(n));  // of each rank's links
    for (int a = 0; a < n; ++a)
        for (int b = a + 1; b < n; ++b) {
            const auto share = peers[c.same_host(a, b)].share(kind.speed(c.link(a, b)));
            if (!share) continue;
            links.push_back({a, b, *share});
            for (const int r : {a, b}) shares[to_size(r)].push_back(*share);
        }
    std::vector<bool> named(to_size(n));
    for (int r = 0; r < n; ++r) {
        if (shares[to_size(r)].size() < 2) continue;
        const double share = median(shares[to_size(r)]);
        if (share >= 1 - kind.margin) continue;
        named[to_size(r)] = true;
        verdict.findings.push_back(
            {kind.what,
             {r},
             share,
             concat(place_of(c, r), ": most of its ", kind.words, ", at ", of_peers(share)),
             "its network card, cable and switch port (ethtool -S, ibstat, ibqueryerrors), the load of its host, the "
             "binding of its rank to cores"});
    }
    for (const Link& l : links) {
        if (l.share >= 1 - kind.margin || named[to_size(l.a)] || named[to_size(l.b)]) continue;
        const std::string text = concat(places_of(c, {l.a, l.b}), ": ", kind.words, " at ", kind.text(c.link(l.a, l.b)),
                                        ", ", of_peers(l.share));
        const char* advice = c.same_host(l.a, l.b)
                                 ? "the binding of both to cores and NUMA nodes, other processes there"
                                 : "the switches between them, other traffic, --one-by-one to measure it alone";
        verdict.findings.push_back({kind.what, {l.a, l.b}, l.share, text, advice});
    }
}

void note_ranks_without_peers(const ClusterHealth& c, Verdict& verdict) {
    for (int r = 0; r < c.size(); ++r)
        if (std::count_if(c.ranks.begin(), c.ranks.end(),
                          [&](const RankHealth& other) { return other.device == c.rank(r).device; }) == 1)
            verdict.notes.push_back(concat(place_of(c, r), " has no peer: its speed was not judged"));
    if (c.size() == 2) verdict.notes.push_back("one link has no peers: its speed was not judged");
}

}  // namespace

const char* name_of(Figure figure) { return text_of(figure).name; }

std::string format_rate_of(Figure figure, double rate) {
    if (rate <= 0) return "-";
    return figure == Figure::bf16_products || figure == Figure::f32_products ? format_flop_rate(rate)
                                                                             : format_fixed(rate / 1e9, 1) + " GB/s";
}

Verdict judge(const ClusterHealth& c, double margin) {
    Verdict verdict;
    find_wrong_products(c, verdict);
    find_other_bits(c, verdict);
    find_wrong_links(c, verdict);
    for (size_t f = 0; f < kFigures; ++f) find_slow_ranks(c, static_cast<Figure>(f), margin, verdict);
    find_slow_links(c,
                    {"link", "links", margin, [](const LinkHealth& l) { return l.bytes_per_s; },
                     [](const LinkHealth& l) { return format_fixed(l.bytes_per_s / 1e9, 2) + " GB/s each way"; }},
                    verdict);
    find_slow_links(
        c,
        {"latency", "latencies", std::max(margin, kLatencyMargin), [](const LinkHealth& l) { return 1 / l.latency_s; },
         [](const LinkHealth& l) { return format_time(l.latency_s); }},
        verdict);
    note_ranks_without_peers(c, verdict);
    return verdict;
}

}  // namespace tutti::diagnose
