// kernels/gemm_tuning.cpp: the file of measured algorithms.
#include "tutti/kernels/gemm_tuning.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/kernels/tuning_file.h"

namespace tutti::kernels {

namespace {

constexpr TuningKind kKind{"tutti matrix products", "products", "tutti bench step --tune"};

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
    return tuning_text(kKind, *this, std::move(rows));
}

GemmTuning read_gemm_tuning(const std::string& path, const MeasuredOn& here) {
    GemmTuning t{here, {}, {}, false};
    read_tuning(path, kKind, here, [&](const Json& row) {
        t.products.emplace(row.at("key").get<std::vector<int64_t>>(), product_of(row));
    });
    return t;
}

}  // namespace tutti::kernels
