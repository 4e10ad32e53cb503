// schedule/kinds.cpp: the schedules by name, and what their numbers must fulfil.
#include <algorithm>
#include <array>

#include "tutti/base/error.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/walk.h"

namespace tutti::schedule {

namespace {

constexpr std::array kKinds = {
    Kind{"naive", 1, false, naive, "one microbatch at a time"},
    Kind{"gpipe", 1, false, gpipe, "arXiv 1811.06965"},
    Kind{"1f1b", 1, false, one_forward_one_backward, "arXiv 2104.04473"},
    Kind{"interleaved", 0, true, interleaved, "arXiv 2104.04473, 2407.21783"},
    Kind{"looped-bfs", 0, false, looped_bfs, "arXiv 2211.05953"},
    Kind{"zb-h1", 1, false, zb_h1, "arXiv 2401.10241"},
    Kind{"zb-h2", 1, false, zb_h2, "arXiv 2401.10241"},
    Kind{"interleaved-zb", 0, true, interleaved_zb, "torch.distributed.pipelining"},
    Kind{"zb-v", 2, false, zb_v, "arXiv 2401.10241"},
    Kind{"v-half", 2, false, v_half, "arXiv 2405.15362"},
    Kind{"v-min", 2, false, v_min, "arXiv 2405.15362"},
    Kind{"chimera", 1, false, chimera, "arXiv 2107.06925"},
    Kind{"dualpipe", 1, false, dualpipe, "arXiv 2412.19437"},
    Kind{"dualpipe-v", 2, false, dualpipe_v, "github.com/deepseek-ai/DualPipe"},
};

// Groups of N microbatches whose last one is short can wait for each other; Megatron-LM demands m % N == 0 or >= p.
void check_groups(const Schedule& schedule, const Dimensions& d) {
    if (walk(schedule, [](int, const Action&) {}).empty()) return;
    const int p = d.ranks, m = d.microbatches, asked = d.group_size == 0 ? std::min(p, m) : d.group_size;
    int N = std::min(p, m);
    while (m % N != 0 && m % N < p) ++N;
    throw UsageError(concat("schedule ", schedule.name, " deadlocks with groups of ", asked,
                            " microbatches: the last of ", m, " has ", m % asked, ", and ", p,
                            " ranks need a full one or at least ", p, "; try a group size of ", N,
                            ", or a multiple of ", asked, " microbatches"));
}

}  // namespace

std::span<const Kind> kinds() { return kKinds; }

const Kind* find_kind(std::string_view name) {
    const auto* const kind = std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& k) { return k.name == name; });
    return kind == kKinds.end() ? nullptr : kind;
}

Schedule generate(std::string_view name, const Dimensions& d) {
    const Kind* const kind = find_kind(name);
    check<UsageError>(kind != nullptr, "schedule: there is no schedule `", name, "`");
    check<UsageError>(d.ranks >= 1 && d.chunks >= 1 && d.microbatches >= 1, "schedule ", name,
                      ": ranks, virtual stages and microbatches must be at least 1, got ", d.ranks, ", ", d.chunks,
                      " and ", d.microbatches);
    check<UsageError>(kind->chunks == 0 || d.chunks == 1 || d.chunks == kind->chunks, "schedule ", name, " has ",
                      kind->chunks, kind->chunks == 1 ? " stage" : " stages", " per rank, got ", d.chunks,
                      " virtual stages; leave them out, or try interleaved, looped-bfs or interleaved-zb");
    check<UsageError>(kind->takes_group_size || d.group_size == 0, "schedule ", name,
                      " has no groups of microbatches, got a group size of ", d.group_size,
                      "; interleaved and interleaved-zb have");
    Schedule schedule = kind->generate(d);
    schedule.name = name;
    if (kind->takes_group_size) check_groups(schedule, d);
    return schedule;
}

}  // namespace tutti::schedule
