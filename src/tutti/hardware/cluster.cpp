// hardware/cluster.cpp: descriptions of machines from TOML.
#include "tutti/hardware/cluster.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/strings.h"
#include "tutti/hardware/catalog.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/toml.h"

namespace tutti::hardware {
namespace {

// What 0 means for a number of a description: a value like others, "not known" or "has none"; else 0 is refused.
enum class Zero { refused, allowed };

// Reads the keys of a description; refuse_others() throws for keys that were not read.
class Reader {
  public:
    Reader(const Json& document, std::string source) : document_(document), source_(std::move(source)) {}

    // "link.gbs" is the key gbs of the table [link].
    const Json* find(const std::string& path) {
        known_.push_back(path);
        const size_t dot = path.find('.');
        const Json* table = dot == std::string::npos ? &document_ : document_.find(path.substr(0, dot));
        return table == nullptr ? nullptr : table->find(path.substr(dot + 1));  // npos + 1 is 0
    }
    // A text or a list of texts.
    template <class Value>
    void take(const std::string& path, Value& into) {
        const Json* value = find(path);
        if (value == nullptr) return;
        try {
            into = value->get<Value>();
        } catch (const DataError& error) {
            throw UsageError(concat(source_, ": ", path, ": ", error.what()));
        }
    }
    // A number in units of `unit`; whole where `into` is. True: the key is there.
    template <class Value>
    bool take(const std::string& path, Value& into, Zero zero, double unit = 1) {
        const Json* value = find(path);
        if (value == nullptr) return false;
        const double number = value->is_number() ? value->get<double>() : -1;
        constexpr bool whole = std::is_integral_v<Value>;
        constexpr double least = whole ? 1 : kLeast, most = whole ? kMostDevices : kMost;
        const bool right = (number >= least && number <= most && (!whole || number == std::floor(number))) ||
                           (number == 0 && zero == Zero::allowed);
        check<UsageError>(right, source_, ": ", path, " must be a ", whole ? "whole " : "", "number from ", least,
                          " to ", whole ? std::to_string(kMostDevices) : concat(most),
                          zero == Zero::allowed ? ", or 0" : "", ", got ",
                          std::isnan(number)   ? "nan"
                          : std::isinf(number) ? "inf"
                                               : value->shown());
        into = static_cast<Value>(number * unit);
        return true;
    }
    const std::vector<std::string>& known() const { return known_; }
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

    static constexpr int kMostDevices = 1 << 30;
    // In the units of the file: beyond what any machine has, and far from where sums and quotients of a forecast
    // overflow.
    static constexpr double kLeast = 1e-6, kMost = 1e9;

