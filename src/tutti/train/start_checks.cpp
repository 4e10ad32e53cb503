#include "tutti/train/start_checks.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "tutti/base/build_info.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/philox.h"
#include "tutti/base/read_file.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/comm/communicator.h"
#include "tutti/spec/fields.h"

namespace tutti::train {

namespace {

// The ranks that have a value.
using Values = std::map<std::string, std::vector<int>>;

std::string who(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
    std::string text = ranks.size() == 1 ? "rank" : "ranks";
    for (size_t i = 0; i < std::min<size_t>(ranks.size(), 8); ++i)
        text += concat(i > 0 ? ", " : " ", ranks[i], " (", hosts[to_size(ranks[i])], ")");
    return ranks.size() > 8 ? text + concat(" and ", ranks.size() - 8, " more") : text;
}

std::string differences(const std::vector<std::string>& texts) {
    std::vector<std::string> names, hosts;
    std::map<std::string, Values> values;
    for (size_t rank = 0; rank < texts.size(); ++rank) {
        std::istringstream lines(texts[rank]);
        std::string line;
        std::getline(lines, hosts.emplace_back());
        while (std::getline(lines, line)) {
            const size_t equals = line.find(" = ");
            const std::string name = line.substr(0, equals);
            if (!values.contains(name)) names.push_back(name);
            values[name][line.substr(equals + 3)].push_back(static_cast<int>(rank));
        }
    }
    std::string text;
    for (const std::string& name : names) {
        size_t ranks = 0;
        for (const auto& [value, of] : values[name]) ranks += of.size();
        if (values[name].size() == 1 && ranks == texts.size()) continue;
        std::string separator = concat("\n  ", name, ": ");
        for (const auto& [value, of] : values[name])
            text += std::exchange(separator, "; ") + value + " on " + who(of, hosts);
        if (ranks < texts.size()) text += "; the others have none";
    }
    return text;
}

std::vector<MemoryNeed> needs_under(const std::vector<MemoryLimit>& limits, int64_t bytes) {
    std::vector<MemoryNeed> needs;
    for (const MemoryLimit& limit : limits) needs.push_back({limit, bytes});
    return needs;
}

// A line for each need: "needed available host, origin of the limit".
std::string lines_of(const std::vector<MemoryNeed>& of_rank) {
    std::string lines;
    for (const MemoryNeed& need : of_rank)
        lines += concat(need.bytes, ' ', need.limit.available, ' ', host_name(), ", ", need.limit.origin, '\n');
    return lines;
}

// `texts`: the results of lines_of() for each rank.
MemoryVerdict tightest_of(const std::vector<std::string>& texts) {
    std::map<std::string, MemoryVerdict> totals;
    for (const std::string& text : texts) {
        std::map<std::string, MemoryVerdict> of_rank;
        std::istringstream lines(text);
        int64_t needed = 0, available = 0;
        for (std::string limit; lines >> needed >> available && std::getline(lines >> std::ws, limit);) {
            MemoryVerdict& own = of_rank[limit];
            own.needed += needed;
            own.available = available;
        }
        for (const auto& [limit, own] : of_rank) {
            MemoryVerdict& total = totals.try_emplace(limit, MemoryVerdict{0, own.available, 0, limit}).first->second;
            total.needed += own.needed;
            total.available = std::min(total.available, own.available);
            ++total.ranks;
        }
    }
    MemoryVerdict tightest;
    for (const auto& [limit, total] : totals)
        if (tightest.limit.empty() || total.share() > tightest.share()) tightest = total;
    return tightest;
}

}  // namespace

std::string recipe_of(const spec::RunSpec& run, const std::string& out) {
    const BuildInfo build = build_info();
    std::string recipe =
        concat("tutti = ", build.version, " ", build.build_type, ", ", build.compiler, "\n--out = ", out, "\n");
    spec::for_each_field(run, [&recipe](const spec::Field& field, const auto& value) {
        recipe += concat(field.path(), " = ", spec::toml_text(value), '\n');
    });
    return recipe;
}

void check_same(comm::Communicator& ranks, const std::string& lines) {
    if (ranks.size() == 1) return;
    const auto digests = comm::gather_texts(ranks, std::to_string(random_key(0, lines)));
    if (std::equal(digests.begin() + 1, digests.end(), digests.begin())) return;
    const std::string found = differences(comm::gather_texts(ranks, host_name() + "\n" + lines));
    throw UsageError(concat("the ranks of this run were not started alike:", found,
                            "\nstart all of them with the same program, config and data"));
}

double MemoryVerdict::share() const {
    return static_cast<double>(needed) / static_cast<double>(std::max<int64_t>(available, 1));
}

std::string MemoryVerdict::text() const {
    return concat(ranks == 1 ? "a rank needs " : concat(ranks, " ranks together need "), format_bytes(needed),
                  " of memory, saves included, and ", format_bytes(available), " are available (", limit, ")");
}

MemoryVerdict judge_memory(const std::vector<MemoryNeed>& of_rank, int ranks) {
    return tightest_of(std::vector<std::string>(to_size(ranks), lines_of(of_rank)));
}

std::vector<MemoryNeed> needs_of(const rehearsal::MemoryPlan& plan, Device& device) {
    constexpr int64_t kBegun = 4 << 20;  // huge pages that are used in part: one of small blocks, one of large ones
    if (device.host_readable()) return needs_under(device.memory_limits(), plan.peak() + kBegun);
    std::vector<MemoryNeed> needs =
        needs_under(device.memory_limits(), plan.reserved - device.memory().reserved());  // its workspace is allocated
    std::ranges::copy(needs_under(host_memory_limits(), plan.offloaded), std::back_inserter(needs));
    return needs;
}

std::vector<MemoryNeed> needs_of(const spec::RunSpec& run, const rehearsal::MemoryPlan& plan, Device& device,
                                 int copies) {
    std::vector<MemoryNeed> needs = needs_of(plan, device);
    const bool in_background =
        run.checkpoint.async && run.checkpoint.every > 0 && run.checkpoint.every <= run.train.steps;
    if (in_background || !device.host_readable()) ++copies;
    if (copies == 0) return needs;
    std::ranges::copy(needs_under(host_memory_limits(), copies * plan.saved), std::back_inserter(needs));
    return needs;
}

void check_memory(comm::Communicator& ranks, const std::vector<MemoryNeed>& of_rank, bool force,
                  const std::function<void(const std::string&)>& warn) {
    const MemoryVerdict tightest = tightest_of(comm::gather_texts(ranks, lines_of(of_rank)));
    if (!tightest.close()) return;
    if (tightest.fits()) return warn(concat("memory is short: ", tightest.text()));
    check<UsageError>(force, "this run does not fit: ", tightest.text(),
                      "; try a smaller train.micro_batch, recompute.policy = \"full\", parallel.zero = 3 over more "
                      "hosts, [offload], or a smaller model; --force starts it nevertheless");
    warn(concat("this run does not fit and may be killed (--force): ", tightest.text()));
}

void check_least_memory(comm::Communicator& ranks, const spec::RunSpec& run, const engine::Factories& factories,
                        Device& device) {
    const models::Model model = models::outline(run.model, factories.model);
    int64_t bytes = 0;
    for (const autograd::Parameter* p : model.parameters()) {
        const int64_t of_weight = run.offload.params ? 0 : size_of(p->type(spec::compute_dtype(run)));
        bytes += p->shape.numel() * (of_weight + (p->frozen() ? 0 : size_of(DType::f32)));
    }
    const std::vector<MemoryNeed> needs = needs_under(device.memory_limits(), bytes / ranks.size());
    const MemoryVerdict tightest = tightest_of(comm::gather_texts(ranks, lines_of(needs)));
    check<UsageError>(tightest.fits(), "this run does not fit, by its weights and gradients alone: ", tightest.text(),
                      "; try more ranks, [offload], or a smaller model; --force starts it nevertheless");
}

// ---- the starts since the newest checkpoint ----

namespace {

std::string file_of(const std::string& out) { return concat(out, "/", kStarts); }

// A file that cannot be read counts as none: the count is a fuse, not a state of the run.
int64_t starts_since(const std::string& out, int64_t step) {
    std::error_code unreadable;
    if (!std::filesystem::is_regular_file(file_of(out), unreadable)) return 0;
    const std::optional<Json> json = Json::try_parse(read_file(file_of(out)));
    if (!json || !json->is_object()) return 0;
    const Json *of = json->find("step"), *starts = json->find("starts");
    const bool fits = of && starts && of->is_integer() && starts->is_integer() && of->get<int64_t>() == step;
    return fits ? starts->get<int64_t>() : 0;
}

}  // namespace

void count_start(const std::string& out, int64_t step, bool force, int64_t most) {
    const int64_t starts = force ? 0 : starts_since(out, step);
    check<InternalError>(starts < most, out, ": the last ", starts,
                         " starts of this run died before a checkpoint after step ", step,
                         ": starting it again as it is loses the same work again. The logs of those starts say why; a "
                         "smaller checkpoint.every saves earlier; --force starts it nevertheless");
    std::ofstream file(file_of(out), std::ios::trunc);
    file << Json{{"step", step}, {"starts", starts + 1}}.dump() << '\n';
}

void forget_starts(const std::string& out) {
    std::error_code ignored;
    std::filesystem::remove(file_of(out), ignored);
}

}  // namespace tutti::train
