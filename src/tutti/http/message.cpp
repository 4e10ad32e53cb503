#include "tutti/http/message.h"

#include <algorithm>
#include <array>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"

namespace tutti::http {

namespace {

bool only(std::string_view text, std::string_view more) {
    return std::all_of(text.begin(), text.end(),
                       [&](char c) { return is_alphanumeric(c) || more.find(c) != std::string_view::npos; });
}

// Of a query; false for a broken %XX and for control characters.
bool decode(std::string_view text, std::string& decoded) {
    for (size_t i = 0; i < text.size(); ++i) {
        char c = text[i] == '+' ? ' ' : text[i];
        if (c == '%') {
            const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
            const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
            if (high < 0 || low < 0) return false;
            c = static_cast<char>(16 * high + low);
            i += 2;
        }
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
        decoded += c;
    }
    return true;
}

Received refused(int status, std::string reason) {
    return {.state = Received::State::refused, .request = {}, .status = status, .reason = std::move(reason)};
}

// "" or why the target is refused.
std::string read_target(std::string_view target, Request& request) {
    const size_t mark = target.find('?');
    request.path = target.substr(0, mark);
    if (!request.path.starts_with('/') || !only(request.path, "./-_")) return "the path is none of this server";
    std::string_view rest = mark == std::string_view::npos ? "" : target.substr(mark + 1);
    while (!rest.empty()) {
        const std::string_view part = rest.substr(0, rest.find('&'));
        rest.remove_prefix(std::min(rest.size(), part.size() + 1));
        if (part.empty()) continue;
        const size_t equals = std::min(part.find('='), part.size());
        auto& [name, value] = request.query.emplace_back();
        if (!decode(part.substr(0, equals), name) || !decode(part.substr(std::min(equals + 1, part.size())), value))
            return "the query is not encoded as a URL";
    }
    return "";
}

const char* phrase_of(int status) {
    constexpr std::array<std::pair<int, const char*>, 13> kPhrases = {{{200, "OK"},
                                                                       {204, "No Content"},
                                                                       {303, "See Other"},
                                                                       {400, "Bad Request"},
                                                                       {403, "Forbidden"},
                                                                       {404, "Not Found"},
                                                                       {405, "Method Not Allowed"},
                                                                       {413, "Content Too Large"},
                                                                       {421, "Misdirected Request"},
                                                                       {431, "Request Header Fields Too Large"},
                                                                       {501, "Not Implemented"},
                                                                       {503, "Service Unavailable"},
                                                                       {505, "HTTP Version Not Supported"}}};
    const auto found =
        std::find_if(kPhrases.begin(), kPhrases.end(), [&](const auto& entry) { return entry.first == status; });
    return found == kPhrases.end() ? "Error" : found->second;
}

// data: pictures whose text the page holds.
constexpr std::string_view kEveryAnswer =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Connection: close\r\n";

std::string value_of(const std::vector<std::pair<std::string, std::string>>& all, std::string_view name) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.first == name; });
    return found == all.end() ? "" : found->second;
}

}  // namespace

std::string Request::field(std::string_view name) const { return value_of(fields, name); }

std::string Request::parameter(std::string_view name) const { return value_of(query, name); }

std::string Request::cookie(std::string_view name) const {
    const std::string all = field("cookie");
    for (std::string_view rest = all; !rest.empty();) {
        const std::string_view part = trimmed(rest.substr(0, rest.find(';')));
        rest.remove_prefix(
            std::min(rest.size(), rest.find(';') == std::string_view::npos ? rest.size() : rest.find(';') + 1));
        if (part.substr(0, part.find('=')) == name && part.size() > name.size())
            return std::string(part.substr(name.size() + 1));
    }
    return "";
}

Received receive(std::string_view bytes) {
    const size_t end = bytes.substr(0, kLongestHead).find("\r\n\r\n");
    if (end == std::string_view::npos) {
        if (bytes.size() >= kLongestHead) return refused(431, concat("a request has at most ", kLongestHead, " bytes"));
        return {};
    }
    std::string_view rest = bytes.substr(0, end + 2);
    const auto next_line = [&] {
        const std::string_view line = rest.substr(0, rest.find("\r\n"));
        rest.remove_prefix(line.size() + 2);
        return line;
    };
    const std::string_view line = next_line();
    const size_t first = line.find(' '), last = line.rfind(' ');
    if (first == std::string_view::npos || first == last || first == 0 || !only(line.substr(0, first), ""))
        return refused(400, "the first line is no request of HTTP");
    const std::string_view method = line.substr(0, first), version = line.substr(last + 1);
    if (version != "HTTP/1.1" && version != "HTTP/1.0")
        return version.starts_with("HTTP/") ? refused(505, "this server speaks HTTP/1.1")
                                            : refused(400, "the first line is no request of HTTP");
    if (method != "GET" && method != "HEAD") return refused(405, "this server answers GET and HEAD alone");
    Received received{.state = Received::State::whole, .request = {}, .status = 0, .reason = {}};
    received.request.head = method == "HEAD";
    if (std::string why = read_target(line.substr(first + 1, last - first - 1), received.request); !why.empty())
        return refused(400, std::move(why));
    while (!rest.empty()) {
        const std::string_view text = next_line();
        const size_t colon = text.find(':');
        if (colon == std::string_view::npos || colon == 0 || !only(text.substr(0, colon), "!#$%&'*+-.^_`|~"))
            return refused(400, "a header field has no name");
        const std::string_view value = trimmed(text.substr(colon + 1));
        if (std::any_of(value.begin(), value.end(),
                        [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }))
            return refused(400, "a header field has control characters");
        if (received.request.fields.size() == kMostFields)
            return refused(431, concat("a request has at most ", kMostFields, " header fields"));
        std::string name = lower_case(std::string(text.substr(0, colon)));
        if (name == "host" && !received.request.field("host").empty()) return refused(400, "Host is given twice");
        received.request.fields.emplace_back(std::move(name), value);
    }
    if (!received.request.field("transfer-encoding").empty()) return refused(501, "this server takes no bodies");
    const std::string length = received.request.field("content-length");
    if (!length.empty() && length != "0") return refused(413, "this server takes no bodies");
    if (version == "HTTP/1.1" && received.request.field("host").empty()) return refused(400, "Host is missing");
    return received;
}

std::string to_bytes(const Response& response, bool head) {
    std::string bytes = concat("HTTP/1.1 ", response.status, " ", phrase_of(response.status), "\r\n", kEveryAnswer,
                               "Cache-Control: no-store\r\n");
    if (response.status != 204)
        bytes += concat("Content-Type: ", response.type, "\r\nContent-Length: ", response.body.size(), "\r\n");
    for (const auto& [name, value] : response.fields) bytes += concat(name, ": ", value, "\r\n");
    bytes += "\r\n";
    return head || response.status == 204 ? bytes : bytes + response.body;
}

std::string head_of_stream() {
    return concat("HTTP/1.1 200 OK\r\n", kEveryAnswer,
                  "Content-Type: text/event-stream; charset=utf-8\r\n"
                  "Cache-Control: no-cache, no-transform\r\n"
                  "X-Accel-Buffering: no\r\n\r\n");
}

}  // namespace tutti::http
