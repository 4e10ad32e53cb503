// plan/ghost_tape.h: autograd/tape.h without values. It records, frees and adds gradients in the same order and keeps
// the same handles alive for as long, so that the peak of its ledger is the peak of the real allocator. When Tape
// changes, this file changes with it; a test of train/ compares the two, byte by byte. Below: ledger.h. ghost_model.cpp
// records on it what nn/ records on a Tape.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/plan/ledger.h"

namespace tutti::plan {

// A value on the tape; without an id a constant, into which no gradient flows.
struct GhostVar {
    Ghost value;
    int id = -1;
};

using Ghosts = std::vector<Ghost>;
// One gradient per input, in order; what the function captures is what the node saves.
using GhostInputGradient = std::function<Ghosts(const Ghost& dy)>;

class GhostTape {
  public:
    explicit GhostTape(Ledger& ledger) : GhostTape(ledger, true) {}
    GhostTape(const GhostTape&) = delete;
    GhostTape& operator=(const GhostTape&) = delete;

    Ledger& ledger() const { return ledger_; }

    GhostVar input(const Ghost& value);
    // `weight_saves`: what the weight gradient holds until it has run; nullopt: the node has none. The weight gradient
    // itself allocates nothing: it adds to Parameter::gradient in place.
    GhostVar record(const std::vector<GhostVar>& inputs, const Ghost& output, GhostInputGradient input_gradient,
                    std::optional<Ghosts> weight_saves = std::nullopt);
    GhostVar unit(const std::string& name, const GhostVar& x, const std::function<GhostVar(const GhostVar&)>& forward);
    GhostVar recompute(const GhostVar& x, const std::function<GhostVar(GhostTape&, const GhostVar&)>& forward);

    void backward(const GhostVar& loss) { run(loss, loss.value); }

  private:
    struct Node {
        std::vector<int> inputs;
        int output;
        GhostInputGradient input_gradient;
        std::optional<Ghosts> weight_saves;
        std::string mark;  // of a node that only says where backward stands
    };

    GhostTape(Ledger& ledger, bool recording) : ledger_(ledger), recording_(recording) {}
    void run(const GhostVar& y, const Ghost& dy);
    void add_gradient(int id, Ghost gradient);

    Ledger& ledger_;
    bool recording_;
    std::vector<Node> nodes_;
    Ghosts gradients_;
};

}  // namespace tutti::plan
