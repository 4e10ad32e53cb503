#include "tutti/train/joint_save.h"

#include <chrono>
#include <thread>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/file_system.h"

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
    return {kind, error.what(), ""};
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
        case Kind::damaged: throw DamagedError(text());
        case Kind::unreadable: throw IoError(text(), EIO);
        case Kind::data: throw DataError(text());
        case Kind::usage: throw UsageError(text());
        case Kind::other: break;
    }
    throw Error(text());
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
            agreement.failure = Failure{kind, text, results.size() > 1 ? concat("rank ", rank, ": ") : ""};
    }
    return agreement;
}

std::string write_part(checkpoint::FileSystem& files, const std::string& directory, const checkpoint::FileToWrite& file,
                       checkpoint::Manifest part) {
    part.files = {checkpoint::NewFile(files, checkpoint::join(directory, file.name), file.size()).write(file)};
    return checkpoint::write_manifest(part);
}

checkpoint::Manifest merge_parts(const std::vector<std::string>& parts) {
    std::vector<checkpoint::Manifest> manifests;
    for (const std::string& part : parts)
        manifests.push_back(checkpoint::parse_manifest(part, concat("the part of rank ", manifests.size())));
    return checkpoint::merge(manifests);
}

// --- a save by all ranks

namespace {

constexpr std::chrono::milliseconds kRest{20}, kBetweenAsking{5};
constexpr const char* kWaits = "waits";

}  // namespace

JointSave::JointSave(comm::Communicator* ranks, std::function<void(const std::string&)> unclaimed)
    : ranks_(ranks), writer_(std::move(unclaimed)) {}

Agreement JointSave::agree(const std::function<std::string()>& body) const {
    return train::agree(alone() ? nullptr : ranks_, body);
}

void JointSave::start(Work work) {
    check(idle(), "a save begins before the one before has ended");
    work_ = std::move(work);
    if (!alone()) {
        stage_ = Stage::beginning;
        return begin();
    }
    stage_ = Stage::committing;
    writer_.submit([this] { result_ = work_.commit({work_.write(work_.begin())}); });
}

void JointSave::begin() {
    if (work_.ready) {
        Agreement ready = agree([&] { return leads() && !work_.ready() ? kWaits : ""; });
        if (ready.failure) return end(std::move(ready));
        for (const std::string& text : ready.texts)
            if (text == kWaits) return;
    }
    Agreement begun = agree([&] { return leads() ? work_.begin() : std::string(); });
    if (begun.failure) return end(std::move(begun));
    stage_ = Stage::writing;
    writer_.submit([this, directory = begun.texts[to_size(work_.leader)]] { result_ = work_.write(directory); });
}

std::string JointSave::result_of_job() {
    if (const auto error = writer_.poll_error()) throw DataError(*error);
    return std::exchange(result_, {});
}

void JointSave::commit(std::vector<std::string> parts) {
    stage_ = Stage::committing;
    const auto by_leader = [this, parts = std::move(parts)] { return leads() ? work_.commit(parts) : std::string(); };
    if (work_.commits_beside) return writer_.submit([this, by_leader] { result_ = by_leader(); });
    end(agree(by_leader));
}

void JointSave::end(Agreement outcome) {
    stage_ = Stage::idle;
    work_ = {};  // and the state that it owns
    outcome_ = std::move(outcome);
}

std::optional<Agreement> JointSave::poll() {
    if (stage_ == Stage::beginning) {
        begin();
    } else if (stage_ != Stage::idle) {
        const bool busy = writer_.busy();
        if (alone() ? busy : ranks_->max(busy ? 1 : 0) > 0) return std::nullopt;
        Agreement ended = agree([&] { return result_of_job(); });
        if (stage_ == Stage::writing && !ended.failure)
            commit(std::move(ended.texts));
        else
            end(std::move(ended));
    }
    return std::exchange(outcome_, std::nullopt);
}

void JointSave::rest() const {
    if (stage_ == Stage::beginning) std::this_thread::sleep_for(kBetweenAsking);
    writer_.wait_for(kRest);
}

}  // namespace tutti::train
