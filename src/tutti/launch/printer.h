// launch/printer.h: writes the output of all ranks to the launcher's output: whole lines, prefixed with host and rank;
// those of rank 0 unchanged. A separate thread writes, so that a slow reader delays no rank.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace tutti::launch {

class Printer {
  public:
    Printer(std::ostream& out, std::ostream& err);
    ~Printer();  // after the last line
    Printer(const Printer&) = delete;
    Printer& operator=(const Printer&) = delete;

    // Bytes of a rank's stream, 1 or 2. Incomplete lines are held back, except those of rank 0.
    void add(const std::string& host, int rank, int stream, std::string_view bytes);
    void end(const std::string& host, int rank);  // writes the rank's incomplete lines
    void say(const std::string& line);            // "tutti launch: <line>", on standard error

  private:
    static constexpr size_t kMost = size_t{64} << 20;  // waiting bytes; more is dropped, and a line says so
    void print(int stream, std::string text);
    void run();

    std::ostream& out_;
    std::ostream& err_;
    std::map<std::pair<int, int>, std::string> lines_;  // incomplete, by rank and stream
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string waiting_[2];
    size_t dropped_ = 0;
    bool ending_ = false;
    std::thread thread_;  // last: uses the others
};

}  // namespace tutti::launch
