// spec/nearest.cpp: edit distance for messages. Names are short, so the full table is cheap.
#include "tutti/spec/nearest.h"

#include <algorithm>

namespace tutti::spec {

int edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
    for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
    for (size_t i = 1; i <= a.size(); ++i) {
        for (size_t j = 1; j <= b.size(); ++j) {
            const int changed = a[i - 1] == b[j - 1] ? 0 : 1;
            d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + changed});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
            }
        }
    }
    return d[a.size()][b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
    const auto closer = [&](const std::string& x, const std::string& y) {
        return edit_distance(word, x) < edit_distance(word, y);
    };
    const auto best = std::min_element(candidates.begin(), candidates.end(), closer);
    return best == candidates.end() ? "" : *best;
}

}  // namespace tutti::spec
