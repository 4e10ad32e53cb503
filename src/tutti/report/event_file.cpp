// report/event_file.cpp: the encoding, and names that sort by time.
#include "tutti/report/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"

namespace tutti::report {

namespace {

constexpr std::array<uint32_t, 256> crc_table() {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0x82F63B78u : 0);  // Castagnoli, reflected
        table[i] = c;
    }
    return table;
}

// As TensorFlow masks it: a CRC of data that holds CRCs would be weak.
uint32_t masked_crc(std::string_view bytes) {
    static constexpr auto kTable = crc_table();
    uint32_t c = 0xFFFFFFFFu;
    for (const char byte : bytes) c = kTable[(c ^ static_cast<unsigned char>(byte)) & 0xFF] ^ (c >> 8);
    c ^= 0xFFFFFFFFu;
    return ((c >> 15) | (c << 17)) + 0xa282ead8u;
}

template <class T>
void append_little_endian(std::string& bytes, T value) {
    static_assert(std::endian::native == std::endian::little);
    const size_t at = bytes.size();
    bytes.resize(at + sizeof value);
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

// protobuf: a key is field << 3 | wire type.
enum class Wire : uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void append_varint(std::string& bytes, uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    bytes += static_cast<char>(value);
}
void append_key(std::string& bytes, uint32_t field, Wire wire) {
    append_varint(bytes, field << 3 | static_cast<uint32_t>(wire));
}
void append_bytes(std::string& bytes, uint32_t field, std::string_view value) {
    append_key(bytes, field, Wire::bytes);
    append_varint(bytes, value.size());
    bytes += value;
}

std::string event_at(double wall, int64_t step) {
    std::string event;
    append_key(event, 1, Wire::fixed64);
    append_little_endian(event, wall);
    if (step == 0) return event;  // proto3 leaves zeros out
    append_key(event, 2, Wire::varint);
    append_varint(event, static_cast<uint64_t>(step));
    return event;
}

constexpr std::string_view kPrefix = "events.out.tfevents.";

// The time in the name of the newest event file of the folder; 0 when there is none.
int64_t newest_in(const std::string& folder) {
    int64_t newest = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with(kPrefix)) continue;
        const std::string_view rest = std::string_view(name).substr(kPrefix.size());
        newest = std::max(newest, parse_number<int64_t>(rest.substr(0, rest.find('.'))).value_or(0));
    }
    return newest;
}

}  // namespace

std::string version_event(double wall) {
    std::string event = event_at(wall, 0);
    append_bytes(event, 3, "brain.Event:2");
    return event;
}

std::string session_event(double wall, int64_t step) {
    std::string event = event_at(wall, step);
    append_bytes(event, 7, "\x08\x01");  // SessionLog {1: status = START}
    return event;
}

std::string scalars_event(double wall, int64_t step, const std::vector<Scalar>& scalars) {
    std::string summary;
    for (const auto& [tag, number] : scalars) {
        std::string value;
        append_bytes(value, 1, tag);
        append_key(value, 2, Wire::fixed32);
        append_little_endian(value, static_cast<float>(number));
        append_bytes(summary, 1, value);
    }
    std::string event = event_at(wall, step);
    append_bytes(event, 5, summary);
    return event;
}

std::string record_of(std::string_view event) {
    std::string record;
    append_little_endian(record, static_cast<uint64_t>(event.size()));
    append_little_endian(record, masked_crc(record));
    record += event;
    append_little_endian(record, masked_crc(event));
    return record;
}

EventFile::EventFile(const std::string& folder, int64_t first_step, const std::string& host) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    check_written(!error && std::filesystem::is_directory(folder), error.value(),
                  "cannot make the folder of event files ", folder, ": ",
                  error ? error.message() : "a file of that name exists");
    const double wall = unix_time();
    // Two sessions within a second must still sort.
    const int64_t time = std::max(static_cast<int64_t>(wall), newest_in(folder) + 1);
    path_ = concat(folder, "/", kPrefix, time, ".", host, ".", ::getpid(), ".0");
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    descriptor_ = retried([&] { return ::open(path_.c_str(), kFlags, 0644); });
    check_written(descriptor_ >= 0, errno, path_, ": cannot be written: ", std::strerror(errno));
    if (write(version_event(wall)) && write(session_event(wall, first_step))) return;
    const int reason = errno;
    ::close(descriptor_);
    check_written(false, reason, path_, ": cannot be written: ", std::strerror(reason));
}

EventFile::~EventFile() { ::close(descriptor_); }

bool EventFile::add(int64_t step, const std::vector<Scalar>& scalars) {
    return write(scalars_event(unix_time(), step, scalars));
}

// The next record overwrites a record that a full disk has cut off: readers stop at a damaged record.
bool EventFile::write(const std::string& event) {
    const std::string record = record_of(event);
    size_t done = 0;
    while (done < record.size()) {
        const auto at = static_cast<off_t>(size_ + static_cast<int64_t>(done));
        const ssize_t n =
            retried([&] { return ::pwrite(descriptor_, record.data() + done, record.size() - done, at); });
        if (n <= 0) return false;
        done += to_size(n);
    }
    size_ += static_cast<int64_t>(done);
    return true;
}

}  // namespace tutti::report
