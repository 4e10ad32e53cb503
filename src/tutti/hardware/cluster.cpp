// hardware/cluster.cpp: descriptions of machines from TOML.
#include "tutti/hardware/cluster.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/hardware/catalog.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/toml.h"

namespace tutti::hardware {
namespace {

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}

// Reads the keys of a description; refuse_others() throws for keys that were not read.
class Reader {
  public:
    Reader(const Json& document, std::string source) : document_(document), source_(std::move(source)) {}

    // "link.gbs" is the key gbs of the table [link]. Numbers are multiplied by `unit`.
    template <class Value>
    void take(const std::string& path, Value& into, double unit = 1) {
        known_.push_back(path);
        const size_t dot = path.find('.');
        const Json* table = dot == std::string::npos ? &document_ : document_.find(path.substr(0, dot));
        const Json* value = table == nullptr ? nullptr : table->find(path.substr(dot + 1));  // npos + 1 is 0
        if (value == nullptr) return;
        if constexpr (std::is_arithmetic_v<Value>) {
            check<UsageError>(value->is_number() && value->get<double>() >= 0, source_, ": ", path,
                              " must be a number that is not negative, got ", value->shown());
            into = static_cast<Value>(value->get<double>() * unit);
        } else {
            into = value->get<Value>();
        }
    }
    void refuse_others() const {
        for (const Json::Member& member : document_.items()) {
            if (!member.value.is_object()) {
                refuse_unknown(member.key);
                continue;
            }
            for (const Json::Member& inner : member.value.items()) refuse_unknown(member.key + "." + inner.key);
        }
    }

  private:
    void refuse_unknown(const std::string& path) const {
        check<UsageError>(std::find(known_.begin(), known_.end(), path) != known_.end(), source_, ": unknown key ",
                          path, "; the nearest that exists is ", spec::nearest(path, known_));
    }

    const Json& document_;
    std::string source_;
    std::vector<std::string> known_;
};

constexpr const char* kTypes[] = {"fp32", "tf32", "fp16", "bf16", "fp8", "fp4"};

constexpr int kMostBases = 8;  // files that begin with one another; more are treated as a cycle

Cluster named(const std::string& name_or_path, int bases);

Cluster base_of(const Json& base, const std::string& source_name, int bases) {
    check<UsageError>(base.is_string(), source_name, ": base must be a name or a file, got ", base.dump());
    check<UsageError>(bases < kMostBases, source_name, ": base = ", base.dump(), ": more than ", kMostBases,
                      " files begin with one another; does one of them lead back to itself?");
    return named(base.text(), bases + 1);
}

Cluster parse(std::string_view text, const std::string& source_name, int bases) {
    const Json document = spec::parse_toml(text, source_name);
    Cluster c;
    if (const Json* base = document.find("base")) c = base_of(*base, source_name, bases);
    Reader reader(document, source_name);
    std::string base;
    reader.take("base", base);
    reader.take("name", c.name);
    reader.take("aliases", c.aliases);
    reader.take("sources", c.sources);
    reader.take("vendor", c.vendor);
    reader.take("generation", c.generation);
    reader.take("memory_gb", c.memory, 1e9);
    reader.take("memory_gbs", c.memory_bandwidth, 1e9);
    reader.take("processors", c.processors);
    reader.take("watts", c.watts);
    reader.take("power_limit_watts", c.power_limit);
    for (const char* type : kTypes) {
        for (const auto& [table, rates] :
             {std::pair("tflops.", &c.peaks), std::pair("measured_tflops.", &c.measured)}) {
            double rate = 0;
            reader.take(std::string(table) + type, rate, 1e12);
            if (rate > 0) (*rates)[type] = rate;
        }
    }
    reader.take("link.name", c.link_name);
    reader.take("link.gbs", c.link_bandwidth, 1e9);
    reader.take("link.domain", c.domain);
    reader.take("link.latency_us", c.link_latency, 1e-6);
    reader.take("network.gbs", c.network_bandwidth, 1e9);
    reader.take("network.per_node", c.per_node);
    reader.take("network.latency_us", c.network_latency, 1e-6);
    reader.take("network.pod", c.pod);
    reader.take("network.oversubscription", c.oversubscription);
    reader.take("host.memory_gb", c.host_memory, 1e9);
    reader.take("host.gbs", c.host_bandwidth, 1e9);
    reader.take("site.mtbf_hours", c.mtbf_hours);
    reader.take("site.price_per_hour", c.price_per_hour);
    reader.refuse_others();
    const auto positive = [&](double value, const char* key) {
        check<UsageError>(value > 0, source_name, ": ", key,
                          " must be given and above 0, or base = \"NAME\" of a known one");
    };
    check<UsageError>(!c.name.empty(), source_name, ": name must be given");
    positive(c.memory, "memory_gb");
    positive(c.memory_bandwidth, "memory_gbs");
    positive(c.link_bandwidth, "link.gbs");
    positive(c.network_bandwidth, "network.gbs");
    positive(c.per_node, "network.per_node");
    positive(c.oversubscription, "network.oversubscription");
    check<UsageError>(c.power_limit <= 0 || c.watts > 0, source_name,
                      ": power_limit_watts needs watts, the power of the device at full clock");
    check<UsageError>(!c.peaks.empty(), source_name, ": [tflops] must give the peak of at least one type");
    return c;
}

Cluster named(const std::string& name_or_path, int bases) {
    static const std::vector<Cluster> known = [] {
        std::vector<Cluster> clusters;
        for (const CatalogEntry& entry : catalog())
            clusters.push_back(parse(entry.text, std::string(entry.name) + ".toml", 0));
        return clusters;
    }();
    const std::string wanted = lower(name_or_path);
    for (const Cluster& each : known) {
        if (each.name == wanted) return each;
        for (const std::string& alias : each.aliases)
            if (lower(alias) == wanted) return each;
    }
    if (wanted.ends_with(".toml") || std::filesystem::exists(name_or_path))
        return parse(read_file(name_or_path), name_or_path, bases);
    throw UsageError(concat("no cluster is named ", name_or_path, " and no file has that name; the nearest is ",
                            spec::nearest(wanted, cluster_names()), "; known: ", joined(cluster_names())));
}

}  // namespace

double Cluster::clock() const {
    return watts > 0 && power_limit > 0 ? std::cbrt(std::min(1.0, power_limit / watts)) : 1;
}

double Cluster::peak(std::string_view type) const {
    const auto found = peaks.find(std::string(type));
    if (found != peaks.end()) return found->second;
    throw UsageError(concat(name, " has no ", type, " products; it has ", types()));
}

std::string Cluster::types() const {
    return joined(peaks, ", ", [](const auto& peak) { return peak.first; });
}

Cluster parse_cluster(std::string_view text, const std::string& source_name) { return parse(text, source_name, 0); }

std::vector<std::string> cluster_names() {
    std::vector<std::string> names;
    for (const CatalogEntry& entry : catalog()) names.emplace_back(entry.name);
    return names;
}

Cluster cluster_named(const std::string& name_or_path) { return named(name_or_path, 0); }

}  // namespace tutti::hardware
