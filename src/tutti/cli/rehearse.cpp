// cli/rehearse.cpp: `tutti rehearse` and `tutti train --dry-run`: rehearse one step of a run, which needs neither its
// memory nor data, other ranks or the target machine, and check whether this host has the memory for its ranks. With
// --layout the part of the model on each rank, with --vary one step for each of several values of a key.

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/cli/forecast.h"
#include "tutti/rehearsal/card.h"
#include "tutti/rehearsal/drawing.h"
#include "tutti/rehearsal/present.h"
#include "tutti/report/step_page.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/stages.h"
#include "tutti/train/start_checks.h"
#include "tutti/train/trainer.h"

namespace tutti::cli {

namespace {

// `here`: this machine; null when --cluster names another one.
rehearsal::Target target_of(const RehearseArguments& a, const spec::RunSpec& run, const engine::Machine* here) {
    if (here == nullptr) return target_of(a, run);
    rehearsal::Target target = rehearsal::target_of(*here);
    target.expert_loads = rehearsal::parse_expert_loads("--expert-loads", a.expert_loads, run);
    return target;
}

// The memory of the ranks that `tutti train` would start on this host; nullopt for several ranks on GPUs, which have
// separate memory.
std::optional<train::MemoryVerdict> memory_here(const spec::RunSpec& run, const rehearsal::Rehearsal& largest,
                                                Device& device, int ranks) {
    if (!device.host_readable() && ranks > 1) return std::nullopt;
    const auto verdict = train::judge_memory(train::needs_of(run, largest.memory, device), ranks);
    return verdict.limit.empty() ? std::nullopt : std::optional(verdict);
}

const char* what_train_does(const train::MemoryVerdict& memory) {
    if (!memory.fits()) return "`tutti train` would refuse this run unless --force is given";
    return memory.close() ? "`tutti train` would warn and start" : "`tutti train` would start";
}

// "3 of 8 ranks were rehearsed (0, 1, 3): all call the same operations in the same order"
std::string agreement(const rehearsal::LayoutRehearsal& layout) {
    return concat(
        layout.rehearsed.size(), " of ", layout.shown.ranks, " ranks were rehearsed (", joined(layout.rehearsed),
        "): ", layout.difference.empty() ? "all call the same operations in the same order" : layout.difference);
}

// Ranks of hosts are numbered one host after another.
std::string crossing_warning(const RehearseArguments& a, const spec::RunSpec& run, const rehearsal::Rehearsal& shown) {
    int per_host = a.ranks_per_host;
    if (per_host == 0 && !a.cluster.empty() && !rehearsal::is_cpu_model(a.cluster)) {
        const hardware::Cluster cluster = cluster_of(a);
        per_host = std::max(cluster.per_node, cluster.domain_of_job());  // links of a domain may reach beyond a node
    }
    if (per_host == 0) return "";
    std::vector<std::string> hosts;
    for (int rank = 0; rank < shown.ranks; ++rank) hosts.push_back(std::to_string(rank / per_host));
    return rehearsal::placement_warning(parallel::make_mesh(run, shown.ranks), hosts,
                                        rehearsal::sent_in(shown, mesh::kTp));
}

// Of a node of the cluster; nothing where no cluster is named, or a model of a CPU.
std::optional<std::pair<simulate::HostMemory, hardware::Cluster>> host_of(const RehearseArguments& a,
                                                                          const spec::RunSpec& run,
                                                                          const rehearsal::LayoutRehearsal& r) {
    if (a.cluster.empty() || rehearsal::is_cpu_model(a.cluster)) return std::nullopt;
    const hardware::Cluster cluster = cluster_of(a);
    return std::pair(simulate::host_memory(run, double(r.offloaded), double(r.saved), r.shown.ranks, cluster), cluster);
}

Json describe(const RehearseArguments& a, const spec::RunSpec& run, const rehearsal::LayoutRehearsal& layout,
              const std::optional<train::MemoryVerdict>& memory) {
    const models::ModelCounts& counts = layout.shown.counts;
    Json document = {{"dry_run", true},
                     {"model", name_of(run.model)},
                     {"parameters", counts.parameters},
                     {"flops_per_token", {{"causal", counts.model.causal()}, {"full", counts.model.full()}}}};
    document.update(rehearsal::to_json(layout.shown));
    document["rehearsed_ranks"] = layout.rehearsed;
    document["difference"] = layout.difference.empty() ? Json(nullptr) : Json(layout.difference);
    if (memory)
        document["memory_here"] = {{"needed", memory->needed}, {"available", memory->available},
                                   {"ranks", memory->ranks},   {"limit", memory->limit},
                                   {"fits", memory->fits()},   {"close", memory->close()}};
    if (const auto host = host_of(a, run, layout)) document["host_memory"] = to_json(host->first, host->second);
    if (a.kernels) document["kernels"] = rehearsal::kernels_to_json(layout.shown);
    return document;
}

int show_layout(const RehearseArguments& a, const Io& io, const spec::RunSpec& run, int ranks) {
    check<UsageError>(!a.rank || *a.rank < ranks, "--rank ", a.rank.value_or(0), " of a run of ", ranks,
                      " ranks: required 0 <= rank < ", ranks);
    const rehearsal::Layout layout = rehearsal::layout_of(run, ranks);
    if (!a.svg.empty()) write_file("--svg", a.svg, svg::file(rehearsal::draw_layout(layout, a.ranks_per_host)));
    io.text() << rehearsal::render_layout(layout, a.rank) << std::flush;
    if (io.json) io.print(rehearsal::to_json(layout));
    return 0;
}

// The step on a cluster, every rank of it where they are few, else one of each pipeline position.
void write_step_page(const RehearseArguments& a, const spec::RunSpec& run, int ranks) {
    check<UsageError>(!a.cluster.empty(), "--html ", a.html,
                      ": needs the times of a machine; name one, such as --cluster h100 (tutti hardware lists them)");
    const hardware::Cluster cluster = cluster_of(a);
    const bool every_rank = ranks <= rehearsal::kMostDrawn;
    const simulate::RehearsedStep step =
        simulate::rehearse_on(run, target_of(a, run), ranks, cluster, {}, true, {}, every_rank);
    report::StepPage page{
        .title = concat(name_of(run.model), " on ", ranks, " x ", cluster.name),
        .about = concat("One step, rehearsed by the engine and laid out in time: ", format_time(step.seconds),
                        every_rank ? "" : "; one rank of each pipeline position stands for all of them"),
        .trace = traced(step.timeline),
        .per_node = a.ranks_per_host > 0 ? a.ranks_per_host : cluster.per_node};
    if (every_rank) {
        const Json layout = rehearsal::to_json(rehearsal::layout_of(run, ranks));
        for (const Json& part : layout.at("parts"))
            if (part.at("title").get<std::string>().starts_with("weights that a rank computes with"))
                for (const Json& grid : part.at("grids")) page.grids.push_back(grid);
    }
    write_file("--html", a.html, report::render_step(page));
}

// The first column on the left, the others on the right, two blanks between them.
std::string columns(const std::vector<std::vector<std::string>>& rows) {
    std::vector<size_t> width(rows.front().size(), 0);
    for (const auto& row : rows)
        for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], columns_of(row[i]));
    std::string text;
    for (const auto& row : rows) {
        for (size_t i = 0; i < row.size(); ++i) text += i == 0 ? left(row[0], width[0]) : right(row[i], width[i] + 2);
        text += '\n';
    }
    return text;
}

