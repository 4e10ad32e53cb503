// comm/testing/delayed_world.h: a wrapper around any backend's World that delays the begin of each operation by a
// random time, so that results that depend on the timing of ranks differ.
#pragma once

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "tutti/comm/world.h"

namespace tutti::comm::testing {

class DelayedCommunicator final : public Communicator {
  public:
    DelayedCommunicator(std::unique_ptr<Communicator> inner, World& world, std::mt19937& random, int longest_us)
        : Communicator(inner->name(), inner->ranks(), inner->rank(), world.progress(), world.recorder()),
          inner_(std::move(inner)),
          random_(random),
          longest_us_(longest_us) {}

    // Half of the operations begin at once.
    Work begin(Collective collective) override {
        const int us = static_cast<int>(random_() % static_cast<unsigned>(2 * longest_us_)) - longest_us_;
        if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
        return inner_->begin(std::move(collective));
    }

  protected:
    std::shared_ptr<Operation> start(Collective, uint64_t) override {
        throw Error("not called, since begin() is overridden");
    }

  private:
    std::unique_ptr<Communicator> inner_;
    std::mt19937& random_;
    int longest_us_;
};

class DelayedWorld final : public World {
  public:
    DelayedWorld(World& inner, unsigned seed, int longest_us)
        : inner_(inner), random_(seed + static_cast<unsigned>(inner.rank())), longest_us_(longest_us) {}

    int rank() const override { return inner_.rank(); }
    int size() const override { return inner_.size(); }
    std::string backend() const override { return inner_.backend(); }
    std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
        return std::make_unique<DelayedCommunicator>(inner_.group(name, ranks), inner_, random_, longest_us_);
    }
    void abort(const std::string& reason) override { inner_.abort(reason); }
    Progress& progress() override { return inner_.progress(); }
    FlightRecorder& recorder() override { return inner_.recorder(); }

  private:
    World& inner_;
    std::mt19937 random_;
    int longest_us_;
};

}  // namespace tutti::comm::testing
