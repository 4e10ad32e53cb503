// train/memory_copies.h: copies of a run's state in the memory of its hosts, in the directories that the agents of
// `tutti launch` own (launch/copy_store.h). A copy is a checkpoint in pieces: each host has the manifest of all ranks
// and the files of its own ranks, and another host may have the same of it. The copy can be loaded where every file of
// the manifest is on some host that is there; the reader compares the digests, as with a checkpoint on disk.
//
// A host holds two copies: the newest that all hosts have committed, and the one before or the one being written.
// Before the next is written, the host that fetches the newest must have it: so one step's copy is whole wherever a
// host is lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/store.h"
#include "tutti/checkpoint/training_state.h"
#include "tutti/comm/tcp/file_service.h"
#include "tutti/train/joint_save.h"

namespace tutti::train {

class MemoryCopies {
  public:
    struct Setup {
        comm::tcp::CopyPlaces places;
        std::string out;                     // run directory: its events say from where later generations continued
        int64_t generation = 1;              // of this start
        int local_rank = 0, local_size = 1;  // rank 0 of a host makes and commits the host's part of a copy
        double wait_s = 10;  // for another host: below the time-out of ranks, which wait for this one meanwhile
        checkpoint::FileSystem* files = nullptr;  // null: the real one
    };
    explicit MemoryCopies(Setup setup);
    MemoryCopies(const MemoryCopies&) = delete;

    int64_t generation() const { return setup_.generation; }

    // The newest copy of a step after `step` that can be loaded, of a generation before this one, unless a later one
    // has continued from an earlier step; the next call gives the next older one, and nothing at the end. Rank 0 alone.
    // `warn` gets a line for what is passed over.
    std::shared_ptr<checkpoint::StateSource> next_after(int64_t step, const checkpoint::Warn& warn);
    // The step of that copy, or `step`. Says nothing of what is passed over.
    int64_t newest_after(int64_t step);
    // What rank 0 tells the other ranks of that copy, and the same copy by that word. DataError when it is gone.
    std::string word() const;
    static bool is_word(const std::string& text) { return text.starts_with('{'); }
    std::shared_ptr<checkpoint::StateSource> source(const std::string& word);

    // The run goes on from the copy of this word ("": from elsewhere). The copy stays until the next is committed.
    void continue_from(const std::string& word);

    // How all ranks copy the state; rank 0 of each host begins and commits. `part`: the manifest of this rank's state
    // without files. Begins when every host that fetches the last copy has it: only then the one before may go.
    JointSave::Work work(int rank, int ranks, std::shared_ptr<const checkpoint::HostState> state,
                         checkpoint::Manifest part);
    // After that: why there is no copy of this step, or "".
    std::string end(int64_t step, const Agreement& ended, int rank);
    int64_t saved_step() const { return saved_step_; }

  private:
    struct Candidate {
        checkpoint::Manifest manifest;
        int64_t generation = 0;
        struct Place {
            int host = 0;
            std::string path;
        };
        std::map<std::string, Place> files;
        std::string text;  // of the manifest
    };
    using Found = std::map<std::string, Candidate>;  // by text of the manifest
    std::vector<Candidate> look(const checkpoint::Warn& warn);
    void look_at(int host, const checkpoint::Warn& warn, Found& found);
    std::vector<comm::tcp::FileEntry> entries_of(int host);
    void read(int host, const std::string& path, int64_t offset, std::span<std::byte> bytes);
    comm::tcp::FileClient& client(int host);
    std::string reason_against(const Candidate& candidate) const;

    bool may_replace();
    std::string begin(const checkpoint::HostState& state, int64_t step);
    bool holder_has_last();

    class Source;
    friend class Source;

    Setup setup_;
    checkpoint::PosixFileSystem own_files_;
    checkpoint::FileSystem& files_;
    std::map<int, std::unique_ptr<comm::tcp::FileClient>> clients_;  // by host
    std::optional<std::vector<Candidate>> candidates_;               // newest last
    Candidate chosen_;
    std::unique_ptr<checkpoint::Store> store_;  // of a host's rank 0, from the first copy on
    checkpoint::Store::Attempt attempt_;        // likewise
    std::string last_good_;                     // path in the own store
    int64_t saved_step_ = 0;
    // Since when the holder is waited for; for how long, unless it was waited for in vain before.
    std::optional<std::chrono::steady_clock::time_point> waits_since_;
    bool holder_lags_ = false;
};

}  // namespace tutti::train
