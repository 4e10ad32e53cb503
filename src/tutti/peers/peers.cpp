#include "tutti/peers/peers.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/peers/tables.h"
#include "tutti/spec/nearest.h"

namespace tutti::peers {

std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const Tables& trainer : all_tables()) all.emplace_back(trainer.name);
    return all;
}

Peer named(const std::string& name) {
    const std::vector<std::string> all = names();
    const auto found = std::find(all.begin(), all.end(), name);
    check<UsageError>(found != all.end(), "no trainer is called ", name, "; the nearest is ", spec::nearest(name, all),
                      " of ", joined(all));
    return static_cast<Peer>(found - all.begin());
}

std::vector<Option> options_of(Peer peer) {
    std::vector<Option> options;
    for (const Row& row : tables_of(peer).rows) {
        std::vector<std::pair<std::string, std::string>> words;  // theirs, and ours: several values may have one name
        for (const Word& word : row.given()) {
            const std::string theirs = word.theirs == kAbsent ? "not given" : *word.theirs == 0 ? "given" : word.theirs;
            const auto same =
                std::find_if(words.begin(), words.end(), [&](const auto& w) { return w.first == theirs; });
            if (same == words.end())
                words.emplace_back(theirs, word.ours);
            else
                same->second += concat(" or ", word.ours);
        }
        std::string text = row.ours;
        for (const auto& [theirs, ours] : words)
            if (theirs != ours) text += concat(text == row.ours ? ": " : "; ", theirs, " is ", ours);
        options.push_back({row.theirs, text});
    }
    for (const Remark& remark : tables_of(peer).remarks) options.push_back({remark.theirs, remark.ours});
    return options;
}

}  // namespace tutti::peers
