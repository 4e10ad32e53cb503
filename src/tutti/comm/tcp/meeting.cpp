#include "tutti/comm/tcp/meeting.h"

#include <charconv>

#include "tutti/base/error.h"

namespace tutti::comm::tcp {

namespace {

constexpr int kPorts = 16;

std::string required(const Launch& launch, const Environment& environment, const char* name) {
    const auto text = environment(name);
    check<UsageError>(text && !text->empty(), "ranks started by ", name_of(launch.launcher), " (", launch.evidence,
                      ") meet over TCP, and the variable ", name,
                      " is not set; set it, or TUTTI_RENDEZVOUS=HOST:PORT with a host and a free port of rank 0");
    return *text;
}

int number(const char* name, const std::string& text, int most) {
    int value = -1;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    check<UsageError>(error == std::errc() && stop == end && value >= 0 && value <= most, name,
                      " must be a whole number up to ", most, ", got '", text, "'");
    return value;
}

int port_of(const char* name, const std::string& text) {
    const int port = number(name, text, 65535 - kPorts);
    check<UsageError>(port > 0, name, " must be a port above 0");
    return port;
}

Meeting given(const std::string& text, std::string job) {
    const size_t colon = text.rfind(':');
    check<UsageError>(colon != std::string::npos && colon > 0, "TUTTI_RENDEZVOUS must be HOST:PORT, got '", text, "'");
    std::string host = text.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);  // IPv6
    return {.host = host,
            .port = port_of("TUTTI_RENDEZVOUS", text.substr(colon + 1)),
            .job = std::move(job),
            .origin = "TUTTI_RENDEZVOUS"};
}

std::string job_of(const Launch& launch, const Environment& environment) {
    const auto value = [&](const char* name) { return environment(name).value_or(""); };
    switch (launch.launcher) {
        case Launcher::torchrun:
            return concat("torchrun ", value("TORCHELASTIC_RUN_ID"), '.', value("TORCHELASTIC_RESTART_COUNT"));
        case Launcher::slurm:
            return concat("slurm ", value("SLURM_JOB_ID"), '.', value("SLURM_STEP_ID"), '.',
                          value("SLURM_RESTART_COUNT"));
        default: return std::string(name_of(launch.launcher));
    }
}

}  // namespace

std::string first_host(const std::string& nodes) {
    std::string host;
    for (size_t i = 0; i < nodes.size() && nodes[i] != ','; ++i) {
        if (nodes[i] != '[') {
            host += nodes[i];
            continue;
        }
        const size_t close = nodes.find(']', i), end = nodes.find_first_of("-,]", i + 1);
        check<UsageError>(close != std::string::npos, "a list of hosts without its ']': '", nodes, "'");
        host += nodes.substr(i + 1, end - i - 1);
        i = close;
    }
    return host;
}

Meeting meeting_of(const Launch& launch, const Environment& environment) {
    const std::string job = job_of(launch, environment);
    if (const auto text = environment("TUTTI_RENDEZVOUS")) return given(*text, job);
    const auto value = [&](const char* name) { return required(launch, environment, name); };
    switch (launch.launcher) {
        case Launcher::torchrun:
            // Ranks of one machine need no name of it, and open no port to others.
            return {.host = launch.local_size == launch.size ? "127.0.0.1" : value("MASTER_ADDR"),
                    .port = port_of("MASTER_PORT", value("MASTER_PORT")) + 1,
                    .ports = kPorts,
                    .job = job,
                    .origin = "MASTER_ADDR, MASTER_PORT + 1"};
        case Launcher::kubernetes:
            return {.host = value("MASTER_ADDR"),
                    .port = port_of("MASTER_PORT", value("MASTER_PORT")),
                    .job = job,
                    .origin = "MASTER_ADDR, MASTER_PORT"};
        case Launcher::slurm: {
            const char* nodes = environment("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
            const auto id = number("SLURM_JOB_ID", value("SLURM_JOB_ID"), 2147483647);
            const auto step = number("SLURM_STEP_ID", environment("SLURM_STEP_ID").value_or("0"), 2147483647);
            // Below the ports that Linux gives to connections (32768 and up).
            return {.host = first_host(value(nodes)),
                    .port = 15000 + static_cast<int>((int64_t{id} * 64 + step % 64) % 1000) * kPorts,
                    .ports = kPorts,
                    .job = job,
                    .origin = concat(nodes, ", SLURM_JOB_ID")};
        }
        default: break;
    }
    throw UsageError(concat("ranks started by ", name_of(launch.launcher), " (", launch.evidence,
                            ") can meet over TCP only at TUTTI_RENDEZVOUS=HOST:PORT, a host and a free port of rank 0, "
                            "which is not set"));
}

}  // namespace tutti::comm::tcp
