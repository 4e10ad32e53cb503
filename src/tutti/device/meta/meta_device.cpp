#include "tutti/device/meta/meta_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/refused.h"
#include "tutti/base/to_size.h"

namespace tutti {

namespace {

// Segments are cut from mappings without access and without pages, and no address is used twice. A mapping for each
// segment took a fifth of a rehearsal; one for all would collide with the address space of the sanitizers.
class MetaMemory final : public RawMemory {
  public:
    explicit MetaMemory(const MetaTarget& target) : target_(target) {}
    ~MetaMemory() override {
        for (const auto& [begin, bytes] : mappings_) munmap(begin, bytes);
    }
    void* take(int64_t bytes) override {
        if (target_.memory_bytes > 0 && taken_ + bytes > target_.memory_bytes) return nullptr;
        if (bytes > left_) map(std::max(bytes, kMapping));
        taken_ += bytes;
        left_ -= bytes;
        return std::exchange(next_, next_ + bytes);
    }
    void give_back(void*, int64_t bytes) override { taken_ -= bytes; }
    int64_t segment_bytes(int64_t bytes) const override {
        return target_.segment_bytes != nullptr ? target_.segment_bytes(bytes) : bytes;
    }
    std::string advice() const override { return concat(target_.name, " is full; ", RawMemory::advice()); }

  private:
    static constexpr int64_t kMapping = int64_t{4} << 30;

    void map(int64_t bytes) {
        const auto size = to_size(bytes);
        void* data = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data == MAP_FAILED)
            throw_refused(concat("a rehearsal maps ", bytes, " bytes of address space, of which it uses no page"),
                          errno);
        mappings_.emplace_back(data, size);
        next_ = static_cast<std::byte*>(data);
        left_ = bytes;
    }

    const MetaTarget target_;
    int64_t taken_ = 0, left_ = 0;
    std::byte* next_ = nullptr;
    std::vector<std::pair<void*, size_t>> mappings_;
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
        if (target.workspace_bytes == 0) return;
        workspace_ = std::make_unique<Buffer>(*memory_, target.workspace_bytes, Purpose::workspace);
        stream_.workspace = workspace_->data();
        stream_.workspace_bytes = target.workspace_bytes;
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
