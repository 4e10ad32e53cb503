// train/shared_data.h: the data set of a run, opened once for all ranks of a process, with its progress on the console.
#pragma once

#include <optional>

#include "tutti/comm/world.h"
#include "tutti/data/data_set.h"
#include "tutti/spec/run_spec.h"
#include "tutti/train/console.h"

namespace tutti::train {

// Nothing for the mlp family. `write`: the ids of a text may be kept beside it. Throws as data::open() does.
std::optional<data::DataSet> open_data(const spec::RunSpec& run, Console& console, bool write);

// What all ranks of a run read. Rank 0 opens it first, since a text is encoded once; meanwhile it tells the others that
// it is at work, because their wait knows a time-out. The ranks of one process share what was opened. Collective.
class SharedData {
  public:
    std::optional<data::DataSet> open(const spec::RunSpec& run, Console& console, comm::World& world);

  private:
    std::optional<data::DataSet> data_;
    bool opened_ = false;  // in this process
};

}  // namespace tutti::train
