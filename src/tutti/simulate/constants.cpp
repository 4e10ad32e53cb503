// simulate/constants.cpp: the list of constants with their ranges.
#include "tutti/simulate/constants.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"

namespace tutti::simulate {

const std::vector<ConstantField>& constant_fields() {
    using C = Constants;
    static const std::vector<ConstantField> fields = {
        {"gemm_volta", &C::gemm_volta, 0.3, 0.95, 0.1},
        {"gemm_ampere", &C::gemm_ampere, 0.5, 0.95, 0.1},
        {"gemm_hopper", &C::gemm_hopper, 0.4, 0.9, 0.1},
        {"gemm_blackwell", &C::gemm_blackwell, 0.3, 0.9, 0.15},
        {"gemm_hopper_fp8", &C::gemm_hopper_fp8, 0.3, 0.85, 0.15},
        {"gemm_blackwell_fp8", &C::gemm_blackwell_fp8, 0.25, 0.85, 0.15},
        {"gemm_fp4", &C::gemm_fp4, 0.15, 0.8, 0.2},
        {"depth", &C::depth, 30, 600, 0.2},
        {"grouped", &C::grouped, 0.4, 1, 0.2},
        {"grouped_rows", &C::grouped_rows, 10, 600, 0.5},
        {"flash1_ampere", &C::flash1_ampere, 0.1, 0.7, 0.3},
        {"flash1_hopper", &C::flash1_hopper, 0.05, 0.6, 0.3},
        {"flash2_hopper", &C::flash2_hopper, 0.1, 0.6, 0.2},
        {"flash_hopper", &C::flash_hopper, 0.2, 0.8, 0.2},
        {"ultra", &C::ultra, 1, 1.4, 0.1},
        {"flash_blackwell", &C::flash_blackwell, 0.15, 0.8, 0.2},
        {"unfused_passes", &C::unfused_passes, 4, 30, 0.3},
        {"elementwise_megatron", &C::elementwise_megatron, 0.4, 3, 0.2},
        {"elementwise_nanotron", &C::elementwise_nanotron, 0.4, 4, 0.2},
        {"host_nanotron", &C::host_nanotron, 3e-4, 8e-3, 0.4},
        {"host_nanotron_tp", &C::host_nanotron_tp, 1e-3, 8e-3, 0.3},
        {"host_nanotron_message", &C::host_nanotron_message, 1e-4, 2e-2, 0.6},
        {"host_nanotron_stall", &C::host_nanotron_stall, 0.05, 2, 0.4},
        {"nanotron_full", &C::nanotron_full, 0.2, 6, 0.4},
        {"host_nanotron_far", &C::host_nanotron_far, 1e-3, 1e-2, 0.3},
        {"host_nanotron_nodes", &C::host_nanotron_nodes, 1e-4, 1e-3, 0.3},
        {"elementwise_eager", &C::elementwise_eager, 0.5, 4, 0.2},
        {"elementwise_compiled", &C::elementwise_compiled, 0.4, 3, 0.2},
        {"elementwise_xla", &C::elementwise_xla, 0.3, 3, 0.2},
        {"cast_fp8", &C::cast_fp8, 0.3, 4, 0.25},
        {"cast_row", &C::cast_row, 0.3, 12, 0.25},
        {"cast_mx", &C::cast_mx, 0.3, 6, 0.25},
        {"cast_fp4", &C::cast_fp4, 0.5, 8, 0.25},
        {"link_efficiency", &C::link_efficiency, 0.4, 0.9, 0.1},
        {"network_efficiency", &C::network_efficiency, 0.4, 0.95, 0.15},
        {"host_efficiency", &C::host_efficiency, 0.2, 1, 0.1},
        {"link_half", &C::link_half, 1e6, 5e7, 0.5},
        {"network_half", &C::network_half, 2e6, 3e8, 0.7},
        {"tp_exposed", &C::tp_exposed, 0.1, 1, 0.3},
        {"cp_exposed", &C::cp_exposed, 0.02, 1, 0.5},
        {"ep_exposed", &C::ep_exposed, 0.2, 1.5, 0.3},
        {"ep_exposed_network", &C::ep_exposed_network, 0.2, 1.5, 0.3},
        {"pp_exposed", &C::pp_exposed, 0.02, 1, 0.5},
        {"dp_exposed", &C::dp_exposed, 0.02, 1, 0.5},
        {"zero3_exposed", &C::zero3_exposed, 0.02, 1, 0.5},
        {"zero3_exposed_eager", &C::zero3_exposed_eager, 0.02, 1, 0.5},
        {"overlap", &C::overlap, 0.3, 1, 0.2},
        {"slowdown", &C::slowdown, 0.01, 0.5, 0.5},
        {"host_eager", &C::host_eager, 2e-4, 3e-3, 0.4},
        {"host_megatron", &C::host_megatron, 3e-4, 5e-3, 0.4},
        {"host_tp", &C::host_tp, 1e-4, 5e-3, 0.4},
        {"host_compiled", &C::host_compiled, 1e-4, 2e-3, 0.4},
        {"host_expert", &C::host_expert, 5e-4, 1.5e-2, 0.5},
        {"host_expert_drop", &C::host_expert_drop, 2e-4, 1e-2, 0.5},
        {"imbalance", &C::imbalance, 1.01, 1.6, 0.1},
        {"optimizer_bytes", &C::optimizer_bytes, 24, 120, 0.3},
        {"step_fixed", &C::step_fixed, 1e-3, 1e-1, 0.15},
        {"straggle", &C::straggle, 1e-4, 0.02, 0.5},
    };
    return fields;
}

Json site_of(const Constants& constants) {
    const Constants defaults;
    Json changed = Json::object();
    for (const ConstantField& field : constant_fields())
        if (constants.*field.member != defaults.*field.member) changed[field.name] = constants.*field.member;
    return {{"about", "constants of a site, beside the defaults of simulate/constants.h"},
            {"constants", std::move(changed)}};
}

Constants read_site(const std::string& path) {
    Constants constants;
    try {
        const Json document = Json::parse(read_file(path));
        for (const Json::Member& member : document.at("constants").items()) {
            const auto& fields = constant_fields();
            const auto field = std::find_if(fields.begin(), fields.end(),
                                            [&](const ConstantField& f) { return f.name == member.key; });
            check<DataError>(field != fields.end(), "there is no constant ", member.key);
            const double value = member.value.get<double>();
            check<DataError>(value >= field->low && value <= field->high, member.key, " = ", value, ": required ",
                             field->low, " to ", field->high);
            constants.*field->member = value;
        }
    } catch (const DataError& error) {
        throw DataError(concat(path, " is not a site: ", error.what()));
    }
    return constants;
}

}  // namespace tutti::simulate
