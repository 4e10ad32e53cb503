// Requests as browsers, Prometheus and strangers send them, and answers.
#include "tutti/http/message.h"

#include <gtest/gtest.h>

#include "tutti/base/error.h"

namespace tutti::http {
namespace {

using State = Received::State;

TEST(Receive, ARequestOfABrowser) {
    const std::string text =
        "GET /events?runs=0&runs=12&x=tokens&have=a%2Bb+c HTTP/1.1\r\nHost: localhost:6007\r\n"
        "Cookie: other=1; tutti=secret\r\nLast-Event-ID:  77 \r\nAccept: text/event-stream\r\n\r\nmore";
    const Received r = receive(text);
    ASSERT_EQ(r.state, State::whole) << r.reason;
    EXPECT_FALSE(r.request.head);
    EXPECT_EQ(r.request.path, "/events");
    ASSERT_EQ(r.request.query.size(), 4U);
    EXPECT_EQ(r.request.query[1].second, "12");
    EXPECT_EQ(r.request.parameter("have"), "a+b c");
    EXPECT_EQ(r.request.field("last-event-id"), "77");
    EXPECT_EQ(r.request.cookie("tutti"), "secret");
    EXPECT_EQ(r.request.cookie("tut"), "");
    // As it arrives: nothing until the empty line is there.
    const size_t head = text.find("\r\n\r\n") + 4;
    for (size_t size = 0; size < head; ++size)
        EXPECT_EQ(receive(text.substr(0, size)).state, State::incomplete) << size;
    EXPECT_TRUE(receive("HEAD / HTTP/1.0\r\n\r\n").request.head);
}

TEST(Receive, RefusesTheRest) {
    const std::string host = "\r\nHost: localhost\r\n";
    const std::vector<std::pair<std::string, int>> cases = {
        {"POST / HTTP/1.1" + host + "\r\n", 405},
        {"get / HTTP/1.1" + host + "\r\n", 405},
        {"GET / HTTP/2.0" + host + "\r\n", 505},
        {"GET / FTP/1.1" + host + "\r\n", 400},
        {"GET  HTTP/1.1" + host + "\r\n", 400},
        {"GET http://localhost/ HTTP/1.1" + host + "\r\n", 400},
        {"GET /a%2e%2e HTTP/1.1" + host + "\r\n", 400},
        {"GET /?x=%4 HTTP/1.1" + host + "\r\n", 400},
        {"GET /?x=%0a HTTP/1.1" + host + "\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1" + host + "Host: b\r\n\r\n", 400},
        {"GET / HTTP/1.1" + host + "no colon\r\n\r\n", 400},
        {"GET / HTTP/1.1" + host + "a b: c\r\n\r\n", 400},
        {std::string("GET / HTTP/1.1") + host + "a: b\0\r\n\r\n", 200},  // ends at the zero: incomplete
        {"GET / HTTP/1.1" + host + "Content-Length: 5\r\n\r\nhello", 413},
        {"GET / HTTP/1.1" + host + "Transfer-Encoding: chunked\r\n\r\n", 501},
        {"\x16\x03\x01\r\n\r\n", 400},
        {std::string(kLongestHead, 'a'), 431},
        {"GET / HTTP/1.1" + host + std::string(kLongestHead, 'a') + "\r\n\r\n", 431}};
    for (const auto& [text, status] : cases) {
        const Received r = receive(text);
        if (status == 200) {
            EXPECT_EQ(r.state, State::incomplete) << text;
            continue;
        }
        EXPECT_EQ(r.state, State::refused) << text;
        EXPECT_EQ(r.status, status) << text << ": " << r.reason;
        EXPECT_FALSE(r.reason.empty());
    }
    std::string many = "GET / HTTP/1.1" + host;
    for (size_t i = 1; i < kMostFields; ++i) many += concat("a", i, ": b\r\n");
    EXPECT_EQ(receive(many + "\r\n").state, State::whole);
    EXPECT_EQ(receive(many + "one: more\r\n\r\n").status, 431);
}

TEST(Response, ForbidsWhatThePageDoesNotNeed) {
    const std::string bytes = to_bytes({.body = "hello", .fields = {{"Allow", "GET"}}}, false);
    EXPECT_TRUE(bytes.starts_with("HTTP/1.1 200 OK\r\n")) << bytes;
    EXPECT_TRUE(bytes.ends_with("\r\n\r\nhello")) << bytes;
    for (const char* part : {"Content-Length: 5\r\n", "default-src 'none'", "X-Content-Type-Options: nosniff\r\n",
                             "Connection: close\r\n", "Cache-Control: no-store\r\n", "Allow: GET\r\n"})
        EXPECT_NE(bytes.find(part), std::string::npos) << part;
    EXPECT_EQ(bytes.find("unsafe"), std::string::npos);
    EXPECT_EQ(bytes.find("http:"), std::string::npos);
    EXPECT_TRUE(to_bytes({.body = "hello", .fields = {}}, true).ends_with("Content-Length: 5\r\n\r\n"));
    EXPECT_NE(head_of_stream().find("Cache-Control: no-cache, no-transform\r\nX-Accel-Buffering: no\r\n"),
              std::string::npos);
}

}  // namespace
}  // namespace tutti::http
