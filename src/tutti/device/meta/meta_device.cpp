#include "tutti/device/meta/meta_device.h"

#include <atomic>
#include <utility>
#include <vector>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti {

namespace {

// Addresses are in the upper half, where no process has memory, and none is used twice.
class MetaMemory final : public RawMemory {
  public:
    explicit MetaMemory(const MetaTarget& target) : target_(target) {}
    void* take(int64_t bytes) override { return give_memory(bytes) ? addresses(bytes) : nullptr; }
    void give_back(void*, int64_t bytes) override { taken_ -= bytes; }
    void* addresses(int64_t bytes) override {
        static std::atomic<uint64_t> next{0};
        constexpr uint64_t kUpperHalf = uint64_t{1} << 63;
        constexpr int64_t kPage = 4096;
        return reinterpret_cast<void*>(kUpperHalf | next.fetch_add(to_size(round_up(bytes, kPage))));
    }
    bool give_memory(int64_t bytes) override {
        if (target_.memory_bytes > 0 && taken_ + bytes > target_.memory_bytes) return false;
        taken_ += bytes;
        return true;
    }
    int64_t segment_bytes(int64_t bytes) const override {
        return target_.segment_bytes != nullptr ? target_.segment_bytes(bytes) : bytes;
    }
    std::string advice() const override { return concat(target_.name, " is full; ", RawMemory::advice()); }

  private:
    const MetaTarget target_;
    int64_t taken_ = 0;
};

class Zeros final : public PendingHostCopy {
  public:
    explicit Zeros(int64_t bytes) : values_(to_size(bytes)) {}
    std::span<const std::byte> wait() override { return values_; }

  private:
    std::vector<std::byte> values_;
};

class DoneOnce final : public Recording {
    void run() override {}
};

class ObservedCopy final : public SideWork {
  public:
    ObservedCopy(CopyObserver& observer, int64_t bytes) : observer_(observer), number_(observer.copies(bytes)) {}
    void join() override {
        if (!std::exchange(joined_, true)) observer_.joins(number_);
    }
    bool begun() override { return true; }
    bool done() override { return joined_; }

  private:
    CopyObserver& observer_;
    uint64_t number_;
    bool joined_ = false;
};

class MetaDevice final : public Device {
  public:
    MetaDevice(const MetaTarget& target, CopyObserver* copies)
        : target_(target),
          copies_(copies),
          memory_(std::make_shared<Allocator>(std::make_unique<MetaMemory>(target))),
          stream_{.threads = target.threads, .native = &state_, .capability = target.capability} {
        if (target.workspace_bytes > 0) {
            workspace_ = std::make_unique<Buffer>(*memory_, target.workspace_bytes, Purpose::workspace);
            stream_.workspace = workspace_->data();
            stream_.workspace_bytes = target.workspace_bytes;
        }
        if (target.arena) memory_->open_growing_arena();
    }
    std::string_view backend() const override { return "meta"; }
    bool host_readable() const override { return false; }
    bool records() const override { return target_.records; }
    std::string name() const override { return target_.name; }
    std::string model() const override { return target_.name; }
    Allocator& memory() override { return *memory_; }
    std::vector<MemoryLimit> memory_limits() override {
        if (target_.memory_bytes == 0) return {};
        return {{target_.name, target_.memory_bytes, target_.memory_bytes - memory_->reserved()}};
    }
    const Stream& stream() const override { return stream_; }
    void copy_in(void*, const void*, int64_t) override {}
    void copy_out(void*, const void*, int64_t bytes) override {
        throw Error(concat("the meta device has no values, and ", bytes, " bytes are read after the kernel ",
                           state_.last_kernel, "; a rehearsed step may read its loss and gradient norm only"));
    }
    std::unique_ptr<PendingHostCopy> copy_to_host_async(const void*, int64_t bytes) override {
        return std::make_unique<Zeros>(bytes);
    }
    void copy(void*, const void*, int64_t) override {}
    std::shared_ptr<SideWork> copy_async(void*, const void*, int64_t bytes) override {
        return copies_ != nullptr ? std::make_shared<ObservedCopy>(*copies_, bytes) : nullptr;
    }
    void synchronize() override {}
    void choose_attention(kernels::AttentionChoice* choice) override { stream_.attention = choice; }
    std::unique_ptr<Recording> record(const std::function<void()>& work) override {
        check<UsageError>(target_.records, target_.name, " records no work: only a GPU has graphs");
        work();
        return std::make_unique<DoneOnce>();
    }
    std::unique_ptr<Device> make_offload_device(const std::string&) override {
        return make_meta_device({.name = "offload device of " + target_.name, .threads = target_.threads});
    }
    ArithmeticPeak peak(ComputeType, double) override { throw Error("the meta device computes nothing"); }

  private:
    const MetaTarget target_;
    CopyObserver* copies_;
    MetaStream state_;
    std::shared_ptr<Allocator> memory_;
    std::unique_ptr<Buffer> workspace_;
    Stream stream_;
};

}  // namespace

std::unique_ptr<Device> make_meta_device(const MetaTarget& target, CopyObserver* copies) {
    return std::make_unique<MetaDevice>(target, copies);
}

}  // namespace tutti
