#include "tutti/comm/meta/meta_world.h"

#include <limits>

#include "tutti/base/error.h"

namespace tutti::comm {

namespace {

// Every operation is complete once it has begun, so no rank ever sleeps.
class SilentNotifier final : public Notifier {
  public:
    void sleep(Clock::time_point, const std::function<bool()>&) override {
        throw Error("internal error: a rank of a meta world waits");
    }
    void notify() override {}
    void check_abort() const override {}
    std::chrono::nanoseconds spin_time() const override { return {}; }
};

class CompleteOperation final : public Operation {
  public:
    using Operation::Operation;
    bool advance() override { return true; }
    std::string waits_for() const override { return "nothing"; }
};

class MetaCommunicator final : public Communicator {
  public:
    MetaCommunicator(std::string name, std::vector<int> ranks, int rank, Progress& progress, FlightRecorder& recorder,
                     CommunicationObserver* observer, std::optional<SumOrder> order)
        : Communicator(std::move(name), std::move(ranks), rank, progress, recorder),
          observer_(observer),
          order_(order) {}

    void reserve_reductions(Device& device, DType input, DType output) override {
        if (!order_ || size() == 1 || arrived_.defined() || !adds_along_tree(*order_, input, output)) return;
        arrived_ = Tensor::empty(device, {kReductionBytes}, DType::u8, Purpose::communication);
    }

  protected:
    std::shared_ptr<Operation> start(Collective collective, uint64_t sequence) override {
        const Tensor &input = collective.input, &output = collective.output;
        if (is_reduction(collective.kind) && !input.device().host_readable())
            reserve_reductions(input.device(), input.dtype(), output.dtype());
        if (observer_ != nullptr) observer_->begins(*this, sequence, collective);
        return std::make_shared<CompleteOperation>(std::move(collective), name(), sequence);
    }
    bool reaches(const Device&) const override { return true; }
    void wait(const Operation& operation) override {
        if (observer_ != nullptr) observer_->waits(*this, operation);
        Communicator::wait(operation);
    }

  private:
    CommunicationObserver* observer_;
    std::optional<SumOrder> order_;
    Tensor arrived_;  // buffer for values of other ranks
};

}  // namespace

MetaWorld::MetaWorld(int rank, int size, CommunicationObserver* observer, std::optional<SumOrder> order)
    : rank_(rank),
      size_(size),
      observer_(observer),
      order_(order),
      progress_(std::make_shared<SilentNotifier>(), std::numeric_limits<double>::max(), false) {
    check<UsageError>(0 <= rank && rank < size, "rank ", rank, " of a world of ", size, ": required 0 <= rank < size");
}

std::unique_ptr<Communicator> MetaWorld::group(const std::string& name, const std::vector<int>& ranks) {
    auto group =
        std::make_unique<MetaCommunicator>(name, ranks, rank_in(name, ranks), progress_, recorder_, observer_, order_);
    if (observer_ != nullptr) observer_->joins(*group);
    return group;
}

void MetaWorld::abort(const std::string& reason) { throw Error(reason); }

}  // namespace tutti::comm
