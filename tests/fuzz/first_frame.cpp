// tests/fuzz/first_frame.cpp: any bytes as the first frame of a connection to rank 0: as they are, and as a change of
// the frame of a rank that knows the secret. Either nothing, or exactly that frame.
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "tutti/comm/tcp/rendezvous.h"

namespace {

using namespace tutti::comm::tcp;

const std::string kJob = "job";

struct Rank {
    Key key{};
    Nonce challenge = fresh_nonce();
    Join join;
    std::string frame;  // as it is sent
    Rank() {
        Contact contact;
        kMagic.copy(contact.magic.data(), contact.magic.size());
        kJob.copy(contact.job.data(), contact.job.size());
        key.fill(7);
        join = make_join(key, challenge, contact);
        const auto length = static_cast<uint32_t>(sizeof join);
        frame = std::string(bytes_of(length)) + static_cast<char>(Frame::Type::join) + std::string(bytes_of(join));
    }
};

// What rank 0 takes from a connection that sends `bytes` and ends.
std::optional<Join> first_join(const std::string& bytes, const Rank& rank) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
    const Socket hub(ends[0]);
    FrameReader reader;
    std::optional<Frame> frame;
    {
        const Socket guest(ends[1]);
        // In two pieces, as packets may come.
        for (const auto& piece : {bytes.substr(0, bytes.size() / 3), bytes.substr(bytes.size() / 3)}) {
            if (send(guest.fd(), piece.data(), piece.size(), MSG_NOSIGNAL) < 0 && !piece.empty()) std::abort();
            if (!frame) frame = reader.read(hub, sizeof(Join));
        }
    }
    if (!frame) {
        reader.read(hub, sizeof(Join));
        return std::nullopt;
    }
    if (frame->body.size() > sizeof(Join)) std::abort();
    read_answer(frame->body, rank.key, rank.challenge, rank.join.nonce, frame->type);
    if (frame->type != Frame::Type::join) return std::nullopt;
    return read_join(frame->body, rank.key, rank.challenge, kJob);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Rank rank;
    const std::string bytes(reinterpret_cast<const char*>(data), std::min<size_t>(size, 100'000));
    if (first_join(bytes, rank)) std::abort();  // the proof cannot be guessed
    std::string changed = rank.frame;
    if (changed.size() < bytes.size()) changed.resize(bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i) changed[i] = static_cast<char>(changed[i] ^ bytes[i]);
    const bool is_whole = changed.starts_with(rank.frame);
    if (first_join(changed, rank).has_value() != is_whole) std::abort();
    return 0;
}
