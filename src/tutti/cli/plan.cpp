// cli/plan.cpp: `tutti plan`: the best layouts of a model on a cluster, how they scale, what a compute budget buys, and
// a course's tables.
#include "tutti/planner/plan.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/cli/forecast.h"
#include "tutti/lectures/budget.h"
#include "tutti/lectures/tables.h"
#include "tutti/models/flops.h"
#include "tutti/models/model.h"
#include "tutti/planner/counterfactual.h"
#include "tutti/planner/peers.h"
#include "tutti/planner/rules.h"
#include "tutti/planner/scaling.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/stages.h"
#include "tutti/spec/validate.h"

namespace tutti::cli {

namespace {

struct PlanArguments : ForecastArguments {
    PlanArguments() { ranks = 0; }
    int64_t global_batch = 0;  // sequences; 0: those of the config
    int64_t seq_len = 0;       // 0: that of the config, else 4096, at most the model's positions
    std::string precision;     // "": that of the config
    std::string without;       // "offload,cp": left out of the search
    double margin = 0;         // share of the memory of a device to leave free
    std::string site;          // as of simulate
    int top = 10;
    std::vector<std::string> data;  // of the emitted config
    std::string emit, html, svg;    // files; "": none
    std::string emit_for;           // a trainer (peers/peers.h); "": this one
    // By Peer: a file whose run is planned; "": none.
    std::vector<std::string> from = std::vector<std::string>(peers::names().size());
    std::string why_not;  // a layout in words; "": none
    bool explain = false;
    bool scaling = false;    // show the best layout at 8 to 65,536 devices instead
    bool tables = false;     // show a course's tables instead
    double parameters = 0;   // with tables, budget or tokens, in place of a model; 0: none
    double budget = 0;       // FLOPs of a compute budget to show instead; 0: none
    double tokens = 0;       // of a run whose compute to show instead; 0: none
    double mfu = 0.4;        // with budget
    double price = 0;        // dollars per device and hour; 0: the cluster file's
    double storage_gbs = 1;  // GB/s of a node for checkpoints
    double restart = 600;    // seconds from a failure until training continues
};

bool has(const std::vector<std::string>& set, const std::string& key) {
    return std::any_of(set.begin(), set.end(), [&](const std::string& s) { return s.starts_with(key + "="); });
}

// The run, or the stage that is asked for, or the longest one.
spec::RunSpec planned_run(const PlanArguments& a) { return spec::longest_stage(parse_run(a, false)); }

// `notes`: what the request assumes beyond the arguments.
planner::Request request_of(const PlanArguments& a, std::vector<std::string>& notes) {
    const spec::RunSpec run = planned_run(a);
    if (run.place.number > 0 && a.stage == 0)
        notes.push_back(concat("planned for ", spec::stage_name(run),
                               ", which has the longest sequences; --stage N plans for another"));
    check<UsageError>(run.place.number == 0 || a.stage > 0 || a.emit.empty(), "--emit ", a.emit,
                      ": writes a run of one stage; give --stage N, or set the layout in CONFIG");
    const auto given = [&](const char* key) { return !a.config.empty() || has(a.set, key); };
    planner::Request r{.run = run, .cluster = {}, .gpus = a.ranks};
    spec::TrainSpec& t = r.run.train;
    if (!given("train.global_batch")) t.global_batch = 0;
    if (!given("train.seq_len")) t.seq_len = std::min<int64_t>(run.model.max_positions, 4096);
    if (a.global_batch > 0) t.global_batch = a.global_batch;
    if (a.seq_len > 0) t.seq_len = a.seq_len;
    if (!a.precision.empty()) r.run.precision.compute = a.precision;
    int64_t& positions = r.run.model.max_positions;
    if (t.seq_len > positions) {
        notes.push_back(concat(name_of(run.model), " has ", positions, " positions; planned with ", t.seq_len,
                               ": a table of angles or positions grows, the rest does not depend on it"));
        positions = t.seq_len;
    }
    if (t.global_batch > 0 && a.config.empty()) planner::check_run(r);  // a config is asked about its own layout first
    r.cluster = cluster_of(a);
    if (a.margin > 0) {
        const double whole = r.cluster.memory;
        r.cluster.memory *= 1 - a.margin;
        notes.push_back(concat(format_percent(a.margin), " of ", format_bytes(whole),
                               " of each device is left free: ", format_bytes(r.cluster.memory), " are planned with"));
    }
    std::vector<std::string>& texts = r.run.data.train;
    if (!a.data.empty()) texts = a.data;
    if (texts.empty() || texts == std::vector<std::string>{"none.bin"}) texts = {"data/train.bin"};
    r.expert_loads = rehearsal::parse_expert_loads("--expert-loads", a.expert_loads, run);
    if (!a.site.empty()) r.constants = simulate::read_physics(a.site);
    if (!a.without.empty()) leave_out(r.limits, a.without);
    return r;
}

// The layout of a config, of a peer's script or of --why-not, beside the best. Its bytes of a rank.
double compare_layout(const PlanArguments& a, const std::string& name, const std::string& key,
                      const planner::Request& request, const spec::RunSpec& run, const planner::RehearsedRun& best,
                      const Io& io, Json& document) {
    const planner::RehearsedRun mine = rehearsed(request, target_of(request), run, !a.svg.empty());
    const std::vector<planner::Change> changes = planner::changes(request, mine, best.run);
    io.text() << compare(name, mine, best, changes);
    document[key] = planner::to_json(mine, best, changes);
    const auto bytes = static_cast<double>(mine.bytes());
    if (a.svg.empty()) return bytes;
    write_file("--svg", a.svg,
               svg::file(picture_of(mine.step.timeline, concat(name, ": a step of ", format_time(mine.seconds())))));
    io.text() << "wrote " << a.svg << '\n';
    return bytes;
}

// The fastest layout with the axes of --why-not beside the best; that there is none is an answer, too.
void why_not(const PlanArguments& a, const planner::Request& request, const planner::Request& held,
             const planner::RehearsedRun& best, const Io& io, Json& document) {
    std::optional<planner::Plan> other;
    try {
        other = planner::make_plan(held, 1);
    } catch (const UsageError& error) {
        if (!a.svg.empty()) throw;  // nothing to draw
        io.text() << "\nwhy not " << a.why_not << ": with these axes " << error.what() << '\n';
        document["why_not"] = {{"problem", error.what()}};
        return;
    }
    const planner::Finalist& chosen = other->finalists.chosen.front();
    io.text() << "\nwhy not " << a.why_not << ": the fastest of these is " << planner::describe_layout(chosen.run)
              << '\n';
    compare_layout(a, a.why_not, "why_not", request, chosen.run, best, io, document);
}

// The trainer whose file describes the run.
std::optional<peers::Peer> peer_of(const PlanArguments& a) {
    const auto file = std::ranges::find_if(a.from, [](const std::string& each) { return !each.empty(); });
    if (file == a.from.end()) return std::nullopt;
    return static_cast<peers::Peer>(file - a.from.begin());
}

int plan_layouts(const PlanArguments& a, const Io& io, std::vector<std::string> notes) {
    check<UsageError>(
        a.vary.empty(), "--vary ", joined(a.vary),
        ": a plan varies the layout itself; use it with simulate or rehearse, or run plan for each value");
    planner::Request request = request_of(a, notes);
    check<UsageError>(request.gpus > 0 && request.run.train.global_batch > 0,
                      "--ranks (--gpus) and --global-batch are needed: how many devices, and ",
                      "sequences of a step over all of them");
    if (!a.emit_for.empty()) keep_to(request.limits, peers::named(a.emit_for));
    // A broken rule of the config, or a wrong word of --why-not, is said before the search and before a line is
    // printed.
    planner::Request held = request;
    if (!a.why_not.empty()) hold(held.limits, a.why_not);
    const std::optional<peers::Peer> peer = peer_of(a);
    std::optional<spec::RunSpec> mine;
    if (!a.config.empty() || peer) {
        mine = request.run;
        spec::validate(*mine, request.gpus);
        simulate::check_machine(*mine, request.cluster);
    }
    planner::check_request(request);
    const planner::Plan plan = planner::make_plan(request, to_size(a.top));
    std::ostream& text = io.text();
    for (const std::string& note : notes) text << "note: " << note << '\n';
    text << planner::render(plan);
    Json document = planner::to_json(plan);
    if (!notes.empty()) document["notes"] = notes;
    if (a.explain) {
        const planner::Recipe recipe = planner::field_recipe(request, plan.finalists.chosen.front());
        text << planner::render(recipe);
        document["recipe"] = planner::to_json(recipe);
    }
    const planner::Finalist& best = plan.finalists.chosen.front();
    if (mine) {
        const double ours = compare_layout(a, "your layout", "mine", request, *mine, best, io, document);
        if (const auto theirs = peer ? planner::memory_of(*peer, request, *mine) : std::nullopt) {
            text << planner::render(*theirs, ours);
            document["mine"]["peer_memory"] = planner::to_json(*theirs, ours);
        }
    }
    if (!a.why_not.empty()) why_not(a, request, held, best, io, document);
    if (!a.emit.empty()) {
        const std::string config = a.emit_for.empty() ? planner::to_config(plan, best)
                                                      : peers::emit(peers::named(a.emit_for), best.run, request.gpus);
        write_file("--emit", a.emit, config);
        text << "wrote " << a.emit
             << (a.data.empty() && a.emit_for.empty() ? "; set its [data] train before `tutti train`" : "") << '\n';
    } else if (!a.emit_for.empty()) {
        text << '\n' << peers::emit(peers::named(a.emit_for), best.run, request.gpus);
    }
    if (!a.html.empty()) {
        write_file("--html", a.html, planner::to_html(plan));
        text << "wrote " << a.html << '\n';
    }
    text << std::flush;
    std::string machine = " --cluster " + quoted_for_shell(a.cluster);
    for (const std::string& set : a.set_cluster) machine += " --set-cluster " + quoted_for_shell(set);
    if (a.emit_for.empty())
        io.next({a.emit.empty() ? "the same command with --emit best.toml"
                                : concat("tutti train ", quoted_for_shell(a.emit), " --ranks ", request.gpus,
                                         " --dry-run", machine)});
    io.print(document);
    return 0;
}

// The run of another trainer's file in place of a config.
int plan_of_peer(const PlanArguments& a, const Io& io) {
    check<UsageError>(std::count(a.from.begin(), a.from.end(), "") + 1 == std::ssize(a.from),
                      "two --from-… describe two runs; give one");
    const auto which = to_size(static_cast<int>(*peer_of(a)));
    const std::string& file = a.from[which];
    check<UsageError>(a.config.empty(), "--from-", peers::names()[which], " ", file,
                      " describes the run; leave out CONFIG");
    const peers::TheirRun peer = peers::read(static_cast<peers::Peer>(which), read_file(file), file);
    const bool has_model = has(peer.set, "model.layers") || has(peer.set, "model.preset");
    check<UsageError>(has_model == a.model.empty(), file,
                      has_model ? " has a model; leave out --model" : " has no model; give --model");
    PlanArguments with = a;
    with.set = peer.set;
    if (has_model) with.model = peer.preset();
    if (has(peer.set, "model.layers")) with.set.insert(with.set.begin(), "model.preset=");
    with.set.insert(with.set.end(), a.set.begin(), a.set.end());
    std::erase_if(with.set, [](const std::string& set) { return set.starts_with("train.eval_"); });  // needs data
    if (with.ranks == 0) with.ranks = peer.ranks;
    check<UsageError>(with.ranks > 0, file, " does not say how many ranks it starts; give --ranks");
    std::vector<std::string> notes = peer.notes;
    notes.insert(notes.begin(), concat(file, ": ", peer.set.size(), " options read, ", peer.ignored.size(),
                                       " without effect on time and memory"));
    if (!peer.unknown.empty())
        notes.push_back(concat("options that are not known here, and not part of this answer: ", joined(peer.unknown)));
    return plan_layouts(with, io, notes);
}

int plan_scaling(const PlanArguments& a, const Io& io) {
    std::vector<std::string> notes;
    const planner::Request request = request_of(a, notes);
    check<UsageError>(request.run.train.global_batch > 0,
                      "--global-batch is needed: sequences of a step, the same at every size");
    for (const std::string& note : notes) io.text() << "note: " << note << '\n';
    const planner::ScalingOptions options{.last = a.ranks > 0 ? a.ranks : 65536,
                                          .storage_per_node = a.storage_gbs * 1e9,
                                          .restart_s = a.restart,
                                          .price = a.price > 0 ? std::optional(a.price) : std::nullopt};
    const auto rows = planner::scale(request, options);
    io.text() << planner::render(request, options, rows) << std::flush;
    io.print(planner::to_json(rows));
    return 0;
}

// Two of --budget, --parameters (or the model's) and --tokens give the third.
int plan_budget(const PlanArguments& a, const Io& io) {
    lectures::BudgetPlan plan{.flops = a.budget, .mfu = a.mfu};
    double parameters = a.parameters;
    if (!a.model.empty()) {
        parameters = double(models::active_parameter_count(models::outline(parse_run(a, false).model)));
        plan.of = a.model;
    }
    const int given = int{a.budget > 0} + int{parameters > 0} + int{a.tokens > 0};
    check<UsageError>(given < 3, "--budget is 6 x parameters x tokens; give two of the three");
    check<UsageError>(given == 2 || a.tokens <= 0, "--tokens needs --parameters, --model or --budget beside it");
    if (given == 2) {
        const double N = parameters > 0 ? parameters : a.budget / (6 * a.tokens);
        plan.run = {N, a.tokens > 0 ? a.tokens : a.budget / (6 * N)};
        plan.flops = plan.run->flops();
    }
    if (!a.cluster.empty()) {
        check<UsageError>(a.ranks > 0, "a budget on --cluster ", a.cluster, " needs --gpus for days and money");
        const hardware::Cluster cluster = cluster_of(a);
        plan.rate = cluster.peak(cluster.sixteen_bits()) * a.ranks * a.mfu;
        plan.seconds = plan.flops / plan.rate;
        plan.dollars = (a.price > 0 ? a.price : cluster.price_per_hour) * a.ranks * plan.seconds / 3600;
        plan.machines = concat(a.ranks, " x ", cluster.name);
    }
    io.text() << lectures::render(plan);
    if (!a.html.empty()) {
        write_file("--html", a.html, lectures::to_html(plan));
        io.text() << "wrote " << a.html << '\n';
    }
    io.text() << std::flush;
    io.print(lectures::to_json(plan));
    return 0;
}

// Of a course; or of the state of a model, or of so many parameters in a matrix.
int plan_tables(const PlanArguments& a, const Io& io) {
    std::vector<lectures::Table> shown;
    const int64_t devices = std::max(1, a.ranks);
    if (!a.model.empty()) {
        const spec::RunSpec run = parse_run(a, false);
        const models::Model model = models::outline(run.model);
        shown = {lectures::bytes_of_a_parameter(), lectures::state_of_a_device(a.model, model.parameters(), devices)};
    } else if (a.parameters > 0) {
        autograd::Parameter matrix{
            .name = "matrix", .shape = {1, static_cast<int64_t>(a.parameters)}, .role = autograd::Role::column};
        shown = {lectures::bytes_of_a_parameter(), lectures::state_of_a_device("matrices", {&matrix}, devices)};
    } else {
        shown = lectures::all_tables();
    }
    Json tables = Json::array();
    for (const lectures::Table& table : shown) {
        io.text() << lectures::render(table) << '\n';
        tables.push_back(lectures::to_json(table));
    }
    io.text() << std::flush;
    io.print(Json{{"tables", tables}});
    return 0;
}

// --from-megatron, …
Options from_options(PlanArguments& a) {
    const std::vector<std::string> names = peers::names();
    Options options;
    for (size_t i = 0; i < names.size(); ++i)
        options.push_back({"--from-" + names[i], "FILE", "",
                           concat("take model, batch and layout from a launch script or config of ", names[i]),
                           &a.from[i], kPath});
    return options;
}

// What a budget needs beside its own options is the machine alone; the tables are the same for every one.
Options excluding_budgets(Options options) {
    for (Option& option : options) {
        option.without.emplace_back("--tables");
        if (option.name != "--cluster,--for" && option.name != "--set-cluster")
            option.without.insert(option.without.end(), {"--budget", "--tokens"});
    }
    return options;
}

int plan(const PlanArguments& a, const Io& io) {
    const bool budget = a.budget > 0 || a.tokens > 0;
    check<UsageError>(a.svg.empty() || !a.why_not.empty() || !a.config.empty() || peer_of(a), "--svg ", a.svg,
                      ": draws the timeline of your layout or of --why-not; give CONFIG or --why-not");
    check<UsageError>(!a.tables || a.ranks == 0 || !a.model.empty() || a.parameters > 0, "--tables --gpus ", a.ranks,
                      ": of which model? give --model, or --parameters");
    if (a.tables) return plan_tables(a, io);
    if (budget) return plan_budget(a, io);
    if (peer_of(a)) return plan_of_peer(a, io);
    return a.scaling ? plan_scaling(a, io) : plan_layouts(a, io, {});
}

}  // namespace

Command plan_command(Arguments& all, const Io& io) {
    auto& a = all.add<PlanArguments>();
    constexpr double kMany = 1e9;
    Options shared = run_options(a, "TOML file of the run to plan; its own layout is compared");
    for (Option& option : shared) {
        if (option.name == "--ranks,--gpus") option.default_text = "";
        if (option.name == "CONFIG") option.without = {"--tables", "--budget", "--tokens"};
        if (option.name == "--set") {
            option.beside = {"CONFIG", "--model"};
            for (const std::string& name : peers::names()) option.beside.push_back("--from-" + name);
        }
    }
    const Options of_a_run = joined_options(
        {{stage_option(a)},
         machine_options(a, ""),
         {{"--global-batch", "B", "", "sequences of a step, over all devices [CONFIG's]", &a.global_batch,
           Between{1, kMany}},
          {"--seq-len", "S", "", "tokens of a sequence [CONFIG's, or 4096]", &a.seq_len, Between{1, kMany}},
          {"--precision", "TYPE", "", "bf16, f16, f32 or tf32 [CONFIG's, or bf16]", &a.precision,
           Choices{"bf16", "f16", "f32", "tf32"}},
          {"--without", "PARTS", "",
           "leave out offload, tp, cp, pp, ep, etp, hsdp, zero3, recompute or schedules by name, with commas",
           &a.without},
          {"--margin", "SHARE", "0", "share of a device's memory that a layout leaves free", &a.margin,
           Between{0, 0.9}},
          {"--site", "FILE", "", "constants of a site, written by `tutti simulate --table FILE --fit OUT`", &a.site,
           kPath}}});
    const Options of_one_plan = joined_options(
        {{{"--top", "N", "10", "layouts to rehearse and show", &a.top, Between{1, 50}},
          {"--emit", "FILE", "", "write the config of the best layout, for `tutti train`", &a.emit, kOutput}},
         beside({"--emit"}, {{"--data", "FILE", "", "data.train of the config; repeatable", &a.data, kPath}}),
         {{"--explain", "", "", "compare with the rules of a lecture and with the nearest published run", &a.explain},
          {"--why-not", "LAYOUT", "",
           "price the fastest layout with these axes, such as \"tp 8 pp 16\", and what would help it", &a.why_not},
          {"--svg", "FILE", "", "draw the predicted timeline of CONFIG's layout, or of --why-not", &a.svg, kOutput},
          {"--emit-for", "TRAINER", "",
           concat("keep to layouts that ", joined(peers::names()), " runs, and write its options"), &a.emit_for,
           peers::names()}},
         from_options(a)});
    const Options of_scaling = {
        {"--storage", "GB/S", "1", "rate at which a node writes checkpoints", &a.storage_gbs, Between{1e-3, 1e4}},
        {"--restart", "S", "600", "seconds from a failure until training continues", &a.restart, Between{0, 1e6}}};
    return command_of(
        "plan", "find the fastest layouts of a model on a cluster", a, io, plan,
        joined_options(
            {shared,
             excluding_budgets(of_a_run),
             without({"--scaling"}, excluding_budgets(of_one_plan)),
             without({"--scaling", "--tables"},
                     {{"--html", "FILE", "",
                       "write a page with the layouts, their time and memory, or with the losses of --budget", &a.html,
                       kOutput}}),
             without(
                 {"--tables", "--budget", "--tokens"},
                 {{"--scaling", "", "", "show layout, goodput and cost at 8 to --gpus [65536] devices", &a.scaling}}),
             beside({"--scaling"}, of_scaling),
             beside({"--scaling", "--budget", "--tokens"},
                    {{"--price", "DOLLARS", "", "price of a device for an hour [the cluster file's price_per_hour]",
                      &a.price, Between{0, 1e4}}}),
             without({"--tables"},
                     {{"--budget", "FLOPS", "", "show parameters, tokens, loss, days and money for a compute budget",
                       &a.budget, Between{1, 1e40}}}),
             without({"--tables"}, beside({"--parameters", "--model", "--budget"},
                                          {{"--tokens", "D", "", "show what training on so many tokens costs",
                                            &a.tokens, Between{1, 1e20}}})),
             beside({"--budget", "--tokens"},
                    {{"--mfu", "SHARE", "0.4", "share of the peak that training reaches", &a.mfu, Between{1e-3, 1}}}),
             {{"--tables", "", "",
               "show the tables of a course: its formulas beside this system; with --model or --parameters: the state "
               "of a device of --gpus [1], for every choice of types",
               &a.tables}},
             without({"--model"}, beside({"--tables", "--budget", "--tokens"},
                                         {{"--parameters", "N", "", "such as 340e9, in place of --model", &a.parameters,
                                           Between{1, 1e15}}}))}),
        "Examples:\n"
        "  tutti plan --model llama3-8b --cluster h100 --gpus 64 --global-batch 512 --seq-len 8192\n"
        "  tutti plan --model llama3-405b --cluster h100 --gpus 16384 --global-batch 2048 --explain\n"
        "  tutti plan --model llama3-70b --cluster h100 --global-batch 2048 --scaling --price 2.5\n"
        "  tutti plan --model llama3-8b --cluster h100 --gpus 64 --global-batch 512 --site site.json\n"
        "  tutti plan run.toml --cluster h100 --ranks 64\n"
        "  tutti plan run.toml --cluster h100 --gpus 16384 --why-not \"tp 8 pp 16\"\n"
        "  tutti plan --model llama3-70b --cluster h100 --gpus 64 --global-batch 256 --emit-for megatron\n"
        "  tutti plan --from-megatron pretrain.sh --cluster h100\n"
        "  tutti plan --budget 3.8e25 --cluster h100 --gpus 16384\n"
        "  tutti plan --parameters 175e9 --tokens 300e9 --cluster a100 --gpus 1024\n"
        "  tutti plan --tables\n"
        "  tutti plan --tables --model llama3-8b --gpus 64\n"
        "  tutti plan --tables --parameters 340e9 --gpus 1024");
}

}  // namespace tutti::cli
