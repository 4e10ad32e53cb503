#include "tutti/nn/batch.h"

#include <algorithm>
#include <numeric>

#include "tutti/base/to_size.h"
#include "tutti/comm/communicator.h"

namespace tutti::nn {

namespace {

template <class T>
Tensor upload(Device& device, const Shape& shape, const std::vector<T>& values) {
    return Tensor::from_host<T>(device, shape, values, Purpose::data);
}

// Indices of the tokens of a part in sequences of T tokens, one after another.
std::vector<int64_t> tokens_of(const SequencePart& part, int64_t sequences, int64_t T) {
    std::vector<int64_t> tokens;
    for (int64_t b = 0; b < sequences; ++b)
        for (const TokenRun& run : runs_of(part, T))
            for (int64_t i = 0; i < run.tokens; ++i) tokens.push_back(b * T + run.begin + i);
    return tokens;
}

}  // namespace

std::vector<TokenRun> runs_of(const SequencePart& part, int64_t T) {
    const int ring = part.ranks / part.ulysses;
    const int64_t unit = ring == 1 ? part.ranks : std::lcm(2 * ring, part.ranks);
    check(part.ranks % part.ulysses == 0 && T % unit == 0, "a sequence of ", T, " tokens does not divide over ",
          part.ranks, " ranks, ", part.ulysses, " of which exchange heads: required: a multiple of ", unit);
    const int64_t own = T / part.ranks, first = part.rank % part.ulysses * own;  // of the tokens of both chunks
    if (ring == 1) return {{first, own}};
    const Chunks chunks{ring, T / ring / 2};
    std::vector<TokenRun> runs;
    for (const int half : {0, 1}) {
        const int64_t begin = std::max(first, half * chunks.size);
        const int64_t tokens = std::min(first + own, (half + 1) * chunks.size) - begin;
        if (tokens <= 0) continue;
        const int64_t place = chunks.begin(part.rank / part.ulysses, half) + begin - half * chunks.size;
        if (!runs.empty() && runs.back().begin + runs.back().tokens == place)
            runs.back().tokens += tokens;
        else
            runs.push_back({place, tokens});
    }
    return runs;
}

int64_t tokens_of_microbatch(const Batch& batch) {
    const auto size = [](const comm::Communicator* ranks) { return ranks ? ranks->size() : 1; };
    return batch.tokens.numel() * size(batch.context.ulysses) * size(batch.context.ring) - batch.padded;
}

Batch make_batch(Device& device, const BatchRows& rows, int64_t sequences, int64_t first_sequence,
                 const SequencePart& part) {
    const auto size = static_cast<int64_t>(rows.tokens.size());
    const int64_t T = size / std::max<int64_t>(sequences, 1);
    check(sequences > 0 && T > 0 && T * sequences == size && rows.targets.size() == rows.tokens.size() &&
              (rows.first_key.empty() || rows.first_key.size() == rows.tokens.size()) &&
              (rows.lengths.empty() || static_cast<int64_t>(rows.lengths.size()) == sequences),
          "make_batch: ", size, " tokens, ", rows.targets.size(), " targets, ", rows.first_key.size(),
          " first keys and ", rows.lengths.size(), " lengths are not ", sequences, " sequences");
    const auto chosen_of = [&](const SequencePart& of, const auto& value) {
        std::vector<std::invoke_result_t<decltype(value), int64_t>> values;
        for (const int64_t i : tokens_of(of, sequences, T)) values.push_back(value(i));
        return upload(device, {sequences, T / of.ranks}, values);
    };
    const auto chosen = [&](const auto& value) { return chosen_of(part, value); };
    const auto of = [](std::span<const int32_t> row) { return [row](int64_t i) { return row[to_size(i)]; }; };
    const auto first_key = [&](int64_t i) { return rows.first_key.empty() ? 0 : rows.first_key[to_size(i)]; };
    Batch batch;
    batch.tokens = chosen(of(rows.tokens));
    batch.targets = chosen(of(rows.targets));
    batch.positions = chosen([&](int64_t i) { return static_cast<int32_t>(i % T) - first_key(i); });
    batch.row_index = chosen([&](int64_t i) { return first_sequence * T + i; });
    int64_t row = 0;
    for (const int64_t length : rows.lengths) {
        batch.padded += T - length;
        for (const TokenRun& run : runs_of(part, T)) {
            const int64_t before = std::clamp<int64_t>(length - run.begin, 0, run.tokens);
            if (before < run.tokens) batch.padding.push_back({row + before, run.tokens - before});
            row += run.tokens;
        }
    }
    for (int64_t k = 1; k <= rows.depths; ++k) {
        const auto tokens = [&](int64_t i) {
            const int64_t at = i % T + k;
            if (at < T) return rows.tokens[to_size(i + k)];
            return at == T ? std::max(rows.targets[to_size(i + k - 1)], 0) : 0;
        };
        const auto targets = [&](int64_t i) {
            const bool inside = i % T + k < T && first_key(i + k) == first_key(i);
            return inside ? rows.targets[to_size(i + k)] : -1;
        };
        batch.ahead.push_back({chosen(tokens), chosen(targets)});
    }
    if (!rows.first_key.empty())
        batch.first_key = chosen_of({part.rank / part.ulysses, part.ranks / part.ulysses}, of(rows.first_key));
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

Batch make_prompt(Device& device, std::span<const int32_t> tokens, int64_t sequences,
                  const std::vector<int64_t>& lengths) {
    check(sequences > 0 && !tokens.empty() && static_cast<int64_t>(tokens.size()) % sequences == 0,
          "make_prompt: ", tokens.size(), " tokens are not ", sequences, " sequences of one length");
    const int64_t T = static_cast<int64_t>(tokens.size()) / sequences;
    std::vector<int32_t> positions;
    std::vector<int64_t> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), int64_t{0});
    for (const int64_t row : rows)
        positions.push_back(static_cast<int32_t>(row % T + (lengths.empty() ? 0 : lengths[to_size(row / T)])));
    Batch batch;
    batch.tokens = Tensor::from_host<int32_t>(device, {sequences, T}, tokens, Purpose::data);
    batch.positions = upload(device, {sequences, T}, positions);
    batch.row_index = upload(device, {sequences, T}, rows);
    return batch;
}

Batch make_continuation(Device& device, std::span<const int32_t> tokens, std::vector<KvCache*> caches) {
    std::vector<int64_t> lengths;
    for (const KvCache* cache : caches) lengths.push_back(cache->length);
    Batch batch = make_prompt(device, tokens, static_cast<int64_t>(caches.size()), lengths);
    batch.caches = std::move(caches);
    return batch;
}

void advance(const Batch& batch) {
    for (KvCache* cache : batch.caches) cache->length += batch.tokens.dim(1);
}

}  // namespace tutti::nn
