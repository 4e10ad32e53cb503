// device/memory.h: buffers, allocators and the sources of their memory. Every buffer states its purpose, so that the
// plan's prediction ("weights 1.2 GiB, activations 3.4 GiB") can be compared with the measurement, purpose by purpose.
#pragma once

#include <array>
#include <atomic>
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
#include "tutti/device/arena.h"
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

// The bytes in use, by purpose.
struct Tally {
    std::array<MemoryUsage, kPurposes> of{};
    MemoryUsage total;        // its peak is the peak of the sum, not the sum of the peaks
    MemoryByPurpose at_peak;  // bytes of each purpose at the instant of the peak of the sum

    void add(int64_t bytes, Purpose purpose);  // negative: released
    void add_peaks(const Tally& more);         // counts work that allocated `more` on top and released it
    void reset_peaks();
};

class Pool;

// Work that runs beside the other work of a device: a copy (Device::copy_async) or the work of a SideStream.
class SideWork {
  public:
    virtual ~SideWork() = default;
    virtual void join() = 0;   // later work of the device begins after this work; the host does not wait
    virtual bool begun() = 0;  // everything that this work waits for is done; any thread may call
    virtual bool done() = 0;   // any thread may call
    // The device's times of begin and end, once the work is done; nullopt where it was begun without times.
    virtual std::optional<TimeSpan> times() { return std::nullopt; }
};

// The source of an allocator's memory: pages of the host or of a GPU.
class RawMemory {
  public:
    virtual ~RawMemory() = default;
    virtual void* take(int64_t bytes) = 0;  // nullptr when the memory is exhausted; aligned to 64 bytes or more
    virtual void give_back(void* data, int64_t bytes) = 0;
    // The size of a new segment when no free range holds a block of `bytes`: the rest serves later blocks.
    virtual int64_t segment_bytes(int64_t bytes) const { return bytes; }
    // Addresses without memory, for an arena that grows; nullptr: the device has none.
    virtual void* addresses(int64_t /*bytes*/) { return nullptr; }
    virtual bool give_memory(int64_t /*bytes*/) { return false; }  // to these addresses; false: it is exhausted
    virtual void will_need(void*, int64_t) {}                      // the memory is used soon: pages may be prefetched
    // No later work of the device reads the values in this memory.
    virtual void values_end(void*, int64_t) {}
    virtual std::string advice() const;  // what to try when take() fails
};

// A caching allocator: released blocks are reused, and the system is asked only for more. Usage counts the bytes that
// were requested, `reserved` the bytes that the system gave. Blocks come from segments (segments.h); large ones from
// the arena where there is one that has a place for them, gradients from its last end and all others from its first:
// the gradients of a step stay until the next one, and between blocks that come and go they would leave gaps. Thread
// safe: a background checkpoint writer may release buffers of a rank. Create it with std::make_shared: buffers share
// ownership, because after a rank has failed another rank may still be reading the failed rank's buffers.
class Allocator : public std::enable_shared_from_this<Allocator> {
  public:
    explicit Allocator(std::unique_ptr<RawMemory> raw);
    ~Allocator();
    Allocator(const Allocator&) = delete;
    Allocator& operator=(const Allocator&) = delete;

    // Throws OutOfMemory naming bytes, purpose and the usage so far when the system has no memory left.
    void* allocate(int64_t bytes, Purpose purpose);
    // `work`: work that may still be reading or writing the block. allocate() joins that work before reusing the place.
    void release(void* data, int64_t bytes, Purpose purpose, const std::vector<std::shared_ptr<SideWork>>& work = {});

    // From now on large blocks come from an arena of `bytes`, which is taken at once. 0, and where the system lacks the
    // memory: there is none, and allocate() tells what is missing.
    void open_arena(int64_t bytes);
    void open_growing_arena();  // the same with one that has the memory that it needs and no more

    MemoryUsage usage(Purpose purpose) const;
    MemoryUsage total() const;  // its peak is the peak of the sum, not the sum of the peaks
    int64_t reserved() const;
    int64_t arena_bytes() const;  // of `reserved`: the arena's
    // The bytes of each purpose at the instant of the peak of the sum.
    MemoryByPurpose at_peak() const;
    void reset_peaks();
    void trim();  // gives unused segments back to the system
    void will_need(void* data, int64_t bytes) { raw_->will_need(data, bytes); }

  private:
    friend class Pool;

    void* take_from_arena(int64_t bytes, Purpose purpose);        // nullptr: it has no place
    void* take_from_segments(Segments& segments, int64_t bytes);  // nullptr: the system has no more
    bool grow(Segments& segments, int64_t bytes);
    void join_work(void* data, int64_t bytes);
    void trim_locked();

    std::unique_ptr<RawMemory> raw_;
    mutable std::mutex mutex_;
    FreeSpace free_;
    std::optional<Arena> arena_;
    int64_t arena_bytes_ = 0;  // that the system gave; a growing arena has more addresses
    Tally usage_;
    int64_t reserved_ = 0;
    struct Place {
        std::byte *begin, *end;
        std::shared_ptr<SideWork> work;
    };
    std::vector<Place> in_use_;                // free places whose work was not joined yet
    Pool* pool_ = nullptr;                     // the current source of blocks
    std::unordered_map<void*, Pool*> pooled_;  // blocks in use that belong to pools
};

// Separate memory of an allocator: while a Use exists, blocks come from the pool, and they return to the pool whenever
// they are released. A recorded CUDA graph replays at fixed addresses, so no other owner may get the graph's memory.
class Pool {
  public:
    explicit Pool(Allocator& allocator) : allocator_(allocator.shared_from_this()) {}
    ~Pool();  // the pool's memory becomes the allocator's
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
    // The recorded work runs again without allocating: counts the peak of its first run again.
    void count_again();

  private:
    friend class Allocator;
    std::shared_ptr<Allocator> allocator_;
    FreeSpace free_;
    Tally usage_;
};

class Device;

// Owns one allocation. The values may be offloaded to the memory of another device while they are not needed.
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

    // Error while the buffer is offloaded. Any thread may call: all of them return after the work is joined.
    void* data() const;
    int64_t bytes() const { return bytes_; }
    Purpose purpose() const { return purpose_; }

    // `device`: the device of the buffer's allocator; `offload_device`: one whose memory `device` reaches. Neither call
    // waits: the copies run beside the device's work, which joins them at the next use of the values or the memory. The
    // address changes, so no View may be kept over these calls.
    void offload(Device& device, Device& offload_device);
    void will_need();  // fetch() follows soon
    void fetch(Device& device);
    bool offloaded() const { return offloaded_to_ != nullptr; }
    // `work` reads or writes the buffer: data() joins the work, and so does the next allocation of this memory.
    void used_by(std::shared_ptr<SideWork> work);

  private:
    void set_work(std::vector<std::shared_ptr<SideWork>> work) const;  // with work_mutex_ held

    std::shared_ptr<Allocator> allocator_;
    std::shared_ptr<Allocator> offloaded_to_;  // the allocator of data_ while offloaded, else null
    void* data_;
    int64_t bytes_;
    Purpose purpose_;
    mutable std::mutex work_mutex_;                        // of the next two
    mutable std::vector<std::shared_ptr<SideWork>> work_;  // on data_, not joined yet
    mutable std::atomic<bool> has_work_{false};            // most buffers have none: data() then takes no lock
};

}  // namespace tutti
