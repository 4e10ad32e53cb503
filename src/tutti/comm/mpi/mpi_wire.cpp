// comm/mpi/mpi_wire.cpp: the wire over MPI, for both ABIs (api.h).
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/mpi/api.h"
#include "tutti/comm/processes/process_world.h"
#include "tutti/comm/processes/wire.h"

namespace tutti::comm {

namespace {

using namespace mpi;
using processes::Topology, processes::Wire;

constexpr uintptr_t kPage = 4096;
constexpr int kAbortTag = 0;
constexpr int64_t kLargestMessage = int64_t{1} << 30;  // MPI counts in int

// Ends the process if a call without a time-out, such as MPI_Init, takes too long.
class Watchdog {
  public:
    // Unless the object is destroyed within `seconds`, prints `message` and exits with 4, as a failed rank does.
    Watchdog(double seconds, std::string message)
        : thread_([this, seconds, text = "tutti: " + std::move(message) + "\n"] {
              std::unique_lock lock(mutex_);
              if (ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done_; })) return;
              std::fputs(text.c_str(), stderr);
              _exit(exit_codes::kFailed);
          }) {}
    ~Watchdog() {
        {
            const std::lock_guard lock(mutex_);
            done_ = true;
        }
        ended_.notify_one();
        thread_.join();
    }
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

  private:
    std::mutex mutex_;
    std::condition_variable ended_;
    bool done_ = false;
    std::thread thread_;  // last: it uses the others
};

template <class Abi>
class MpiWire final : public Wire {
  public:
    // Collective over all ranks. UsageError if MPI's ranks are not those of the launcher.
    MpiWire(const Library& library, const Launch& launch, const WorldOptions& options, const std::vector<int>& hosts);

    int highest_tag() const override { return highest_tag_; }
    std::byte* share(int64_t bytes) override;
    void barrier_of_host() override { call(mpi_.barrier(host_), "MPI_Barrier"); }
    void started() override { watchdog_.reset(); }
    Request send(const void* data, int64_t bytes, int to, int tag) override;
    Request receive(void* data, int64_t bytes, int from, int tag) override;
    bool done(Request request) override;
    void send_abort(const std::string& reason) override;
    std::optional<std::string> abort_received() override;
    void finalize() override;

  private:
    using MpiRequest = typename Abi::Request;

    void call(int code, const char* what) const;
    void find_topology(const std::vector<int>& hosts);
    int cores_of_host() const;
    // A message as MPI messages of at most kLargestMessage bytes: post(offset, bytes, &request) starts each.
    template <class Post>
    Request in_parts(int64_t bytes, const Post& post);
    Request add(std::vector<MpiRequest> parts) {
        if (free_.empty()) {
            free_.push_back(static_cast<Request>(requests_.size()));
            requests_.emplace_back();
        }
        const Request request = free_.back();
        free_.pop_back();
        requests_[to_size(request)] = std::move(parts);
        return request;
    }
    void listen_for_abort() {
        call(mpi_.irecv(abort_text_.data(), static_cast<int>(abort_text_.size()), mpi_.character, Abi::any_source,
                        kAbortTag, world_, &abort_),
             "MPI_Irecv");
    }

    const Api<Abi> mpi_;
    const double timeout_s_;
    std::optional<Watchdog> watchdog_;
    int highest_tag_ = 0;
    std::mutex mutex_;
    typename Abi::Comm world_ = mpi_.comm_null, host_ = mpi_.comm_null;
    typename Abi::Win window_ = mpi_.win_null;
    std::vector<std::vector<MpiRequest>> requests_;  // by Request; empty: free
    std::vector<Request> free_;
    MpiRequest abort_ = mpi_.request_null;
    std::array<char, 1024> abort_text_{}, own_abort_text_{};
};

