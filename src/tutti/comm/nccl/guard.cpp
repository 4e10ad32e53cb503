#include "tutti/comm/nccl/guard.h"

#include <algorithm>
#include <thread>

namespace tutti::comm::nccl {

void Guard::check(Result result, std::string_view what, const std::string& group) const {
    if (result == kSuccess || result == kInProgress) return;
    check_failed();  // after an abort, other calls fail too
    throw Error(concat("NCCL, ", what, " of group ", group, ": ", api().get_error_string(result),
                       "; NCCL_DEBUG=INFO prints details"));
}

Guard::Turn::Turn(Guard& guard, std::string_view what, const std::string& group)
    : guard_(guard), lock_(guard.calling_) {
    guard_.check_failed();
    const std::lock_guard lock(guard_.mutex_);
    guard_.call_ = {what, &group, AwakeTime(guard_.timeout_s_)};
}

Guard::Turn::~Turn() {
    const std::lock_guard lock(guard_.mutex_);
    guard_.call_.reset();
}

void Guard::settle(Comm comm, std::string_view what, const std::string& group) {
    for (int polls = 0;; ++polls) {
        check_failed();
        Result state = kSuccess;
        check(api().comm_get_async_error(comm, &state), what, group);
        check(state, what, group);
        if (state == kSuccess) return;
        if (polls > 100) std::this_thread::sleep_for(std::chrono::microseconds(polls > 1000 ? 1000 : 20));
    }
}

void Guard::add(Comm comm, const std::string& group) {
    const std::lock_guard lock(mutex_);
    members_.push_back({comm, group});
}

bool Guard::remove(Comm comm) {
    const std::lock_guard lock(mutex_);
    return std::erase_if(members_, [&](const Member& m) { return m.comm == comm; }) > 0;
}

void Guard::check_failed() const {
    if (!failed_) return;
    const std::lock_guard lock(mutex_);
    std::rethrow_exception(failure_);
}

void Guard::poll() {
    check_failed();
    if (const std::unique_lock call(calling_, std::try_to_lock); call.owns_lock()) {
        const std::lock_guard lock(mutex_);
        for (const Member& m : members_) {
            Result state = kSuccess;
            check(api().comm_get_async_error(m.comm, &state), "state", m.group);
            check(state, "state", m.group);
        }
    } else {
        const std::lock_guard lock(mutex_);
        if (call_)
            tutti::check<TimedOut>(call_->time.passed() < timeout_s_, "NCCL, ", call_->what, " of group ",
                                   *call_->group, ": in progress ", for_too_long(timeout_s_));
    }
    world_.progress().check_abort();
}

void Guard::fail(const std::exception_ptr& why) {
    {
        const std::lock_guard lock(mutex_);
        if (failed_) return;
        failure_ = why;
        failed_ = true;  // settle() of another thread throws
    }
    device_.fail(why);
    std::unique_lock call(calling_, kCallTimeout);
    std::vector<Member> all;
    {
        const std::lock_guard lock(mutex_);
        all.swap(members_);
    }
    // As one NCCL group: ncclCommAbort, even on a non-blocking communicator, waits for NCCL's streams and for cudaFree,
    // thus for the kernels of this GPU's other communicators, which end only when these are aborted. In a group NCCL
    // signals the abort to all before it waits for one (src/group.cc; PyTorch's abortComms() does the same), and the
    // end of the group frees them. A call in progress returns once its communicator is signalled, and uses the
    // communicator until then (groupCleanup in src/group.cc).
    api().group_start();
    for (const Member& m : all) api().comm_abort(m.comm);
    if (!call.owns_lock()) static_cast<void>(call.try_lock_for(kCallTimeout));
    api().group_end();
}

}  // namespace tutti::comm::nccl
