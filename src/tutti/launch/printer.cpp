#include "tutti/launch/printer.h"

#include <csignal>

#include "tutti/base/error.h"
#include "tutti/base/refused.h"
#include "tutti/base/units.h"

namespace tutti::launch {

Printer::Printer(std::ostream& out, std::ostream& err) : out_(out), err_(err) {
    thread_ = start_thread("prints the lines of ranks", [this] { run(); });
}

Printer::~Printer() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

void Printer::add(const std::string& host, int rank, int stream, std::string_view bytes) {
    if (rank == 0) return print(stream, std::string(bytes));
    std::string& line = lines_[{rank, stream}];
    std::string text;
    for (const char c : bytes) {
        line += c;
        if (c == '\n') text += concat('[', host, ' ', rank, "] ", std::exchange(line, {}));
    }
    if (!text.empty()) print(stream, std::move(text));
}

void Printer::end(const std::string& host, int rank) {
    for (const int stream : {1, 2}) {
        const auto found = lines_.find({rank, stream});
        if (found == lines_.end()) continue;
        if (!found->second.empty()) print(stream, concat('[', host, ' ', rank, "] ", found->second, '\n'));
        lines_.erase(found);
    }
}

void Printer::say(const std::string& line) { print(2, concat("tutti launch: ", line, '\n')); }

void Printer::print(int stream, std::string text) {
    {
        const std::lock_guard lock(mutex_);
        std::string& waiting = waiting_[stream == 1 ? 0 : 1];
        if (waiting.size() > kMost)
            dropped_ += text.size();
        else
            waiting += text;
    }
    changed_.notify_one();
}

void Printer::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return ending_ || !waiting_[0].empty() || !waiting_[1].empty(); });
        if (waiting_[0].empty() && waiting_[1].empty()) return;
        const std::string to_out = std::exchange(waiting_[0], {});
        std::string to_err = std::exchange(waiting_[1], {});
        if (const size_t dropped = std::exchange(dropped_, 0); dropped > 0)
            to_err +=
                concat("tutti launch: ", format_bytes(dropped), " of output were left out, as they were not read\n");
        lock.unlock();
        out_ << to_out << std::flush;
        err_ << to_err << std::flush;
        lock.lock();
    }
}

}  // namespace tutti::launch
