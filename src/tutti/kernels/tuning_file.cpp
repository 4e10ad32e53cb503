#include "tutti/kernels/tuning_file.h"

#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"

namespace tutti::kernels {

namespace {

constexpr int64_t kVersion = 1;

std::string side(const MeasuredOn& on) { return concat(on.gpu, ", ", on.driver, ", ", on.library); }

}  // namespace

std::string tuning_text(const TuningKind& kind, const MeasuredOn& on, std::vector<Json> rows) {
    const Json document = {{"format", kind.format}, {"version", kVersion},   {"gpu", on.gpu},
                           {"driver", on.driver},   {"library", on.library}, {kind.list, Json(std::move(rows))}};
    return document.dump(1) + "\n";
}

void read_tuning(const std::string& path, const TuningKind& kind, const MeasuredOn& here,
                 const std::function<void(const Json&)>& row) {
    const std::string text = read_file(path);
    MeasuredOn on;
    try {
        const Json document = Json::parse(text);
        check<DataError>(document.at("format").get<std::string>() == kind.format, "\"format\" must be \"", kind.format,
                         "\"");
        check<DataError>(document.at("version").get<int64_t>() == kVersion, "\"version\" must be ", kVersion, ", is ",
                         document.at("version").get<int64_t>());
        on = {document.at("gpu").get<std::string>(), document.at("driver").get<std::string>(),
              document.at("library").get<std::string>()};
        for (const Json& each : document.at(kind.list).elements()) row(each);
    } catch (const DataError& error) {
        throw DataError(concat(path, ": not a file of ", kind.command, ": ", error.what()));
    }
    check<UsageError>(on == here, path, ": measured on ", side(on), "; this rank has ", side(here),
                      ". Make a file here: ", kind.command, " FILE");
}

}  // namespace tutti::kernels
