// cli/plan.cpp: `tutti plan`: the best layouts of a model on a cluster, how they scale, what a compute budget buys, and
// a course's tables.
#include "tutti/planner/plan.h"

#include "tutti/base/error.h"
#include "tutti/cli/command.h"
#include "tutti/hardware/cluster.h"
#include "tutti/planner/course_tables.h"
#include "tutti/planner/rules.h"
#include "tutti/planner/scaling.h"
#include "tutti/rehearsal/target.h"
#include "tutti/spec/model_spec.h"

namespace tutti::cli {

namespace {

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
    spec::RunSpec run;
    run.model = r.model;
    r.expert_loads = rehearsal::parse_expert_loads("--expert-loads", a.expert_loads, run);
    if (!a.site.empty()) r.constants = simulate::read_physics(a.site);
    return r;
}

int plan_layouts(const PlanArguments& a, const Io& io) {
    const planner::Request request = request_of(a);
    check<UsageError>(a.gpus > 0 && a.global_batch > 0, "--gpus and --global-batch are needed: how many devices, and ",
                      "sequences of a step over all of them");
    const planner::Plan plan = planner::make_plan(request, static_cast<size_t>(a.top));
    std::ostream& text = io.text();
    text << planner::render(plan);
    Json document = planner::to_json(plan);
    if (a.explain) {
        const planner::Recipe recipe = planner::field_recipe(request, plan.finalists.chosen.front().candidate);
        text << planner::render(recipe);
        document["recipe"] = planner::to_json(recipe);
    }
    const planner::Finalist& best = plan.finalists.chosen.front();
    if (!a.emit.empty()) {
        write_file("--emit", a.emit, planner::to_config(plan, best));
        text << "wrote " << a.emit << (a.data.empty() ? "; set its [data] train before `tutti train`" : "") << '\n';
    }
    if (!a.html.empty()) {
        write_file("--html", a.html, planner::to_html(plan));
        text << "wrote " << a.html << '\n';
    }
    text << std::flush;
    io.print(document);
    return 0;
}

int plan_scaling(const PlanArguments& a, const Io& io) {
    planner::Request request = request_of(a);
    check<UsageError>(a.global_batch > 0, "--global-batch is needed: sequences of a step, the same at every size");
    const planner::ScalingOptions options{.last = a.gpus > 0 ? a.gpus : 65536,
                                          .storage_per_node = a.storage_gbs * 1e9,
                                          .restart_s = a.restart,
                                          .price = a.price > 0 ? std::optional(a.price) : std::nullopt};
    const auto rows = planner::scale(request, options);
    io.text() << planner::render(request, options, rows) << std::flush;
    io.print(planner::to_json(rows));
    return 0;
}

int plan_budget(const PlanArguments& a, const Io& io) {
    planner::BudgetPlan plan{.flops = a.budget, .mfu = a.mfu, .rows = planner::compute_optimal(a.budget)};
    std::string machines;
    if (!a.cluster.empty()) {
        check<UsageError>(a.gpus > 0, "--budget on --cluster ", a.cluster, " needs --gpus for days and money");
        const hardware::Cluster cluster = hardware::cluster_named(a.cluster);
        plan.rate = cluster.peak(cluster.has("bf16") ? "bf16" : "fp16") * a.gpus * a.mfu;
        plan.seconds = a.budget / plan.rate;
        plan.dollars = (a.price > 0 ? a.price : cluster.price_per_hour) * a.gpus * plan.seconds / 3600;
        machines = concat(a.gpus, " x ", cluster.name);
    }
    io.text() << planner::render(plan, machines) << std::flush;
    io.print(planner::to_json(plan));
    return 0;
}

int plan_tables(const Io& io) {
    Json tables = Json::array();
    for (const planner::Table& table : planner::course_tables()) {
        io.text() << planner::render(table) << '\n';
        tables.push_back(planner::to_json(table));
    }
    io.text() << std::flush;
    io.print(Json{{"tables", tables}});
    return 0;
}

}  // namespace

