// cli/doctor.cpp: `tutti version`, and `tutti doctor`: what this build and this machine have, and what keeps a run from
// working well, in words or as JSON (diagnose/doctor.h).
#include "tutti/diagnose/doctor.h"

#include "tutti/base/build_info.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/cli/commands.h"
#include "tutti/comm/processes/process_world.h"
#include "tutti/kernels/kernel_table.h"
#include "tutti/text/sentencepiece.h"

namespace tutti::cli {

namespace {

using diagnose::Fact, diagnose::FactValue, diagnose::MachineFacts, diagnose::FactSection;

Json to_json(const Gpu& gpu) {
    return {{"name", gpu.name},
            {"memory_bytes", gpu.memory_bytes},
            {"compute_capability", concat(gpu.major, ".", gpu.minor)},
            {"multiprocessors", gpu.multiprocessors}};
}

struct ToJson {
    Json operator()(std::monostate) const { return nullptr; }
    Json operator()(const std::vector<Gpu>& gpus) const {
        Json all = Json::array();
        for (const Gpu& gpu : gpus) all.push_back(to_json(gpu));
        return all;
    }
    template <class Value>
    Json operator()(const Value& value) const {
        return value;
    }
};

Json to_json(const FactValue& value) { return std::visit(ToJson(), value); }

void print(const MachineFacts& facts, std::ostream& out) {
    for (const FactSection& section : facts.sections) {
        out << section.title << '\n';
        for (const Fact& fact : section.facts) out << "  " << left(fact.label, 24) << fact.text << '\n';
        out << '\n';
    }
    for (const std::string& warning : facts.warnings) out << "warning: " << warning << '\n';
    for (const std::string& problem : facts.problems) out << "problem: " << problem << '\n';
    if (facts.warnings.empty() && facts.problems.empty()) out << "All well.\n";
}

Json to_json(const MachineFacts& facts) {
    Json document;
    for (const FactSection& section : facts.sections)
        for (const Fact& fact : section.facts) document[section.key][fact.key] = to_json(fact.value);
    document["warnings"] = facts.warnings;
    document["problems"] = facts.problems;
    return document;
}

}  // namespace

int doctor(const Io& io) {
    const MachineFacts facts = diagnose::examine_machine();
    io.print(to_json(facts));
    if (!io.json) print(facts, io.out);
    return facts.problems.empty() ? 0 : 4;
}

int version(const Io& io) {
    const BuildInfo build = build_info();
    const std::string mpi = comm::mpi_library(comm::Launcher::none);
    io.print(Json{{"version", build.version},
                  {"build_type", build.build_type},
                  {"compiler", build.compiler},
                  {"gemm_implementation", kernels::gemm_implementations()},
                  {"sentencepiece", text::sentencepiece_version()},
                  {"mpi", mpi}});
    if (!io.json)
        io.out << "tutti " << build.version << " (" << build.build_type << ", " << build.compiler << ", "
               << kernels::gemm_implementations()
               << (text::sentencepiece_version().empty() ? "" : ", " + text::sentencepiece_version()) << ", "
               << (mpi.empty() ? "no MPI" : mpi) << ")\n";
    return 0;
}

}  // namespace tutti::cli
