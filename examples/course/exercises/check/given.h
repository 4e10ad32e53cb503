// What the exercises are given. Ranks: their numbers, and messages and collectives of vectors; they are threads.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/device/device.h"
#include "tutti/tensor/tensor.h"

using Values = std::vector<float>;

class Ranks {
  public:
    explicit Ranks(tutti::comm::Communicator& group) : group_(group), device_(tutti::make_cpu_device(1)) {}

    int rank() const { return group_.rank(); }
    int size() const { return group_.size(); }

    // Sends values to rank `to` and receives n from rank `from`, both at once: no rank waits for another to begin.
    Values exchange(const Values& values, int to, int from, size_t n) {
        const tutti::Tensor out = tensor(values), in = tensor(Values(n));
        tutti::comm::Work sent = group_.send(out, to), received = group_.receive(in, from);
        received.wait();
        sent.wait();
        sent_ += static_cast<int64_t>(values.size());
        return in.to_floats();
    }
    // The sum over all ranks, on every rank.
    Values all_reduce(const Values& values) {
        const tutti::Tensor x = tensor(values);
        group_.all_reduce(x).wait();
        ++all_reduces_;
        return x.to_floats();
    }
    // Part `rank` of the sum over all ranks; the parts are equal.
    Values reduce_scatter(const Values& values) {
        const tutti::Tensor x = tensor(values), part = tensor(Values(values.size() / static_cast<size_t>(size())));
        group_.reduce_scatter(x, part).wait();
        return part.to_floats();
    }
    // The parts of all ranks behind one another, on every rank.
    Values all_gather(const Values& part) {
        const tutti::Tensor x = tensor(Values(part.size() * static_cast<size_t>(size())));
        group_.all_gather(tensor(part), x).wait();
        return x.to_floats();
    }

    // For the checks: values that this rank sent by exchange(), bytes of collectives, and calls of all_reduce().
    int64_t exchanged() const { return sent_; }
    int64_t bytes() const { return group_.usage().sent; }
    int all_reduces() const { return all_reduces_; }

  private:
    tutti::Tensor tensor(const Values& values) const {
        return tutti::Tensor::from_host<float>(*device_, {static_cast<int64_t>(values.size())}, values,
                                               tutti::Purpose::communication);
    }

    tutti::comm::Communicator& group_;
    std::unique_ptr<tutti::Device> device_;
    int64_t sent_ = 0;
    int all_reduces_ = 0;
};

// Exercise 2. The moments of as many weights as are updated, zeros before the first step.
struct Moments {
    Values first, second;
    explicit Moments(size_t n) : first(n), second(n) {}
};
// One AdamW step: weights, gradient and moments have equal sizes. `step` counts from 1.
void adamw(Values& weights, const Values& gradient, Moments& moments, int step);

// Exercise 3. Matrices row by row; the results are (m, n).
Values product_t(const Values& a, const Values& b, size_t m, size_t n);  // a b^T, a (m, k), b (n, k)
Values product(const Values& a, const Values& b, size_t m, size_t n);    // a b, a (m, k), b (k, n)
Values t_product(const Values& a, const Values& b, size_t m, size_t n);  // a^T b, a (k, m), b (k, n)
Values relu(const Values& x);
Values relu_backward(const Values& dh, const Values& x);  // dh where x > 0

struct Passes {
    Values y, dx, da, db;
};

// Exercise 4. The attention of one query: o has the width of a head, lse is the logarithm of the sum of exp(scores).
struct Attention {
    Values o;
    float lse = -INFINITY;  // of no keys
};
struct KeysAndValues {
    Values k, v;  // (tokens, width)
};
// Over these keys, with scores q.k.
Attention attend(const Values& q, const KeysAndValues& kv);
