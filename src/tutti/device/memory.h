// device/memory.h: who owns memory and what it is for. Every buffer states its purpose, so that the plan's prediction
// ("weights 1.2 GiB, activations 3.4 GiB") can be held against what was measured, purpose by purpose.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/purpose.h"
#include "tutti/base/trace.h"
#include "tutti/device/segments.h"

namespace tutti {

class OutOfMemory : public Error {
  public:
    using Error::Error;
};

struct MemoryUsage {
    int64_t current = 0;  // bytes
    int64_t peak = 0;
};

// What is in use, by purpose.
struct Tally {
    std::array<MemoryUsage, kPurposes> of{};
    MemoryUsage total;        // its peak is the peak of the sum, not the sum of the peaks
    MemoryByPurpose at_peak;  // what each purpose held at the instant of the peak of the sum

    void add(int64_t bytes, Purpose purpose);  // negative: released
    void add_peaks(const Tally& more);         // of work that took `more` on top of what is in use, and released it
    void reset_peaks();
};

class Pool;

// Work that runs beside the other work of a device: a copy (Device::copy_aside), or what a SideStream was given.
class SideWork {
  public:
    virtual ~SideWork() = default;
    virtual void join() = 0;   // work that the device is given from now on begins after it; the host does not wait
    virtual bool begun() = 0;  // all that it had to wait for is done. Any thread may ask
    virtual bool done() = 0;   // likewise
    // When the device began and ended it, once it is done; nullopt where it was begun without times.
    virtual std::optional<TimeSpan> times() { return std::nullopt; }
};

// Where an allocator takes its memory from: the host's pages, a GPU's.
class RawMemory {
  public:
    virtual ~RawMemory() = default;
    virtual void* take(int64_t bytes) = 0;  // nullptr when there is none; aligned to 64 bytes or more
    virtual void give_back(void* data, int64_t bytes) = 0;
    // How much to take at once when nothing free holds a block of `bytes`: the rest serves later blocks.
    virtual int64_t segment_bytes(int64_t bytes) const { return bytes; }
    virtual void will_need(void*, int64_t) {}  // soon: may be fetched from where it is
    // Whatever is there, no work that the device is given from now on reads it.
    virtual void values_end(void*, int64_t) {}
    virtual std::string advice() const;  // what to try when take() finds none
};

// Keeps what is released (segments.h) and hands it out again; goes back to the system only for more. Usage counts what
// was asked for; `reserved` what the system gave.
// Thread safe: a background checkpoint writer may release buffers of a rank. Made by std::make_shared: buffers keep it,
// because when a rank fails another one may still be reading what they were communicating.
class Allocator : public std::enable_shared_from_this<Allocator> {
  public:
    explicit Allocator(std::unique_ptr<RawMemory> raw);
    ~Allocator();
    Allocator(const Allocator&) = delete;
    Allocator& operator=(const Allocator&) = delete;

    // Throws OutOfMemory naming bytes, purpose and the usage so far when the system has no memory left.
    void* allocate(int64_t bytes, Purpose purpose);
    // `work`: what may still be reading or writing there. Whoever gets the place joins it first.
    void release(void* data, int64_t bytes, Purpose purpose, const std::vector<std::shared_ptr<SideWork>>& work = {});

    MemoryUsage usage(Purpose purpose) const;
    MemoryUsage total() const;  // its peak is the peak of the sum, not the sum of the peaks
    int64_t reserved() const;
    // What each purpose held at the instant of the peak of the sum.
    MemoryByPurpose at_peak() const;
    void reset_peaks();
    void trim();  // gives unused segments back to the system
    void will_need(void* data, int64_t bytes) { raw_->will_need(data, bytes); }

  private:
    friend class Pool;

    bool grow(Segments& segments, int64_t bytes);  // false: the system has no more
    void join_work(void* data, int64_t bytes);
    void trim_locked();

    std::unique_ptr<RawMemory> raw_;
    mutable std::mutex mutex_;
    FreeSpace free_;
    Tally usage_;
    int64_t reserved_ = 0;
    struct Place {
        std::byte *begin, *end;
        std::shared_ptr<SideWork> work;
    };
    std::vector<Place> in_use_;                // free places whose work was not joined yet
    Pool* pool_ = nullptr;                     // that blocks come from now
    std::unordered_map<void*, Pool*> pooled_;  // blocks in use that belong to pools
};

// Memory apart from all other: while a Use exists blocks come from here, and here they return whenever they are
// released. For a recorded CUDA graph, which replays at fixed addresses: no other owner may get its memory.
class Pool {
  public:
    explicit Pool(Allocator& allocator) : allocator_(allocator.shared_from_this()) {}
    ~Pool();  // its memory becomes the allocator's
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    class Use {
      public:
        explicit Use(Pool& pool);
        ~Use();
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;

      private:
        Allocator& allocator_;
    };
    // The work runs again and allocates nothing: its peak counts as if it did.
    void count_again();

  private:
    friend class Allocator;
    std::shared_ptr<Allocator> allocator_;
    FreeSpace free_;
    Tally usage_;
};

class Device;

// Owns one allocation. Values that are not needed for a while may be offloaded to the memory of another device.
class Buffer {
  public:
    Buffer(Allocator& allocator, int64_t bytes, Purpose purpose)
        : allocator_(allocator.shared_from_this()),
          data_(allocator.allocate(bytes, purpose)),
          bytes_(bytes),
          purpose_(purpose) {}
    ~Buffer() { (offloaded_to_ ? *offloaded_to_ : *allocator_).release(data_, bytes_, purpose_, work_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    void* data() const;  // Error while the buffer is offloaded
    int64_t bytes() const { return bytes_; }
    Purpose purpose() const { return purpose_; }

    // `device` is whose memory it was made in; `offload_device` is memory that it reaches. Neither call waits: the
    // copies run beside the device's work, which joins them where the values or the memory are used next. The address
    // changes: no View of it may be kept over these calls.
    void offload(Device& device, Device& offload_device);
    void will_need();  // soon, here again
    void fetch(Device& device);
    bool offloaded() const { return offloaded_to_ != nullptr; }
    // `work` reads or writes the buffer: data() joins it, and so does whoever gets its memory.
    void used_by(std::shared_ptr<SideWork> work);

  private:
    std::shared_ptr<Allocator> allocator_;
    std::shared_ptr<Allocator> offloaded_to_;  // whose memory data_ is in, when not allocator_'s
    void* data_;
    int64_t bytes_;
    Purpose purpose_;
    mutable std::vector<std::shared_ptr<SideWork>> work_;  // on data_, until it is joined
};

}  // namespace tutti
