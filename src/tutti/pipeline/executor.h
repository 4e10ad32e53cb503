// pipeline/executor.h: runs the program of a schedule on one rank: the passes of its stages, each microbatch on its own
// tape, and the messages between stages. One rank without a pipeline is the case of one stage and no messages.
//
// An activation is (B, T, C), in the compute type; its gradient has the same shape and type.
// Each edge between stages on different ranks has a channel for each direction. A message is sent as soon as the tensor
// is computed; at most two messages of a channel and sixteen of a rank are in flight. Where a loss balances experts
// over all layers, the loads of the layers so far are sent with an activation, those of all layers with its gradient.
// An overlapped forward and backward alternate, unit by unit: one communicates while the other computes. With offloaded
// activations, all those of a microbatch that waits for its backward are offloaded.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/autograd/tape.h"
#include "tutti/base/trace.h"
#include "tutti/nn/routing.h"
#include "tutti/parallel/data_parallel.h"
#include "tutti/parallel/groups.h"
#include "tutti/pipeline/stages.h"

namespace tutti::pipeline {

// Messages that may be under way: of one channel, and of a rank.
inline constexpr std::ptrdiff_t kMessagesOfChannel = 2, kMessagesOfRank = 16;

struct PassOptions {
    DType compute = DType::bf16;
    int64_t segment = 0;     // recompute: Model::run
    bool selective = false;  // Tape::set_selective, as the next
    bool copies_weights = false;
    Device* offload_device = nullptr;  // of offloaded activations
};

class Executor {
  public:
    // Makes the channels: collective over the ranks along pp. The arguments must outlive the executor.
    Executor(ops::Context& ctx, models::Model& model, parallel::Groups& groups, const Pipeline& pipeline,
             const PassOptions& options);

    // Returns the batch of a microbatch for the layers of this rank. Called at each stage of the rank.
    using MakeBatch = std::function<nn::Batch(int64_t microbatch)>;
    // Receives the output of the last stage for a batch: losses, or logits. Called on the rank of that stage.
    using TakeOutput = std::function<void(int64_t microbatch, const nn::Batch& batch, const Tensor& output)>;

    struct Passes {
        bool training = true;  // passes record, and a backward comes for each
        autograd::Hooks& hooks;
        MakeBatch batch;
        TakeOutput output;
        parallel::DataParallel* weights = nullptr;  // gathers and frees the stages of unshard and reshard
        std::function<void(const schedule::Action&)> before = {}, after = {};  // around each pass, when set
        Tracer* trace = nullptr;               // records passes, named by schedule::to_string()
        nn::RoutingRecord* routing = nullptr;  // set: its means over layers are sent between stages
    };
    // Every pass and message of a program, in its order.
    void run(const schedule::Program& program, const Passes& passes);
    // Time of training programs so far, in seconds. busy: in passes, with the waits inside but not the waits for other
    // stages; whole: from begin to end.
    struct Seconds {
        double busy = 0, whole = 0;
    };
    const Seconds& seconds() const { return seconds_; }

  private:
    using Channel = comm::Communicator;  // sender, receiver
    // What lies on one side of a stage.
    struct Neighbour {
        bool exists = false;                            // false: before the first stage, after the last
        Channel *outward = nullptr, *inward = nullptr;  // messages to it and from it; null: it is on this rank
        bool here() const { return exists && outward == nullptr; }
    };
    // A stage of one replica on this rank.
    struct Stage {
        size_t run;  // its number in DataParallel's runs
        Span span;
        Neighbour before, after;
    };
    // A microbatch in one stage, from F to B or W.
    struct Flight {
        std::optional<nn::Batch> batch;
        Tensor input, gradient;  // gradient of the stage's output; received, or from a stage of this rank
        Tensor means;            // RoutingRecord::means_message(), received with the input or the gradient
        std::vector<comm::Work> arrivals;
        std::optional<autograd::Tape> tape;
        autograd::Var in, out;
        Shape shape;            // of the output
        Tensor input_gradient;  // until it is sent
    };
    struct Message {
        const Channel* channel;
        std::vector<std::pair<comm::Work, Tensor>> tensors;
    };

    // `waits`: another action than its backward follows this forward.
    void run(const schedule::Action& action, const Passes& of, bool waits);
    void send(Channel& channel, Tensor x, const schedule::Work& work, const Passes& of);
    void receive(Channel& channel, const Tensor& x, Flight& flight, const Passes& of);
    void pass(const schedule::Action& action, const Passes& of, bool waits);
    void await_inputs(const schedule::Action& part, const Passes& of);
    void compute(const schedule::Action& action, const Passes& of);
    void end_pass(const schedule::Action& part, const Passes& of, bool waits);
    void forward(const schedule::Work& work, const Passes& of, const std::function<void()>& between = {});
    void overlap(const schedule::Action& action, const Passes& of);
    Tensor seed_of(const schedule::Work& work);
    void send_input_gradient(const schedule::Work& work);
    void send_output(const schedule::Work& work, const Passes& of);
    void retire(const schedule::Work& work);
    const Stage& stage_of(const schedule::Work& work) const { return stages_.at({work.replica, work.stage}); }
    Shape hidden_shape(const nn::Batch& batch) const;

    ops::Context& ctx_;
    models::Model& model_;
    PassOptions options_;
    std::map<std::pair<int, int>, Stage> stages_;  // of this rank, by replica and stage
    std::deque<Message> sent_;                     // in flight
    std::map<schedule::Work, Flight> flights_;
    Seconds seconds_;
};

}  // namespace tutti::pipeline