// A row for each setting, a column for each purpose that a setting has bytes of.
std::vector<std::vector<std::string>> by_purpose(const std::vector<std::pair<std::string, MemoryByPurpose>>& bars) {
    std::vector<std::vector<std::string>> rows(bars.size() + 1);
    for (size_t i = 0; i < bars.size(); ++i) rows[i + 1].push_back(bars[i].first);
    rows[0].emplace_back();
    for (const Purpose purpose : kAllPurposes) {
        const auto has_some = [&](const auto& bar) { return bar.second[purpose] > 0; };
        if (std::none_of(bars.begin(), bars.end(), has_some)) continue;
        rows[0].emplace_back(name_of(purpose));
        for (size_t i = 0; i < bars.size(); ++i) rows[i + 1].push_back(format_bytes(bars[i].second[purpose]));
    }
    return rows;
}

int show_variations(const RehearseArguments& a, const Io& io, int ranks) {
    std::ostream& text = io.text();
    std::vector<std::pair<std::string, MemoryByPurpose>> bars, largest;
    Json variations = Json::array();
    std::string title;
    std::vector<std::vector<std::string>> answers = {{"", "peak", "offloaded", "sent", "FLOPs"}};
    for (const auto& [setting, with] : cli::variations(a)) {
        const spec::RunSpec run = read_run(with, ranks, false);
        require_one_stage(run, "--vary");
        std::optional<engine::Machine> here;
        if (a.cluster.empty()) here.emplace(engine::machine_of(run, {}, ""));
        const rehearsal::Target target = target_of(with, run, here ? &*here : nullptr);
        const auto layout = rehearsal::rehearse_layout(run, target, ranks, a.rank);
        check(layout.difference.empty(), setting, ": this layout would not run: ", layout.difference);
        const rehearsal::Rehearsal& r = layout.shown;
        title = concat(name_of(run.model), " on ", counted(ranks, "rank"), ": memory of a rank at its peak");
        int64_t sent = 0;
        for (const parallel::GroupTraffic& t : r.communication) sent += t.traffic.sent;
        answers.push_back({setting, format_bytes(r.memory.peak()), format_bytes(r.memory.offloaded), format_bytes(sent),
                           format_flops(r.flops)});
        bars.emplace_back(setting, r.memory.at_peak);
        largest.emplace_back(setting, r.memory.peaks);
        variations.push_back(rehearsal::to_json(r));
        variations.back()["set"] = setting;
    }
    text << title << "\n\n"
         << columns(answers) << "\nof the peak:\n\n"
         << columns(by_purpose(bars)) << "\nlargest of each, each at its own time:\n\n"
         << columns(by_purpose(largest)) << std::flush;
    if (!a.svg.empty())
        write_file("--svg", a.svg, svg::file(svg::draw_with_legend(rehearsal::memory_bars(title, bars))));
    io.print(Json{{"variations", variations}});
    return 0;
}

