// comm/text.h: text between ranks: paths, reports, errors. For what happens now and then, not in every step.
// Below: communicator.h. Called by train/agreement.cpp and train/trace_file.cpp.
#pragma once

#include <string>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

// The texts of all ranks of the group, by rank, on every rank. Each may have any bytes and any length.
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& text);

// One text, from one rank of the group to another.
void send_text(Communicator& ranks, const std::string& text, int to);
std::string receive_text(Communicator& ranks, int from);

}  // namespace tutti::comm