template <class Abi>
MpiWire<Abi>::MpiWire(const Library& library, const Launch& launch, const WorldOptions& options,
                      const std::vector<int>& hosts)
    : mpi_(api_of<Abi>(library)),
      timeout_s_(options.timeout_s),
      watchdog_(std::in_place, timeout_s_,
                concat("rank ", launch.rank, " of ", launch.size, ": MPI has not started within ", timeout_s_,
                       " s (comm.timeout_s): a rank is missing or hangs; look for a process that is not running, and "
                       "check the hosts")) {
    int initialized = 0;
    mpi_.initialized(&initialized);
    check<UsageError>(initialized == 0,
                      "MPI can be initialised once per process, and this process has done so already");
    const int wanted = options.progress_thread || options.watched ? kSerialized : kFunneled;
    int provided = 0;
    call(mpi_.init_thread(nullptr, nullptr, wanted, &provided), "MPI_Init_thread");
    check<UsageError>(provided >= wanted,
                      "a progress thread or NCCL needs an MPI library with MPI_THREAD_SERIALIZED (level ", kSerialized,
                      "), this one provides level ", provided,
                      "; run without the progress thread, or with comm.backend = \"tcp\"");
    call(mpi_.comm_dup(mpi_.comm_world, &world_), "MPI_Comm_dup");
    mpi_.comm_set_errhandler(world_, mpi_.errors_return);
    mpi_.comm_rank(world_, &topology_.rank);
    mpi_.comm_size(world_, &topology_.size);
    // With an MPI library that does not know the launcher, every process is a world of one rank.
    check<UsageError>(
        topology_.size == launch.size && topology_.rank == launch.rank, "the launcher (", name_of(launch.launcher),
        ", ", launch.evidence, ") says rank ", launch.rank, " of ", launch.size, ", MPI says rank ", topology_.rank,
        " of ", topology_.size,
        ": this process uses another MPI library than the launcher; name the launcher's in TUTTI_MPI (tutti doctor "
        "shows the one that is used); under Slurm: srun --mpi=pmix (srun --mpi=list shows the choices), or "
        "comm.backend = \"tcp\", which needs no MPI");
    find_topology(hosts);
}

template <class Abi>
void MpiWire<Abi>::call(int code, const char* what) const {
    if (code == kSuccess) return;
    std::array<char, kLongestText> text{};
    int length = 0;
    mpi_.error_string(code, text.data(), &length);
    throw Error(concat(what, " failed: ", std::string(text.data(), to_size(length))));
}

// The cores available to any of the host's ranks.
template <class Abi>
int MpiWire<Abi>::cores_of_host() const {
    cpu_set_t mine, all;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    call(mpi_.allreduce(&mine, &all, sizeof mine, mpi_.byte, mpi_.bor, host_), "MPI_Allreduce");
    return CPU_COUNT(&all);
}

template <class Abi>
void MpiWire<Abi>::find_topology(const std::vector<int>& hosts) {
    check<UsageError>(hosts.empty() || std::ssize(hosts) == topology_.size, "hosts are given for ", hosts.size(),
                      " ranks, but there are ", topology_.size);
    if (hosts.empty())
        call(mpi_.comm_split_type(world_, Abi::comm_type_shared, topology_.rank, mpi_.info_null, &host_),
             "MPI_Comm_split_type");
    else
        call(mpi_.comm_split(world_, hosts[to_size(topology_.rank)], topology_.rank, &host_), "MPI_Comm_split");
    mpi_.comm_set_errhandler(host_, mpi_.errors_return);

    const auto n = to_size(topology_.size);
    int first = topology_.rank;  // the host's first rank, which identifies it
    call(mpi_.bcast(&first, 1, mpi_.integer, 0, host_), "MPI_Bcast");
    topology_.host_of.resize(n);
    call(mpi_.allgather(&first, 1, mpi_.integer, topology_.host_of.data(), 1, mpi_.integer, world_), "MPI_Allgather");
    std::array<char, kLongestName> name{};
    int length = 0;
    mpi_.get_processor_name(name.data(), &length);
    std::vector<std::array<char, kLongestName>> names(n);
    call(mpi_.allgather(name.data(), kLongestName, mpi_.character, names.data(), kLongestName, mpi_.character, world_),
         "MPI_Allgather");
    for (size_t r = 0; r < n; ++r) {
        if (topology_.host_of[r] == first) topology_.locals.push_back(static_cast<int>(r));
        topology_.host_names.emplace_back(names[r].data());
    }
    topology_.cores = cores_of_host();

    int* tag_limit = nullptr;
    int found = 0;
    mpi_.comm_get_attr(world_, Abi::tag_ub, &tag_limit, &found);
    highest_tag_ = found ? *tag_limit : 32767;  // the standard's minimum
    if (topology_.locals.size() < n) listen_for_abort();
}

