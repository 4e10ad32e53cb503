// hardware/cluster.h: accelerators and clusters as data: rates, memory, links, network. A TOML file describes a device
// with its usual node and network (catalog/*.toml, part of the program). A user's file may start from one of these
// (`base = "h100"`) and give only what differs (docs/clusters.md). This is the one list of machines: rehearsals,
// predictions and plans take the same names and the same memory.
//
// Units: FLOP/s, bytes, bytes per second in one direction and per device, seconds.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/dtype.h"

namespace tutti::hardware {

struct Cluster {
    std::string name;                  // "h100"
    std::vector<std::string> aliases;  // other spellings of the name
    std::vector<std::string> sources;  // of the figures
    std::string vendor;
    std::string generation;  // "hopper"; kernels of one generation reach similar shares of the peak

    double memory = 0;  // of a device that a run can use: what the driver reports, less the driver's context
    double data_sheet_memory = 0;
    double memory_bandwidth = 0;      // of its memory
    double watts = 0;                 // of a device's data sheet; 0: not known
    double power_limit = 0;           // watts that the site allows a device; 0: those of its data sheet
    int year = 0;                     // in which it was announced; 0: not known
    int cores = 0, tensor_cores = 0;  // f32 units and matrix units of a processor; 0: not known
    int matrix_unit = 0;  // side of a systolic array, which shallower or narrower products fill in part; 0: none known
    double l1 = 0, l2 = 0;                      // bytes of cache of a processor, of the device; 0: not known
    double l1_bandwidth = 0, l2_bandwidth = 0;  // of all L1 caches of a device, of its L2; 0: not known
    int processors = 0;  // streaming multiprocessors or compute units; 0: has no such units (TPU)

    // Dense peaks by type: "fp32", "tf32", "fp16", "bf16", "fp8", "fp4"; a missing type has no instructions.
    std::map<std::string, double> peaks;
    std::map<std::string, double> measured;  // the fastest published matrix product by type; may be empty

    // Inside a domain of `domain` devices, which may be larger than a node (NVL72, a TPU pod). A job takes `segment` of
    // them where it takes several domains; 0: all. 64 of 72 divide by the sizes of layouts, the others are spares.
    std::string link_name;
    double link_bandwidth = 0;
    int domain = 1, segment = 0;
    int domain_of_job() const { return segment > 0 ? segment : domain; }

    // `rack` devices stand together; 0: not known. With a bandwidth the rack's domains have links of their own beside
    // the network, as the four tori of a Trainium2 UltraServer.
    std::string rack_name;
    double rack_bandwidth = 0;
    int rack = 0;
    int rack_with_links() const { return rack_bandwidth > 0 ? rack : 0; }

    int per_node = 1;
    double network_bandwidth = 0;  // of a device's share of the node's adapters

    // Above `pod` devices the network has 1/oversubscription of the bandwidth; 0: never.
    int pod = 0;
    double oversubscription = 1;

    double host_memory = 0;            // of a node; 0: not known
    double host_bandwidth = 0;         // between a device and the memory of its host; 0: not known
    std::string host_memory_name;      // "DDR5-4800, 16 channels"
    double host_memory_bandwidth = 0;  // of a node, for all of its devices; 0: not known

    double mtbf_hours = 50000;  // mean time between failures of one device with its share of the node
    double price_per_hour = 0;  // of one device, in dollars; 0: not known

    // The clock under the power limit, as a share of the clock at full power: power grows with the cube of the clock,
    // since voltage follows it.
    double clock() const;
    // FLOP/s of a type. UsageError with the device's types for a type without a peak.
    double peak(std::string_view type) const;
    bool has(std::string_view type) const { return peaks.count(std::string(type)) > 0; }
    std::string types() const;  // "bf16, fp16, fp32"
    // The type of 16-bit training: "bf16", or "fp16" for a device without it, which may lack that too.
    std::string_view sixteen_bits() const { return has("bf16") ? "bf16" : "fp16"; }
};

// The type in Cluster::peaks of products in a compute type.
std::string_view peak_name(ComputeType type);

// By name or alias, in any case; or the path of a TOML file. UsageError with the nearest name. `changes`: what-ifs as
// "network.gbs=35", keys of a cluster file.
Cluster cluster_named(const std::string& name_or_path, const std::vector<std::string>& changes = {});
bool is_cluster(const std::string& name_or_path);  // a name of the catalog, an alias or an existing file
Cluster parse_cluster(std::string_view text, const std::string& source_name);
std::vector<std::string> cluster_names();
std::vector<std::string> cluster_keys();  // of a cluster file: "memory_gb", "network.gbs", ...

}  // namespace tutti::hardware
