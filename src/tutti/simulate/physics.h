// simulate/physics.h: the twelve numbers that data sheets omit and that the prices of machine_prices.h need: the speed
// that large products hold, efficiencies of memory and links, latencies. Six are fitted to published runs
// (published/calibration.h), six are values of kernel and network tables. docs/decisions/0038-forecast.md has sources,
// errors, and what was tried beyond these twelve.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"

namespace tutti::simulate {

struct Physics {
    // Products run at constant energy: FLOP per joule of the device's power, 16 and 8 bits.
    double ampere_16 = 0.637e12, hopper_16 = 0.961e12, blackwell_16 = 0.974e12;
    double hopper_8 = 1.70e12, blackwell_8 = 2.32e12;
    double host_launch = 12.1e-6;  // seconds of the host for a kernel that a Python program launches
    double memory = 0.85;          // of the bandwidth of the device's memory, in passes over large tensors
    double link = 0.78;            // of the link's bandwidth, in rings inside a domain
    double network = 0.75;         // of the adapters' bandwidth
    double latency = 20e-6;        // seconds of a collective besides its bytes
    double hop = 10e-6;            // seconds more for each step of a ring that leaves the domain
    double contention = 0.25;      // of the time that compute and communication overlap: what both take longer
};

struct PhysicsField {
    std::string_view name;
    double Physics::*member;
    std::string_view unit;
    double low, high;  // a fitted value on a bound means that the form of the model is wrong
    double spread;     // of ln(value) around the value of the table before any fit; 0: not fitted
    double table;      // the value before any fit
    std::string_view source;
};
const std::vector<PhysicsField>& physics_fields();

// Seconds that `comm` adds to `compute` beside it: what compute does not hide, and what each loses to the other.
double beside(double compute, double comm, double contention);

// The values of kernel tables and data sheets alone.
Physics physics_of_tables();

// A site: {"constants": {name: value}}, those that differ from the defaults. DataError with the path for a name that
// does not exist or a value out of its range.
Json site_of(const Physics& physics);
Physics read_physics(const std::string& path);

}  // namespace tutti::simulate
