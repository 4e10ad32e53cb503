// cli/plan.cpp: `tutti plan`: the best layouts of a model on a cluster, how they scale, what a compute budget buys, and
// a course's tables.
#include "tutti/planner/plan.h"

#include <fstream>

#include "tutti/base/error.h"
#include "tutti/cli/command.h"
#include "tutti/planner/rules.h"

namespace tutti::cli {

namespace {

void write_text(const std::string& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    check<UsageError>(file.good(), "cannot write ", path, ": is its directory there and writable?");
}

planner::Request request_of(const PlanArguments& a) {
    check<UsageError>(!a.model.empty(), "--model is missing: a preset such as llama3-8b, or a Hugging Face directory");
    check<UsageError>(!a.cluster.empty(), "--cluster is missing: a name such as h100, or a TOML file");
    planner::Request r{planner::model_named(a.model),
                       hardware::cluster_named(a.cluster),
                       a.gpus,
                       a.global_batch,
                       a.seq_len > 0 ? a.seq_len : 0,
                       a.precision,
                       a.data};
    if (r.seq_len == 0) r.seq_len = std::min<int64_t>(r.model.max_positions, 4096);
    if (r.data.empty()) r.data = {"data/train.bin"};
    return r;
}

int plan_layouts(const PlanArguments& a, const Io& io) {
    const planner::Request request = request_of(a);
    check<UsageError>(a.gpus > 0 && a.global_batch > 0, "--gpus and --global-batch are needed: how many devices, and ",
                      "sequences of a step over all of them");
    const planner::Plan plan = planner::make_plan(request, static_cast<size_t>(a.top));
    std::ostream& text = io.text(a.json);
    text << planner::render(plan);
    Json document = planner::to_json(plan);
    if (a.explain) {
        const planner::Recipe recipe = planner::field_recipe(request, plan.finalists.chosen.front().candidate);
        text << planner::render(recipe);
        document["recipe"] = planner::to_json(recipe);
    }
    const planner::Finalist& best = plan.finalists.chosen.front();
    if (!a.emit.empty()) {
        write_text(a.emit, planner::to_config(plan, best));
        text << "wrote " << a.emit << (a.data.empty() ? "; set its [data] train before `tutti train`" : "") << '\n';
    }
    if (!a.html.empty()) {
        write_text(a.html, planner::to_html(plan));
        text << "wrote " << a.html << '\n';
    }
    text << std::flush;
    if (a.json) io.out << document.dump(2) << '\n';
    return 0;
}

}  // namespace

int plan(const PlanArguments& a, const Io& io) { return plan_layouts(a, io); }

Command plan_command(PlanArguments& a, const Io& io) {
    constexpr double kManyRanks = 1 << 20, kMany = 1e9;
    return command_of(
        "plan", "the fastest layouts of a model on a cluster, and why", a, io, plan,
        {{"--model", "NAME|DIR", "", "a preset, or the directory of a Hugging Face model", &a.model},
         {"--cluster", "NAME|FILE", "", "the machines: as for `tutti simulate`", &a.cluster},
         {"--gpus", "N", "", "devices", &a.gpus, Between{1, kManyRanks}},
         {"--global-batch", "B", "", "sequences of a step, over all devices", &a.global_batch, Between{1, kMany}},
         {"--seq-len", "S", "", "tokens of a sequence [4096, or what the model can]", &a.seq_len, Between{1, kMany}},
         {"--precision", "TYPE", "bf16", "bf16, f32 or tf32", &a.precision, Choices{"bf16", "f32", "tf32"}},
         {"--top", "N", "10", "layouts to rehearse and show", &a.top, Between{1, 50}},
         {"--data", "FILE", "", "[data] train of the config that --emit writes; repeatable", &a.data},
         {"--emit", "FILE", "", "write the config of the best layout, for `tutti train`", &a.emit},
         {"--html", "FILE", "", "write a page with the layouts, their time and memory", &a.html},
         {"--explain", "", "", "beside the field's recipe, rule by rule", &a.explain}},
        "Examples:\n"
        "  tutti plan --model llama3-8b --cluster h100 --gpus 64 --global-batch 512 --seq-len 8192\n"
        "  tutti plan --model llama3-405b --cluster h100 --gpus 16384 --global-batch 2048 --seq-len 8192 --explain");
}

}  // namespace tutti::cli
