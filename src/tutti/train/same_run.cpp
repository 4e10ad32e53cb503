#include "tutti/train/same_run.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "tutti/base/build_info.h"
#include "tutti/base/philox.h"
#include "tutti/comm/communicator.h"
#include "tutti/spec/fields.h"

namespace tutti::train {

namespace {

// The ranks that have a value.
using Values = std::map<std::string, std::vector<int>>;

std::string who(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
    std::string text = ranks.size() == 1 ? "rank" : "ranks";
    for (size_t i = 0; i < std::min<size_t>(ranks.size(), 8); ++i)
        text += concat(i > 0 ? ", " : " ", ranks[i], " (", hosts[static_cast<size_t>(ranks[i])], ")");
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

}  // namespace tutti::train
