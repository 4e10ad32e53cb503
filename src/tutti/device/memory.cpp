#include "tutti/device/memory.h"

#include <algorithm>
#include <utility>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/device/device.h"

namespace tutti {

namespace {

// The bytes of a segment that a block occupies.
int64_t rounded(int64_t bytes) {
    constexpr int64_t kGrain = 256, kPage = 4096;
    const int64_t to = FreeSpace::is_large(bytes) ? kPage : kGrain;
    return std::max(round_up(bytes, to), kGrain);
}

Arena::End end_of(Purpose purpose) { return purpose == Purpose::gradients ? Arena::End::last : Arena::End::first; }

}  // namespace

std::string RawMemory::advice() const {
    return "try a smaller train.micro_batch, recompute.policy = \"full\" or a smaller model";
}

void Tally::add(int64_t bytes, Purpose purpose) {
    MemoryUsage& usage = of[to_size(purpose)];
    usage.current += bytes;
    usage.peak = std::max(usage.peak, usage.current);
    total.current += bytes;
    if (total.current <= total.peak) return;
    total.peak = total.current;
    for (size_t p = 0; p < kPurposes; ++p) at_peak.bytes[p] = of[p].current;
}

void Tally::add_peaks(const Tally& more) {
    for (size_t p = 0; p < kPurposes; ++p) of[p].peak = std::max(of[p].peak, of[p].current + more.of[p].peak);
    if (total.current + more.total.peak <= total.peak) return;
    total.peak = total.current + more.total.peak;
    for (size_t p = 0; p < kPurposes; ++p) at_peak.bytes[p] = of[p].current + more.at_peak.bytes[p];
}

void Tally::reset_peaks() {
    for (MemoryUsage& usage : of) usage.peak = usage.current;
    for (size_t p = 0; p < kPurposes; ++p) at_peak.bytes[p] = of[p].current;
    total.peak = total.current;
}

Allocator::Allocator(std::unique_ptr<RawMemory> raw) : raw_(std::move(raw)) {}

Allocator::~Allocator() {
    trim();
    if (arena_) raw_->give_back(arena_->begin(), arena_bytes_);
}

void Allocator::open_arena(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    check(!arena_, "an allocator has one arena");
    const int64_t size = bytes > 0 ? rounded(bytes) : 0;  // blocks at the last end are aligned too
    void* begin = size > 0 ? raw_->take(size) : nullptr;
    if (begin == nullptr) return;
    arena_.emplace(begin, size);
    arena_bytes_ = size;
    reserved_ += size;
}

void Allocator::open_growing_arena() {
    constexpr int64_t kAddresses = int64_t{1} << 50;
    const std::lock_guard lock(mutex_);
    check(!arena_, "an allocator has one arena");
    arena_.emplace(raw_->addresses(kAddresses), kAddresses);
}

void* Allocator::allocate(int64_t bytes, Purpose purpose) {
    check(bytes >= 0, "cannot allocate ", bytes, " bytes for ", name_of(purpose));
    const int64_t size = rounded(bytes);
    std::lock_guard lock(mutex_);
    void* data = take_from_arena(size, purpose);
    if (data == nullptr) data = take_from_segments((pool_ != nullptr ? pool_->free_ : free_).of(size), size);
    check<OutOfMemory>(data != nullptr, "out of memory: ", bytes, " bytes for ", name_of(purpose), " on top of ",
                       usage_.total.current, " in use; ", raw_->advice());
    join_work(data, size);
    raw_->values_end(data, bytes);
    usage_.add(bytes, purpose);
    if (pool_ != nullptr) {
        pool_->usage_.add(bytes, purpose);
        pooled_[data] = pool_;
    }
    return data;
}

void* Allocator::take_from_arena(int64_t bytes, Purpose purpose) {
    if (!arena_ || pool_ != nullptr || !FreeSpace::is_large(bytes)) return nullptr;
    const Arena::End end = end_of(purpose);
    const int64_t more = arena_->length_with(bytes, end) - arena_bytes_;
    if (more > 0) {
        if (!raw_->give_memory(more)) return nullptr;
        arena_bytes_ += more;
        reserved_ += more;
    }
    return arena_->take(bytes, end);
}

void* Allocator::take_from_segments(Segments& segments, int64_t bytes) {
    void* data = segments.take(bytes);
    if (data == nullptr && (grow(segments, raw_->segment_bytes(bytes)) || grow(segments, bytes)))
        data = segments.take(bytes);
    return data;
}

// Places are in the order of their addresses. None overlap but equal ones, since a block that is released was joined
// with all that overlapped it when it was allocated.
void Allocator::join_work(void* data, int64_t bytes) {
    auto* const begin = static_cast<std::byte*>(data);
    const auto first = std::ranges::partition_point(in_use_, [&](const Place& place) { return place.end <= begin; });
    auto last = first;
    for (; last != in_use_.end() && last->begin < begin + bytes; ++last) last->work->join();
    in_use_.erase(first, last);
}

void Allocator::release(void* data, int64_t bytes, Purpose purpose,
                        const std::vector<std::shared_ptr<SideWork>>& work) {
    std::lock_guard lock(mutex_);
    auto* const begin = static_cast<std::byte*>(data);
    if (bytes > 0)
        for (const auto& each : work)
            in_use_.insert(std::ranges::lower_bound(in_use_, begin, {}, &Place::begin), {begin, begin + bytes, each});
    if (work.empty()) raw_->values_end(data, bytes);
    usage_.add(-bytes, purpose);
    if (arena_ && arena_->holds(data)) return arena_->give_back(data, rounded(bytes), end_of(purpose));
    FreeSpace* free = &free_;
    if (const auto pooled = pooled_.find(data); pooled != pooled_.end()) {
        pooled->second->usage_.add(-bytes, purpose);
        free = &pooled->second->free_;
        pooled_.erase(pooled);
    }
    free->of(rounded(bytes)).give_back(data);
}

MemoryUsage Allocator::usage(Purpose purpose) const {
    std::lock_guard lock(mutex_);
    return usage_.of[to_size(purpose)];
}

MemoryUsage Allocator::total() const {
    std::lock_guard lock(mutex_);
    return usage_.total;
}

int64_t Allocator::reserved() const {
    std::lock_guard lock(mutex_);
    return reserved_;
}

int64_t Allocator::arena_bytes() const {
    std::lock_guard lock(mutex_);
    return arena_bytes_;
}

MemoryByPurpose Allocator::at_peak() const {
    std::lock_guard lock(mutex_);
    return usage_.at_peak;
}

void Allocator::reset_peaks() {
    std::lock_guard lock(mutex_);
    usage_.reset_peaks();
}

void Allocator::trim() {
    std::lock_guard lock(mutex_);
    trim_locked();
}

void Allocator::trim_locked() {
    for (Segments* segments : {&free_.small, &free_.large})
        for (const auto& [data, bytes] : segments->remove_unused()) {
            raw_->give_back(data, bytes);
            reserved_ -= bytes;
        }
}

bool Allocator::grow(Segments& segments, int64_t bytes) {
    void* data = raw_->take(bytes);
    if (data == nullptr) {
        trim_locked();
        data = raw_->take(bytes);
    }
    if (data == nullptr) return false;
    segments.add(data, bytes);
    reserved_ += bytes;
    return true;
}

// --- pools -----------------------------------------------------------------------------------------------------------

Pool::~Pool() {
    std::lock_guard lock(allocator_->mutex_);
    allocator_->free_.small.absorb(free_.small);
    allocator_->free_.large.absorb(free_.large);
    std::erase_if(allocator_->pooled_, [this](const auto& block) { return block.second == this; });
}

Pool::Use::Use(Pool& pool) : allocator_(*pool.allocator_) {
    std::lock_guard lock(allocator_.mutex_);
    check(allocator_.pool_ == nullptr, "memory comes from one pool at a time");
    allocator_.pool_ = &pool;
}

Pool::Use::~Use() {
    std::lock_guard lock(allocator_.mutex_);
    allocator_.pool_ = nullptr;
}

void Pool::count_again() {
    std::lock_guard lock(allocator_->mutex_);
    allocator_->usage_.add_peaks(usage_);
}

// --- buffers ---------------------------------------------------------------------------------------------------------

void* Buffer::data() const {
    check(!offloaded(), "a buffer of ", bytes_, " bytes for ", name_of(purpose_), " is used while it is offloaded");
    if (has_work_.load(std::memory_order_acquire)) {
        const std::lock_guard lock(work_mutex_);
        for (const auto& work : work_) work->join();
        set_work({});
    }
    return data_;
}

void Buffer::set_work(std::vector<std::shared_ptr<SideWork>> work) const {
    work_ = std::move(work);
    has_work_.store(!work_.empty(), std::memory_order_release);
}

void Buffer::offload(Device& device, Device& offload_device) {
    void* there = offload_device.memory().allocate(bytes_, purpose_);
    const auto copy = device.copy_async(there, data(), bytes_);
    const std::lock_guard lock(work_mutex_);
    if (copy) set_work({copy});
    allocator_->release(data_, bytes_, purpose_, work_);
    data_ = there;
    offloaded_to_ = offload_device.memory().shared_from_this();
}

void Buffer::used_by(std::shared_ptr<SideWork> work) {
    const std::lock_guard lock(work_mutex_);
    std::vector<std::shared_ptr<SideWork>> all = work_;
    std::erase_if(all, [&](const auto& earlier) { return earlier == work || earlier->done(); });
    all.push_back(std::move(work));
    set_work(std::move(all));
}

void Buffer::will_need() {
    if (offloaded_to_) offloaded_to_->will_need(data_, bytes_);
}

void Buffer::fetch(Device& device) {
    if (!offloaded_to_) return;
    void* here = allocator_->allocate(bytes_, purpose_);
    const auto copy = device.copy_async(here, data_, bytes_);
    const std::lock_guard lock(work_mutex_);
    set_work({});  // asynchronous copies run in order
    if (copy) set_work({copy});
    offloaded_to_->release(data_, bytes_, purpose_, work_);
    data_ = here;
    offloaded_to_ = nullptr;
}

}  // namespace tutti