// The rehearsed step of each stage, and the machine, if it is this one.
struct RehearsedStages {
    std::vector<spec::RunSpec> stages;
    std::vector<rehearsal::LayoutRehearsal> layouts;
    std::optional<engine::Machine> here;

    std::vector<const rehearsal::Rehearsal*> shown() const {
        std::vector<const rehearsal::Rehearsal*> all;
        for (const rehearsal::LayoutRehearsal& layout : layouts) all.push_back(&layout.shown);
        return all;
    }
};

RehearsedStages rehearse_stages(const RehearseArguments& a, const comm::Launch& launch, int ranks,
                                const spec::RunSpec& whole) {
    RehearsedStages r{.stages = spec::stages_of(whole)};
    if (a.cluster.empty())
        r.here.emplace(engine::machine_of(r.stages.front(), comm::local_rank(launch, launch.rank, ranks), ""));
    for (const spec::RunSpec& stage : r.stages)
        r.layouts.push_back(
            rehearsal::rehearse_layout(stage, target_of(a, stage, r.here ? &*r.here : nullptr), ranks, a.rank));
    return r;
}

void print_step(const RehearseArguments& a, const Io& io, const spec::RunSpec& run, const std::string& card,
                const rehearsal::LayoutRehearsal& layout, const std::optional<train::MemoryVerdict>& memory) {
    std::ostream& text = io.text();
    if (a.kernels)
        text << rehearsal::render_program(layout.shown) << '\n' << rehearsal::render_flops(layout.shown) << '\n';
    text << card;
    if (layout.shown.ranks > 1) text << agreement(layout) << '\n';
    if (!layout.shown.assumed.empty()) text << "note: " << layout.shown.assumed << '\n';
    const std::string crossing = crossing_warning(a, run, layout.shown);
    if (!crossing.empty()) io.err << "warning: " << crossing << std::endl;
    if (const auto host = host_of(a, run, layout)) {
        const std::string problem = host_memory_problem(host->first, host->second);
        text << "host of a node: " << text_of(host->first, host->second)
             << (problem.empty() ? "" : ": TOO LITTLE MEMORY") << '\n';
    }
    if (memory) text << "on this host " << memory->text() << ": " << what_train_does(*memory) << '\n';
    text << std::flush;
}

