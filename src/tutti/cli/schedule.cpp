// cli/schedule.cpp: `tutti schedule`: pipeline schedules by name, from a CSV file or searched for: their order, their
// timeline, and all of them in one table.
#include "tutti/schedule/schedule.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/cli/command.h"
#include "tutti/schedule/automatic.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/lowering.h"
#include "tutti/schedule/timeline.h"
#include "tutti/schedule/validate.h"
#include "tutti/spec/nearest.h"

namespace tutti::cli {

namespace {

struct ScheduleArguments {
    std::string kind;  // a name of schedule/generators.h, auto, all, or a CSV file
    std::optional<int> stages, chunks, microbatches, group_size, memory_limit;
    std::string forward = "1", backward_input = "1", backward_weight = "1",
                latency = "0";             // times, exact: "0.5", "1/3"
    std::string overlap;                   // "": F + I + W
    std::string message_bytes, bandwidth;  // "" and "": a message takes its latency only
    double w_memory = 1;                   // auto: share of a chunk's memory that lives between I and W
    std::string csv, svg;                  // "": none
    bool messages = false;                 // include sends and receives in the CSV and the JSON
};

using schedule::Dimensions;
using schedule::Schedule;
using schedule::Timeline;

// The times of the command line, counted in `unit`, so that all sums are exact.
struct CommandTimes {
    schedule::Times<int64_t> times;
    int64_t unit = 1;

