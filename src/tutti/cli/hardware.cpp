// cli/hardware.cpp: `tutti hardware`: the devices and clusters of the catalog (hardware/cluster.h): peaks, memory, the
// ladder from a device's memory to the network with its ratios, totals of many devices, sources.
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/cli/commands.h"
#include "tutti/hardware/cluster.h"

namespace tutti::cli {

namespace {

using hardware::Cluster;

// A step of the ladder: what a device reads or sends in one direction, in bytes per second.
struct Rung {
    const char* name;
    double bandwidth;
    std::string reaches;
};

std::vector<Rung> ladder_of(const Cluster& c) {
    std::vector<Rung> ladder = {{"memory", c.memory_bandwidth, "of the device"}};
    if (c.domain > 1) ladder.push_back({"link", c.link_bandwidth, concat(c.link_name, ", ", c.domain, " devices")});
    if (c.host_bandwidth > 0) ladder.push_back({"host", c.host_bandwidth, "memory of the node"});
    ladder.push_back(
        {"network", c.network_bandwidth,
         c.pod > 0 ? concat("a pod of ", c.pod, " devices") : concat("nodes of ", c.per_node, " devices")});
    if (c.pod > 0)
        ladder.push_back({"pods", c.network_bandwidth / c.oversubscription, concat("beyond ", c.pod, " devices")});
    return ladder;
}

// The peak of 16-bit training: bf16, or fp16 where a device has no bf16.
double peak_of(const Cluster& c) { return c.peak(c.has("bf16") ? "bf16" : "fp16"); }

Json to_json(const Cluster& c, int devices) {
    Json ladder = Json::array();
    for (const Rung& rung : ladder_of(c))
        ladder.push_back({{"name", rung.name},
                          {"bytes_per_s", rung.bandwidth},
                          {"reaches", rung.reaches},
                          {"slower_than_memory", c.memory_bandwidth / rung.bandwidth}});
    Json peaks = Json::object();
    for (const auto& [type, peak] : c.peaks) peaks[type] = peak;
    return {{"name", c.name},
            {"vendor", c.vendor},
            {"generation", c.generation},
            {"peaks", peaks},
            {"memory_bytes", c.data_sheet_memory},
            {"usable_memory_bytes", c.memory},
            {"processors", c.processors},
            {"watts", c.watts},
            {"devices_of_a_domain", c.domain},
            {"devices_of_a_node", c.per_node},
            {"ladder", ladder},
            {"total",
             {{"devices", devices},
              {"flops_per_s", devices * peak_of(c)},
              {"memory_bytes", devices * c.data_sheet_memory},
              {"processors", int64_t{devices} * c.processors},
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
    out << c.vendor << ' ' << c.name << (c.generation.empty() ? "" : concat(", ", c.generation)) << "\n\n";
    for (const auto& [type, peak] : c.peaks) line(type, format_flop_rate(peak));
    line("memory", concat(format_fixed(c.data_sheet_memory / 1e9, 0), " GB, of which a run can use ",
                          format_bytes(std::llround(c.memory))));
    if (c.processors > 0) line("processors", std::to_string(c.processors));
    if (c.watts > 0) line("power", concat(format_fixed(c.watts, 0), " W"));
    out << "\nbandwidths of one device, in one direction, and as shares of the first\n";
    for (const Rung& rung : ladder_of(c))
        out << left(rung.name, 14) << right(rate(rung.bandwidth), 11) << "   1/"
            << left(format_fixed(c.memory_bandwidth / rung.bandwidth, 1), 8) << rung.reaches << '\n';
    if (devices > 1) {
        out << '\n' << devices << " devices\n";
        line("peak", format_flop_rate(devices * peak_of(c)));
        line("memory", concat(format_fixed(devices * c.data_sheet_memory / 1e15, 3), " PB"));
        if (c.processors > 0) line("processors", format_count(static_cast<double>(int64_t{devices} * c.processors)));
        if (c.watts > 0) line("power", concat(format_fixed(devices * c.watts / 1e6, 2), " MW, devices alone"));
    }
    out << '\n';
    line("sources", joined(c.sources));
}

}  // namespace

int show_hardware(const HardwareArguments& a, const Io& io) {
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
        io.out << "device         vendor   16-bit TFLOP/s   memory GB     GB/s   link GB/s   domain   network GB/s\n";
    for (const std::string& name : hardware::cluster_names()) {
        const Cluster c = hardware::cluster_named(name);
        if (io.json) {
            all.push_back(to_json(c, 1));
            continue;
        }
        io.out << left(c.name, 15) << left(c.vendor, 9) << right(format_fixed(peak_of(c) / 1e12, 0), 14)
               << right(format_fixed(c.data_sheet_memory / 1e9, 0), 12)
               << right(format_fixed(c.memory_bandwidth / 1e9, 0), 9)
               << right(format_fixed(c.link_bandwidth / 1e9, 0), 12) << right(std::to_string(c.domain), 9)
               << right(format_fixed(c.network_bandwidth / 1e9, 1), 15) << '\n';
    }
    if (io.json)
        io.print(Json{{"devices", all}});
    else
        io.next({"tutti hardware h100 --devices 24576"});
    return 0;
}

}  // namespace tutti::cli
