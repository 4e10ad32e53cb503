#include "tutti/rehearsal/program.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::rehearsal {

namespace {

using comm::Kind;
using comm::Summary;

// The wanted operations that a program begins in one group.
std::vector<Summary> operations(const Program& program, size_t group, auto&& wanted) {
    std::vector<Summary> found;
    for (const Action& action : program.actions)
        if (const auto* begin = std::get_if<BeginOperation>(&action.what))
            if (begin->group == group && wanted(begin->operation)) found.push_back(begin->operation);
    return found;
}

bool fits(const Summary& sent, const Summary& received) {
    return sent.dtype == received.dtype && sent.count == received.count;
}

std::string part(int rank, const std::vector<Summary>& all, size_t index) {
    return concat("rank ", rank, index < all.size() ? " calls " + all[index].text() : std::string(" calls nothing"));
}

// The first place where the two lists do not match.
std::string mismatch(const std::string& what, int rank, const std::vector<Summary>& ours, int other_rank,
                     const std::vector<Summary>& theirs, bool (*match)(const Summary&, const Summary&)) {
    const size_t most = std::max(ours.size(), theirs.size());
    for (size_t i = 0; i < most; ++i)
        if (i >= ours.size() || i >= theirs.size() || !match(ours[i], theirs[i]))
            return concat(what, " ", i + 1, ": ", part(rank, ours, i), ", ", part(other_rank, theirs, i));
    return "";
}

}  // namespace

double Program::flops() const {
    double sum = 0;
    for (const Action& action : actions)
        if (const KernelCall* call = call_of(action)) sum += static_cast<double>(action.times) * call->work.flops;
    return sum;
}

std::vector<KernelTotal> kernel_totals(const Program& program) {
    std::map<std::pair<std::string_view, kernels::ProblemShape>, KernelTotal> by_shape;
    for (const Action& action : program.actions) {
        const KernelCall* call = program.call_of(action);
        if (call == nullptr) continue;
        KernelTotal& total = by_shape[{call->kernel, call->work.shape}];
        total.kernel = call->kernel;
        total.calls += action.times;
        total.work.shape = call->work.shape;
        total.work.flops += static_cast<double>(action.times) * call->work.flops;
        total.work.bytes += static_cast<double>(action.times) * call->work.bytes;
    }
    std::vector<KernelTotal> all;
    for (const auto& [key, total] : by_shape) all.push_back(total);
    std::stable_sort(all.begin(), all.end(), [](const KernelTotal& a, const KernelTotal& b) {
        return std::pair(a.work.flops, a.work.bytes) > std::pair(b.work.flops, b.work.bytes);
    });
    return all;
}

std::string first_difference(int rank, const Program& program, int other_rank, const Program& other) {
    for (size_t g = 0; g < program.groups.size(); ++g) {
        const Program::Group& group = program.groups[g];
        const auto same = std::find_if(other.groups.begin(), other.groups.end(), [&](const Program::Group& there) {
            return there.name == group.name && there.ranks == group.ranks;
        });
        const auto place_of = [&group](int of) {
            return static_cast<int>(std::find(group.ranks.begin(), group.ranks.end(), of) - group.ranks.begin());
        };
        const int ranks = static_cast<int>(group.ranks.size());
        if (place_of(other_rank) == ranks) continue;
        if (same == other.groups.end())
            return concat("rank ", rank, " has group ", group.name, " of ", ranks, " ranks, and rank ", other_rank,
                          " of that group has no such group");
        const auto h = to_size(same - other.groups.begin());
        const auto collective = [](const Summary& s) { return !comm::is_message(s.kind); };
        std::string found =
            mismatch(concat("group ", group.name, ", operation"), rank, operations(program, g, collective), other_rank,
                     operations(other, h, collective), comm::agree);
        const auto to = [](Kind kind, int peer) {
            return [kind, peer](const Summary& s) { return s.kind == kind && s.peer == peer; };
        };
        const int here = place_of(rank), there = place_of(other_rank);
        for (const Kind kind : {Kind::send, Kind::receive})
            if (found.empty())
                found = mismatch(concat("group ", group.name, ", message"), rank,
                                 operations(program, g, to(kind, there)), other_rank,
                                 operations(other, h, to(kind == Kind::send ? Kind::receive : Kind::send, here)), fits);
        if (!found.empty()) return found;
    }
    return "";
}

}  // namespace tutti::rehearsal
