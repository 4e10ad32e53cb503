#include "tutti/comm/stop.h"

#include <utility>

namespace tutti::comm {

void Stop::request(const std::string& by) {
    {
        const std::lock_guard lock(mutex_);
        if (by_.empty()) by_ = by;
    }
    requested_ = true;
}

void Stop::check() const {
    if (requested_ && !has_to_save_) throw Preempted(reason());
}

void Stop::set_tell(std::function<void(const std::string& reason)> tell) {
    const std::lock_guard lock(mutex_);
    tell_ = std::move(tell);
}

void Stop::tell() {
    const std::string why = reason();
    const std::lock_guard lock(mutex_);
    if (tell_) tell_(why);
}

std::string Stop::reason() const {
    const std::lock_guard lock(mutex_);
    return concat(kPreempted, "stopped by ", by_, " before the first step: nothing was to be saved");
}

}  // namespace tutti::comm
