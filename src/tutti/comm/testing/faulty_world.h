// comm/testing/faulty_world.h: a wrapper around any backend's World that injects one fault, the same on every rank, so
// that no rank hangs and only values are wrong. A parity test that passes with the fault would not notice it in the
// code.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "tutti/comm/world.h"

namespace tutti::comm::testing {

enum class Fault : uint8_t {
    drop,      // not executed
    twice,     // executed again on its own result
    misscale,  // the result divided by the number of ranks, as if it were a mean
};

// Operation `index`, from 0, of all those of one kind in one group.
struct FaultPlan {
    Fault fault = Fault::drop;
    std::string group;
    Kind kind = Kind::all_reduce;
    int index = -1;  // -1: none
    // Groups that get other ranks than requested: name -> the ranks of this rank's wrong group.
    std::map<std::string, std::function<std::vector<int>(int rank)>> wrong_groups = {};
};

using Calls = std::map<std::pair<std::string, Kind>, int>;  // operations by group and kind

class FaultyCommunicator final : public Communicator {
  public:
    // `ranks`: as requested, which `inner` may not have.
    FaultyCommunicator(std::unique_ptr<Communicator> inner, const std::vector<int>& ranks, World& world,
                       const FaultPlan& plan, Calls& calls)
        : Communicator(inner->name(), ranks, place_of(world.rank(), ranks), world.progress(), world.recorder()),
          inner_(std::move(inner)),
          plan_(plan),
          calls_(calls) {}

    Work begin(Collective collective) override {
        const int call = calls_[{name(), collective.kind}]++;
        if (collective.kind != plan_.kind || name() != plan_.group || call != plan_.index)
            return inner_->begin(std::move(collective));
        if (plan_.fault == Fault::drop && collective.kind == Kind::receive) {  // a message that carries nothing
            const Tensor output = collective.output;
            inner_->begin(std::move(collective)).wait();
            scale(output, 0);
            return {};
        }
        if (plan_.fault == Fault::drop) {
            // The output may still have the right values, from an earlier all_gather of the same weights.
            if (collective.kind == Kind::all_gather && !lies_in(collective.input, collective.output))
                scale(collective.output, 0);
            return {};
        }
        Collective again = collective;
        inner_->begin(std::move(collective)).wait();
        if (plan_.fault == Fault::twice && again.kind == Kind::reduce_scatter)
            scale(again.output, 2);  // to execute it again into another tensor would change nothing
        else if (plan_.fault == Fault::twice)
            inner_->begin(std::move(again)).wait();
        else
            scale(again.output, 1.0 / size());
        return {};
    }

  protected:
    std::shared_ptr<Operation> start(Collective, uint64_t) override {
        throw Error("not called, since begin() is overridden");
    }

  private:
    static int place_of(int rank, const std::vector<int>& ranks) {
        return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    }
    template <class T>
    static void scale(const Tensor& x, double factor) {
        T* values = x.view().as<T>();
        for (int64_t i = 0; i < x.numel(); ++i) {
            if constexpr (std::is_same_v<T, bf16>)
                values[i] = bf16(static_cast<float>(values[i]) * static_cast<float>(factor));
            else
                values[i] = static_cast<T>(static_cast<double>(values[i]) * factor);
        }
    }
    static void scale(const Tensor& x, double factor) {
        switch (x.dtype()) {
            case DType::f32: return scale<float>(x, factor);
            case DType::f64: return scale<double>(x, factor);
            case DType::i64: return scale<int64_t>(x, factor);
            case DType::i32: return scale<int32_t>(x, factor);
            case DType::bf16: return scale<bf16>(x, factor);
            default: throw Error(concat("the fault injector cannot scale ", x.dtype()));
        }
    }
    static bool lies_in(const Tensor& part, const Tensor& whole) {
        const auto *begin = whole.view().as<const std::byte>(), *at = part.view().as<const std::byte>();
        return begin <= at && at < begin + whole.bytes();
    }

    std::unique_ptr<Communicator> inner_;
    const FaultPlan& plan_;
    Calls& calls_;
};

class FaultyWorld final : public World {
  public:
    FaultyWorld(World& inner, FaultPlan plan) : inner_(inner), plan_(std::move(plan)) {}

    int rank() const override { return inner_.rank(); }
    int size() const override { return inner_.size(); }
    std::string backend() const override { return inner_.backend(); }
    std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
        const auto wrong = plan_.wrong_groups.find(name);
        auto group = inner_.group(name, wrong == plan_.wrong_groups.end() ? ranks : wrong->second(rank()));
        return std::make_unique<FaultyCommunicator>(std::move(group), ranks, inner_, plan_, calls_);
    }
    void abort(const std::string& reason) override { inner_.abort(reason); }
    Progress& progress() override { return inner_.progress(); }
    FlightRecorder& recorder() override { return inner_.recorder(); }

    const Calls& calls() const { return calls_; }

  private:
    World& inner_;
    const FaultPlan plan_;
    Calls calls_;
};

}  // namespace tutti::comm::testing
