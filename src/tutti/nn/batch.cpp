#include "tutti/nn/batch.h"

#include <numeric>

namespace tutti::nn {

namespace {

template <class T>
Tensor upload(Device& device, const Shape& shape, const std::vector<T>& values) {
    return Tensor::from_host<T>(device, shape, values, Purpose::data);
}

// `starts`: of each sequence; empty: 0.
void add_places(Device& device, Batch& batch, const Shape& shape, const std::vector<int64_t>& starts,
                int64_t first_sequence) {
    const int64_t B = shape[0], T = shape[1];
    std::vector<int32_t> positions;
    for (int64_t b = 0; b < B; ++b) {
        const int64_t start = starts.empty() ? 0 : starts[static_cast<size_t>(b)];
        for (int64_t t = 0; t < T; ++t) positions.push_back(static_cast<int32_t>(start + t));
    }
    std::vector<int64_t> rows(static_cast<size_t>(B * T));
    std::iota(rows.begin(), rows.end(), first_sequence * T);
    batch.positions = upload(device, shape, positions);
    batch.row_index = upload(device, shape, rows);
}

}  // namespace

Batch make_batch(Device& device, const BatchRows& rows, int64_t sequences, int64_t first_sequence) {
    const auto size = static_cast<int64_t>(rows.tokens.size());
    const int64_t T = size / std::max<int64_t>(sequences, 1);
    check(sequences > 0 && T > 0 && T * sequences == size && rows.targets.size() == rows.tokens.size() &&
              (rows.first_key.empty() || rows.first_key.size() == rows.tokens.size()),
          "make_batch: ", size, " tokens, ", rows.targets.size(), " targets and ", rows.first_key.size(),
          " first keys are not ", sequences, " sequences");
    const Shape shape{sequences, T};
    Batch batch;
    batch.tokens = Tensor::from_host<int32_t>(device, shape, rows.tokens, Purpose::data);
    batch.targets = Tensor::from_host<int32_t>(device, shape, rows.targets, Purpose::data);
    add_places(device, batch, shape, {}, first_sequence);
    if (rows.first_key.empty()) return batch;
    std::vector<int32_t> positions(rows.first_key.size());
    for (size_t i = 0; i < positions.size(); ++i)
        positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % T) - rows.first_key[i];
    batch.positions = upload(device, shape, positions);
    batch.first_key = Tensor::from_host<int32_t>(device, shape, rows.first_key, Purpose::data);
    return batch;
}

Batch make_batch(Device& device, std::span<const int32_t> windows, int64_t sequences, int64_t first_sequence) {
    const auto window = static_cast<int64_t>(windows.size()) / std::max<int64_t>(sequences, 1);
    check(sequences > 0 && window > 1 && window * sequences == static_cast<int64_t>(windows.size()),
          "make_batch: ", windows.size(), " tokens are not ", sequences, " windows of two or more");
    const int64_t T = window - 1;
    std::vector<int32_t> tokens, targets;
    for (int64_t b = 0; b < sequences; ++b) {
        const auto first = windows.begin() + b * window;
        tokens.insert(tokens.end(), first, first + T);
        targets.insert(targets.end(), first + 1, first + window);
    }
    return make_batch(device, BatchRows{tokens, targets, {}}, sequences, first_sequence);
}

Tensor rows_of(const Tensor& x, int rank, int ranks) {
    Shape part = x.shape();
    check(part[1] % ranks == 0, "rows of a sequence of ", part[1], " tokens do not divide over ", ranks, " ranks");
    part[1] /= ranks;
    return x.reshape({ranks, part.numel()}).narrow(0, rank, 1).reshape(part);
}

namespace {

Batch untargeted(Device& device, std::span<const int32_t> tokens, int64_t sequences,
                 const std::vector<int64_t>& starts) {
    check(sequences > 0 && !tokens.empty() && static_cast<int64_t>(tokens.size()) % sequences == 0,
          "make_prompt: ", tokens.size(), " tokens are not ", sequences, " sequences of one length");
    const Shape shape{sequences, static_cast<int64_t>(tokens.size()) / sequences};
    Batch batch;
    batch.tokens = Tensor::from_host<int32_t>(device, shape, tokens, Purpose::data);
    add_places(device, batch, shape, starts, 0);
    return batch;
}

}  // namespace

Batch make_prompt(Device& device, std::span<const int32_t> tokens, int64_t sequences) {
    return untargeted(device, tokens, sequences, {});
}

Batch make_continuation(Device& device, std::span<const int32_t> tokens, std::vector<KvCache*> caches) {
    std::vector<int64_t> starts;
    for (const KvCache* cache : caches) starts.push_back(cache->length);
    Batch batch = untargeted(device, tokens, static_cast<int64_t>(caches.size()), starts);
    batch.caches = std::move(caches);
    return batch;
}

void advance(const Batch& batch) {
    for (KvCache* cache : batch.caches) cache->length += batch.tokens.dim(1);
}

}  // namespace tutti::nn
