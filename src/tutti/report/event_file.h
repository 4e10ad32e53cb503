// report/event_file.h: scalars in the event files of TensorBoard.
//
// A file is a row of records {u64 length, u32 masked CRC32C of the length, payload, u32 masked CRC32C of the payload},
// each payload a protobuf Event {1: double wall_time, 2: int64 step, 3: string file_version, 5: Summary, 7:
// SessionLog}; Summary {1: repeated {1: string tag, 2: float simple_value}}. Few enough fields to be encoded by hand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::report {

struct Scalar {
    std::string tag;  // "train/loss"
    double value;
};

// Events, and the record around one. Wall times in seconds since 1970.
std::string version_event(double wall);
std::string session_event(double wall, int64_t step);  // a session starts; readers drop their events from `step` on
std::string scalars_event(double wall, int64_t step, const std::vector<Scalar>& scalars);
std::string record_of(std::string_view event);

class EventFile {
  public:
    // Opens a new file in `folder`, which is made when missing. The file's name begins with the time, since readers
    // take the files of a folder in the order of their names, and contains `host`, as TensorFlow's do. The session
    // starts at `first_step`, so steps that an earlier session logged and lost are not shown twice. UsageError when
    // folder or file cannot be made.
    EventFile(const std::string& folder, int64_t first_step, const std::string& host);
    ~EventFile();
    EventFile(const EventFile&) = delete;
    EventFile& operator=(const EventFile&) = delete;

    const std::string& path() const { return path_; }
    // Writes one record with all scalars before it returns. False with errno when the record cannot be written.
    bool add(int64_t step, const std::vector<Scalar>& scalars);

  private:
    bool write(const std::string& event);

    std::string path_;
    int descriptor_ = -1;
    int64_t size_ = 0;  // of whole records
};

}  // namespace tutti::report
