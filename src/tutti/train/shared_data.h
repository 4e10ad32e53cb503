// train/shared_data.h: the data set of a run, opened once for all ranks of a process, with its progress on the console.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/world.h"
#include "tutti/data/data_set.h"
#include "tutti/spec/run_spec.h"
#include "tutti/train/console.h"

namespace tutti::train {

// A run that goes on has a copy of its tokenizer in its directory, for the case that data.tokenizer is gone. Returns
// what to tell the user of it; "": nothing has changed.
std::string use_kept_tokenizer(spec::RunSpec& run, const std::string& directory);

// Nullopt for the mlp family. `write`: token files may be written beside a text. Throws as data::open() does.
// `stop` ends the encoding of a text.
std::optional<data::DataSet> open_data(const spec::RunSpec& run, Console& console, bool write,
                                       const comm::Stop* stop = nullptr);

// The data sets of all stages of a run (spec/stages.h), for all its ranks. Rank 0 opens the data first, since a text is
// encoded once, and keeps the waits of the other ranks from timing out meanwhile. The ranks of one process share the
// opened data. Collective.
class SharedData {
  public:
    // One for each stage; stages of the same data share one.
    std::vector<std::optional<data::DataSet>> open(const std::vector<spec::RunSpec>& stages, Console& console,
                                                   comm::World& world, const comm::Stop* stop);

  private:
    std::vector<std::optional<data::DataSet>> data_;
    bool opened_ = false;  // in this process
};

}  // namespace tutti::train
