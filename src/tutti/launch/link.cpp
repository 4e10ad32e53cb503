#include "tutti/launch/link.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::launch {

namespace {

void never_wait(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace

Link::Link(Descriptor in, Descriptor out) : in_(std::move(in)), out_(std::move(out)) {
    never_wait(in_.fd());
    never_wait(out_.fd());
}

Link::Link(comm::tcp::AuthenticatedSession session, End end)
    : Link{Descriptor(dup(session.socket.fd())), std::move(session.socket)} {  // braces: in this order
    reader_ = std::move(session.reader);
    cipher_out_.emplace(session, end == End::caller ? "from caller" : "from listener");
    cipher_in_.emplace(session, end == End::caller ? "from listener" : "from caller");
}

void Link::send(Frame::Type type, std::string_view body) {
    if (!open()) return;
    const std::string bytes = comm::tcp::to_bytes(type, body);
    unsent_ += cipher_out_ ? comm::tcp::to_bytes(Frame::Type::sealed, cipher_out_->seal(bytes)) : bytes;
    write();
}

std::optional<Frame> Link::take() {
    auto frame = reader_.take();
    if (!frame || !cipher_in_) return frame;
    comm::tcp::FrameReader inner;
    if (frame->type == Frame::Type::sealed) inner.add(cipher_in_->open(frame->body).value_or(""));
    auto opened = inner.take();
    if (!opened) {
        closed_ = true;
        reader_ = {};
    }
    return opened;
}

void Link::write() {
    size_t sent = 0;
    while (open() && sent < unsent_.size()) {
        const ssize_t n = ::write(out_.fd(), unsent_.data() + sent, unsent_.size() - sent);
        if (n > 0)
            sent += to_size(n);
        else if (n == 0 || errno == EAGAIN)
            break;
        else if (errno != EINTR)
            closed_ = true;
    }
    unsent_.erase(0, sent);
}

std::optional<Frame> Link::read() {
    if (!in_.open()) return std::nullopt;
    if (auto frame = take()) return frame;
    std::array<char, 65536> piece;
    while (!closed_) {
        const ssize_t n = ::read(in_.fd(), piece.data(), piece.size());
        if (n > 0) {
            silence_ = AwakeTime(kShortestSilence);
            reader_.add({piece.data(), to_size(n)});
            if (auto frame = take()) return frame;
            closed_ = closed_ || reader_.closed();
        } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
            closed_ = true;
        } else if (errno == EAGAIN) {
            break;
        }
    }
    return std::nullopt;
}

std::string output_body(int rank, int stream, std::string_view bytes) {
    const auto number = static_cast<int32_t>(rank);
    std::string body(sizeof number, '\0');
    std::memcpy(body.data(), &number, sizeof number);
    body += static_cast<char>(stream);
    return body.append(bytes);
}

RankOutput read_output(std::string_view body) {
    int32_t rank = 0;
    check(body.size() > sizeof rank, "a frame of output of ", body.size(), " bytes");
    std::memcpy(&rank, body.data(), sizeof rank);
    return {rank, body[sizeof rank], body.substr(sizeof rank + 1)};
}

}  // namespace tutti::launch
