// checkpoint/owner.h: who wrote a temporary file: "<host>-<pid>", part of its name. Below it: nothing of ours.
#pragma once

#include <string>
#include <string_view>

namespace tutti::checkpoint {

std::string this_owner();

enum class OwnerState { this_process, running, gone, elsewhere };  // elsewhere: on another host, cannot be known
OwnerState state_of(std::string_view owner);

}  // namespace tutti::checkpoint
