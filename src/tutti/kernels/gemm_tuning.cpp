// kernels/gemm_tuning.cpp: the file of measured algorithms.
#include "tutti/kernels/gemm_tuning.h"

#include <algorithm>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"

namespace tutti::kernels {

namespace {

constexpr const char* kFormat = "tutti matrix products";
constexpr int64_t kVersion = 1;

TunedProduct product_of(const Json& row) {
    TunedProduct p{.text = row.at("product").get<std::string>(), .candidate = row.at("candidate").get<int64_t>()};
    const auto words = row.at("algorithm").get<std::vector<uint64_t>>();
    check<DataError>(words.size() == p.algorithm.size(), "\"algorithm\" must have ", p.algorithm.size(), " words, has ",
                     words.size());
    std::copy(words.begin(), words.end(), p.algorithm.begin());
    for (const Json& time : row.at("seconds").elements())
        p.seconds.push_back(time.is_null() ? std::numeric_limits<double>::quiet_NaN() : time.get<double>());
    check<DataError>(p.candidate >= 0 && p.candidate < static_cast<int64_t>(p.seconds.size()), "\"candidate\" is ",
                     p.candidate, " of ", p.seconds.size(), " candidates");
    return p;
}

std::string side(const GemmTuning& t) { return concat(t.gpu, ", ", t.driver, ", ", t.library); }

}  // namespace

std::string GemmTuning::to_json() const {
    std::vector<Json> rows;
    for (const auto& [key, p] : products) {
        const std::vector<uint64_t> words(p.algorithm.begin(), p.algorithm.end());
        rows.push_back({{"product", p.text},
                        {"key", Json(key)},
                        {"candidate", p.candidate},
                        {"seconds", Json(p.seconds)},
                        {"algorithm", Json(words)}});
    }
    const Json document = {{"format", kFormat}, {"version", kVersion}, {"gpu", gpu},
                           {"driver", driver},  {"library", library},  {"products", Json(rows)}};
    return document.dump(1) + "\n";
}

GemmTuning read_gemm_tuning(const std::string& path, const GemmTuning& here) {
    const std::string text = read_file(path);
    GemmTuning t;
    try {
        const Json document = Json::parse(text);
        check<DataError>(document.at("format").get<std::string>() == kFormat, "\"format\" must be \"", kFormat, "\"");
        check<DataError>(document.at("version").get<int64_t>() == kVersion, "\"version\" must be ", kVersion, ", is ",
                         document.at("version").get<int64_t>());
        t.gpu = document.at("gpu").get<std::string>();
        t.driver = document.at("driver").get<std::string>();
        t.library = document.at("library").get<std::string>();
        for (const Json& row : document.at("products").elements())
            t.products.emplace(row.at("key").get<std::vector<int64_t>>(), product_of(row));
    } catch (const DataError& error) {
        throw DataError(concat(path, ": not a file of tutti bench step --tune: ", error.what()));
    }
    check<UsageError>(t.gpu == here.gpu && t.driver == here.driver && t.library == here.library, path,
                      ": its algorithms were measured on ", side(t), "; this rank has ", side(here),
                      ". Make a file here: tutti bench step --tune FILE");
    return t;
}

}  // namespace tutti::kernels
