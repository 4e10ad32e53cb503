// kernels/cpu/choices.cpp: choices in the order of experts, what experts accept, and the order of rows that arrive. A
// few integers for each choice, against thousands of operations for its row: one thread.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "tutti/kernels/cpu/fill.h"

namespace tutti::kernels {

namespace {

void sort_choices(const Stream&, const SortChoices& s) {
    const int64_t n = s.choices.numel(), k = s.choices.shape[1], E = s.counts.numel(), local = E / s.owners;
    const auto* const choices = s.choices.as<const int32_t>();
    auto* const sent = s.sent.as<int32_t>();
    auto* const slots = s.slots.as<int32_t>();
    const auto chosen = [&](int64_t i) { return choices[i] >= 0 && choices[i] < E; };
    std::vector<int64_t> counts(static_cast<size_t>(E)), next(counts), of_copy(static_cast<size_t>(s.owners));
    for (int64_t i = 0; i < n; ++i)
        if (chosen(i)) ++counts[static_cast<size_t>(choices[i])];
    for (int64_t e = 0; e < E; ++e) s.counts.as<float>()[e] = static_cast<float>(counts[static_cast<size_t>(e)]);
    if (sent == nullptr && slots == nullptr) return;

    // The place of the next choice of each expert in the first copy, and the number of rows in each copy.
    int64_t total = 0;
    for (int64_t owner = 0; owner < s.owners; ++owner) {
        int64_t in_copy = 0;
        for (int64_t e = owner * local; e < (owner + 1) * local; ++e) {
            next[static_cast<size_t>(e)] = total + in_copy;
            in_copy += counts[static_cast<size_t>(e)];
        }
        of_copy[static_cast<size_t>(owner)] = in_copy;
        total += s.copies * in_copy;
    }
    for (int64_t i = 0; i < n; ++i) {
        const auto e = static_cast<size_t>(choices[i]);
        int64_t at = chosen(i) ? next[e]++ : -1;
        for (int64_t copy = 0; copy < s.copies; ++copy) {
            if (slots != nullptr) slots[(i / k * s.copies + copy) * k + i % k] = static_cast<int32_t>(at);
            if (at < 0) continue;
            if (sent != nullptr) sent[at] = static_cast<int32_t>(i / k);
            at += of_copy[e / static_cast<size_t>(local)];
        }
    }
    if (sent != nullptr) std::fill(sent + total, sent + n * s.copies, -1);
}

void accept_choices(const Stream&, const AcceptChoices& a) {
    const int64_t k = a.choices.shape[1], n = a.accepted.numel(), E = a.counts.numel();
    const auto* const own = a.choices.as<const int32_t>() + a.first * k;
    auto* const accepted = a.accepted.as<int32_t>();
    std::copy(own, own + n, accepted);
    using Place = std::tuple<float, int64_t, int32_t>;  // in the order of acceptance; and the choice
    std::vector<Place> places;
    const auto* order = a.order.as<const int32_t>();
    for (int64_t e = 0; e < E; ++e) {
        const auto count = static_cast<int64_t>(a.counts.as<const float>()[e]);
        places.clear();
        for (int64_t m = 0; count > a.capacity && m < count; ++m) {
            const int32_t i = order[m];
            const float weight = a.weights.defined() ? a.weights.as<const float>()[i] : 0;
            const float falling = std::isnan(weight) ? -std::numeric_limits<float>::infinity() : -weight;
            places.emplace_back(falling, a.rows.as<const int64_t>()[i / k], i);
        }
        order += count;
        if (places.empty()) continue;
        std::nth_element(places.begin(), places.begin() + a.capacity, places.end());
        for (auto place = places.begin() + a.capacity; place != places.end(); ++place)
            if (const int64_t i = std::get<2>(*place) - a.first * k; i >= 0 && i < n) accepted[i] = -1;
    }
}

void order_arrivals(const Stream&, View counts, int64_t multiple, View order, View places) {
    const int64_t P = counts.shape[0], L = counts.shape[1];
    const auto* const of = counts.as<const float>();
    std::vector<int32_t> begin(static_cast<size_t>(P * L) + 1);  // of the rows of each rank for each expert
    for (size_t i = 0; i + 1 < begin.size(); ++i) begin[i + 1] = begin[i] + static_cast<int32_t>(of[i]);
    int32_t at = 0;
    for (int64_t e = 0; e < L; ++e) {
        for (int64_t p = 0; p < P; ++p) {
            const auto segment = static_cast<size_t>(p * L + e);
            for (int32_t arrival = begin[segment]; arrival < begin[segment + 1]; ++arrival, ++at) {
                order.as<int32_t>()[at] = arrival;
                places.as<int32_t>()[arrival] = at;
            }
        }
        while (at % multiple != 0) order.as<int32_t>()[at++] = -1;
    }
}

}  // namespace

void fill_choices(KernelTable& table) {
    table.sort_choices = sort_choices;
    table.accept_choices = accept_choices;
    table.order_arrivals = order_arrivals;
}

}  // namespace tutti::kernels
