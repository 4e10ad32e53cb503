#include "tutti/device/memory.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/device/device.h"

namespace tutti {

namespace {

// What a block takes of its segment.
int64_t rounded(int64_t bytes) {
    constexpr int64_t kGrain = 256, kPage = 4096;
    const int64_t to = bytes < kLargeBlock ? kGrain : kPage;
    return std::max((bytes + to - 1) / to * to, kGrain);
}

}  // namespace

std::string RawMemory::advice() const {
    return "try a smaller train.micro_batch, recompute.policy = \"full\" or a smaller model";
}

Allocator::Allocator(std::unique_ptr<RawMemory> raw) : raw_(std::move(raw)) {}

Allocator::~Allocator() { trim(); }

void* Allocator::allocate(int64_t bytes, Purpose purpose) {
    check(bytes >= 0, "cannot allocate ", bytes, " bytes for ", name_of(purpose));
    const int64_t size = rounded(bytes);
    std::lock_guard lock(mutex_);
    Segments& segments = segments_of(size);
    void* data = segments.take(size);
    if (data == nullptr) {
        check(grow(segments, raw_->segment_bytes(size)) || grow(segments, size), "out of memory: ", bytes,
              " bytes for ", name_of(purpose), " on top of ", total_.current, " in use; ", raw_->advice());
        data = segments.take(size);
    }
    auto& usage = usage_[static_cast<size_t>(purpose)];
    usage.current += bytes;
    usage.peak = std::max(usage.peak, usage.current);
    total_.current += bytes;
    if (total_.current > total_.peak) {
        total_.peak = total_.current;
        for (size_t p = 0; p < kPurposes; ++p) at_peak_[p] = usage_[p].current;
    }
    return data;
}

void Allocator::release(void* data, int64_t bytes, Purpose purpose) {
    std::lock_guard lock(mutex_);
    segments_of(rounded(bytes)).give_back(data);
    usage_[static_cast<size_t>(purpose)].current -= bytes;
    total_.current -= bytes;
}

MemoryUsage Allocator::usage(Purpose purpose) const {
    std::lock_guard lock(mutex_);
    return usage_[static_cast<size_t>(purpose)];
}

MemoryUsage Allocator::total() const {
    std::lock_guard lock(mutex_);
    return total_;
}

int64_t Allocator::reserved() const {
    std::lock_guard lock(mutex_);
    return reserved_;
}

std::array<int64_t, kPurposes> Allocator::at_peak() const {
    std::lock_guard lock(mutex_);
    return at_peak_;
}

void Allocator::reset_peaks() {
    std::lock_guard lock(mutex_);
    for (size_t p = 0; p < kPurposes; ++p) {
        usage_[p].peak = usage_[p].current;
        at_peak_[p] = usage_[p].current;
    }
    total_.peak = total_.current;
}

void Allocator::trim() {
    std::lock_guard lock(mutex_);
    trim_locked();
}

void Allocator::trim_locked() {
    for (Segments* segments : {&small_, &large_})
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

void* Buffer::data() const {
    check(!away(), "a buffer of ", bytes_, " bytes for ", name_of(purpose_), " is used while it is offloaded");
    return data_;
}

void Buffer::send_away(Device& device, Device& home) {
    void* there = home.memory().allocate(bytes_, purpose_);
    device.copy_out(there, data(), bytes_);
    allocator_->release(data_, bytes_, purpose_);
    data_ = there;
    away_ = home.memory().shared_from_this();
}

void Buffer::will_need() {
    if (away_) away_->will_need(data_, bytes_);
}

void Buffer::bring_back(Device& device) {
    if (!away_) return;
    void* here = allocator_->allocate(bytes_, purpose_);
    device.copy_in(here, data_, bytes_);
    away_->release(data_, bytes_, purpose_);
    data_ = here;
    away_ = nullptr;
}

}  // namespace tutti
