// schedule/writer.h: what the generators share: a rank's program, written pass by pass; each chunk counts its own
// microbatches, so that a generator says only which pass of which chunk comes next.
#pragma once

#include <algorithm>
#include <vector>

#include "tutti/schedule/schedule.h"

namespace tutti::schedule {

// A chunk of a rank and the microbatch that each pass takes next.
class Chunk {
  public:
    // `microbatches`: how many from `first` on.
    Chunk(int replica, int stage, int first, int microbatches)
        : replica_(replica), stage_(stage), end_(first + microbatches), f_(first), b_(first), w_(first) {}

    bool has_forward() const { return f_ < end_; }
    bool has_backward() const { return b_ < end_; }
    bool has_weight() const { return w_ < end_; }
    Work next_forward() { return {replica_, stage_, f_++}; }
    Work next_backward() { return {replica_, stage_, b_++}; }
    Work next_weight() { return {replica_, stage_, w_++}; }
    Work at(int microbatch) const { return {replica_, stage_, microbatch}; }

  private:
    int replica_, stage_, end_;
    int f_, b_, w_;
};

class Writer {
  public:
    explicit Writer(Program& program) : program_(program) {}

    void F(Chunk& c) { add(Op::forward, c.next_forward()); }
    void B(Chunk& c) { add(Op::backward, c.next_backward()); }
    void I(Chunk& c) { add(Op::backward_input, c.next_backward()); }
    void W(Chunk& c) { add(Op::backward_weight, c.next_weight()); }
    void add(Op op, const Work& work) { program_.push_back(action(op, work)); }
    // The forward of one chunk and the full backward of another, together.
    void overlap(Chunk& forward, Chunk& backward) {
        Action both = action(Op::overlap, forward.next_forward());
        both.backward = backward.next_backward();
        program_.push_back(both);
    }

  private:
    Program& program_;
};

template <class Step>
void repeat(int times, Step step) {
    for (int i = 0; i < times; ++i) step();
}

// A schedule without actions; replica 0 works on all microbatches.
inline Schedule empty_schedule(std::string name, Placement placement, int microbatches) {
    Schedule schedule{std::move(name), std::move(placement), {}, {}, {}, true, {}, {}};
    schedule.microbatches.emplace_back();
    for (int k = 0; k < microbatches; ++k) schedule.microbatches[0].push_back(k);
    schedule.programs.resize(static_cast<size_t>(schedule.placement.ranks));
    return schedule;
}

}  // namespace tutti::schedule