// The card, and what was asked for, of the stage with the most memory.
int show_step(const RehearseArguments& a, const Io& io, const comm::Launch& launch, int ranks,
              const spec::RunSpec& whole) {
    try {
        train::check_stored_weights(spec::stages_of(whole).front());
    } catch (const Error& error) {
        io.err << "warning: `tutti train` would refuse this run: " << error.what() << std::endl;
    }
    const RehearsedStages rehearsed = rehearse_stages(a, launch, ranks, whole);
    const std::vector<const rehearsal::Rehearsal*> shown = rehearsed.shown();
    const size_t largest = rehearsal::largest_of(shown);
    const spec::RunSpec& run = rehearsed.stages[largest];
    const rehearsal::LayoutRehearsal& layout = rehearsed.layouts[largest];
    std::optional<train::MemoryVerdict> memory;
    if (rehearsed.here)
        memory = memory_here(run, layout.shown, *rehearsed.here->device, launch.size > 1 ? launch.local_size : ranks);
    if (!a.svg.empty())
        write_file("--svg", a.svg,
                   svg::file(rehearsal::draw_memory_over_step(concat(name_of(run.model), ": memory of rank ",
                                                                     layout.shown.rank, " of ", ranks, " over a step"),
                                                              layout.shown.program, layout.shown.memory_capacity)));
    if (!a.html.empty()) write_step_page(a, run, ranks);
    print_step(a, io, run, rehearsal::render_card(run, layout.shown, rehearsal::stage_lines(whole, 0, shown)), layout,
               memory);
    if (rehearsed.here)
        io.next({"tutti train" + words_of(a), "tutti verify" + words_of(a) + "   # the same run as one rank?"});
    const std::vector<spec::RunSpec>& stages = rehearsed.stages;
    if (io.json) {
        Json document = describe(a, run, layout, memory);
        if (!whole.stages.empty()) document["stage"] = run.place.number;
        for (size_t i = 0; i < whole.stages.size(); ++i)
            document["stages"].push_back({{"first", stages[i].place.first},
                                          {"last", spec::last_step(stages[i])},
                                          {"peak_bytes", shown[i]->memory.peak()}});
        io.print(document);
    }
    for (size_t i = 0; i < stages.size(); ++i) {
        const std::string& difference = rehearsed.layouts[i].difference;
        check(difference.empty(), spec::of_stage(stages[i], concat("this layout would not run: ", difference)));
    }
    return 0;
}

}  // namespace

int rehearse(const RehearseArguments& a, const Io& io) {
    const comm::Launch launch = comm::this_launch();
    if (launch.rank != 0) return 0;  // one rank prints the result
    const int ranks = launch.ranks(a.ranks);
    check<UsageError>(a.ranks_per_host == 0 || !a.layout || !a.svg.empty(), "--per-host ", a.ranks_per_host,
                      ": --layout as text has no hosts; draw it: --svg FILE");
    if (!a.vary.empty()) return show_variations(a, io, ranks);
    const spec::RunSpec whole = read_run(a, ranks, false);
    if (a.layout) {
        require_one_stage(whole, "--layout");
        return show_layout(a, io, whole, ranks);
    }
    return show_step(a, io, launch, ranks, whole);
}

Command rehearse_command(Arguments& all, const Io& io) {
    auto& a = all.add<RehearseArguments>();
    return command_of(
        "rehearse", "show what a training step holds, sends and computes, without running it", a, io, rehearse,
        joined_options(
            {run_options(a, "TOML file, as for train"),
             {stage_option(a)},
             machine_options(a, "this one"),
             without({"--vary"}, shown_rank_options(a)),
             rank_options(a),
             without({"--vary"}, {{"--kernels", "", "",
                                   "list kernels and operations of a step in order, once for all blocks", &a.kernels}}),
             without(
                 {"--kernels", "--vary"},
                 {{"--layout", "", "", "show each rank's part of the weights, optimizer state and tokens", &a.layout}}),
             {{"--svg", "FILE", "", "draw the memory over the step; with --layout the layout, with --vary each value",
               &a.svg, kOutput}},
             without({"--layout", "--vary"},
                     {{"--html", "FILE", "",
                       "write the step as a page with a slider: what each rank does, holds and sends at a time; needs "
                       "--cluster",
                       &a.html, kOutput}})}),
        "Examples:\n"
        "  tutti rehearse config.toml --kernels\n"
        "  tutti rehearse config.toml --ranks 8 --set parallel.tp=2 --layout --rank 5\n"
        "  tutti rehearse config.toml --ranks 8 --vary parallel.zero=0,1,2,3 --svg zero.svg\n"
        "  tutti rehearse config.toml --ranks 1024 --cluster h100 --set parallel.zero=3 --json");
}

}  // namespace tutti::cli