    const Json& document_;
    std::string source_;
    std::vector<std::string> known_;
};

constexpr const char* kTypes[] = {"fp32", "tf32", "fp16", "bf16", "fp8", "fp4"};

constexpr double kMiB = 1 << 20;
constexpr double kContext = 600 * kMiB;  // of the driver and a context on the device

constexpr int kMostBases = 8;  // files that begin with one another; more are treated as a cycle

// `where` begins the message for an unknown name: of a base, its file and key.
Cluster named(const std::string& name_or_path, int bases, const std::string& where = "");

Cluster base_of(const Json& base, const std::string& source_name, int bases) {
    check<UsageError>(base.is_string(), source_name, ": base must be a name or a file, got ", base.dump());
    check<UsageError>(bases < kMostBases, source_name, ": base = ", base.dump(), ": more than ", kMostBases,
                      " files begin with one another; does one of them lead back to itself?");
    return named(base.text(), bases + 1, concat(source_name, ": base = ", base.dump(), ": "));
}

// Reads the keys of `document` into c.
void read(Reader& reader, Cluster& c) {
    std::string base;
    reader.take("base", base);
    reader.take("name", c.name);
    reader.take("aliases", c.aliases);
    reader.take("sources", c.sources);
    reader.take("vendor", c.vendor);
    reader.take("generation", c.generation);
    double reported = 0;
    const bool given = reader.take("memory_gb", c.data_sheet_memory, Zero::refused, 1e9);
    if (reader.take("memory_mib", reported, Zero::refused, kMiB))
        c.memory = reported - kContext;
    else if (given)
        c.memory = c.data_sheet_memory - kContext;
    reader.take("memory_gbs", c.memory_bandwidth, Zero::refused, 1e9);
    reader.take("year", c.year, Zero::allowed);
    reader.take("processors", c.processors, Zero::allowed);
    reader.take("cores", c.cores, Zero::allowed);
    reader.take("tensor_cores", c.tensor_cores, Zero::allowed);
    reader.take("matrix_unit", c.matrix_unit, Zero::allowed);
    reader.take("l1_kb", c.l1, Zero::allowed, 1024);
    reader.take("l2_mb", c.l2, Zero::allowed, kMiB);
    reader.take("l1_gbs", c.l1_bandwidth, Zero::allowed, 1e9);
    reader.take("l2_gbs", c.l2_bandwidth, Zero::allowed, 1e9);
    reader.take("watts", c.watts, Zero::allowed);
    reader.take("power_limit_watts", c.power_limit, Zero::allowed);
    for (const char* type : kTypes) {
        for (const auto& [table, rates] :
             {std::pair("tflops.", &c.peaks), std::pair("measured_tflops.", &c.measured)}) {
            double rate = 0;
            if (!reader.take(std::string(table) + type, rate, Zero::allowed, 1e12)) continue;
            if (rate > 0)
                (*rates)[type] = rate;
            else
                rates->erase(type);  // a device without this type, or a rate that was not measured
        }
    }
    for (const char* type : kTypes)
        if (!c.has(type)) c.measured.erase(type);
    reader.take("link.name", c.link_name);
    reader.take("link.gbs", c.link_bandwidth, Zero::refused, 1e9);
    if (reader.take("link.domain", c.domain, Zero::refused)) c.segment = 0;  // that of the base had its domain
    reader.take("link.segment", c.segment, Zero::allowed);
    reader.take("rack.name", c.rack_name);
    reader.take("rack.gbs", c.rack_bandwidth, Zero::allowed, 1e9);
    reader.take("rack.devices", c.rack, Zero::allowed);
    reader.take("network.gbs", c.network_bandwidth, Zero::refused, 1e9);
    reader.take("network.per_node", c.per_node, Zero::refused);
    reader.take("network.pod", c.pod, Zero::allowed);
    reader.take("network.oversubscription", c.oversubscription, Zero::refused);
    reader.take("host.memory_gb", c.host_memory, Zero::allowed, 1e9);
    reader.take("host.gbs", c.host_bandwidth, Zero::allowed, 1e9);
    reader.take("host.memory_name", c.host_memory_name);
    reader.take("host.memory_gbs", c.host_memory_bandwidth, Zero::allowed, 1e9);
    reader.take("site.mtbf_hours", c.mtbf_hours, Zero::refused);
    reader.take("site.price_per_hour", c.price_per_hour, Zero::allowed);
}

Cluster parse(std::string_view text, const std::string& source_name, int bases) {
    const Json document = spec::parse_toml(text, source_name);
    Cluster c;
    if (const Json* base = document.find("base")) c = base_of(*base, source_name, bases);
    Reader reader(document, source_name);
    const double reported = c.memory, data_sheet = c.data_sheet_memory;
    read(reader, c);
    // The size of the base's data sheet once more: the driver still reports that of the base.
    if (c.data_sheet_memory == data_sheet && c.memory == data_sheet - kContext) c.memory = reported;
    reader.refuse_others();
    const auto given = [&](double value, const char* key) {
        check<UsageError>(value > 0, source_name, ": ", key, " must be given, or base = \"NAME\" of a known cluster");
    };
    check<UsageError>(!c.name.empty(), source_name, ": name must be given");
    given(c.data_sheet_memory, "memory_gb");
    check<UsageError>(c.memory > 0, source_name, ": memory_gb = ", c.data_sheet_memory / 1e9,
                      " is less than the driver and its context take (", kContext / 1e9, ")");
    given(c.memory_bandwidth, "memory_gbs");
    given(c.link_bandwidth, "link.gbs");
    given(c.network_bandwidth, "network.gbs");
    check<UsageError>(c.power_limit <= 0 || c.watts > 0, source_name,
                      ": power_limit_watts needs watts, the power of the device at full clock");
    check<UsageError>(c.segment <= c.domain, source_name, ": link.segment = ", c.segment,
                      " must be at most link.domain = ", c.domain, ", of which a job takes it");
    check<UsageError>(c.rack_bandwidth == 0 || (c.rack > c.domain && c.rack % c.domain == 0), source_name,
                      ": rack.gbs is of links between domains: rack.devices must be a multiple of link.domain = ",
                      c.domain, ", at least twice as many, got ", c.rack);
    check<UsageError>(!c.peaks.empty(), source_name, ": [tflops] must give the peak of at least one type");
    return c;
}

std::optional<Cluster> known_as(const std::string& name, int bases) {
    const std::string wanted = lower_case(name);
    const auto read_entry = [](const CatalogEntry& entry, int of_bases) {
        return parse(entry.text, std::string(entry.name) + ".toml", of_bases);
    };
    // Found first, so that an entry may begin with another one by its name: the list of all is not begun twice.
    for (const CatalogEntry& entry : catalog())
        if (entry.name == wanted) return read_entry(entry, bases);
    static const std::vector<Cluster> all = [&] {
        std::vector<Cluster> clusters;
        for (const CatalogEntry& entry : catalog()) clusters.push_back(read_entry(entry, 0));
        return clusters;
    }();
    for (const Cluster& each : all)
        for (const std::string& alias : each.aliases)
            if (lower_case(alias) == wanted) return each;
    return std::nullopt;
}

Cluster named(const std::string& name_or_path, int bases, const std::string& where) {
    if (const std::optional<Cluster> known = known_as(name_or_path, bases)) return *known;
    const bool is_file = where.empty() && name_or_path.ends_with(".toml");
    if (is_file || std::filesystem::exists(name_or_path)) return parse(read_file(name_or_path), name_or_path, bases);
    throw UsageError(concat(where, "no cluster is named ", name_or_path, " and no file has that name; the nearest is ",
                            spec::nearest(lower_case(name_or_path), cluster_names()),
                            "; known: ", joined(cluster_names())));
}

}  // namespace

double Cluster::clock() const {
    return watts > 0 && power_limit > 0 ? std::cbrt(std::min(1.0, power_limit / watts)) : 1;
}

std::string_view peak_name(ComputeType type) {
    switch (type) {
        case ComputeType::f32: return "fp32";
        case ComputeType::f16: return "fp16";
        case ComputeType::tf32:
        case ComputeType::bf16: break;
    }
    return name_of(type);
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

std::vector<std::string> cluster_keys() {
    const Json none = Json::object();
    Reader reader(none, "");
    Cluster c;
    read(reader, c);
    std::vector<std::string> keys = reader.known();
    std::erase(keys, "base");
    return keys;
}

Cluster cluster_named(const std::string& name_or_path, const std::vector<std::string>& changes) {
    const Cluster cluster = named(name_or_path, 0);
    if (changes.empty()) return cluster;
    std::string text = concat("base = ", Json(name_or_path).dump(), '\n');
    for (const std::string& change : changes) {
        const size_t equals = change.find('=');
        check<UsageError>(equals != std::string::npos && equals > 0 && equals + 1 < change.size(), "--set-cluster ",
                          change, ": required KEY=VALUE with a key of a cluster file, such as network.gbs=35");
        const std::string key = change.substr(0, equals), value = change.substr(equals + 1);
        const bool number = value.find_first_not_of("0123456789.+-eE_") == std::string::npos || value == "nan" ||
                            value == "inf" || value == "-inf";
        text += concat(key, " = ", number ? value : Json(value).dump(), '\n');
    }
    Cluster changed = parse(text, "--set-cluster", 0);
    if (changed.name == cluster.name) changed.name = concat(cluster.name, " with ", joined(changes));
    return changed;
}

bool is_cluster(const std::string& name_or_path) {
    return known_as(name_or_path, 0) || std::filesystem::exists(name_or_path);
}

}  // namespace tutti::hardware
