// comm/mpi/mpi_wire.cpp: the messages, shared memory and places of MPI. The only file that includes mpi.h.
#include <mpi.h>
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
#include "tutti/comm/mpi/mpi_world.h"
#include "tutti/comm/processes/wire.h"

namespace tutti::comm {

namespace {

using processes::Place;

constexpr uintptr_t kPage = 4096;
constexpr int kAbortTag = 0;
constexpr int64_t kLargestMessage = int64_t{1} << 30;  // MPI counts in int

void call(int code, const char* what) {
    if (code == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    throw Error(concat(what, " failed: ", std::string(text.data(), static_cast<size_t>(length))));
}

// Cores that any of the host's ranks may run on.
int cores_of(MPI_Comm host) {
    cpu_set_t mine, all;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    call(MPI_Allreduce(&mine, &all, sizeof mine, MPI_BYTE, MPI_BOR, host), "MPI_Allreduce");
    return CPU_COUNT(&all);
}

// Ends the process when something that cannot be given a time-out, such as MPI_Init, takes too long.
class Watchdog {
  public:
    // Unless it is destroyed within `seconds`: prints `message` and exits with 4, as a failed rank does.
    Watchdog(double seconds, std::string message)
        : thread_([this, seconds, text = "tutti: " + std::move(message) + "\n"] {
              std::unique_lock lock(mutex_);
              if (ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done_; })) return;
              std::fputs(text.c_str(), stderr);
              _exit(4);
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

class MpiWire final : public processes::Wire {
  public:
    // Collective over all ranks. UsageError when MPI sees other ranks than the launcher started.
    MpiWire(const Launch& launch, const WorldOptions& options, const std::vector<int>& hosts);

    int highest_tag() const override { return highest_tag_; }
    std::byte* share(int64_t bytes) override;
    void barrier_of_host() override { call(MPI_Barrier(host_), "MPI_Barrier"); }
    void started() override { watchdog_.reset(); }
    Request send(const void* data, int64_t bytes, int to, int tag) override;
    Request receive(void* data, int64_t bytes, int from, int tag) override;
    bool done(Request request) override;
    void send_abort(const std::string& reason) override;
    std::optional<std::string> abort_received() override;
    void finalize() override;

  private:
    void find_place(const std::vector<int>& hosts);
    Request add(std::vector<MPI_Request> parts) {
        if (free_.empty()) {
            free_.push_back(static_cast<Request>(requests_.size()));
            requests_.emplace_back();
        }
        const Request request = free_.back();
        free_.pop_back();
        requests_[static_cast<size_t>(request)] = std::move(parts);
        return request;
    }
    void listen_for_abort() {
        call(MPI_Irecv(abort_text_.data(), static_cast<int>(abort_text_.size()), MPI_CHAR, MPI_ANY_SOURCE, kAbortTag,
                       world_, &abort_),
             "MPI_Irecv");
    }

    const double timeout_s_;
    std::optional<Watchdog> watchdog_;
    int highest_tag_ = 0;
    std::mutex mutex_;
    MPI_Comm world_ = MPI_COMM_NULL, host_ = MPI_COMM_NULL;
    MPI_Win window_ = MPI_WIN_NULL;
    std::vector<std::vector<MPI_Request>> requests_;  // by Request; empty: free
    std::vector<Request> free_;
    MPI_Request abort_ = MPI_REQUEST_NULL;
    std::array<char, 1024> abort_text_{}, own_abort_text_{};
};

MpiWire::MpiWire(const Launch& launch, const WorldOptions& options, const std::vector<int>& hosts)
    : timeout_s_(options.timeout_s),
      watchdog_(std::in_place, timeout_s_,
                concat("rank ", launch.rank, " of ", launch.size, ": MPI has not started within ", timeout_s_,
                       " s (comm.timeout_s): a rank is missing, or stands still before it has said who it is; look for "
                       "a process that is not running, and at the hosts")) {
    int initialized = 0;
    MPI_Initialized(&initialized);
    check<UsageError>(initialized == 0, "a process has one world over MPI, and this one had it already");
    const int wanted = options.progress_thread || options.watched ? MPI_THREAD_SERIALIZED : MPI_THREAD_FUNNELED;
    int provided = 0;
    call(MPI_Init_thread(nullptr, nullptr, wanted, &provided), "MPI_Init_thread");
    check<UsageError>(provided >= wanted,
                      "a progress thread, and NCCL, need an MPI with MPI_THREAD_SERIALIZED, this one has level ",
                      provided, "; run without the progress thread, or with comm.engine = \"tcp\"");
    call(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world_, &place_.rank);
    MPI_Comm_size(world_, &place_.size);
    // An MPI library that does not know the launcher makes every process a world of its own.
    check<UsageError>(
        place_.size == launch.size && place_.rank == launch.rank, "the launcher (", name_of(launch.launcher), ", ",
        launch.evidence, ") says rank ", launch.rank, " of ", launch.size, ", MPI says rank ", place_.rank, " of ",
        place_.size,
        ": this program was built with another MPI than the one that started it (tutti doctor names it); "
        "under Slurm: srun --mpi=pmix (srun --mpi=list shows what there is), or comm.engine = \"tcp\", which needs no "
        "MPI");
    find_place(hosts);
}

void MpiWire::find_place(const std::vector<int>& hosts) {
    check<UsageError>(hosts.empty() || static_cast<int>(hosts.size()) == place_.size, "hosts are given for ",
                      hosts.size(), " ranks, there are ", place_.size);
    if (hosts.empty())
        call(MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, place_.rank, MPI_INFO_NULL, &host_),
             "MPI_Comm_split_type");
    else
        call(MPI_Comm_split(world_, hosts[static_cast<size_t>(place_.rank)], place_.rank, &host_), "MPI_Comm_split");
    MPI_Comm_set_errhandler(host_, MPI_ERRORS_RETURN);

    const auto n = static_cast<size_t>(place_.size);
    int first = place_.rank;  // of the host: its number
    call(MPI_Bcast(&first, 1, MPI_INT, 0, host_), "MPI_Bcast");
    place_.host_of.resize(n);
    call(MPI_Allgather(&first, 1, MPI_INT, place_.host_of.data(), 1, MPI_INT, world_), "MPI_Allgather");
    std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    int length = 0;
    MPI_Get_processor_name(name.data(), &length);
    std::vector<std::array<char, MPI_MAX_PROCESSOR_NAME>> names(n);
    call(MPI_Allgather(name.data(), MPI_MAX_PROCESSOR_NAME, MPI_CHAR, names.data(), MPI_MAX_PROCESSOR_NAME, MPI_CHAR,
                       world_),
         "MPI_Allgather");
    for (size_t r = 0; r < n; ++r) {
        if (place_.host_of[r] == first) place_.locals.push_back(static_cast<int>(r));
        place_.host_names.emplace_back(names[r].data());
    }
    place_.cores = cores_of(host_);

    int* tag_limit = nullptr;
    int found = 0;
    MPI_Comm_get_attr(world_, MPI_TAG_UB, &tag_limit, &found);
    highest_tag_ = found ? *tag_limit : 32767;  // what the standard grants
    if (place_.locals.size() < n) listen_for_abort();
}

std::byte* MpiWire::share(int64_t bytes) {
    int local = 0;
    MPI_Comm_rank(host_, &local);
    void* base = nullptr;
    const int code = MPI_Win_allocate_shared(local == 0 ? bytes + static_cast<MPI_Aint>(kPage) : 0, 1, MPI_INFO_NULL,
                                             host_, &base, &window_);
    check(code == MPI_SUCCESS, "MPI gives no shared memory of ", bytes, " bytes (", bytes >> 20, " MiB) for ",
          place_.locals.size(), " ranks of host ", place_.host_names[static_cast<size_t>(place_.rank)],
          ": is /dev/shm large enough? A smaller shared_bytes_per_rank needs less");
    MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN);
    MPI_Aint size = 0;
    int unit = 0;
    call(MPI_Win_shared_query(window_, 0, &size, &unit, &base), "MPI_Win_shared_query");
    int* model = nullptr;
    int found = 0;
    MPI_Win_get_attr(window_, MPI_WIN_MODEL, &model, &found);
    check(found && *model == MPI_WIN_UNIFIED, "this machine's MPI shares memory that needs copies to be seen");
    call(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
    // MPI aligns to what it likes; the place in the page is the same for all who map it.
    const auto address = reinterpret_cast<uintptr_t>(base);
    return static_cast<std::byte*>(base) + (kPage - address % kPage) % kPage;
}

MpiWire::Request MpiWire::send(const void* data, int64_t bytes, int to, int tag) {
    std::lock_guard lock(mutex_);
    std::vector<MPI_Request> parts;
    int64_t at = 0;
    do {
        const auto n = static_cast<int>(std::min(bytes - at, kLargestMessage));
        call(MPI_Isend(static_cast<const char*>(data) + at, n, MPI_BYTE, to, tag, world_, &parts.emplace_back()),
             "MPI_Isend");
        at += n;
    } while (at < bytes);
    ++pending_;
    return add(std::move(parts));
}

MpiWire::Request MpiWire::receive(void* data, int64_t bytes, int from, int tag) {
    std::lock_guard lock(mutex_);
    std::vector<MPI_Request> parts;
    int64_t at = 0;
    do {
        const auto n = static_cast<int>(std::min(bytes - at, kLargestMessage));
        call(MPI_Irecv(static_cast<char*>(data) + at, n, MPI_BYTE, from, tag, world_, &parts.emplace_back()),
             "MPI_Irecv");
        at += n;
    } while (at < bytes);
    ++pending_;
    return add(std::move(parts));
}

bool MpiWire::done(Request request) {
    std::lock_guard lock(mutex_);
    auto& parts = requests_[static_cast<size_t>(request)];
    int complete = 0;
    call(MPI_Testall(static_cast<int>(parts.size()), parts.data(), &complete, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (complete == 0) return false;
    parts.clear();
    free_.push_back(request);
    --pending_;
    ++completed_;
    return true;
}

void MpiWire::send_abort(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (abort_ == MPI_REQUEST_NULL) return;  // one host only
    auto& text = own_abort_text_;
    reason.copy(text.data(), text.size() - 1);
    std::vector<MPI_Request> sends;
    for (int r = 0; r < place_.size; ++r) {
        if (std::binary_search(place_.locals.begin(), place_.locals.end(), r)) continue;
        if (MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_CHAR, r, kAbortTag, world_,
                      &sends.emplace_back()) != MPI_SUCCESS)
            sends.pop_back();
    }
    int complete = 0;
    for (int i = 0; i < 1000 && complete == 0; ++i) {
        if (MPI_Testall(static_cast<int>(sends.size()), sends.data(), &complete, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
            return;
        if (complete == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

std::optional<std::string> MpiWire::abort_received() {
    std::lock_guard lock(mutex_);
    if (abort_ == MPI_REQUEST_NULL) return std::nullopt;
    int complete = 0;
    call(MPI_Test(&abort_, &complete, MPI_STATUS_IGNORE), "MPI_Test");
    if (complete == 0) return std::nullopt;
    std::string reason(abort_text_.data());
    listen_for_abort();
    return reason;
}

void MpiWire::finalize() {
    const Watchdog ending(
        timeout_s_, concat("rank ", place_.rank, ": MPI has not ended within ", timeout_s_, " s (comm.timeout_s)"));
    std::lock_guard lock(mutex_);
    if (abort_ != MPI_REQUEST_NULL) {
        MPI_Cancel(&abort_);
        MPI_Wait(&abort_, MPI_STATUS_IGNORE);
    }
    if (window_ != MPI_WIN_NULL) {
        MPI_Win_unlock_all(window_);
        MPI_Win_free(&window_);
    }
    MPI_Comm_free(&host_);
    MPI_Comm_free(&world_);
    MPI_Finalize();
}

}  // namespace

std::string mpi_library() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    const std::string_view all(text.data());
    return std::string(all.substr(0, all.find_first_of(",\n")));
}

void run_mpi(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const ProcessOptions& processes) {
    processes::run_processes(
        "mpi", [&] { return std::make_unique<MpiWire>(launch, options, processes.hosts); }, options, body, processes);
}

}  // namespace tutti::comm
