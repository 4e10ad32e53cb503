// The groups of every rank of a layout of 4,096 ranks, made in worlds without peers, and the tags that they would have
// between hosts.
#include "tutti/parallel/groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tutti/base/to_size.h"
#include "tutti/comm/meta/meta_world.h"
#include "tutti/comm/processes/tags.h"

namespace tutti::parallel {
namespace {

constexpr int kRanks = 4096, kRanksOfHost = 8;

// tp 8 x cp 2 (ring) x dp_shard 4 x dp_replicate 4 x pp 16, experts over ep 8.
spec::RunSpec large_run() {
    spec::RunSpec run;
    run.model.kv_heads = 8;
    run.parallel.tp = 8;
    run.parallel.cp = 2;
    run.parallel.dp_shard = 4;
    run.parallel.dp_replicate = 4;
    run.parallel.pp = 16;
    run.parallel.ep = 8;
    return run;
}

class Joined final : public comm::CommunicationObserver {
  public:
    void joins(const comm::Communicator& group) override { groups.emplace_back(group.name(), group.ranks()); }
    void begins(const comm::Communicator&, uint64_t, const comm::Collective&) override {}
    void waits(const comm::Communicator&, const comm::Operation&) override {}
    std::vector<std::pair<std::string, std::vector<int>>> groups;
};

// In the order in which the rank makes them: those of every run, one over both ends of the pipeline, and the channels
// of an interleaved schedule of four stages a rank, both ways, as the executor makes them.
std::vector<std::pair<std::string, std::vector<int>>> groups_of(int rank) {
    constexpr int kOfPipeline = 16, kStages = 4 * kOfPipeline;
    Joined joined;
    comm::MetaWorld world(rank, kRanks, &joined);
    Groups groups(world, make_mesh(large_run(), kRanks));
    const int own = groups.coordinate(mesh::Axis::pp);
    if (own == 0 || own == kOfPipeline - 1) groups.over(mesh::kDp | mesh::kCp, {0, kOfPipeline - 1});
    for (int stage = 0; stage + 1 < kStages; ++stage)
        for (const auto& [from, to] : {std::pair(stage, stage + 1), std::pair(stage + 1, stage)})
            if (from % kOfPipeline == own || to % kOfPipeline == own)
                groups.channel(concat("pp ", from, ">", to), from % kOfPipeline, to % kOfPipeline);
    return std::move(joined.groups);
}

TEST(Groups, TagsOfFourThousandRanksNeverCollide) {
    for (const int highest : {32767, 1 << 22, 0x7fffffff}) {      // the least of MPI, the usual one, that of TCP
        std::map<std::tuple<int, int, std::string>, int> tag_of;  // by lower and higher rank, and group
        int collisions = 0;                                       // of hashes, on ranks
        for (int rank = 0; rank < kRanks; ++rank) {
            comm::processes::Tags tags(highest);
            std::set<int> preferred;
            std::set<std::pair<int, int>> taken;  // by other rank
            for (const auto& [name, ranks] : groups_of(rank)) {
                if (ranks.size() == to_size(kRanks)) continue;  // the first group: it cannot collide
                const uint64_t key = comm::processes::group_key(name, ranks, 0);
                bool between_hosts = false;
                for (const int other : ranks) {
                    if (other / kRanksOfHost == rank / kRanksOfHost) continue;
                    between_hosts = true;
                    const int tag = tags.claim(other, key);
                    ASSERT_TRUE(taken.insert({other, tag}).second) << name << " of ranks " << rank << " and " << other;
                    ASSERT_GE(tag, comm::processes::kUses);
                    ASSERT_LE(tag, highest - comm::processes::kUses);
                    const auto [known, is_new] =
                        tag_of.try_emplace({std::min(rank, other), std::max(rank, other), name}, tag);
                    ASSERT_EQ(known->second, tag) << name << ": ranks " << rank << " and " << other << " differ";
                }
                if (between_hosts)
                    collisions += preferred.insert(comm::processes::preferred_tag(key, highest)).second ? 0 : 1;
            }
        }
        if (highest <= 1 << 22) {
            EXPECT_GT(collisions, 0) << "the test has met no equal hashes";
        }
    }
}

}  // namespace
}  // namespace tutti::parallel
