// tensor/tensor.h: a cheap handle to a strided array in a device's memory. Copies of a Tensor share the memory, which
// is released with the last handle. Arithmetic is in ops/.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/device/device.h"
#include "tutti/tensor/view.h"

namespace tutti {

class Tensor {
  public:
    Tensor() = default;  // undefined
    // Uninitialised contiguous memory.
    static Tensor empty(Device& device, const Shape& shape, DType dtype, Purpose purpose);
    // Copies host values in; their number must equal shape.numel().
    template <class T>
    static Tensor from_host(Device& device, const Shape& shape, std::span<const T> values, Purpose purpose) {
        check(static_cast<int64_t>(values.size()) == shape.numel(), "a tensor of shape ", shape, " needs ",
              shape.numel(), " values, got ", values.size());
        Tensor t = empty(device, shape, dtype_of<T>(), purpose);
        device.copy_in(t.view().data, values.data(), t.bytes());
        return t;
    }

    bool defined() const { return buffer_ != nullptr; }
    // Valid until the buffer is offloaded (Buffer::offload): call view() at each use.
    View view() const {
        View v = view_;
        if (buffer_) v.data = static_cast<std::byte*>(buffer_->data()) + offset_;
        return v;
    }
    operator View() const { return view(); }
    const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
    const Shape& shape() const { return view_.shape; }
    int64_t dim(int i) const { return view_.shape[i]; }
    int rank() const { return view_.shape.rank(); }
    int64_t numel() const { return view_.numel(); }
    int64_t bytes() const { return numel() * size_of(view_.dtype); }
    DType dtype() const { return view_.dtype; }
    Device& device() const { return *device_; }
    bool contiguous() const { return view_.contiguous(); }
    // True when no other handle shares the memory, which may then be overwritten in place.
    bool unique() const { return buffer_.use_count() == 1; }

    // The same memory under another shape of equal size; needs contiguous memory.
    Tensor reshape(const Shape& shape) const;
    // Indices [begin, begin + size) of one dim; shares memory.
    Tensor narrow(int dim, int64_t begin, int64_t size) const;
    // Appends `next` along dim 0 if its memory directly follows this tensor's, in one buffer; false: it does not.
    bool extend(const Tensor& next);

    // Host copies of a contiguous tensor; the element type must be the tensor's.
    template <class T>
    std::vector<T> to_host() const {
        check(dtype_of<T>() == dtype(), "to_host of a ", dtype(), " tensor as ", dtype_of<T>());
        check(contiguous(), "to_host needs contiguous memory, shape ", shape());
        std::vector<T> values(to_size(numel()));
        device_->copy_out(values.data(), view().data, bytes());
        return values;
    }
    // Any float tensor as f32 values on the host.
    std::vector<float> to_floats() const;

  private:
    Device* device_ = nullptr;
    std::shared_ptr<Buffer> buffer_;
    int64_t offset_ = 0;  // of the first element, in bytes
    View view_;           // without the data pointer
};

}  // namespace tutti
