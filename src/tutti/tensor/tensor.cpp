#include "tutti/tensor/tensor.h"

namespace tutti {

Tensor Tensor::empty(Device& device, const Shape& shape, DType dtype, Purpose purpose) {
    for (int64_t size : shape) check(size >= 0, "a tensor cannot have the shape ", shape);
    Tensor t;
    t.device_ = &device;
    t.buffer_ = std::make_shared<Buffer>(device.memory(), shape.numel() * size_of(dtype), purpose);
    t.view_ = View(nullptr, dtype, shape);
    return t;
}

Tensor Tensor::reshape(const Shape& shape) const {
    check(contiguous(), "reshape needs contiguous memory, got shape ", this->shape());
    check(shape.numel() == numel(), "reshape from ", this->shape(), " to ", shape, " changes the number of elements");
    Tensor t = *this;
    t.view_ = View(nullptr, view_.dtype, shape);
    return t;
}

Tensor Tensor::narrow(int dim, int64_t begin, int64_t size) const {
    const int d = dim < 0 ? dim + rank() : dim;
    check(begin >= 0 && size >= 0 && begin + size <= shape()[d], "narrow [", begin, ", ", begin + size, ") of dim ", d,
          " of ", shape());
    Tensor t = *this;
    t.offset_ += begin * view_.stride(d) * size_of(dtype());
    t.view_.shape[d] = size;
    return t;
}

bool Tensor::extend(const Tensor& next) {
    const bool behind = buffer_ && buffer_ == next.buffer_ && next.offset_ == offset_ + bytes();
    if (!behind || !contiguous() || !next.contiguous() || dtype() != next.dtype() || rank() != next.rank() ||
        rank() == 0)
        return false;
    Shape shape = this->shape();
    shape[0] += next.dim(0);
    Shape of_next = next.shape();
    of_next[0] = shape[0];
    if (of_next != shape) return false;
    view_.shape = shape;
    return true;
}

std::vector<float> Tensor::to_floats() const {
    switch (dtype()) {
        case DType::f32: return to_host<float>();
        case DType::bf16: {
            const auto raw = to_host<bf16>();
            return {raw.begin(), raw.end()};
        }
        case DType::f16: {
            const auto raw = to_host<f16>();
            return {raw.begin(), raw.end()};
        }
        case DType::f64: {
            const auto raw = to_host<double>();
            return {raw.begin(), raw.end()};
        }
        default: throw Error(concat("to_floats of a ", dtype(), " tensor"));
    }
}

}  // namespace tutti
