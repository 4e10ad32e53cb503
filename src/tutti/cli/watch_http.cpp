#include <chrono>
#include <map>
#include <memory>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/cli/watch.h"
#include "tutti/device/device.h"
#include "tutti/http/server.h"
#include "tutti/report/live_page.h"
#include "tutti/report/openmetrics.h"

namespace tutti::cli {

namespace {

using report::Card, report::LiveView, report::WatchedRun;
using namespace std::chrono_literals;

// With one client, reading and drawing a growing log of 100,000 lines takes 6 ms of a core each time, mostly drawing.
constexpr auto kBetweenReads = 1000ms;

// The cards of each view that a client has open, drawn once after each reading of the runs.
class Site {
  public:
    explicit Site(const std::vector<WatchedRun>& runs) : runs_(runs) {}

    void runs_were_read() { cards_.clear(); }
    const std::vector<Card>& cards(const LiveView& view) {
        std::string key = concat(static_cast<int>(view.view.x), ' ', view.view.smoothing);
        for (const size_t run : view.runs) key += concat(' ', run);
        const auto [at, is_new] = cards_.try_emplace(key);
        if (is_new) at->second = report::live_cards(runs_, view);
        return at->second;
    }
    const std::vector<WatchedRun>& runs() const { return runs_; }

  private:
    const std::vector<WatchedRun>& runs_;
    std::map<std::string, std::vector<Card>> cards_;
};

class Cards final : public http::Stream {
  public:
    // `have`: the id of the cards that the client has.
    Cards(Site& site, LiveView view, const std::string& have) : site_(site), view_(std::move(view)) {
        const std::vector<Card>& cards = site_.cards(view_);
        if (have == report::live_id(cards)) report::live_event(cards, sent_);
    }
    std::string next() override {
        std::string event = report::live_event(site_.cards(view_), sent_);
        if (event.empty() && first_) event = ": nothing new\n\n";  // tells the client that it is connected
        first_ = false;
        return event;
    }

  private:
    Site& site_;
    LiveView view_;
    std::map<std::string, size_t> sent_;
    bool first_ = true;
};

http::Server::Answer answer(const http::Request& request, const http::Access& access, Site& site) {
    if (auto refused = access.refuse(request)) return *refused;
    if (request.path == "/live.css")
        return http::Response{.type = "text/css; charset=utf-8", .body = report::live_style(), .fields = {}};
    if (request.path == "/live.js")
        return http::Response{
            .type = "text/javascript; charset=utf-8", .body = std::string(report::live_script()), .fields = {}};
    if (request.path == "/metrics") {
        const auto format = report::format_of(request.field("accept"));
        return http::Response{.type = std::string(report::content_type(format)),
                              .body = report::metrics_text(site.runs(), format),
                              .fields = {}};
    }
    if (request.path != "/" && request.path != "/events")
        return http::Response{
            .status = 404, .body = "not found; the paths are /, /events and /metrics\n", .fields = {}};
    try {
        LiveView view = report::live_view(request.query, site.runs().size());
        if (request.path == "/")
            return http::Response{
                .type = "text/html; charset=utf-8", .body = report::live_page(site.runs(), view), .fields = {}};
        const std::string last = request.field("last-event-id");  // sent by a client that reconnects
        return std::make_unique<Cards>(site, std::move(view), last.empty() ? request.parameter("have") : last);
    } catch (const UsageError& error) {
        return http::Response{.status = 400, .body = concat(error.what(), "\n"), .fields = {}};
    }
}

}  // namespace

std::string serve_runs(const std::string& listen, std::vector<WatchedRun>& runs, const std::function<void()>& update,
                       const std::atomic<bool>& asked, const Io& io) {
    const http::Address address = listen.empty() ? http::Address{} : http::parse_address("--listen", listen);
    const bool alone = address.loopback();
    const std::string token = alone ? "" : http::Access::fresh_token();
    const http::Access access(token);
    Site site(runs);
    http::Server server(address, [&](const http::Request& request) { return answer(request, access, site); }, {});
    http::Address shown = server.address();
    if (shown.host == "0.0.0.0" || shown.host == "::") shown.host = host_name();
    const std::string url = concat("http://", shown.text(), "/", alone ? "" : "?token=" + token);
    update();
    io.text() << "watching " << counted(std::ssize(runs), "run") << " at " << url
              << "\n(Ctrl-C stops the server; /metrics is for Prometheus)\n";
    if (!alone)
        io.text() << "The page is open to every machine that reaches this address and has the token; nothing is "
                     "encrypted.\nPrometheus: authorization: {credentials: "
                  << token << "}\n";
    io.text() << std::flush;
    for (auto read = std::chrono::steady_clock::now(); !asked;) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(read + kBetweenReads -
                                                                                std::chrono::steady_clock::now());
        if (left > 0ms) {
            server.turn(std::min(left, std::chrono::milliseconds(100ms)));
            continue;
        }
        update();
        site.runs_were_read();
        server.advance();
        read = std::chrono::steady_clock::now();
    }
    server.end(std::string(report::live_end()));
    return url;
}

}  // namespace tutti::cli
