// report/csv.cpp: render_csv() of report.h (RFC 4180: fields with commas, quotes or line ends are quoted).
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "tutti/report/parts.h"

namespace tutti::report {
namespace {

constexpr std::pair<const char*, Field> kColumns[] = {{"tokens", &LoggedStep::tokens},
                                                      {"loss", &LoggedStep::loss},
                                                      {"eval_loss", &LoggedStep::eval_loss},
                                                      {"grad_norm", &LoggedStep::grad_norm},
                                                      {"lr", &LoggedStep::lr},
                                                      {"step_ms", &LoggedStep::step_ms},
                                                      {"tokens_per_s", &LoggedStep::tokens_per_s},
                                                      {"mfu", &LoggedStep::mfu},
                                                      {"hfu", &LoggedStep::hfu},
                                                      {"mem_peak_bytes", &LoggedStep::mem_peak_bytes},
                                                      {"comm_bytes", &LoggedStep::comm_bytes},
                                                      {"bubble", &LoggedStep::bubble}};

std::string quoted(const std::string& text) {
    if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
    std::string field = "\"";
    for (const char c : text) field += c == '"' ? std::string("\"\"") : std::string(1, c);
    return field + "\"";
}

// The fewest digits that read back to the same bits; counts without a point.
std::string cell(const std::optional<double>& value) {
    if (!value) return "";
    if (!std::isfinite(*value)) return "nan";
    if (*value == std::floor(*value) && std::abs(*value) < 9e15) return std::to_string(static_cast<int64_t>(*value));
    return nlohmann::json(*value).dump();
}

}  // namespace

std::string render_csv(const std::vector<RunHistory>& runs) {
    std::string csv = "run,step";
    for (const auto& [name, field] : kColumns) csv += std::string(",") + name;
    csv += ",skipped\r\n";
    for (const RunHistory& run : runs)
        for (const LoggedStep& step : run.steps) {
            csv += quoted(run.name) + "," + std::to_string(step.step);
            for (const auto& [name, field] : kColumns) csv += "," + cell(step.*field);
            csv += "," + std::to_string(step.skipped_before) + "\r\n";
        }
    return csv;
}

}  // namespace tutti::report
