// autograd/tape.h: reverse-mode differentiation at the level of ops. A Tape records what one microbatch computes on one
// pipeline stage; afterwards it runs backward as a whole (B), or as input gradients first (I) and weight gradients
// later (W), which is what zero-bubble schedules need. What a node saved is freed as soon as it was used.
//
// A node is two functions, not a class: what they capture is
// what is saved.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/autograd/parameter.h"

namespace tutti::autograd {

// Recipe for recomputing a value from tensors that are saved anyway. The first backward node that needs the value
// recomputes it; it is freed after the last.
class Recomputable {
  public:
    Recomputable() = default;  // not at all
    explicit Recomputable(std::function<Tensor()> make)
        : state_(std::make_shared<State>(State{std::move(make), 0, {}})) {}

  private:
    friend class SavedTensor;
    struct State {
        std::function<Tensor()> make;
        int uses = 0;  // nodes that still need it
        Tensor value;
    };
    std::shared_ptr<State> state_;
};

// A value on the tape. A Var without an id is a constant: no gradient flows into it.
struct Var {
    Tensor value;
    int id = -1;
    Recomputable recomputable = {};
};

// What a node saves of an input for its backward: the value, or the recipe for recomputing it.
class SavedTensor {
  public:
    explicit SavedTensor(const Var& x);
    Tensor take() const;  // once

  private:
    Tensor value_;
    Recomputable recomputable_;
};

// One gradient per input, in order; an undefined Tensor where an input needs none. Must not overwrite dy unless it is
// the only one that holds it (Tensor::unique). sums[i] is the gradient of input i from its later uses, undefined if
// there is none yet: a function that can add to it in passing takes it (std::move) and returns the sum; what is left
// there the tape adds itself.
using InputGradient = std::function<std::vector<Tensor>(const Tensor& dy, std::vector<Tensor>& sums)>;
// Adds to the gradients of the node's parameters.
using WeightGradient = std::function<void(const Tensor& dy)>;

// The parameters that are gathered, used and released together: one transformer block.
struct Unit {
    std::string name;  // "h.3"
    std::vector<Parameter*> parameters;
    bool backward_reads_weights = true;  // false for an embedding: its weights need not be gathered again
    // Parameters of the unit whose gradient is taken in the forward, with the loss (nn::head_loss).
    std::vector<Parameter*> gradients_in_forward;
    size_t place = 0;  // in the model: units are numbered in the order of the forward
};

// What a tape does when it calls its hooks: F, F once more for the backward, B, I, W.
enum class PassKind : uint8_t { forward, recompute, backward, backward_input, backward_weight };
std::string_view name_of(PassKind kind);  // "backward input"
struct Pass {
    PassKind kind = PassKind::forward;
    int stage = 0;  // of a pipeline, and the microbatch: those that the tape was made for
    int64_t microbatch = 0;
    bool training = false;  // there will be a backward
};

// What parallelism attaches to. Called on the rank's own thread.
class Hooks {
  public:
    virtual ~Hooks() = default;
    // Around all that a unit does in a pass. Of backward_weight: around the weight gradients that backward_input left;
    // a unit that has none is not announced.
    virtual void before(Unit&, const Pass&) {}
    virtual void after(Unit&, const Pass&) {}
    virtual void gradient_ready(Parameter&, const Pass&) {}  // the tape adds nothing more to parameter.gradient
};

class Tape {
  public:
    // Without `recording` nothing is saved: evaluation and generation. With `offload_device`, what a unit (or a
    // recomputed part) saved waits in that device's memory from the start of the next one until its own backward.
    // `stage` and `microbatch` are for the hooks.
    Tape(ops::Context& ctx, bool recording, Hooks* hooks = nullptr, Device* offload_device = nullptr, int stage = 0,
         int64_t microbatch = 0);
    ~Tape();
    Tape(const Tape&) = delete;
    Tape& operator=(const Tape&) = delete;

    ops::Context& context() const { return ctx_; }
    bool recording() const { return recording_; }
    // True while nodes will run backward, also in the first pass of a recomputed part, which records nothing.
    bool training() const { return pass_.training; }
    // What runs has run before, in the forward: a recomputed part.
    bool recomputing() const { return pass_.kind == PassKind::recompute; }
    // Selective recompute: norms and activation functions say how their output is recomputed, so that it is not saved.
    // `copies_weights`: what that reads of parameters is copied, because a W comes when the unit's weights are gone.
    bool selective() const { return selective_; }
    bool copies_weights() const { return copies_weights_; }
    void set_selective(bool selective, bool copies_weights = false) {
        selective_ = selective;
        copies_weights_ = copies_weights;
    }