template <class Abi>
std::byte* MpiWire<Abi>::share(int64_t bytes) {
    int local = 0;
    mpi_.comm_rank(host_, &local);
    void* base = nullptr;
    const int code = mpi_.win_allocate_shared(local == 0 ? bytes + static_cast<Aint>(kPage) : 0, 1, mpi_.info_null,
                                              host_, &base, &window_);
    check(code == kSuccess, "MPI cannot allocate ", bytes, " bytes (", bytes >> 20, " MiB) of shared memory for ",
          topology_.locals.size(), " ranks of host ", topology_.host_names[to_size(topology_.rank)],
          ": is /dev/shm large enough (containers: --shm-size)? Ranks that communicate over TCP do not use it "
          "(comm.backend = \"tcp\", TUTTI_RENDEZVOUS=HOST:PORT)");
    mpi_.win_set_errhandler(window_, mpi_.errors_return);
    Aint size = 0;
    int unit = 0;
    call(mpi_.win_shared_query(window_, 0, &size, &unit, &base), "MPI_Win_shared_query");
    int* model = nullptr;
    int found = 0;
    mpi_.win_get_attr(window_, Abi::win_model, &model, &found);
    check(found && *model == Abi::win_unified,
          "required an MPI library whose shared memory is MPI_WIN_UNIFIED; use comm.backend = \"tcp\"");
    call(mpi_.win_lock_all(Abi::mode_nocheck, window_), "MPI_Win_lock_all");
    // MPI chooses the alignment; all ranks map the memory at the same offset in a page.
    const auto address = reinterpret_cast<uintptr_t>(base);
    return static_cast<std::byte*>(base) + (kPage - address % kPage) % kPage;
}

template <class Abi>
template <class Post>
Wire::Request MpiWire<Abi>::in_parts(int64_t bytes, const Post& post) {
    std::lock_guard lock(mutex_);
    std::vector<MpiRequest> parts;
    int64_t at = 0;
    do {
        const auto n = static_cast<int>(std::min(bytes - at, kLargestMessage));
        post(at, n, &parts.emplace_back());
        at += n;
    } while (at < bytes);
    ++pending_;
    return add(std::move(parts));
}

template <class Abi>
Wire::Request MpiWire<Abi>::send(const void* data, int64_t bytes, int to, int tag) {
    return in_parts(bytes, [&](int64_t at, int n, MpiRequest* part) {
        call(mpi_.isend(static_cast<const char*>(data) + at, n, mpi_.byte, to, tag, world_, part), "MPI_Isend");
    });
}

template <class Abi>
Wire::Request MpiWire<Abi>::receive(void* data, int64_t bytes, int from, int tag) {
    return in_parts(bytes, [&](int64_t at, int n, MpiRequest* part) {
        call(mpi_.irecv(static_cast<char*>(data) + at, n, mpi_.byte, from, tag, world_, part), "MPI_Irecv");
    });
}

