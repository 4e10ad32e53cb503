// autograd/tape.h: reverse-mode differentiation at the level of ops. A Tape records the computation of one microbatch
// on one pipeline stage. Its backward then runs as a whole (B), or as input gradients first (I) and weight gradients
// later (W), as zero-bubble schedules need. A saved tensor is freed after its last use.
//
// A node is two functions and not a class: the values that the functions capture are the saved tensors.
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
    Recomputable() = default;  // no recipe
    explicit Recomputable(std::function<Tensor()> make)
        : state_(std::make_shared<State>(State{std::move(make), 0, {}})) {}
    bool defined() const { return state_ != nullptr; }

  private:
    friend class SavedTensor;
    struct State {
        std::function<Tensor()> make;
        int uses = 0;  // nodes that still need the value
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

// An input that a node saves for its backward: the value, or the recipe for recomputing it.
class SavedTensor {
  public:
    explicit SavedTensor(const Var& x);
    Tensor take() const;  // call once

  private:
    Tensor value_;
    Recomputable recomputable_;
};

// Returns one gradient per input, in order; an undefined Tensor for an input that needs none. Must not overwrite dy
// unless no other handle shares it (Tensor::unique). sums[i] is the gradient of input i from its later uses, or
// undefined. A function that can add to sums[i] in the same pass takes it (std::move) and returns the sum; the tape
// adds the sums that are left.
using InputGradient = std::function<std::vector<Tensor>(const Tensor& dy, std::vector<Tensor>& sums)>;
// Adds to the gradients of the node's parameters.
using WeightGradient = std::function<void(const Tensor& dy)>;

// Causal attention in a unit: products of activations, which its parameters do not show.
struct AttentionSize {
    int64_t width = 0;   // of the queries of all heads, H D; where values are of another width, the mean of both
    int64_t window = 0;  // the newest keys that a query attends to; 0: all
};

// The parameters that are gathered, used and released together: one transformer block.
struct Unit {
    std::string name;  // "h.3"
    std::vector<Parameter*> parameters;
    bool backward_reads_weights = true;  // false for an embedding: its weights need not be gathered again
    // Parameters of the unit whose gradient is taken in the forward, with the loss (nn::head_loss).
    std::vector<Parameter*> gradients_in_forward;
    std::vector<Parameter*> gradients_in_both;  // of these, those whose backward adds to the gradient
    std::vector<AttentionSize> attention;       // for FLOPs
    double state_flops = 0;                     // of a token's forward, between the token and the state of a recurrence
    size_t place = 0;                           // number of the unit in the model, in the order of the forward
};

// The pass in which a tape calls its hooks: F, F of a recompute, B, I, W.
enum class PassKind : uint8_t { forward, recompute, backward, backward_input, backward_weight };
std::string_view name_of(PassKind kind);  // "backward input"
struct Pass {
    PassKind kind = PassKind::forward;
    int stage = 0;  // pipeline stage and microbatch of the tape
    int64_t microbatch = 0;
    bool training = false;  // a backward follows
};

// The interface through which parallelism attaches to a tape. Called on the rank's own thread.
class Hooks {
  public:
    virtual ~Hooks() = default;
    // Called around the work of a unit in a pass. For backward_weight: around the weight gradients that backward_input
    // deferred; a unit without any is not announced.
    virtual void before(Unit&, const Pass&) {}
    virtual void after(Unit&, const Pass&) {}
    virtual void gradient_ready(Parameter&, const Pass&) {}  // parameter.gradient is complete for this pass
};

class Tape {
  public:
    // Without `recording` nothing is saved: evaluation and generation. With `offload_device`, the saved tensors of a
    // unit (or a recomputed part) are in that device's memory from the start of the next unit until their own backward.
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
    // True while the forward of a recomputed part runs again for the backward.
    bool recomputing() const { return pass_.kind == PassKind::recompute; }
    // Selective recompute: norms and activation functions give a recipe for their output, which is then not saved.
    // `copies_weights`: recipes copy the parameters that they read, because a W may run after the unit's weights are
    // freed.
    bool selective() const { return selective_; }
    bool copies_weights() const { return copies_weights_; }
    void set_selective(bool selective, bool copies_weights = false) {
        selective_ = selective;
        copies_weights_ = copies_weights;
    }

    // A leaf with a gradient: the input that a pipeline stage receives.
    Var input(const Tensor& value);
    // `weight_gradient` must add to the gradients of those `parameters` that are not frozen; with none of them it is
    // dropped, with the tensors that it saves. `both_gradients` does the work of both functions in one pass: it runs in
    // their place where there is a weight gradient and it is not deferred.
    Var record(const char* op, const std::vector<Var>& inputs, const Tensor& output, InputGradient input_gradient,
               WeightGradient weight_gradient = {}, std::vector<Parameter*> parameters = {},
               InputGradient both_gradients = {});

    // Counts a use of a parameter whose gradient contribution the forward has made: no weight gradient follows.
    void gradient_taken(Parameter& parameter);

    // Registers a value that the next node saves but no node computed, to be offloaded like outputs of nodes.
    void saves(const Tensor& value);

    // Offloads the saved tensors of the last unit too, because other passes come before the backward.
    void offload_rest() { begin_part(); }

    // Runs `forward` as one unit, with the hooks around its forward and backward.
    Var unit(Unit& unit, const Var& x, const std::function<Var(const Var&)>& forward);
    // Runs `forward` without saving tensors inside, and again under a separate tape when the gradient is needed.
    // Counter-based random numbers make the second run equal to the first, bit for bit.
    Var recompute(const Var& x, const std::function<Var(Tape&, const Var&)>& forward);

    // B: gradients of y's inputs and of all parameters, node by node. Seeds y with dy.
    void backward(const Var& y, const Tensor& dy);
    // B from a loss: its node already holds the scaled gradients (nn::head_loss, nn::squared_error), so no seed is
    // needed.
    void backward(const Var& loss) { backward(loss, loss.value); }
    // B in parts, so that another pass can run between them. begin_backward() seeds y with dy; each call of
    // backward_part() then runs B of the last remaining unit or recomputed part. False: none remains.
    void begin_backward(const Var& y, const Tensor& dy);
    bool backward_part();
    // I: input gradients only. Then W: the weight gradients that I deferred, in the order of B.
    void backward_input(const Var& y, const Tensor& dy);
    void backward_weight();
    // The gradient of a leaf, after backward or backward_input; the tape keeps no copy.
    Tensor take_gradient(const Var& leaf);

  private:
    struct Node {
        const char* op;
        std::vector<int> inputs;
        int output;  // -1: a mark that only calls `mark`
        InputGradient input_gradient;
        WeightGradient weight_gradient;
        std::vector<Parameter*> parameters;
        InputGradient both_gradients;
        std::function<void()> mark;
    };
    struct Pending {
        WeightGradient run;
        Tensor dy;
        std::vector<Parameter*> parameters;
        Unit* unit;  // announced when the weight gradient runs; null: none
    };

    // Outputs of the nodes of one unit; those still alive at the end of the unit are its saved tensors.
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
    Tape* root_;  // counts uses of parameters; for a recomputed part, the tape of the whole
    bool counting_;
    bool selective_ = false, copies_weights_ = false;
    bool deferring_ = false;  // in backward_input: weight gradients are deferred
    Unit* unit_ = nullptr;    // the unit of the running backward
    std::vector<Node> nodes_;
    std::vector<size_t> parts_;      // the first node of each unit and recomputed part
    std::vector<Tensor> gradients_;  // by Var id; held from the first contribution to the last use
    std::deque<Pending> pending_;
    std::unordered_map<Parameter*, int> uses_;
    Device* offload_device_;       // of offloaded activations; null: no offload
    std::shared_ptr<Saved> part_;  // of the last unit, not offloaded yet
    Saved recorded_;               // since the last end_part()
};

}  // namespace tutti::autograd