    // A leaf whose gradient is wanted: what a pipeline stage receives.
    Var input(const Tensor& value);
    Var record(const char* op, const std::vector<Var>& inputs, const Tensor& output, InputGradient input_gradient,
               WeightGradient weight_gradient = {}, const std::vector<Parameter*>& parameters = {});

    // A use of a parameter whose gradient was added to in the forward: there will be no weight gradient.
    void gradient_taken(Parameter& parameter);

    // A value that the next node saves, though no node made it: it is offloaded as their outputs are.
    void saves(const Tensor& value);

    // What the last unit saved leaves for `offload_device` too: other passes come before the backward.
    void offload_rest() { begin_part(); }

    // Runs `forward` as one unit, with the hooks around its forward and backward.
    Var unit(Unit& unit, const Var& x, const std::function<Var(const Var&)>& forward);
    // Runs `forward` without saving anything inside, and once more under a tape of its own when the gradient is needed.
    // Counter-based random numbers make the second run equal to the first, bit for bit.
    Var recompute(const Var& x, const std::function<Var(Tape&, const Var&)>& forward);

    // B: gradients of y's inputs and of all parameters, node by node. Seeds y with dy.
    void backward(const Var& y, const Tensor& dy);
    // B from a loss: its node already holds the scaled gradients (nn::head_loss, nn::squared_error), so no seed is
    // needed.
    void backward(const Var& loss) { backward(loss, loss.value); }
    // B in parts, so that another pass can run between them: seeds y with dy. After that each call of backward_part()
    // runs B of the last unit, or recomputed part, that is left. False: none is left after it.
    void begin_backward(const Var& y, const Tensor& dy);
    bool backward_part();
    // I: input gradients only. Then W: the weight gradients that I left, in the same order as B would.
    void backward_input(const Var& y, const Tensor& dy);
    void backward_weight();
    // The gradient of a leaf, after backward or backward_input; handed over, not kept.
    Tensor take_gradient(const Var& leaf);

  private:
    struct Node {
        const char* op;
        std::vector<int> inputs;
        int output;  // -1: a mark that only calls `mark`
        InputGradient input_gradient;
        WeightGradient weight_gradient;
        std::vector<Parameter*> parameters;
        std::function<void()> mark;
    };
    struct Pending {
        WeightGradient run;
        Tensor dy;
        std::vector<Parameter*> parameters;
        Unit* unit;  // to be announced when it runs; null: none
    };

    // Outputs of the nodes of one unit; those that are still alive when it ends are what it saved.
    using Saved = std::vector<std::weak_ptr<Buffer>>;

    Tape(Tape& parent, bool recording);
    void begin_part();
    void end_part(const Tensor& y);
    void add_gradient(int id, Tensor gradient);
    void run(const Var& y, const Tensor& dy, bool defer_weights);
    void begin_run(const Var& y, const Tensor& dy, bool defer_weights);
    void run_last_node();
    void count_use(const std::vector<Parameter*>& parameters);
    void end_use(Parameter& parameter, PassKind kind);
    Pass pass(PassKind kind) const { return {kind, pass_.stage, pass_.microbatch, pass_.training}; }
    void record_mark(std::function<void()> mark);

    ops::Context& ctx_;
    Hooks* hooks_;
    bool recording_;
    Pass pass_;   // of a forward
    Tape* root_;  // where uses of parameters are counted; a recomputed part counts in the tape that it belongs to
    bool counting_;
    bool selective_ = false, copies_weights_ = false;
    bool deferring_ = false;  // in backward_input: weight gradients wait
    Unit* unit_ = nullptr;    // whose backward runs
    std::vector<Node> nodes_;
    std::vector<size_t> parts_;      // the first node of each unit and recomputed part
    std::vector<Tensor> gradients_;  // by Var id; held from the first contribution to the last use
    std::deque<Pending> pending_;
    std::unordered_map<Parameter*, int> uses_;
    Device* offload_device_;       // of offloaded activations; null: they stay
    std::shared_ptr<Saved> part_;  // of the last unit, which is still here
    Saved recorded_;               // since the last end_part()
};

}  // namespace tutti::autograd
