// cli/hardware.cpp: `tutti hardware`: the devices and clusters of the catalog (hardware/cluster.h): peaks, memory, the
// ladder from a device's memory to the network with its ratios, totals of many devices, sources.
#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/cli/command.h"
#include "tutti/cli/forecast.h"
#include "tutti/hardware/cluster.h"
#include "tutti/report/parts.h"

namespace tutti::cli {

namespace {

struct HardwareArguments {
    std::string name;                      // of the catalog, or a file; "": a table of all
    std::vector<std::string> set_cluster;  // "network.gbs=35"
    int devices = 1;                       // for the totals
    std::string html;                      // file; "": none
};

using hardware::Cluster;

// A step of the ladder: what a device reads or sends in one direction, in bytes per second. The caches are those of the
// whole device, the host's memory serves all devices of a node.
struct Rung {
    const char* name;
    double bandwidth;
    std::string reaches;
};

std::vector<Rung> ladder_of(const Cluster& c) {
    std::vector<Rung> ladder;
    if (c.l1_bandwidth > 0) ladder.push_back({"L1", c.l1_bandwidth, "of the processors together"});
    if (c.l2_bandwidth > 0) ladder.push_back({"L2", c.l2_bandwidth, "of the device"});
    ladder.push_back({"memory", c.memory_bandwidth, "of the device"});
    if (c.host_memory_bandwidth > 0)
        ladder.push_back({"host memory", c.host_memory_bandwidth,
                          concat(c.host_memory_name, ", for all ", c.per_node, " devices of a node")});
    if (c.domain > 1) ladder.push_back({"link", c.link_bandwidth, concat(c.link_name, ", ", c.domain, " devices")});
    if (c.rack_with_links() > 0)
        ladder.push_back({"rack", c.rack_bandwidth, concat(c.rack_name, ", ", c.rack, " devices")});
    if (c.host_bandwidth > 0) ladder.push_back({"host", c.host_bandwidth, "memory of the node"});
    ladder.push_back(
        {"network", c.network_bandwidth,
         c.pod > 0 ? concat("a pod of ", c.pod, " devices") : concat("nodes of ", c.per_node, " devices")});
    if (c.pod > 0)
        ladder.push_back({"pods", c.network_bandwidth / c.oversubscription, concat("beyond ", c.pod, " devices")});
    return ladder;
}

// The type of 16-bit training, or what the device has in its place.
std::string type_of(const Cluster& c) { return std::string(c.has(c.sixteen_bits()) ? c.sixteen_bits() : "fp32"); }
double peak_of(const Cluster& c) { return c.peak(type_of(c)); }

// At most three digits: 989, 1.58.
std::string short_fixed(double value) { return format_fixed(value, value < 10 ? 2 : 0); }

// What many devices stand in, smallest first: nodes, link domains that span nodes, racks, pods.
struct Part {
    const char* name;
    int devices, count;
    std::string spare;
};

std::vector<Part> parts_of(const Cluster& c, int devices) {
    std::vector<Part> parts;
    const auto add = [&](const char* name, int size, int of_job) {
        if (size > 1 && (parts.empty() || size > parts.back().devices))
            parts.push_back({name, size, (devices + of_job - 1) / of_job,
                             of_job < size ? concat(" of which a job takes ", of_job) : ""});
    };
    add("node", c.per_node, c.per_node);
    if (c.rack == c.domain)
        add("rack", c.domain, c.domain_of_job());
    else
        add("domain", c.domain, c.domain_of_job());
    add("rack", c.rack, std::max(1, c.rack));
    add("pod", c.pod, std::max(1, c.pod));
    return parts;
}

Json to_json(const Cluster& c, int devices) {
    Json ladder = Json::array();
    for (const Rung& rung : ladder_of(c))
        ladder.push_back({{"name", rung.name},
                          {"bytes_per_s", rung.bandwidth},
                          {"reaches", rung.reaches},
                          {"slower_than_memory", c.memory_bandwidth / rung.bandwidth}});
    Json parts = Json::object();
    for (const Part& part : parts_of(c, devices)) parts[concat(part.name, "s")] = part.count;
    Json peaks = Json::object();
    for (const auto& [type, peak] : c.peaks) peaks[type] = peak;
    return {{"name", c.name},
            {"vendor", c.vendor},
            {"generation", c.generation},
            {"peaks", peaks},
            {"memory_bytes", c.data_sheet_memory},
            {"usable_memory_bytes", c.memory},
            {"year", c.year},
            {"processors", c.processors},
            {"cores_of_a_processor", c.cores},
            {"tensor_cores_of_a_processor", c.tensor_cores},
            {"l1_bytes_of_a_processor", c.l1},
            {"l2_bytes", c.l2},
            {"watts", c.watts},
            {"devices_of_a_domain", c.domain},
            {"devices_of_a_domain_in_a_job", c.domain_of_job()},
            {"devices_of_a_node", c.per_node},
            {"devices_of_a_rack", c.rack},
            {"devices_of_a_pod", c.pod},
            {"ladder", ladder},
            {"total",
             {{"devices", devices},
              {"parts", parts},
              {"flops_per_s", devices * peak_of(c)},
              {"memory_bytes", devices * c.data_sheet_memory},
              {"processors", int64_t{devices} * c.processors},
              {"cores", int64_t{devices} * c.processors * c.cores},
              {"tensor_cores", int64_t{devices} * c.processors * c.tensor_cores},
              {"watts", devices * c.watts}}},
            {"sources", c.sources}};
}

std::string rate(double bytes_per_s) {
    return concat(format_fixed(bytes_per_s / 1e9, bytes_per_s < 1e11 ? 1 : 0), " GB/s");
}

void print(const Cluster& c, int devices, std::ostream& out) {
    const auto line = [&out](const std::string& label, const std::string& text) {
        out << left(label, 14) << wrapped(text, 14) << '\n';
    };
    out << c.vendor << ' ' << c.name << (c.generation.empty() ? "" : concat(", ", c.generation))
        << (c.year > 0 ? concat(", ", c.year) : "") << "\n\n";
    for (const auto& [type, peak] : c.peaks) line(type, format_flop_rate(peak));
    line("memory", concat(report::short_number(c.data_sheet_memory / 1e9), " GB, of which a run can use ",
                          format_bytes(c.memory)));
    if (c.processors > 0)
        line("processors", concat(c.processors, c.cores > 0 ? concat(", each of ", c.cores, " f32 cores") : "",
                                  c.tensor_cores > 0 ? concat(" and ", c.tensor_cores, " tensor cores") : ""));
    if (c.l2 > 0) line("caches", concat("L1 ", format_bytes(c.l1), " of a processor, L2 ", format_bytes(c.l2)));
    if (c.watts > 0) line("power", concat(format_fixed(c.watts, 0), " W"));
    out << "\nbandwidths of one device, in one direction, beside that of its memory\n";
    for (const Rung& rung : ladder_of(c)) {
        const double slower = c.memory_bandwidth / rung.bandwidth;
        out << left(rung.name, 14) << right(rate(rung.bandwidth), 11) << (slower < 1 ? "   x " : "   1/")
            << left(format_fixed(slower < 1 ? 1 / slower : slower, 1), 8) << rung.reaches << '\n';
    }
    if (devices > 1) {
        out << '\n' << devices << " devices\n";
        line("in", joined(parts_of(c, devices), ", ", [](const Part& part) {
                 return concat(counted(part.count, part.name), " of ", part.devices, part.spare);
             }));
        line("peak", format_flop_rate(devices * peak_of(c)));
        line("memory", concat(format_fixed(devices * c.data_sheet_memory / 1e15, 3), " PB"));
        const double processors = double(devices) * c.processors;
        if (c.processors > 0) line("processors", format_count(processors));
        if (c.cores > 0) line("f32 cores", format_count(processors * c.cores));
        if (c.tensor_cores > 0) line("tensor cores", format_count(processors * c.tensor_cores));
        if (c.watts > 0) line("power", concat(format_fixed(devices * c.watts / 1e6, 2), " MW, devices alone"));
    }
    out << '\n';
    line("sources", joined(c.sources));
}

// "8 at 450, 3072 at 50, more at 7": how many devices a device reaches at which bandwidth.
std::string reach_of(const Cluster& c) {
    std::vector<std::string> reaches;
    const auto add = [&](int devices, double bandwidth) {
        reaches.push_back(
            concat(devices > 0 ? std::to_string(devices) : "more", " at ", report::short_number(bandwidth / 1e9)));
    };
    if (c.domain > 1) add(c.domain, c.link_bandwidth);
    if (c.rack_with_links() > 0) add(c.rack, c.rack_bandwidth);
    add(c.pod, c.network_bandwidth);
    if (c.pod > 0) add(0, c.network_bandwidth / c.oversubscription);
    return joined(reaches);
}

// The peaks over the years, by bits of the type.
std::string years_page() {
    report::Chart chart{.id = "years",
                        .title = "Peak of one device",
                        .description = "",
                        .x_label = "year of its announcement",
                        .y_unit = "TFLOP/s, dense",
                        .series = {},
                        .allow_log = true};
    std::vector<Cluster> all;
    for (const std::string& name : hardware::cluster_names()) all.push_back(hardware::cluster_named(name));
    std::stable_sort(all.begin(), all.end(), [](const Cluster& a, const Cluster& b) { return a.year < b.year; });
    const auto add = [&](const char* label, const std::vector<const char*>& types) {
        report::Series series{.label = label,
                              .colour = static_cast<int>(chart.series.size()) + 1,
                              .mark = report::Mark::points,
                              .points = {}};
        for (const Cluster& c : all) {
            const auto type = std::find_if(types.begin(), types.end(), [&](const char* t) { return c.has(t); });
            if (c.year == 0 || type == types.end()) continue;
            const double peak = c.peak(*type) / 1e12;
            series.points.push_back({double(c.year), peak});
            series.titles.push_back(concat(c.name, ", ", c.year, ": ", short_fixed(peak), " TFLOP/s in ", *type));
        }
        chart.series.push_back(std::move(series));
    };
    add("32 bits", {"fp32"});
    add("16 bits", {"bf16", "fp16"});
    add("8 bits", {"fp8"});
    std::string rows;
    for (const Cluster& c : all) {
        rows += report::row_of({c.name, std::to_string(c.year), type_of(c), short_fixed(peak_of(c) / 1e12),
                                report::short_number(c.data_sheet_memory / 1e9),
                                format_fixed(c.memory_bandwidth / 1e9, 0), reach_of(c)});
        chart.description += concat(c.name, ", ", c.year, ": ", short_fixed(peak_of(c) / 1e12), " ", type_of(c), ". ");
    }
    return report::page("Devices over the years",
                        concat("<header><h1>Devices over the years</h1></header>\n<div class=\"grid\">",
                               report::wide_card(chart), "<div class=\"card full\"><h2>Devices</h2>",
                               report::table({"device", "year", "type", "TFLOP/s", "memory GB", "GB/s",
                                              "devices within reach at GB/s, one direction"},
                                             rows),
                               "</div></div>\n"));
}

int show_hardware(const HardwareArguments& a, const Io& io) {
    check<UsageError>(a.html.empty() || a.name.empty(), "--html is a page of all devices; leave out ", a.name);
    if (!a.name.empty()) {
        const Cluster c = hardware::cluster_named(a.name, a.set_cluster);
        if (io.json)
            io.print(to_json(c, a.devices));
        else
            print(c, a.devices, io.out);
        return 0;
    }
    check<UsageError>(a.devices == 1 && a.set_cluster.empty(), "--devices and --set-cluster need a NAME: one of ",
                      joined(hardware::cluster_names()));
    Json all = Json::array();
    if (!io.json)
        io.out << "device           vendor  year    TFLOP/s        memory GB    GB/s   link GB/s  domain  rack"
                  "  network GB/s\n";
    for (const std::string& name : hardware::cluster_names()) {
        const Cluster c = hardware::cluster_named(name);
        if (io.json) {
            all.push_back(to_json(c, 1));
            continue;
        }
        io.out << left(c.name, 17) << left(c.vendor, 8) << left(std::to_string(c.year), 6)
               << right(short_fixed(peak_of(c) / 1e12), 9) << ' ' << left(type_of(c), 8)
               << right(report::short_number(c.data_sheet_memory / 1e9), 9)
               << right(format_fixed(c.memory_bandwidth / 1e9, 0), 8)
               << right(format_fixed(c.link_bandwidth / 1e9, 0), 12) << right(std::to_string(c.domain), 8)
               << right(c.rack > 0 ? std::to_string(c.rack) : "-", 6)
               << right(format_fixed(c.network_bandwidth / 1e9, 1), 14) << '\n';
    }
    if (!a.html.empty()) {
        write_file("--html", a.html, years_page());
        io.text() << "wrote " << a.html << '\n';
    }
    if (io.json)
        io.print(Json{{"devices", all}});
    else
        io.next({"tutti hardware h100 --devices 24576"});
    return 0;
}

}  // namespace

Command hardware_command(Arguments& all, const Io& io) {
    auto& a = all.add<HardwareArguments>();
    const Options options = {
        {"NAME", "", "", "a device of the catalog, or a TOML file [a table of all]", &a.name,
         Suggestions{hardware::cluster_names(), true}},
        {"--devices,--gpus,--ranks", "N", "1", "show the totals of N devices", &a.devices, Between{1, kManyRanks}},
        set_cluster_option(a.set_cluster),
        {"--html", "FILE", "", "write a page with the peaks of all devices over the years", &a.html, kOutput}};
    return command_of("hardware", "show devices and clusters: peaks, memory, bandwidths, totals, sources", a, io,
                      show_hardware, options,
                      "Examples:\n"
                      "  tutti hardware\n"
                      "  tutti hardware --html devices.html\n"
                      "  tutti hardware h100\n"
                      "  tutti hardware h100 --devices 24576 --set-cluster network.pod=3072 \\\n"
                      "      --set-cluster network.oversubscription=7");
}

}  // namespace tutti::cli
