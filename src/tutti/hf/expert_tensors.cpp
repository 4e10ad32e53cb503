#include "tutti/hf/expert_tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::hf {

using autograd::Parameter;
using checkpoint::ShardedSafetensors;

namespace {

constexpr int64_t kBlock = 32, kBlockBytes = kBlock / 2;

// visit(place in the expert, place in the file) for each value.
template <class Visit>
void for_each_value(const ExpertLayout& l, const Visit& visit) {
    for (int64_t r = 0; r < l.rows; ++r) {
        const int64_t row = l.first_row + r * l.row_step;
        for (int64_t c = 0; c < l.columns; ++c)
            visit(r * l.columns + c, l.transposed ? c * l.file_rows + row : row * l.columns + c);
    }
}

void check_sizes(const ExpertLayout& l, int64_t size, size_t file, size_t expert) {
    check(static_cast<int64_t>(file) == l.file_values() * size && static_cast<int64_t>(expert) == l.values() * size,
          "an expert of ", l.rows, " x ", l.columns, " values in ", l.file_rows, " rows of a file: got ", expert,
          " and ", file, " bytes");
}

}  // namespace

bool in_one_tensor(const Parameter& p) { return p.of_experts() && p.stored_as.name.find('*') == std::string::npos; }

Shape ExpertLayout::file_shape() const {
    if (bias) return {experts, file_rows};
    return transposed ? Shape{experts, columns, file_rows} : Shape{experts, file_rows, columns};
}

void ExpertLayout::take(int64_t size, std::span<const std::byte> file, std::span<std::byte> expert) const {
    check_sizes(*this, size, file.size(), expert.size());
    for_each_value(*this, [&](int64_t to, int64_t from) {
        std::memcpy(expert.data() + to * size, file.data() + from * size, to_size(size));
    });
}

void ExpertLayout::put(int64_t size, std::span<const std::byte> expert, std::span<std::byte> file) const {
    check_sizes(*this, size, file.size(), expert.size());
    for_each_value(*this, [&](int64_t from, int64_t to) {
        std::memcpy(file.data() + to * size, expert.data() + from * size, to_size(size));
    });
}

ExpertLayout expert_layout(const Parameter& p) {
    const autograd::StoredAs& s = p.stored_as;
    const int64_t rows = p.shape[1];
    return {.experts = p.shape[0],
            .rows = rows,
            .columns = p.is_matrix() ? p.shape[2] : 1,
            .file_rows = s.rows > 0 ? s.rows : rows,
            .first_row = s.first_row,
            .row_step = s.row_step,
            .transposed = s.transposed && p.is_matrix(),
            .bias = !p.is_matrix()};
}

void decode_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales, std::span<bf16> values) {
    constexpr std::array<float, 8> kMagnitudes = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    constexpr int kBias = 127, kNan = 255;
    check(static_cast<int64_t>(values.size()) == kBlock * static_cast<int64_t>(scales.size()) &&
              blocks.size() * 2 == values.size(),
          "mxfp4: ", blocks.size(), " bytes of blocks and ", scales.size(), " scales are not ", values.size(),
          " values");
    for (size_t i = 0; i < values.size(); ++i) {
        const int scale = std::to_integer<int>(scales[i / kBlock]);
        const int code = std::to_integer<int>(blocks[i / 2]) >> (i % 2 * 4) & 15;
        const float magnitude = kMagnitudes[to_size(code & 7)];
        const float value = scale == kNan ? NAN : std::ldexp(magnitude, scale - kBias);
        values[i] = bf16((code & 8) != 0 ? -value : value);
    }
}

std::vector<NeededTensor> needed_tensors(const ShardedSafetensors& files, const Parameter& p,
                                         const std::string& stored) {
    const ExpertLayout l = expert_layout(p);
    const std::string blocks = stored + "_blocks", scales = stored + "_scales";
    if (p.is_matrix() && files.find(stored) == nullptr && files.find(blocks) != nullptr) {
        const int64_t count = l.columns / kBlock;
        return {{blocks, {l.experts, l.file_rows, count, kBlockBytes}, true},
                {scales, {l.experts, l.file_rows, count}, true}};
    }
    return {{stored, l.file_shape()}};
}

DType type_of(const ShardedSafetensors& files, const std::vector<NeededTensor>& needed) {
    return needed.front().bytes ? DType::bf16 : files.find(needed.front().name)->dtype;
}

std::function<void(int64_t offset, std::span<std::byte>)> read_experts(std::shared_ptr<const ShardedSafetensors> files,
                                                                       const Parameter& p,
                                                                       const std::vector<NeededTensor>& needed) {
    struct Last {
        int64_t expert = -1;
        std::vector<std::byte> values;
    };
    const int64_t size = size_of(type_of(*files, needed));
    ExpertLayout layout = expert_layout(p);
    const bool mxfp4 = needed.front().bytes;
    if (mxfp4) layout.transposed = false;
    const auto in_file = [files, needed, layout, size, mxfp4](int64_t expert) {
        std::vector<std::byte> values(to_size(layout.file_values() * size));
        if (!mxfp4) {
            files->read(needed[0].name, expert * static_cast<int64_t>(values.size()), values);
            return values;
        }
        std::vector<std::byte> blocks(to_size(layout.file_values() / 2));
        std::vector<std::byte> scales(to_size(layout.file_values() / kBlock));
        files->read(needed[0].name, expert * static_cast<int64_t>(blocks.size()), blocks);
        files->read(needed[1].name, expert * static_cast<int64_t>(scales.size()), scales);
        std::vector<bf16> decoded(to_size(layout.file_values()));
        decode_mxfp4(blocks, scales, decoded);
        std::memcpy(values.data(), decoded.data(), values.size());
        return values;
    };
    return [in_file, layout, size, last = std::make_shared<Last>()](int64_t offset, std::span<std::byte> out) {
        const int64_t each = layout.values() * size;
        while (!out.empty()) {
            const int64_t expert = offset / each, at = offset % each;
            if (last->expert != expert) {
                last->values.resize(to_size(each));
                layout.take(size, in_file(expert), last->values);
                last->expert = expert;
            }
            const auto bytes = to_size(std::min(each - at, static_cast<int64_t>(out.size())));
            std::memcpy(out.data(), last->values.data() + at, bytes);
            offset += static_cast<int64_t>(bytes);
            out = out.subspan(bytes);
        }
    };
}

}  // namespace tutti::hf
