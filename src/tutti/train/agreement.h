// train/agreement.h: something that every rank does and that one rank may fail at: all learn what came of it, so that
// all go on in the same way. Below: comm/text.h. Called by checkpointing.cpp.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::train {

// An error as another rank can throw it again. The graver kinds stand last: they decide when ranks fail differently.
struct Failure {
    enum class Kind : char { damaged = '0', unreadable, data, usage, other };  // unreadable: an IoError with EIO
    Kind kind = Kind::other;
    std::string message;

    [[noreturn]] void raise() const;  // DamagedError, IoError, DataError, UsageError or Error
};

struct Agreement {
    std::vector<std::string> texts;  // what the body returned, by rank
    std::optional<Failure> failure;  // the gravest, of the lowest rank; the message names it
};

// Runs the body on every rank; all of them get the same result. The body must not communicate. `ranks` null: this one
// alone.
Agreement agree(comm::Communicator* ranks, const std::function<std::string()>& body);

}  // namespace tutti::train
