#include "tutti/data/packing.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "tutti/base/to_size.h"

namespace tutti::data {

namespace {

// The free room of each window, as a tree of maxima: finds the first window with enough room in O(log windows).
class Rooms {
  public:
    Rooms(size_t windows, int32_t room) : leaves_(std::bit_ceil(std::max<size_t>(windows, 1))), most_(2 * leaves_) {
        std::fill(most_.begin(), most_.end(), room);
    }
    // Takes `count` tokens of room from the first window that has them.
    size_t take(int32_t count) {
        size_t node = 1;
        while (node < leaves_) node = most_[2 * node] >= count ? 2 * node : 2 * node + 1;
        const size_t window = node - leaves_;
        most_[node] -= count;
        while ((node /= 2) > 0) most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
        return window;
    }

  private:
    size_t leaves_;
    std::vector<int32_t> most_;
};

}  // namespace

Packing::Packing(std::span<const int64_t> begins, int64_t end, int64_t seq_len)
    : seq_len_(seq_len), records_(static_cast<int64_t>(begins.size())) {
    const int64_t room = seq_len + 1;
    for (size_t i = 0; i < begins.size(); ++i) {
        const int64_t record_end = i + 1 < begins.size() ? begins[i + 1] : end;
        bool continues = false;
        for (int64_t at = begins[i]; at < record_end; continues = true) {
            const auto count = static_cast<int32_t>(std::min(room, record_end - at));
            pieces_.push_back({at, count, continues});
            // The last token of a piece is the first input of the next one.
            at = at + count < record_end ? at + count - 1 : record_end;
        }
        if (record_end - begins[i] > room) ++cut_records_;
    }
    Rooms rooms(pieces_.size(), static_cast<int32_t>(room));
    std::vector<size_t> window_of(pieces_.size());
    for (size_t i = 0; i < pieces_.size(); ++i) window_of[i] = rooms.take(pieces_[i].count);

    const size_t windows = pieces_.empty() ? 0 : *std::max_element(window_of.begin(), window_of.end()) + 1;
    first_.assign(windows + 1, 0);
    for (const size_t window : window_of) ++first_[window + 1];
    for (size_t w = 0; w < windows; ++w) first_[w + 1] += first_[w];
    std::vector<Piece> by_window(pieces_.size());
    std::vector<int64_t> next(first_.begin(), first_.end());
    for (size_t i = 0; i < pieces_.size(); ++i) by_window[to_size(next[window_of[i]]++)] = pieces_[i];
    pieces_ = std::move(by_window);
}

std::span<const Packing::Piece> Packing::window(int64_t index) const {
    const auto i = to_size(index);
    return std::span(pieces_).subspan(to_size(first_[i]), to_size(first_[i + 1] - first_[i]));
}

}  // namespace tutti::data
