// comm/mpi/message.cpp: send and receive: one stream each. Messages between two ranks go one after the other.
#include "tutti/base/error.h"
#include "tutti/comm/mpi/group.h"
#include "tutti/comm/mpi/stream.h"

namespace tutti::comm::mpi {

namespace {

class Send final : public Operation {
  public:
    Send(const std::shared_ptr<Group>& group, Collective what, uint64_t number)
        : Operation(std::move(what), group->name, number),
          group_(group),
          stream_(*group, Lane::messages, to(), Announcement::of(collective(), group->key, number),
                  collective().input.view().as<const std::byte>(), collective().input.bytes()) {}

    bool advance() override {
        uint64_t& through = group_->sent[static_cast<size_t>(to())];
        if (through != sequence() - 1 || !stream_.advance()) return false;
        through = sequence();
        return true;
    }
    std::string waits_for() const override {
        return concat(group_->who(to()), " to receive it", group_->host.last_words(group_->world_rank(to())));
    }

  private:
    int to() const { return collective().peer; }
    const std::shared_ptr<Group> group_;
    Outgoing stream_;
};

class Receive final : public Operation {
  public:
    Receive(const std::shared_ptr<Group>& group, Collective what, uint64_t number)
        : Operation(std::move(what), group->name, number),
          group_(group),
          stream_(*group, Lane::messages, from(), number, collective().output.dtype(), collective().output.numel(),
                  collective().output.view().as<std::byte>()) {}

    bool advance() override {
        uint64_t& through = group_->received[static_cast<size_t>(from())];
        if (through != sequence() - 1 || !stream_.advance()) return false;
        through = sequence();
        stream_.check_fit();
        return true;
    }
    std::string waits_for() const override {
        return concat(group_->who(from()), " to send it", group_->host.last_words(group_->world_rank(from())));
    }

  private:
    int from() const { return collective().peer; }
    const std::shared_ptr<Group> group_;
    Incoming stream_;
};

}  // namespace

std::shared_ptr<Operation> start_message(const std::shared_ptr<Group>& group, Collective collective,
                                         uint64_t sequence) {
    if (collective.kind == Kind::send) return std::make_shared<Send>(group, std::move(collective), sequence);
    return std::make_shared<Receive>(group, std::move(collective), sequence);
}

}  // namespace tutti::comm::mpi
