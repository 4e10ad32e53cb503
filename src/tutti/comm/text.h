// comm/text.h: text between ranks: paths, reports, errors. For what happens now and then, not in every step.
// Below: communicator.h. Called by train/agreement.cpp.
#pragma once

#include <string>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

// The texts of all ranks of the group, by rank, on every rank. Each may have any bytes and any length.
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& text);

}  // namespace tutti::comm