    double seconds(int64_t count) const { return static_cast<double>(count) / static_cast<double>(unit); }
};

// How long a message occupies its link, as a fraction: bytes / bandwidth.
std::string transfer_of(const ScheduleArguments& a) {
    check<UsageError>(
        a.message_bytes.empty() == a.bandwidth.empty(), a.bandwidth.empty() ? "--bandwidth" : "--message-bytes",
        " is missing: a message takes its latency and --message-bytes / --bandwidth; give both or neither");
    if (a.bandwidth.empty()) return "0";
    for (const auto& [name, text] : {std::pair{"--message-bytes", a.message_bytes}, {"--bandwidth", a.bandwidth}})
        check<UsageError>(text.find('/') == std::string::npos, name, " = ", text,
                          ": required a number such as 67108864 or 2.5e10");
    return concat(a.message_bytes, '/', a.bandwidth);
}

CommandTimes times_of(const ScheduleArguments& a, int64_t actions) {
    const bool overlaps = !a.overlap.empty();
    const schedule::ExactTimes exact = schedule::exact_times({{"--f", a.forward},
                                                              {"--i", a.backward_input},
                                                              {"--w", a.backward_weight},
                                                              {"--comm", a.latency},
                                                              {"--message-bytes / --bandwidth", transfer_of(a)},
                                                              {"--fb", overlaps ? a.overlap : "0"}},
                                                             actions);
    CommandTimes result;
    result.times.stages = {{exact.counts[0], exact.counts[1], exact.counts[2]}};
    result.times.latency = exact.counts[3];
    result.times.transfer = exact.counts[4];
    if (overlaps) result.times.overlap = exact.counts[5];
    result.unit = exact.unit;
    return result;
}

constexpr const char* kPipeDream = "pipedream";

// A schedule with its timeline.
struct Timed {
    Schedule schedule;
    Timeline<int64_t> timeline;
    int peak = 0;  // live chunks on the rank with the most
};

Timed time(Schedule s, const CommandTimes& times) {
    Timed result{std::move(s), {}, 0};
    result.timeline = schedule::simulate(result.schedule, times.times);
    result.peak = *std::max_element(result.timeline.peak_until_w.begin(), result.timeline.peak_until_w.end());
    return result;
}

int64_t actions_of(const Dimensions& d) { return int64_t{6} * d.ranks * d.chunks * d.microbatches; }

// The dimensions of a schedule that is generated; a schedule from a file has its own.
Dimensions dimensions_of(const ScheduleArguments& a, int default_chunks) {
    check<UsageError>(a.stages && a.microbatches,
                      "--stages and --microbatches are required, unless --kind is a CSV file");
    const Dimensions d{*a.stages, a.chunks.value_or(default_chunks), *a.microbatches, a.group_size.value_or(0)};
    constexpr int64_t kMost = 10'000'000;  // about a gigabyte
    check<UsageError>(actions_of(d) <= kMost, "--stages x --virtual x --microbatches of ", d.ranks, " x ", d.chunks,
                      " x ", d.microbatches, " are more actions than this command lists; try fewer microbatches");
    return d;
}

Schedule from_file(const ScheduleArguments& a) {
    Schedule s = schedule::read_csv(a.kind);
    validate(s);
    const auto fits = [&](const char* option, std::optional<int> asked, int has) {
        check<UsageError>(!asked || *asked == has, option, ' ', asked.value_or(0), ": ", a.kind, " has ", has,
                          "; leave ", option, " out");
    };
    fits("--stages", a.stages, s.placement.ranks);
    fits("--microbatches", a.microbatches, s.total_microbatches());
    fits("--virtual", a.chunks, s.placement.chunks_per_rank() / s.placement.replicas);
    check<UsageError>(!a.group_size, "--group-size is for interleaved and interleaved-zb, not for a file");
    return s;
}

void check_fits_memory(const Timed& timed, std::optional<int> limit) {
    check<UsageError>(!limit || timed.peak <= *limit, "schedule ", timed.schedule.name, " holds up to ", timed.peak,
                      " live chunks on a rank, more than --memory-limit ", limit.value_or(0),
                      "; try --kind auto, or --kind all to compare");
}

[[noreturn]] void refuse_kind(const std::string& kind) {
    std::vector<std::string> names;
    for (const schedule::Kind& k : schedule::kinds()) names.emplace_back(k.name);
    names.emplace_back(kPipeDream);
    names.emplace_back("auto");
    names.emplace_back("all");
    throw UsageError(concat("--kind ", kind, " is neither a schedule nor a file such as mine.csv; the nearest is ",
                            spec::nearest(kind, names), " of ", joined(names)));
}

Timed make(const ScheduleArguments& a, CommandTimes& times) {
    const bool is_path = schedule::find_kind(a.kind) == nullptr && a.kind.find_first_of("./") != std::string::npos;
    if (is_path) {
        Schedule s = from_file(a);
        times = times_of(a, actions_of({s.placement.ranks, s.placement.chunks_per_rank(), s.total_microbatches()}));
        return time(std::move(s), times);
    }
    const bool automatic = a.kind == "auto", updates_each = a.kind == kPipeDream;
    if (!automatic && !updates_each && schedule::find_kind(a.kind) == nullptr) refuse_kind(a.kind);
    const Dimensions d = dimensions_of(a, 1);
    times = times_of(a, actions_of(d));
    if (updates_each) {
        check<UsageError>(d.chunks == 1 && d.group_size == 0,
                          "--kind pipedream has one stage on each rank; leave --virtual and --group-size out");
        return time(schedule::pipedream(d), times);
    }
    return time(
        automatic ? schedule::automatic(d, times.times, {a.memory_limit.value_or(0), a.w_memory}) : generate(a.kind, d),
        times);
}

// --- output ----------------------------------------------------------------------------------------------------------

double bubble_rate(const Timeline<int64_t>& t) {
    return t.makespan == 0 ? 0 : static_cast<double>(t.bubble) / static_cast<double>(t.makespan);
}

Json in_units(const std::vector<int64_t>& counts, const CommandTimes& times) {
    Json values = Json::array();
    for (const int64_t count : counts) values.push_back(times.seconds(count));
    return values;
}

Json describe(const Timed& timed, const CommandTimes& times, bool messages) {
    const Schedule& s = timed.schedule;
    const Timeline<int64_t>& t = timed.timeline;
    const int m = s.total_microbatches();
    Json actions = Json::array();
    for (const schedule::Program& program : (messages ? s : compute_only(s)).programs) {
        Json& row = actions.push_back(Json::array());
        for (const schedule::Action& a : program) row.push_back(to_string(a));
    }
    const auto& of = times.times;
    Json used = {{"f", times.seconds(of.stages[0].forward)},
                 {"i", times.seconds(of.stages[0].backward_input)},
                 {"w", times.seconds(of.stages[0].backward_weight)},
                 {"fb", of.overlap ? Json(times.seconds(*of.overlap)) : Json()},
                 {"latency", times.seconds(of.latency)},
                 {"transfer", times.seconds(of.transfer)}};
    Json per_microbatch = t.messages / m;
    if (t.messages % m != 0) per_microbatch = static_cast<double>(t.messages) / m;
    Json document = {{"kind", s.name},
                     {"ranks", s.placement.ranks},
                     {"chunks_per_rank", s.placement.chunks_per_rank()},
                     {"replicas", s.placement.replicas},
                     {"microbatches", m},
                     {"times", used},
                     {"makespan", times.seconds(t.makespan)},
                     {"cost", times.seconds(t.cost)},
                     {"bubble", times.seconds(t.bubble)},
                     {"bubble_rate", bubble_rate(t)},
                     {"busy", in_units(t.busy, times)},
                     {"idle", in_units(t.idle, times)},
                     {"peak_chunks_until_w", t.peak_until_w},
                     {"peak_chunks_until_i", t.peak_until_i},
                     {"messages", t.messages},
                     {"messages_per_microbatch", per_microbatch},
                     {"actions", actions}};
    if (s.updates_each) {
        document["weight_versions"] = weight_versions(s);
        document["versions_held"] = versions_held(s);
    }
    return document;
}

// 5.5, 9: at most three decimals.
std::string plain(double value) {
    std::string text = format_fixed(value, 3);
    if (text.find('.') == std::string::npos) return text;
    text.erase(text.find_last_not_of('0') + 1);
    if (text.ends_with('.')) text.pop_back();
    return text;
}

Timeline<double> in_units(const Timeline<int64_t>& t, const CommandTimes& times) {
    Timeline<double> result;
    result.makespan = times.seconds(t.makespan);
    result.bubble = times.seconds(t.bubble);
    for (const auto& spans : t.ranks) {
        auto& row = result.ranks.emplace_back();
        for (const auto& span : spans) row.push_back({times.seconds(span.start), times.seconds(span.end), span.action});
    }
    return result;
}

void print(const Timed& timed, const CommandTimes& times, std::ostream& text) {
    const Schedule& s = timed.schedule;
    const Timeline<int64_t>& t = timed.timeline;
    constexpr int kColumns = 110;
    text << s.name << ": " << s.placement.ranks << " ranks, " << counted(s.placement.chunks_per_rank(), "stage")
         << " each";
    if (s.placement.replicas > 1) text << " (" << s.placement.replicas << " replicas: every weight twice)";
    text << ", " << s.total_microbatches() << " microbatches\n\n"
         << draw_text(in_units(t, times), s.placement, kColumns)
         << "F forward, B backward, I and W its halves, # overlap; lower case: second chunk or replica; . idle\n\n"
         << "makespan  " << plain(times.seconds(t.makespan)) << "\nbubble    " << plain(times.seconds(t.bubble)) << " ("
         << format_percent(bubble_rate(t)) << "; busy " << format_percent(1 - bubble_rate(t)) << ")\ncost      "
         << plain(times.seconds(t.cost)) << " (first start to last end of a rank)\nmessages  " << t.messages << " ("
         << plain(double(t.messages) / s.total_microbatches())
         << " per microbatch)\nlive chunks until W, by rank: " << joined(t.peak_until_w, " ")
         << "\nlive chunks until I, by rank: " << joined(t.peak_until_i, " ") << '\n';
    if (!s.updates_each) return;
    text << "\nupdates that the weights of each pass have seen\n";
    const auto versions = weight_versions(s);
    for (size_t rank = 0; rank < versions.size(); ++rank) {
        text << "rank " << rank << "  ";
        const schedule::Program& program = s.programs[rank];
        for (size_t i = 0; i < program.size(); ++i)
            text << (i > 0 ? " " : "") << (program[i].op == schedule::Op::forward ? 'F' : 'B') << program[i].microbatch
                 << ":v" << versions[rank][i];
        text << '\n';
    }
    text << "versions held at once, by rank: " << joined(versions_held(s), " ")
         << "\nthe bubble is that of one step, without a flush between steps only the first one has it\n";
}

// One line for each kind; times are of chunks, so that only shares compare kinds with different numbers of chunks.
int compare(const ScheduleArguments& a, const Io& io) {
    check<UsageError>(a.csv.empty() && a.svg.empty(), "--csv and --svg are for one schedule, not for --kind all");
    constexpr int kChunks = 2;  // where a kind leaves them free
    const Dimensions asked = dimensions_of(a, kChunks);
    const CommandTimes times = times_of(a, 2 * actions_of(asked));
    std::ostream& text = io.text();
    text << left("schedule", 16) << right("stages", 7) << right("makespan", 10) << right("bubble", 9)
         << right("share", 9) << right("cost", 9) << right("live", 6) << right("of 1", 7) << right("weights", 9)
         << right("messages", 10) << '\n';
    Json schedules = Json::array(), refused = Json::array();
    std::string reasons;
    for (const schedule::Kind& kind : schedule::kinds()) {
        Dimensions d = asked;
        if (kind.chunks != 0) d.chunks = kind.chunks;
        if (!kind.takes_group_size) d.group_size = 0;
        try {
            const Timed timed = time(generate(kind.name, d), times);
            check_fits_memory(timed, a.memory_limit);
            const Timeline<int64_t>& t = timed.timeline;
            const Schedule& s = timed.schedule;
            const int chunks = s.placement.chunks_per_rank() / s.placement.replicas;
            text << left(s.name, 16) << right(std::to_string(chunks), 7) << right(plain(times.seconds(t.makespan)), 10)
                 << right(plain(times.seconds(t.bubble)), 9) << right(format_percent(bubble_rate(t)), 9)
                 << right(plain(times.seconds(t.cost)), 9) << right(std::to_string(timed.peak), 6)
                 << right(plain(double(timed.peak) / chunks), 7) << right(concat(s.placement.replicas, "x"), 9)
                 << right(plain(double(t.messages) / s.total_microbatches()), 10) << '\n';
            schedules.push_back(describe(timed, times, a.messages));
        } catch (const UsageError& error) {
            reasons += concat(error.what(), '\n');
            refused.push_back({{"kind", kind.name}, {"reason", error.what()}});
        }
    }
    text << "stages: per rank and replica; times: of a stage, so compare shares. live: chunks on the fullest rank "
            "until W;\n"
            "of 1: as stages of one rank that is not divided. messages: per microbatch.\n"
         << reasons << std::flush;
    io.print(Json{{"schedules", schedules}, {"refused", refused}});
    return 0;
}

int schedule(const ScheduleArguments& a, const Io& io) {
    check<UsageError>(a.kind == "auto" || a.w_memory == ScheduleArguments().w_memory,
                      "--w-memory is for --kind auto, which weighs it against --memory-limit; --kind ", a.kind,
                      " has an order of its own: leave --w-memory out");
    if (a.kind == "all") return compare(a, io);
    CommandTimes times;
    Timed timed = make(a, times);
    validate(timed.schedule);
    if (a.kind != "auto") check_fits_memory(timed, a.memory_limit);
    if (a.messages && !timed.schedule.has_messages()) timed.schedule = insert_messages(timed.schedule);
    if (!a.csv.empty()) write_file("--csv", a.csv, to_csv(a.messages ? timed.schedule : compute_only(timed.schedule)));
    if (!a.svg.empty())
        write_file(
            "--svg", a.svg,
            svg::file(svg::draw_with_legend(picture_of(
                in_units(timed.timeline, times), timed.schedule,
                concat("time; a forward of a stage takes ", plain(times.seconds(times.times.stages[0].forward)))))));
    print(timed, times, io.text());
    if (io.json) io.print(describe(timed, times, a.messages));
    return 0;
}

}  // namespace

Command schedule_command(Arguments& all, const Io& io) {
    auto& a = all.add<ScheduleArguments>();
    Suggestions kinds = {{kPipeDream, "auto", "all"}, true};
    for (const schedule::Kind& kind : schedule::kinds()) kinds.words.emplace_back(kind.name);
    const Options options = {
        required({"--kind", "K", "", "a kind below, auto, all, or FILE.csv", &a.kind, kinds}),
        {"--stages", "P", "", "ranks of the pipeline", &a.stages, Between{1, 1 << 12}},
        {"--virtual", "V", "1; with all 2", "stages per rank, where the kind leaves them free", &a.chunks,
         Between{1, 1 << 10}},
        {"--microbatches", "M", "", "microbatches of a step", &a.microbatches, Between{1, 1 << 16}},
        {"--group-size", "N", "min(P, M)", "microbatches of a group, for interleaved and interleaved-zb", &a.group_size,
         Between{1, 1 << 16}},
        {"--memory-limit", "X", "none", "largest number of live chunks on a rank, each live until its W",
         &a.memory_limit, Between{1, 1 << 26}},
        {"--w-memory", "S", "1", "auto: share of a chunk's memory that lives between its I and its W", &a.w_memory,
         Between{0, 1}},
        {"--f", "T", "1", "time of F, a chunk's forward; 0.5 and 1/3 are exact", &a.forward},
        {"--i", "T", "1", "time of I, the gradient of its input", &a.backward_input},
        {"--w", "T", "1", "time of W, the gradients of its weights", &a.backward_weight},
        {"--fb", "T", "f + i + w", "time of an overlapped forward and backward", &a.overlap},
        {"--comm,--latency", "T", "0", "latency of a message between ranks", &a.latency},
        {"--message-bytes", "N", "0", "size of a message, which then takes --latency + N / B", &a.message_bytes},
        {"--bandwidth", "B", "", "bytes per unit of time on a link, shared by its messages", &a.bandwidth},
        {"--csv", "FILE", "", "write the actions in the format of torch.distributed.pipelining", &a.csv, kOutput},
        {"--messages", "", "", "include sends and receives", &a.messages, {}, {"--csv", "--json"}},
        {"--svg", "FILE", "", "draw the timeline", &a.svg, kOutput}};
    return command_of(
        "schedule", "show pipeline schedules: order, bubble, memory, timeline", a, io, schedule, options,
        wrapped(concat("Kinds: ", joined(schedule::kinds(), ", ", &schedule::Kind::name), "; ", kPipeDream,
                       ", which updates behind each backward, with the versions of its weights. auto searches for the "
                       "shortest step within --memory-limit; all compares the kinds: stages, times, memory.")) +
            "\n\nExamples:\n"
            "  tutti schedule --kind 1f1b --stages 4 --microbatches 8\n"
            "  tutti schedule --kind all --stages 8 --microbatches 32 --comm 0.1\n"
            "  tutti schedule --kind zb-v --stages 8 --microbatches 32 --f 2e-3 --i 2e-3 --w 2e-3 \\\n"
            "      --latency 1e-5 --message-bytes 67108864 --bandwidth 5e10\n"
            "  tutti schedule --kind auto --stages 8 --microbatches 24 --memory-limit 8 --svg auto.svg\n"
            "  tutti schedule --kind interleaved --virtual 2 --stages 4 --microbatches 8 --csv mine.csv\n"
            "  tutti schedule --kind mine.csv --f 1 --i 1.2 --w 0.8 --json");
}

}  // namespace tutti::cli
