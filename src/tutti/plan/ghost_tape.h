// plan/ghost_tape.h: autograd/tape.h without values. It records, frees and adds gradients in the same order and keeps
// the same handles alive for as long, so that the peak of its ledger is the peak of the real allocator. When Tape
// changes, this file changes with it; a test of train/ compares the two, byte by byte. Below: ledger.h. ghost_model.cpp
// records on it what nn/ records on a Tape.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/plan/ledger.h"

namespace tutti::plan {

// As autograd::Again.
struct GhostAgain {
    std::function<Ghost()> make;
    int uses = 0;
    Ghost value;
};

// A value on the tape; without an id a constant, into which no gradient flows.
struct GhostVar {
    Ghost value;
    int id = -1;
    std::shared_ptr<GhostAgain> again = {};
};

using Ghosts = std::vector<Ghost>;
// One gradient per input, in order; what the function captures is what the node saves. `sums` as in InputGradient.
using GhostInputGradient = std::function<Ghosts(const Ghost& dy, Ghosts& sums)>;
// Adds to Parameter::gradient in place.
using GhostWeightGradient = std::function<void()>;

// As autograd::Kept.
class GhostKept {
  public:
    explicit GhostKept(const GhostVar& x);
    Ghost take() const;

  private:
    Ghost value_;
    std::shared_ptr<GhostAgain> again_;
};

// As autograd::Hooks, of units by their number in the order of the forward.
class GhostHooks {
  public:
    virtual ~GhostHooks() = default;
    virtual void before_forward(size_t) {}
    virtual void after_forward(size_t) {}
    virtual void before_backward(size_t) {}
    virtual void gradients_ready(size_t) {}  // of the parameters that were used first in this unit
    virtual void after_backward(size_t) {}
};

struct GhostTapeOptions {
    GhostHooks* hooks = nullptr;
    bool offload = false;    // activations: what a unit saved is away until its backward
    bool selective = false;  // recompute of norms and activation functions
};

class GhostTape {
  public:
    explicit GhostTape(Ledger& ledger, const GhostTapeOptions& options = {}) : GhostTape(ledger, true, options) {}
    GhostTape(const GhostTape&) = delete;
    GhostTape& operator=(const GhostTape&) = delete;

    Ledger& ledger() const { return ledger_; }
    bool recording() const { return recording_; }
    bool selective() const { return options_.selective && recording_; }

    GhostVar input(const Ghost& value);
    GhostVar record(const std::vector<GhostVar>& inputs, const Ghost& output, GhostInputGradient input_gradient,
                    GhostWeightGradient weight_gradient = {});
    void saves(const Ghost& value);
    GhostVar unit(size_t index, const std::string& name, const GhostVar& x,
                  const std::function<GhostVar(const GhostVar&)>& forward);
    GhostVar recompute(const GhostVar& x, const std::function<GhostVar(GhostTape&, const GhostVar&)>& forward);

    void backward(const GhostVar& loss) { run(loss, loss.value); }

  private:
    struct Node {
        std::vector<int> inputs;
        int output;
        GhostInputGradient input_gradient;
        GhostWeightGradient weight_gradient;
        std::function<void()> mark;
    };
    using Saved = std::vector<std::weak_ptr<Ghost::Block>>;

    GhostTape(Ledger& ledger, bool recording, const GhostTapeOptions& options)
        : ledger_(ledger), recording_(recording), options_(options) {}
    void record_mark(std::function<void()> mark);
    void begin_part();
    void end_part(const Ghost& y);
    void run(const GhostVar& y, const Ghost& dy);
    void add_gradient(int id, Ghost gradient);

    Ledger& ledger_;
    bool recording_;
    GhostTapeOptions options_;
    std::vector<Node> nodes_;
    Ghosts gradients_;
    std::shared_ptr<Saved> part_;
    Saved recorded_;
};

}  // namespace tutti::plan
