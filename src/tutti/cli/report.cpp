// cli/report.cpp: `tutti report`. The page is train/report.h's; here it gets to its place whole or not at all.
#include "tutti/train/report.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/cli/commands.h"

namespace tutti::cli {

namespace {

// Beside the target and renamed: a reader never sees half a page, and a full disk leaves the old one.
void write_whole(const std::filesystem::path& path, const std::string& text) {
    const std::filesystem::path temporary = concat(path.string(), ".", getpid(), ".tmp");
    errno = 0;
    std::ofstream file(temporary, std::ios::binary);
    file << text;
    file.close();
    const int reason = errno;
    std::error_code problem;
    if (file) std::filesystem::rename(temporary, path, problem);
    if (file && !problem) return;
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw DataError(concat(path.string(), " cannot be written: ", problem ? problem.message() : std::strerror(reason),
                           "; --out names another place"));
}

}  // namespace

int report(const ReportArguments& arguments, const Io& io) {
    const train::RunHistory run = train::read_run(arguments.run_dir);
    std::filesystem::path path = arguments.out;
    if (path.empty()) path = std::filesystem::path(arguments.run_dir) / "report.html";
    const std::string page = train::render_report(run);
    write_whole(path, page);
    if (arguments.json) {
        const nlohmann::ordered_json document = {{"report", path.string()},
                                                 {"run", run.name},
                                                 {"logged_steps", run.steps.size()},
                                                 {"last_step", run.steps.empty() ? 0 : run.steps.back().step},
                                                 {"bytes", page.size()},
                                                 {"notes", run.notes}};
        io.out << document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
        return 0;
    }
    for (const std::string& note : run.notes) io.err << "tutti: note: " << note << '\n';
    io.out << path.string() << '\n';
    return 0;
}

}  // namespace tutti::cli
