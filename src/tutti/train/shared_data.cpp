#include "tutti/train/shared_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <utility>

#include "tutti/base/refused.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/infer/stored_model.h"
#include "tutti/spec/families.h"
#include "tutti/spec/stages.h"

namespace tutti::train {

std::string use_kept_tokenizer(spec::RunSpec& run, const std::string& directory) {
    std::string& named = run.data.tokenizer;
    const std::string copy = infer::tokenizer_of_run(directory);
    if (copy.empty() || named == spec::DataSpec{}.tokenizer || std::filesystem::exists(named)) return "";
    return concat("data.tokenizer = \"", std::exchange(named, copy), "\" is not there; going on with the run's copy, ",
                  copy);
}

std::optional<data::DataSet> open_data(const spec::RunSpec& run, Console& console, bool write, const comm::Stop* stop) {
    if (!spec::traits_of(run.model).tokens) return std::nullopt;
    const auto show = [&console, stop](const data::EncodeProgress& p) {
        if (stop) stop->check();
        const std::string line = fmt::format(
            "encoding {}: {} of {}, {} tokens, {}", p.path, format_bytes(p.bytes), format_bytes(p.bytes_total),
            p.tokens, format_rate(p.seconds > 0 ? static_cast<double>(p.bytes) / p.seconds : 0, "B"));
        p.bytes == p.bytes_total ? console.text(line) : console.status(line);
    };
    const data::EncodeOptions options{.threads = static_cast<int>(run.train.threads), .write = write, .progress = show};
    return data::open(run.data, run.model.vocab, run.train.seq_len, options);
}

namespace {

std::vector<std::optional<data::DataSet>> open_stages(const std::vector<spec::RunSpec>& stages, Console& console,
                                                      const comm::Stop* stop) {
    std::vector<std::optional<data::DataSet>> all;
    for (const spec::RunSpec& stage : stages) {
        const auto same = std::find_if(stages.begin(), stages.end(), [&](const spec::RunSpec& other) {
            return other.data == stage.data && other.train.seq_len == stage.train.seq_len;
        });
        const auto earlier = to_size(same - stages.begin());
        try {
            all.push_back(earlier < all.size() ? all[earlier] : open_data(stage, console, true, stop));
        } catch (const UsageError& error) {
            throw UsageError(spec::of_stage(stage, error.what()));
        } catch (const DataError& error) {
            throw DataError(spec::of_stage(stage, error.what()));
        }
    }
    return all;
}

}  // namespace

std::vector<std::optional<data::DataSet>> SharedData::open(const std::vector<spec::RunSpec>& stages, Console& console,
                                                           comm::World& world, const comm::Stop* stop) {
    const auto ranks = world.everyone("data");
    if (world.rank() == 0) {
        auto opening = start_async("opens the data", [&] { return open_stages(stages, console, stop); });
        const std::chrono::duration<double> often(std::min(0.2, stages.front().comm.timeout_s / 4));
        while (opening.wait_for(often) != std::future_status::ready) ranks->max(1);
        data_ = opening.get();
        opened_ = true;
        ranks->max(0);
    } else {
        while (ranks->max(0) > 0) continue;
        if (!opened_) data_ = open_stages(stages, console, stop);  // not in the process that opened the data
    }
    return data_;
}

}  // namespace tutti::train
