// report/precision.h: the numbers that the matrix products of a model multiply, and what formats of few bits make of
// them, as plain data, as JSON, as text for a terminal and as a picture.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/json.h"

namespace tutti::report {

// One format of a tensor: a type, or a recipe of 8-bit products.
struct FormatLoss {
    std::string format;
    // Shares of the numbers that are not zero: beyond the largest number of the format; rounded to zero.
    double saturated = 0, flushed = 0;
    // 10 log10 of the mean square over the mean square of the rounding errors; nothing: no number is rounded.
    std::optional<double> snr_db = std::nullopt;
};

// A factor of the products of one layer, over the microbatches of a step.
struct TensorNumbers {
    std::string layer;   // its weight; of an x that several layers read, the first
    std::string factor;  // "x", "w", "dy"
    int64_t values = 0, zeros = 0, not_finite = 0;
    double largest = 0, rms = 0;            // magnitudes of the finite values
    std::map<int, int64_t> exponents = {};  // counts by floor(log2 |x|)
    std::vector<FormatLoss> formats = {};   // of PrecisionReading::formats
};

struct PrecisionReading {
    std::string compute, recipe;  // of the run
    int64_t step = 0;             // whose passes were measured
    double loss = 0, loss_scale = 1;
    std::vector<std::string> formats;    // the first: what the run itself multiplies
    std::vector<TensorNumbers> tensors;  // in the order of the forward, then of the backward
};

Json to_json(const PrecisionReading& reading);
PrecisionReading precision_from(const Json& json);  // DataError for another document

// Tables within 100 columns: each format's worst tensor by factor, then a line for each tensor.
std::string precision_text(const PrecisionReading& reading);
// A row of binary exponents for each tensor, and the range of f16. The file has colours of its own; the card is for
// pages.
std::string precision_svg(const PrecisionReading& reading);
std::string precision_card(const PrecisionReading& reading);

}  // namespace tutti::report
