#include "tutti/comm/mpi/wire.h"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/comm/mpi/mpi_world.h"

namespace tutti::comm::mpi {

namespace {

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

}  // namespace

struct Wire::Mpi {
    MPI_Comm world = MPI_COMM_NULL, host = MPI_COMM_NULL;
    MPI_Win window = MPI_WIN_NULL;
    std::vector<std::vector<MPI_Request>> requests;  // by Request; empty: free
    std::vector<Request> free;
    MPI_Request abort = MPI_REQUEST_NULL;
    std::array<char, 1024> abort_text{}, own_abort_text{};

    Request add(std::vector<MPI_Request> parts) {
        if (free.empty()) {
            free.push_back(static_cast<Request>(requests.size()));
            requests.emplace_back();
        }
        const Request request = free.back();
        free.pop_back();
        requests[static_cast<size_t>(request)] = std::move(parts);
        return request;
    }
    void listen_for_abort() {
        call(MPI_Irecv(abort_text.data(), static_cast<int>(abort_text.size()), MPI_CHAR, MPI_ANY_SOURCE, kAbortTag,
                       world, &abort),
             "MPI_Irecv");
    }
};

Wire::Wire(const Launch& launch, bool progress_thread, const std::vector<int>& hosts) : mpi_(std::make_unique<Mpi>()) {
    int initialized = 0;
    MPI_Initialized(&initialized);
    check<UsageError>(initialized == 0, "a process has one world over MPI, and this one had it already");
    const int wanted = progress_thread ? MPI_THREAD_SERIALIZED : MPI_THREAD_FUNNELED;
    int provided = 0;
    call(MPI_Init_thread(nullptr, nullptr, wanted, &provided), "MPI_Init_thread");
    check<UsageError>(provided >= wanted,
                      "a progress thread needs an MPI with MPI_THREAD_SERIALIZED, this one has level ", provided,
                      "; run without the progress thread");
    call(MPI_Comm_dup(MPI_COMM_WORLD, &mpi_->world), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(mpi_->world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi_->world, &place_.rank);
    MPI_Comm_size(mpi_->world, &place_.size);
    // An MPI library that does not know the launcher makes every process a world of its own.
    check<UsageError>(place_.size == launch.size && place_.rank == launch.rank, "the launcher (",
                      name_of(launch.launcher), ", ", launch.evidence, ") says rank ", launch.rank, " of ", launch.size,
                      ", MPI says rank ", place_.rank, " of ", place_.size,
                      ": this program was built with another MPI than the one that started it (tutti doctor names it); "
                      "under Slurm: srun --mpi=pmix (srun --mpi=list shows what there is)");
    check<UsageError>(hosts.empty() || static_cast<int>(hosts.size()) == place_.size, "hosts are given for ",
                      hosts.size(), " ranks, there are ", place_.size);
    if (hosts.empty())
        call(MPI_Comm_split_type(mpi_->world, MPI_COMM_TYPE_SHARED, place_.rank, MPI_INFO_NULL, &mpi_->host),
             "MPI_Comm_split_type");
    else
        call(MPI_Comm_split(mpi_->world, hosts[static_cast<size_t>(place_.rank)], place_.rank, &mpi_->host),
             "MPI_Comm_split");
    MPI_Comm_set_errhandler(mpi_->host, MPI_ERRORS_RETURN);

    const auto n = static_cast<size_t>(place_.size);
    int first = place_.rank;  // of the host: its number
    call(MPI_Bcast(&first, 1, MPI_INT, 0, mpi_->host), "MPI_Bcast");
    place_.host_of.resize(n);
    call(MPI_Allgather(&first, 1, MPI_INT, place_.host_of.data(), 1, MPI_INT, mpi_->world), "MPI_Allgather");
    std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    int length = 0;
    MPI_Get_processor_name(name.data(), &length);
    std::vector<std::array<char, MPI_MAX_PROCESSOR_NAME>> names(n);
    call(MPI_Allgather(name.data(), MPI_MAX_PROCESSOR_NAME, MPI_CHAR, names.data(), MPI_MAX_PROCESSOR_NAME, MPI_CHAR,
                       mpi_->world),
         "MPI_Allgather");
    for (size_t r = 0; r < n; ++r) {
        if (place_.host_of[r] == first) place_.locals.push_back(static_cast<int>(r));
        place_.host_names.emplace_back(names[r].data());
    }
    place_.cores = cores_of(mpi_->host);

    int* tag_limit = nullptr;
    int found = 0;
    MPI_Comm_get_attr(mpi_->world, MPI_TAG_UB, &tag_limit, &found);
    highest_tag_ = found ? *tag_limit : 32767;  // what the standard grants
    if (place_.locals.size() < n) mpi_->listen_for_abort();
}

Wire::~Wire() = default;

std::byte* Wire::share(int64_t bytes) {
    int local = 0;
    MPI_Comm_rank(mpi_->host, &local);
    void* base = nullptr;
    const int code = MPI_Win_allocate_shared(local == 0 ? bytes + static_cast<MPI_Aint>(kPage) : 0, 1, MPI_INFO_NULL,
                                             mpi_->host, &base, &mpi_->window);
    check(code == MPI_SUCCESS, "MPI gives no shared memory of ", bytes, " bytes (", bytes >> 20, " MiB) for ",
          place_.locals.size(), " ranks of host ", place_.host_names[static_cast<size_t>(place_.rank)],
          ": is /dev/shm large enough? A smaller shared_bytes_per_rank needs less");
    MPI_Win_set_errhandler(mpi_->window, MPI_ERRORS_RETURN);
    MPI_Aint size = 0;
    int unit = 0;
    call(MPI_Win_shared_query(mpi_->window, 0, &size, &unit, &base), "MPI_Win_shared_query");
    int* model = nullptr;
    int found = 0;
    MPI_Win_get_attr(mpi_->window, MPI_WIN_MODEL, &model, &found);
    check(found && *model == MPI_WIN_UNIFIED, "this machine's MPI shares memory that needs copies to be seen");
    call(MPI_Win_lock_all(MPI_MODE_NOCHECK, mpi_->window), "MPI_Win_lock_all");
    // MPI aligns to what it likes; the place in the page is the same for all who map it.
    const auto address = reinterpret_cast<uintptr_t>(base);
    return static_cast<std::byte*>(base) + (kPage - address % kPage) % kPage;
}

void Wire::barrier_of_host() { call(MPI_Barrier(mpi_->host), "MPI_Barrier"); }

Wire::Request Wire::send(const void* data, int64_t bytes, int to, int tag) {
    std::lock_guard lock(mutex_);
    std::vector<MPI_Request> parts;
    int64_t at = 0;
    do {
        const auto n = static_cast<int>(std::min(bytes - at, kLargestMessage));
        call(MPI_Isend(static_cast<const char*>(data) + at, n, MPI_BYTE, to, tag, mpi_->world, &parts.emplace_back()),
             "MPI_Isend");
        at += n;
    } while (at < bytes);
    ++pending_;
    return mpi_->add(std::move(parts));
}

Wire::Request Wire::receive(void* data, int64_t bytes, int from, int tag) {
    std::lock_guard lock(mutex_);
    std::vector<MPI_Request> parts;
    int64_t at = 0;
    do {
        const auto n = static_cast<int>(std::min(bytes - at, kLargestMessage));
        call(MPI_Irecv(static_cast<char*>(data) + at, n, MPI_BYTE, from, tag, mpi_->world, &parts.emplace_back()),
             "MPI_Irecv");
        at += n;
    } while (at < bytes);
    ++pending_;
    return mpi_->add(std::move(parts));
}

bool Wire::done(Request request) {
    std::lock_guard lock(mutex_);
    auto& parts = mpi_->requests[static_cast<size_t>(request)];
    int complete = 0;
    call(MPI_Testall(static_cast<int>(parts.size()), parts.data(), &complete, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (complete == 0) return false;
    parts.clear();
    mpi_->free.push_back(request);
    --pending_;
    ++completed_;
    return true;
}

bool Wire::all_done(std::vector<Request>& requests) {
    std::erase_if(requests, [&](Request request) { return done(request); });
    return requests.empty();
}

void Wire::send_abort(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (mpi_->abort == MPI_REQUEST_NULL) return;  // one host only
    auto& text = mpi_->own_abort_text;
    reason.copy(text.data(), text.size() - 1);
    std::vector<MPI_Request> sends;
    for (int r = 0; r < place_.size; ++r) {
        if (std::binary_search(place_.locals.begin(), place_.locals.end(), r)) continue;
        if (MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_CHAR, r, kAbortTag, mpi_->world,
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

std::optional<std::string> Wire::abort_received() {
    std::lock_guard lock(mutex_);
    if (mpi_->abort == MPI_REQUEST_NULL) return std::nullopt;
    int complete = 0;
    call(MPI_Test(&mpi_->abort, &complete, MPI_STATUS_IGNORE), "MPI_Test");
    if (complete == 0) return std::nullopt;
    std::string reason(mpi_->abort_text.data());
    mpi_->listen_for_abort();
    return reason;
}

void Wire::finalize() {
    std::lock_guard lock(mutex_);
    if (mpi_->abort != MPI_REQUEST_NULL) {
        MPI_Cancel(&mpi_->abort);
        MPI_Wait(&mpi_->abort, MPI_STATUS_IGNORE);
    }
    if (mpi_->window != MPI_WIN_NULL) {
        MPI_Win_unlock_all(mpi_->window);
        MPI_Win_free(&mpi_->window);
    }
    MPI_Comm_free(&mpi_->host);
    MPI_Comm_free(&mpi_->world);
    MPI_Finalize();
}

}  // namespace tutti::comm::mpi

std::string tutti::comm::mpi_library() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    const std::string_view all(text.data());
    return std::string(all.substr(0, all.find_first_of(",\n")));
}
