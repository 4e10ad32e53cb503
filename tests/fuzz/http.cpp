// tests/fuzz/http.cpp: any bytes as a request to `tutti watch --http`. What a head is does not depend on how it arrives
// or on what follows, its parts are within their bounds, and the page's choices are valid or refused.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/http/message.h"
#include "tutti/http/server.h"
#include "tutti/report/live_page.h"

namespace {

using namespace tutti;
using State = http::Received::State;

void require(bool holds) {
    if (!holds) std::abort();
}

void look_at(const http::Request& request) {
    require(request.path.starts_with('/') && request.path.find_first_of(" %?\\\r\n") == std::string::npos);
    require(request.fields.size() <= http::kMostFields);
    for (const auto& [name, value] : request.query)
        for (const char c : name + value) require(static_cast<unsigned char>(c) >= 0x20);
    require(http::Access(std::string(32, 'x')).refuse(request).has_value() ||
            request.field("cookie").find(std::string(32, 'x')) != std::string::npos ||
            request.field("authorization").find(std::string(32, 'x')) != std::string::npos);
    http::Access().refuse(request);
    constexpr size_t kRuns = 11;
    try {
        const report::LiveView view = report::live_view(request.query, kRuns);
        require(!view.runs.empty() && view.runs.size() <= report::kMostCompared && view.runs.back() < kRuns);
    } catch (const UsageError&) {
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string bytes(reinterpret_cast<const char*>(data), std::min<size_t>(size, 20'000));
    const http::Received received = http::receive(bytes);
    if (received.state == State::incomplete) {
        require(bytes.size() < http::kLongestHead);
        return 0;
    }
    const http::Received more = http::receive(bytes + "GET / HTTP/1.1\r\n\r\n");
    require(more.state == received.state && more.status == received.status &&
            more.request.path == received.request.path);
    if (received.state == State::refused) {
        require(received.status >= 400 && received.status < 600 && !received.reason.empty());
        return 0;
    }
    const size_t head = bytes.find("\r\n\r\n");
    for (size_t part = 0; part < head + 4; part += 1 + head / 16)
        require(http::receive(bytes.substr(0, part)).state == State::incomplete);
    look_at(received.request);
    return 0;
}
