#include "tutti/device/segments.h"

#include <algorithm>
#include <ext/pb_ds/assoc_container.hpp>
#include <iterator>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {

namespace {

using Place = std::pair<int64_t, std::byte*>;  // segment and address

// Keeps in each node of a tree of free ranges (bytes by place) the size of the largest range in the node's subtree, so
// that the first range of a size is found along one path: with 1,000 layers a list of all ranges took most of the time
// of a rehearsal.
template <class ConstNode, class Node, class Compare, class Allocator>
class LargestOfSubtree {
  public:
    using metadata_type = int64_t;

    void operator()(Node node, ConstNode end) const {
        const int64_t below = std::max(largest(node.get_l_child(), end), largest(node.get_r_child(), end));
        const_cast<metadata_type&>(node.get_metadata()) = std::max((**node).second, below);
    }

    // The first range, in order, of at least `bytes`; null: none.
    const std::pair<const Place, int64_t>* first_of(int64_t bytes) const {
        const ConstNode end = node_end();
        ConstNode node = node_begin();  // the root
        if (largest(node, end) < bytes) return nullptr;
        while (true) {
            if (largest(node.get_l_child(), end) >= bytes)
                node = node.get_l_child();
            else if ((**node).second >= bytes)
                return &**node;
            else
                node = node.get_r_child();
        }
    }

  protected:
    virtual ~LargestOfSubtree() = default;

  private:
    static int64_t largest(ConstNode node, ConstNode end) { return node == end ? -1 : node.get_metadata(); }
    virtual ConstNode node_begin() const = 0;  // of the tree that has this policy
    virtual ConstNode node_end() const = 0;
};

}  // namespace

class Segments::Free
    : public __gnu_pbds::tree<Place, int64_t, std::less<Place>, __gnu_pbds::rb_tree_tag, LargestOfSubtree> {};

Segments::Segments() : free_(std::make_unique<Free>()) {}
Segments::~Segments() = default;

void Segments::add(void* data, int64_t bytes) {
    auto* const begin = static_cast<std::byte*>(data);
    parts_[begin] = {.bytes = bytes, .segment = segments_, .free = true};
    free_->insert({{segments_, begin}, bytes});
    ++segments_;
}

void* Segments::take(int64_t bytes) {
    const auto* const found = free_->first_of(bytes);
    if (found == nullptr) return nullptr;
    const auto [segment, data] = found->first;
    free_->erase({segment, data});
    Part& part = parts_.at(data);
    part.free = false;
    if (const int64_t rest = part.bytes - bytes; rest > 0) {
        part.bytes = bytes;
        parts_[data + bytes] = {.bytes = rest, .segment = segment, .free = true};
        free_->insert({{segment, data + bytes}, rest});
    }
    return data;
}

void Segments::give_back(void* data) {
    auto part = parts_.find(static_cast<std::byte*>(data));
    check(part != parts_.end() && !part->second.free, "memory is released that was not allocated");
    part->second.free = true;
    if (const auto next = std::next(part); next != parts_.end() && join(part, next)) {
        free_->erase({next->second.segment, next->first});
        merge(part, next);
    }
    if (part != parts_.begin() && join(std::prev(part), part)) {
        part = std::prev(part);
        free_->erase({part->second.segment, part->first});
        merge(part, std::next(part));
    }
    free_->insert({{part->second.segment, part->first}, part->second.bytes});
}

std::vector<Segments::Range> Segments::remove_unused() {
    std::vector<Range> unused;
    for (auto part = parts_.begin(); part != parts_.end();) {
        const auto [data, is] = *part;
        const auto same = [&](auto other) { return other->second.segment == is.segment; };
        const auto next = std::next(part);
        const bool whole = !(part != parts_.begin() && same(std::prev(part))) && !(next != parts_.end() && same(next));
        if (is.free && whole) {
            unused.push_back({data, is.bytes});
            free_->erase({is.segment, data});
            parts_.erase(part);
        }
        part = next;
    }
    return unused;
}

void Segments::absorb(Segments& other) {
    for (auto [data, part] : other.parts_) {
        part.segment += segments_;
        parts_[data] = part;
        if (part.free) free_->insert({{part.segment, data}, part.bytes});
    }
    segments_ += other.segments_;
    other.parts_.clear();
    other.free_->clear();
}

bool Segments::join(Parts::iterator part, Parts::iterator next) const {
    return part->second.free && next->second.free && part->second.segment == next->second.segment;
}

void Segments::merge(Parts::iterator part, Parts::iterator next) {
    part->second.bytes += next->second.bytes;
    parts_.erase(next);
}

}  // namespace tutti
