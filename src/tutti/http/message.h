// http/message.h: requests and answers of HTTP/1.1 as plain data (RFC 9112), of the small part that a page for one
// reader needs: GET and HEAD without bodies.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::http {

inline constexpr size_t kLongestHead = 8192;  // bytes of a request, with the empty line at its end
inline constexpr size_t kMostFields = 64;

struct Request {
    bool head = false;                                        // HEAD: the answer has no body
    std::string path;                                         // "/events"; of letters, digits, '.', '-', '_' and '/'
    std::vector<std::pair<std::string, std::string>> query;   // decoded, in their order
    std::vector<std::pair<std::string, std::string>> fields;  // names in small letters

    std::string field(std::string_view name) const;  // "" without it
    std::string parameter(std::string_view name) const;
    std::string cookie(std::string_view name) const;
};

// What the first bytes of a connection are.
struct Received {
    enum class State { incomplete, whole, refused } state = State::incomplete;
    Request request;     // whole
    int status = 0;      // refused: 400, 405, 413, 431, 501 or 505
    std::string reason;  // refused: a sentence
};
// Bytes behind the head are left out: a client that sends more than one request gets one answer.
Received receive(std::string_view bytes);

struct Response {
    int status = 200;
    std::string type = "text/plain; charset=utf-8";
    std::string body;
    std::vector<std::pair<std::string, std::string>> fields;  // besides those of every answer
};
// As it is sent, with "Connection: close". `head`: without the body. Every answer forbids browsers to load or run
// anything but this server's own files, to guess its type, and to store it.
std::string to_bytes(const Response& response, bool head);
// The head of a stream of events (server-sent events), which has no length and ends with the connection.
std::string head_of_stream();

}  // namespace tutti::http