template <class Abi>
bool MpiWire<Abi>::done(Request request) {
    std::lock_guard lock(mutex_);
    auto& parts = requests_[to_size(request)];
    int complete = 0;
    call(mpi_.testall(static_cast<int>(parts.size()), parts.data(), &complete, Abi::status_ignore()), "MPI_Testall");
    if (complete == 0) return false;
    parts.clear();
    free_.push_back(request);
    --pending_;
    ++completed_;
    return true;
}

template <class Abi>
void MpiWire<Abi>::send_abort(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (abort_ == mpi_.request_null) return;  // one host only
    auto& text = own_abort_text_;
    reason.copy(text.data(), text.size() - 1);
    std::vector<MpiRequest> sends;
    for (int r = 0; r < topology_.size; ++r) {
        if (std::binary_search(topology_.locals.begin(), topology_.locals.end(), r)) continue;
        if (mpi_.isend(text.data(), static_cast<int>(text.size()), mpi_.character, r, kAbortTag, world_,
                       &sends.emplace_back()) != kSuccess)
            sends.pop_back();
    }
    int complete = 0;
    for (int i = 0; i < 1000 && complete == 0; ++i) {
        if (mpi_.testall(static_cast<int>(sends.size()), sends.data(), &complete, Abi::status_ignore()) != kSuccess)
            return;
        if (complete == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

template <class Abi>
std::optional<std::string> MpiWire<Abi>::abort_received() {
    std::lock_guard lock(mutex_);
    if (abort_ == mpi_.request_null) return std::nullopt;
    int complete = 0;
    call(mpi_.test(&abort_, &complete, Abi::status_ignore()), "MPI_Test");
    if (complete == 0) return std::nullopt;
    std::string reason(abort_text_.data());
    listen_for_abort();
    return reason;
}

template <class Abi>
void MpiWire<Abi>::finalize() {
    const Watchdog ending(
        timeout_s_, concat("rank ", topology_.rank, ": MPI has not ended within ", timeout_s_, " s (comm.timeout_s)"));
    std::lock_guard lock(mutex_);
    if (abort_ != mpi_.request_null) {
        mpi_.cancel(&abort_);
        mpi_.wait(&abort_, Abi::status_ignore());
    }
    if (window_ != mpi_.win_null) {
        mpi_.win_unlock_all(window_);
        mpi_.win_free(&window_);
    }
    mpi_.comm_free(&host_);
    mpi_.comm_free(&world_);
    mpi_.finalize();
}

template <class Abi>
std::string version_of(const Library& library) {
    std::array<char, kLongestText> text{};
    int length = 0;
    api_of<Abi>(library).get_library_version(text.data(), &length);
    std::string first(text.data(), std::strcspn(text.data(), ",\n"));
    std::replace(first.begin(), first.end(), '\t', ' ');  // "MPICH Version:\t4.0.2"
    return first;
}

}  // namespace

std::string mpi_library(Launcher launcher) {
    const Library library = open_library(launcher);
    switch (library.family) {
        case Family::open_mpi: return version_of<OpenMpi>(library);
        case Family::mpich: return version_of<Mpich>(library);
        case Family::none: break;
    }
    return "";
}

void run_mpi(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const AssignedHosts& hosts) {
    const Library library = open_library(launch.launcher);
    check<UsageError>(
        library.family != Family::none, "this process was started as rank ", launch.rank, " of ", launch.size, " by ",
        name_of(launch.launcher), " (", launch.evidence, "), but no MPI library was found:", library.tried,
        "\nname its file in TUTTI_MPI or its directory in LD_LIBRARY_PATH, set comm.backend = \"tcp\" and "
        "TUTTI_RENDEZVOUS, or use --ranks N, which runs the ranks as threads");
    const auto make_wire = [&]() -> std::unique_ptr<Wire> {
        if (library.family == Family::open_mpi)
            return std::make_unique<MpiWire<OpenMpi>>(library, launch, options, hosts);
        return std::make_unique<MpiWire<Mpich>>(library, launch, options, hosts);
    };
    processes::run_processes("mpi", make_wire, options, body);
}

}  // namespace tutti::comm