int plan(const PlanArguments& a, const Io& io) {
    check<UsageError>(int{a.scaling} + int{a.tables} + int{a.budget > 0} <= 1,
                      "--scaling, --tables and --budget are three answers; ask for one at a time");
    const bool layouts = !a.scaling && !a.tables && a.budget <= 0;
    check<UsageError>(layouts || (a.emit.empty() && a.html.empty() && !a.explain),
                      "--emit, --html and --explain are about one plan; leave out --scaling, --tables and --budget");
    check<UsageError>(!a.tables || (a.model.empty() && a.cluster.empty()),
                      "--tables are the same for every model and cluster; leave out --model and --cluster");
    check<UsageError>(a.budget <= 0 || a.model.empty(), "--budget says which size of model is best; leave out --model");
    check<UsageError>(a.site.empty() || (!a.tables && a.budget <= 0),
                      "--site belongs to the plan of a model on a cluster; ", "leave out --tables and --budget");
    check<UsageError>(a.price <= 0 || a.scaling || a.budget > 0, "--price belongs to --scaling and --budget");
    if (a.tables) return plan_tables(io);
    if (a.budget > 0) return plan_budget(a, io);
    return a.scaling ? plan_scaling(a, io) : plan_layouts(a, io);
}

Command plan_command(PlanArguments& a, const Io& io) {
    constexpr double kManyRanks = 1 << 20, kMany = 1e9;
    return command_of(
        "plan", "find the fastest layouts of a model on a cluster", a, io, plan,
        {{"--model", "NAME|DIR", "", "a preset, or the directory of a Hugging Face model", &a.model,
          Suggestions{spec::preset_names(), true}},
         {"--cluster", "NAME|FILE", "", "a cluster of `tutti simulate --help`, or a TOML file of one", &a.cluster,
          Suggestions{hardware::cluster_names(), true}},
         {"--gpus", "N", "", "number of devices", &a.gpus, Between{1, kManyRanks}},
         {"--global-batch", "B", "", "sequences of a step, over all devices", &a.global_batch, Between{1, kMany}},
         {"--seq-len", "S", "", "tokens of a sequence [4096, at most the model's positions]", &a.seq_len,
          Between{1, kMany}},
         {"--precision", "TYPE", "bf16", "bf16, f32 or tf32", &a.precision, Choices{"bf16", "f32", "tf32"}},
         expert_loads_option(a.expert_loads),
         {"--site", "FILE", "", "constants of a site, written by `tutti simulate --table FILE --fit OUT`", &a.site,
          kPath},
         {"--top", "N", "10", "layouts to rehearse and show", &a.top, Between{1, 50}},
         {"--data", "FILE", "", "data.train of the config that --emit writes; repeatable", &a.data, kPath},
         {"--emit", "FILE", "", "write the config of the best layout, for `tutti train`", &a.emit, kPath},
         {"--html", "FILE", "", "write a page with the layouts, their time and memory", &a.html, kPath},
         {"--explain", "", "", "compare the best layout with the field's recipe, rule by rule", &a.explain},
         {"--scaling", "", "", "show layout, goodput and cost at 8 to --gpus [65536] devices", &a.scaling},
         {"--storage", "GB/S", "1", "with --scaling: rate at which a node writes checkpoints", &a.storage_gbs,
          Between{1e-3, 1e4}},
         {"--restart", "S", "600", "with --scaling: seconds from a failure until training continues", &a.restart,
          Between{0, 1e6}},
         {"--price", "DOLLARS", "",
          "with --scaling or --budget: price of a device for an hour [the cluster file's price_per_hour]", &a.price,
          Between{0, 1e4}},
         {"--budget", "FLOPS", "", "show parameters, tokens, days and money for a compute budget", &a.budget,
          Between{1, 1e40}},
         {"--mfu", "SHARE", "0.4", "with --budget: share of the peak that training reaches", &a.mfu, Between{1e-3, 1}},
         {"--tables", "", "", "show the tables of a course: its formulas beside this system", &a.tables}},
        "Examples:\n"
        "  tutti plan --model llama3-8b --cluster h100 --gpus 64 --global-batch 512 --seq-len 8192\n"
        "  tutti plan --model llama3-405b --cluster h100 --gpus 16384 --global-batch 2048 --seq-len 8192 --explain\n"
        "  tutti plan --model llama3-70b --cluster h100 --global-batch 2048 --seq-len 8192 --scaling --price 2.5\n"
        "  tutti plan --model llama3-8b --cluster h100 --gpus 64 --global-batch 512 --site site.json\n"
        "  tutti plan --budget 3.8e25 --cluster h100 --gpus 16384\n"
        "  tutti plan --tables");
}

}  // namespace tutti::cli
