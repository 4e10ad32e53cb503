#include "tutti/train/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/file_writer.h"
#include "tutti/comm/communicator.h"
#include "tutti/engine/tracing.h"

namespace tutti::train {

namespace {

constexpr size_t kSpans = size_t{1} << 17;  // 16 MiB, of which only used pages take memory
constexpr int kComputeTrack = 0, kWaitTrack = 1, kFirstGroupLane = 2;
constexpr int kBarriers = 5;

// Chrome wants microseconds; three digits keep every nanosecond.
std::string microseconds(int64_t ns) {
    return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
}

std::string quoted(const std::string& text) { return Json(text).dump(-1, Json::InvalidUtf8::replace); }

std::string metadata(std::string_view what, int rank, int track, const std::string& key, const std::string& value) {
    return fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"{}":{}}}}})", what, rank, track, key,
                       value);
}

// A track that is free again before `begin`; a new one when there is none. `free_at`: by track.
size_t free_track(std::vector<int64_t>& free_at, int64_t begin, int64_t end) {
    const auto track = std::find_if(free_at.begin(), free_at.end(), [&](int64_t at) { return at <= begin; });
    if (track == free_at.end()) {
        free_at.push_back(end);
        return free_at.size() - 1;
    }
    *track = end;
    return to_size(track - free_at.begin());
}

std::string event_of(const Trace::Span& s, int rank, int track, int64_t begin_ns, int64_t end_ns) {
    Json arguments = {{"step", s.step}};
    if (!s.what.group.empty()) arguments.update({{"group", s.what.group}, {"number", s.what.number}});
    if (s.what.activity == Activity::communication)
        arguments.update({{"operation", s.what.name}, {"bytes", s.what.bytes}, {"dtype", s.what.of}});
    if (s.end_ns < 0) arguments["unfinished"] = true;
    const bool has_object = !s.what.of.empty() && s.what.activity != Activity::communication;
    const std::string name = has_object ? concat(s.what.name, " ", s.what.of) : std::string(s.what.name);
    return fmt::format(R"({{"name":{},"cat":"{}","ph":"X","ts":{},"dur":{},"pid":{},"tid":{},"args":{}}})",
                       quoted(name), name_of(s.what.activity), microseconds(begin_ns), microseconds(end_ns - begin_ns),
                       rank, track, arguments.dump());
}

// The samples of the memory as a counter, which viewers draw as a stack: all purposes, from each time on.
std::string memory_events(const std::vector<Trace::Span>& samples, int rank, int64_t shift) {
    std::string text;
    Json bytes = Json::object();
    for (size_t i = 0; i < samples.size(); ++i) {
        bytes[std::string(samples[i].what.of)] = samples[i].what.bytes;
        if (i + 1 < samples.size() && samples[i + 1].begin_ns == samples[i].begin_ns) continue;
        text += fmt::format(
            ",\n"
            R"({{"name":"memory","ph":"C","ts":{},"pid":{},"args":{}}})",
            microseconds(samples[i].begin_ns - shift), rank, bytes.dump());
    }
    return text;
}

std::string first_line(const char* path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

}  // namespace

TraceWindow trace_window(const spec::RunSpec& run, int64_t done) {
    const spec::LogSpec& log = run.log;
    const int64_t last_start = std::max(done + 1, run.train.steps - log.trace_steps + 1);
    const int64_t first = log.trace_first > 0 ? log.trace_first : std::min(done + 3, last_start);
    return {std::max(first, done + 1), std::min(first + log.trace_steps - 1, run.train.steps)};
}

TraceClock compare_clocks(comm::Communicator& ranks) {
    std::ostringstream own;
    own << first_line("/proc/sys/kernel/random/boot_id") << ' ';
    for (int i = 0; i < kBarriers; ++i) {
        ranks.barrier();
        own << Trace::now_ns() << ' ';
    }
    return clock_from(comm::gather_texts(ranks, own.str()), ranks.rank());
}

TraceClock clock_from(const std::vector<std::string>& readings, int rank) {
    std::istringstream zero(readings[0]), here(readings[to_size(rank)]);
    std::string zero_machine, machine;
    zero >> zero_machine;
    here >> machine;
    std::vector<int64_t> offsets;
    int64_t origin = 0;
    for (int64_t a = 0, b = 0; zero >> a && here >> b;) {
        offsets.push_back(b - a);
        origin = a;
    }
    std::nth_element(offsets.begin(), offsets.begin() + offsets.size() / 2, offsets.end());
    const bool same = !machine.empty() && machine == zero_machine;
    return {.offset_ns = same ? 0 : offsets[offsets.size() / 2], .origin_ns = origin};
}

