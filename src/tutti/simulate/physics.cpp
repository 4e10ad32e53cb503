// simulate/physics.cpp: the twelve numbers with unit, bounds and source.
#include "tutti/simulate/physics.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"

namespace tutti::simulate {

const std::vector<PhysicsField>& physics_fields() {
    using P = Physics;
    static const std::vector<PhysicsField> fields = {
        {"ampere_16", &P::ampere_16, "FLOP/J", 0.54e12, 0.70e12, 0.06, 0.616e12,
         "A100 400 W: 0.79 of 312 TFLOP/s, products of SimuMax's table"},
        {"hopper_16", &P::hopper_16, "FLOP/J", 0.83e12, 1.15e12, 0.06, 0.989e12,
         "H100 700 W: best product 0.80 of 989 TFLOP/s, of which 0.87 is held"},
        {"blackwell_16", &P::blackwell_16, "FLOP/J", 0.80e12, 1.50e12, 0.10, 1.083e12,
         "GB200 1200 W: 0.52 of 2500 TFLOP/s, 514 products of SimuMax's B200 table"},
        {"hopper_8", &P::hopper_8, "FLOP/J", 1.27e12, 2.10e12, 0.08, 1.696e12,
         "H100 700 W: best product 0.71 of 1979 TFLOP/s, of which 0.85 is held"},
        {"blackwell_8", &P::blackwell_8, "FLOP/J", 1.85e12, 3.10e12, 0.10, 2.333e12,
         "GB200 1200 W: best product 0.72 of 5000 TFLOP/s, of which 0.78 is held"},
        {"host_launch", &P::host_launch, "s", 3e-6, 20e-6, 0.25, 10e-6,
         "PyTorch without graphs: 5 to 15 us an operation in profiles"},
        {"memory", &P::memory, "", 0.6, 0.95, 0, 0.85, "0.91 A100, 0.67 B200 of SimuMax's tables of passes"},
        {"link", &P::link, "", 0.6, 0.85, 0, 0.78, "nccl-tests, all-reduce: 235 of 300 GB/s A100, 367 of 450 H200"},
        {"network", &P::network, "", 0.5, 0.85, 0, 0.75, "nccl-tests: 70 to 82 % of the line at large messages"},
        {"latency", &P::latency, "s", 10e-6, 50e-6, 0, 20e-6, "nccl-tests: 40 us an all-reduce on H200, two of these"},
        {"hop", &P::hop, "s", 3e-6, 40e-6, 0, 10e-6, "all-reduce of 4 x 8 B200: 7 us a step; of nanotron's site 33"},
        {"contention", &P::contention, "", 0.05, 0.4, 0, 0.25, "0.02 to 0.15 in Calculon, 0.13 in Galvatron"},
    };
    return fields;
}

double beside(double compute, double comm, double contention) {
    constexpr double kWaitingShare = 0.3;  // of the contention, on communication
    const double both = std::min(compute, comm);
    return std::max(compute + contention * both, comm + kWaitingShare * contention * compute) - compute;
}

Physics physics_of_tables() {
    Physics physics;
    for (const PhysicsField& field : physics_fields()) physics.*field.member = field.table;
    return physics;
}

Json site_of(const Physics& physics) {
    const Physics defaults;
    Json changed = Json::object();
    for (const PhysicsField& field : physics_fields())
        if (physics.*field.member != defaults.*field.member) changed[field.name] = physics.*field.member;
    return {{"about", "constants of a site, beside the defaults of simulate/physics.h"},
            {"constants", std::move(changed)}};
}

Physics read_physics(const std::string& path) {
    Physics physics;
    try {
        const Json document = Json::parse(read_file(path));
        for (const Json::Member& member : document.at("constants").items()) {
            const auto& fields = physics_fields();
            const auto field =
                std::find_if(fields.begin(), fields.end(), [&](const PhysicsField& f) { return f.name == member.key; });
            check<DataError>(field != fields.end(), "there is no constant ", member.key, "; there are ",
                             joined(fields, ", ", [](const PhysicsField& f) { return f.name; }));
            const double value = member.value.get<double>();
            check<DataError>(value >= field->low && value <= field->high, member.key, " = ", value, ": required ",
                             field->low, " to ", field->high, " ", field->unit);
            physics.*field->member = value;
        }
    } catch (const DataError& error) {
        throw DataError(concat(path, " is not a site: ", error.what()));
    }
    return physics;
}

}  // namespace tutti::simulate
