#include "tutti/train/first_step.h"

#include <utility>

#include "tutti/base/build_info.h"
#include "tutti/rehearsal/card.h"
#include "tutti/rehearsal/present.h"

namespace tutti::train {

namespace {

// "dp_shard 2, tp 4": the parallelisms of several ranks.
std::string layout_of(const mesh::Mesh& mesh) {
    std::string text;
    for (const mesh::Axes axes : {mesh::Axes(mesh::Axis::dp_replicate), mesh::Axes(mesh::Axis::dp_shard), mesh::kTp,
                                  mesh::kCp, mesh::Axes(mesh::Axis::pp)})
        if (mesh.size(axes) > 1) text += concat(text.empty() ? "" : ", ", mesh::name_of(axes), " ", mesh.size(axes));
    return text.empty() ? "1 rank" : text;
}

}  // namespace

void FirstStep::expect(rehearsal::Rehearsal rehearsed, bool first_rank) {
    rehearsed_memory_ = rehearsal::to_json(rehearsed.memory.at_peak);
    if (first_rank) rehearsed_ = std::move(rehearsed);
}

void FirstStep::end(const engine::Engine& engine, comm::World& world) {
    traffic_ = parallel::difference(engine.groups.traffic(), before_);
    memory_ = engine.device->memory().at_peak();
    const Json own = {{"memory", rehearsal::to_json(memory_)}, {"rehearsed", rehearsed_memory_}};
    for (const std::string& text : comm::gather_texts(*world.everyone("memory of the first step"), own.dump())) {
        Json of_rank = {{"rank", memory_of_ranks_.size()}};
        of_rank.update(Json::parse(text));
        memory_of_ranks_.push_back(std::move(of_rank));
    }
}

std::string FirstStep::comparison() const { return rehearsal::render_measured(rehearsed_.memory, memory_); }

Json FirstStep::to_json(const engine::Engine& engine, const models::ModelCounts& counts, const RunPeak& peak) const {
    return {{"version", build_info().version},
            {"model", name_of(engine.run.model)},
            {"parameters", counts.parameters},
            {"machine", engine.device->name()},
            {"layout", layout_of(engine.groups.mesh())},
            {"peak_flops", peak.flops_per_s()},
            {"peak_origin", peak.origin()},
            {"ranks", memory_of_ranks_},
            {"memory", memory_of_ranks_.front().at("memory")},
            {"communication", rehearsal::to_json(traffic_)},
            {"rehearsed", rehearsal::to_json(rehearsed_)}};
}

std::vector<std::string> kernel_warnings(const engine::Engine& engine) {
    const spec::TrainSpec& train = engine.run.train;
    std::vector<std::string> warnings;
    if (engine.ctx.kernels.slow_work) warnings = engine.ctx.kernels.slow_work();
    if (engine.tuning && !engine.tuning->missed.empty())
        warnings.push_back(concat(train.gemm_tuning, " has no algorithm for ", engine.tuning->missed.size(),
                                  " products of the first step, such as ", engine.tuning->missed.begin()->second,
                                  ": cuBLASLt's heuristic chooses theirs; tune with the sizes of this run"));
    for (const auto& [key, text] : engine.attention.others) warnings.push_back(text);
    if (const auto& times = engine.attention.tuning; times && !times->missed.empty())
        warnings.push_back(concat(train.attention_tuning, " has no times for ", times->missed.size(),
                                  " requests of attention in the first step, such as ", times->missed.begin()->second,
                                  ": our own kernels compute them; tune with the sizes of this run"));
    return warnings;
}

}  // namespace tutti::train