std::string events_of(const Trace& trace, int rank, const std::string& label, const TraceClock& clock) {
    std::vector<Trace::Span> spans, samples;
    for (size_t i = 0; i < trace.size(); ++i) {
        const Trace::Span s = trace.span(i);
        (s.what.group == engine::kMemoryGroup ? samples : spans).push_back(s);
    }
    // Tracks are filled from the left; of two that begin together the longer one is the outer one.
    std::stable_sort(spans.begin(), spans.end(), [](const Trace::Span& a, const Trace::Span& b) {
        return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
    });
    const int64_t now = Trace::now_ns(), shift = clock.offset_ns + clock.origin_ns;

    // Operations of a GPU beside its compute, operations through host memory on separate tracks.
    const auto group_of = [](const Trace::Span& s) {
        return s.on_gpu ? concat("GPU, ", s.what.group) : std::string(s.what.group);
    };
    std::map<std::string, std::vector<int64_t>> free_at;  // by group, by its tracks
    std::vector<size_t> track_in_group;
    const auto is_of_group = [](const Trace::Span& s) {
        return s.what.activity == Activity::communication || s.what.activity == Activity::gpu;
    };
    for (const Trace::Span& s : spans) {
        track_in_group.push_back(
            is_of_group(s) ? free_track(free_at[group_of(s)], s.begin_ns, s.end_ns < 0 ? now : s.end_ns) : 0);
    }
    std::map<std::string, int> first_track;
    int next = kFirstGroupLane;
    std::string text =
        metadata("process_name", rank, 0, "name", quoted(concat("rank ", rank))) + ",\n" +
        metadata("process_sort_index", rank, 0, "sort_index", std::to_string(rank)) + ",\n" +
        metadata("process_labels", rank, 0, "labels",
                 quoted(trace.dropped() == 0 ? label : concat(label, ", ", trace.dropped(), " spans had no room"))) +
        ",\n" + metadata("thread_name", rank, kComputeTrack, "name", "\"compute\"") + ",\n" +
        metadata("thread_name", rank, kWaitTrack, "name", "\"waits\"");
    for (const auto& [group, tracks] : free_at) {
        first_track[group] = next;
        for (size_t track = 0; track < tracks.size(); ++track)
            text += ",\n" + metadata("thread_name", rank, next++, "name",
                                     quoted(track == 0 ? group : concat(group, " ", track + 1)));
    }
    for (int track = 0; track < next; ++track)
        text += ",\n" + metadata("thread_sort_index", rank, track, "sort_index", std::to_string(track));
    for (size_t i = 0; i < spans.size(); ++i) {
        const Trace::Span& s = spans[i];
        int track = kComputeTrack;
        if (s.what.activity == Activity::wait || s.what.activity == Activity::begin) track = kWaitTrack;
        if (is_of_group(s)) track = first_track[group_of(s)] + static_cast<int>(track_in_group[i]);
        text += ",\n" + event_of(s, rank, track, s.begin_ns - shift, (s.end_ns < 0 ? now : s.end_ns) - shift);
    }
    return text + memory_events(samples, rank, shift);
}

TraceFile::TraceFile(comm::World& world, const TraceWindow& window, std::string path, std::string label,
                     std::function<void(const std::string&)> warn)
    : world_(world),
      window_(window),
      path_(std::move(path)),
      label_(std::move(label)),
      warn_(std::move(warn)),
      ranks_(world.everyone("trace")),
      clock_(compare_clocks(*ranks_)),
      trace_(kSpans) {
    if (window_.last >= window_.first) return;
    written_ = true;
    warn_("no step of this session is traced: [log] trace_first and trace_steps name steps that are over");
}

TraceFile::~TraceFile() {
    world_.recorder().trace_into(nullptr);
    world_.progress().trace_into(nullptr);
}

Trace* TraceFile::before(int64_t step) {
    if (step < window_.first || step > window_.last) return nullptr;
    if (!begun_) {
        world_.recorder().trace_into(&trace_);
        world_.progress().trace_into(&trace_);
        begun_ = true;
    }
    trace_.open(step);
    return &trace_;
}

void TraceFile::after(int64_t step) {
    if (step == window_.last) {
        trace_.close();
        world_.progress().trace_into(nullptr);
    }
    if (step > window_.last && !written_) write();
}

void TraceFile::finish() {
    trace_.close();
    if (begun_ && !written_) write();
}

// Rank 0 writes what the others send, one after the other. A full disk does not stop the run: the file is then absent.
void TraceFile::write() {
    written_ = true;
    // A thread of comm/nccl ends the spans of operations soon after the GPU has completed them.
    for (size_t i = 0, waits = 0; i < trace_.size(); ++i)
        for (; trace_.span(i).end_ns < 0 && waits < 1000; ++waits) {
            world_.progress().poll();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    world_.recorder().trace_into(nullptr);
    const std::string own = events_of(trace_, world_.rank(), label_, clock_);
    if (world_.rank() != 0) return comm::send_text(*ranks_, own, 0);
    const std::string temporary = concat(path_, ".tmp-", checkpoint::this_owner());
    errno = 0;
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" << own;
    try {
        for (int rank = 1; rank < world_.size(); ++rank) file << ",\n" << comm::receive_text(*ranks_, rank);
    } catch (...) {
        std::filesystem::remove(temporary);
        throw;
    }
    file << "\n]}\n";
    file.close();
    std::error_code error;
    if (file) std::filesystem::rename(temporary, path_, error);
    if (!file || error) {
        warn_(concat("cannot write ", path_, ": ", error ? error.message() : std::strerror(errno),
                     "; training continues without it"));
        std::filesystem::remove(temporary, error);
    }
    if (trace_.dropped() > 0)
        warn_(concat("the trace of steps ", window_.first, " to ", window_.last, " lacks ", trace_.dropped(),
                     " spans of this rank, for which there was no room; trace fewer steps"));
}

}  // namespace tutti::train
