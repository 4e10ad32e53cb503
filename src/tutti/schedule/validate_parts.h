// schedule/validate_parts.h: inside validate(): what both of its files use.
#pragma once

#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/schedule/schedule.h"

namespace tutti::schedule {

class Problems {
  public:
    template <class... Words>
    void add(const Words&... words) {
        found_.push_back(concat(words...));
    }
    bool none() const { return found_.empty(); }
    std::vector<std::string> take() { return std::move(found_); }

  private:
    std::vector<std::string> found_;
};

// `each(rank, index, action)` of all programs.
template <class Each>
void for_each_action(const Schedule& schedule, Each each) {
    for (size_t rank = 0; rank < schedule.programs.size(); ++rank)
        for (size_t i = 0; i < schedule.programs[rank].size(); ++i)
            each(static_cast<int>(rank), i, schedule.programs[rank][i]);
}

// Points 5 and 6; of a schedule whose computation is right.
void check_messages(const Schedule& schedule, Problems& problems);
// Points 7 (slots) and 8.
void check_slots(const Schedule& schedule, Problems& problems);
void check_reductions(const Schedule& schedule, Problems& problems);
void check_unshard(const Schedule& schedule, Problems& problems);

}  // namespace tutti::schedule
