#include "tutti/train/agreement.h"

#include <cerrno>

#include "tutti/checkpoint/file_system.h"
#include "tutti/comm/text.h"

namespace tutti::train {

using checkpoint::DamagedError;
using checkpoint::IoError;

namespace {

constexpr char kDone = '+';

Failure failure_of(const std::exception& error) {
    const auto* io = dynamic_cast<const IoError*>(&error);
    auto kind = Failure::Kind::other;
    if (dynamic_cast<const UsageError*>(&error) != nullptr) kind = Failure::Kind::usage;
    if (dynamic_cast<const DataError*>(&error) != nullptr) kind = Failure::Kind::data;
    if (io != nullptr && io->code() == EIO) kind = Failure::Kind::unreadable;
    if (dynamic_cast<const DamagedError*>(&error) != nullptr) kind = Failure::Kind::damaged;
    return {kind, error.what()};
}

// A rank's result as text: '+' and what the body returned, or the kind of the failure and its message.
std::string result_of(const std::function<std::string()>& body) {
    try {
        return kDone + body();
    } catch (const std::exception& error) {
        const Failure failure = failure_of(error);
        return static_cast<char>(failure.kind) + failure.message;
    }
}

}  // namespace

void Failure::raise() const {
    switch (kind) {
        case Kind::damaged: throw DamagedError(message);
        case Kind::unreadable: throw IoError(message, EIO);
        case Kind::data: throw DataError(message);
        case Kind::usage: throw UsageError(message);
        case Kind::other: break;
    }
    throw Error(message);
}

Agreement agree(comm::Communicator* ranks, const std::function<std::string()>& body) {
    const std::string own = result_of(body);
    const auto results = ranks != nullptr ? comm::gather_texts(*ranks, own) : std::vector{own};
    Agreement agreement;
    for (size_t rank = 0; rank < results.size(); ++rank) {
        const char first = results[rank].front();
        const std::string text = results[rank].substr(1);
        agreement.texts.push_back(first == kDone ? text : "");
        if (first == kDone) continue;
        const auto kind = static_cast<Failure::Kind>(first);
        if (!agreement.failure || kind > agreement.failure->kind)
            agreement.failure = Failure{kind, results.size() > 1 ? concat("rank ", rank, ": ", text) : text};
    }
    return agreement;
}

}  // namespace tutti::train
