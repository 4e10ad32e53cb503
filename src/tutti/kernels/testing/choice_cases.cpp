// kernels/testing/choice_cases.cpp: choices in the order of experts, what experts accept, and the order of rows that
// arrive. All results are integers: every table gives the same.
#include <numeric>

#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

double exactly(int64_t) { return 0; }

// How unevenly rows choose: equally often, mostly a few experts, one expert only, or with choices that are dropped.
enum class Load : uint8_t { even, uneven, one, dropped };
constexpr const char* kLoads[] = {"even", "uneven", "one", "dropped"};

std::vector<double> draw_choices(int64_t n, int64_t E, Load load) {
    const auto draw = [&](int64_t i, int64_t below) {
        return static_cast<double>(
            uniform_below(random_key(6, "choices"), static_cast<uint64_t>(i), static_cast<uint64_t>(below)));
    };
    std::vector<double> choices;
    for (int64_t i = 0; i < n; ++i) {
        const double any = draw(2 * i, E);
        switch (load) {
            case Load::even: choices.push_back(any); break;
            case Load::uneven: choices.push_back(i % 4 == 0 ? any : draw(2 * i + 1, std::min<int64_t>(E, 3))); break;
            case Load::one: choices.push_back(static_cast<double>(E - 1)); break;
            case Load::dropped: choices.push_back(i % 3 == 1 ? -1 : i % 11 == 5 ? static_cast<double>(E) : any); break;
        }
    }
    return choices;
}

struct SortForm {
    int64_t N, k, E, owners = 1, copies = 1;
    Load load = Load::even;
    bool sent = true, slots = true;
};

void add_sort(std::vector<Case>& all, const SortForm& f) {
    const std::string name =
        concat("(", f.N, ", ", f.k, ") of ", f.E, " ", kLoads[static_cast<size_t>(f.load)], ", ", f.owners, " owners ",
               f.copies, " copies", f.sent ? "" : ", no sent", f.slots ? "" : ", no slots");
    add(all, "sort_choices", &KernelTable::sort_choices, name,
        [f](const auto& table, const auto& stream, Arena& arena) {
            const int64_t n = f.N * f.k * f.copies;
            const SortChoices s{.choices = arena.from({f.N, f.k}, DType::i32, draw_choices(f.N * f.k, f.E, f.load)),
                                .owners = f.owners,
                                .copies = f.copies,
                                .counts = arena.empty({f.E}, DType::f32),
                                .sent = f.sent ? arena.empty({n}, DType::i32) : View(),
                                .slots = f.slots ? arena.empty({f.N, f.copies * f.k}, DType::i32) : View()};
            arena.start();
            table.sort_choices(stream, s);
            arena.result("counts", s.counts, exactly);
            if (f.sent) arena.result("sent", s.sent, exactly);
            if (f.slots) arena.result("slots", s.slots, exactly);
        });
}

// Weights are multiples of 1/8, so that rows decide among equal ones; or none; or some are NaN.
enum class Weights : uint8_t { tied, none, with_nan };
constexpr const char* kWeights[] = {"tied weights", "no weights", "a NaN"};

struct AcceptForm {
    int64_t A, k, E, capacity, first, N;
    Load load = Load::even;
    Weights weights = Weights::tied;
};

void add_accept(std::vector<Case>& all, const AcceptForm& f) {
    const std::string name = concat("rows ", f.first, " to ", f.first + f.N, " of (", f.A, ", ", f.k, "), ", f.E, " ",
                                    kLoads[static_cast<size_t>(f.load)], ", capacity ", f.capacity, ", ",
                                    kWeights[static_cast<size_t>(f.weights)]);
    add(all, "accept_choices", &KernelTable::accept_choices, name,
        [f](const auto& table, const auto& stream, Arena& arena) {
            std::vector<double> choices = draw_choices(f.A * f.k, f.E, f.load);
            for (double& e : choices)
                if (e == static_cast<double>(f.E)) e = -1;
            std::vector<double> order, counts, rows, weights;
            for (int64_t e = 0; e < f.E; ++e) {
                const size_t before = order.size();
                for (size_t i = 0; i < choices.size(); ++i)
                    if (choices[i] == static_cast<double>(e)) order.push_back(static_cast<double>(i));
                counts.push_back(static_cast<double>(order.size() - before));
            }
            order.resize(choices.size(), -1);
            for (int64_t a = 0; a < f.A; ++a) rows.push_back(static_cast<double>((a * 7 + 3) % f.A));  // 7 divides no A
            for (size_t i = 0; i < choices.size(); ++i)
                weights.push_back(f.weights == Weights::with_nan && i % 9 == 2
                                      ? NAN
                                      : static_cast<double>(uniform_below(random_key(7, "weights"), i, 8)) / 8);
            const AcceptChoices a{
                .choices = arena.from({f.A, f.k}, DType::i32, choices),
                .rows = arena.from({f.A}, DType::i64, rows),
                .weights = f.weights == Weights::none ? View() : arena.from({f.A, f.k}, DType::f32, weights),
                .order = arena.from({f.A * f.k}, DType::i32, order),
                .counts = arena.from({f.E}, DType::f32, counts),
                .capacity = f.capacity,
                .first = f.first,
                .accepted = arena.empty({f.N, f.k}, DType::i32)};
            arena.start();
            table.accept_choices(stream, a);
            arena.result("accepted", a.accepted, exactly);
        });
}

// Rows from P ranks for L experts: some experts get none, some ranks send none.
void add_arrivals(std::vector<Case>& all, int64_t P, int64_t L, int64_t most, int64_t multiple) {
    add(all, "order_arrivals", &KernelTable::order_arrivals,
        concat("(", P, ", ", L, ") of at most ", most, multiple > 1 ? concat(", multiples of ", multiple) : ""),
        [=](const auto& table, const auto& stream, Arena& arena) {
            std::vector<double> counts;
            for (int64_t i = 0; i < P * L; ++i)
                counts.push_back(
                    i / L % 5 == 3 || i % L % 7 == 2
                        ? 0
                        : static_cast<double>(uniform_below(random_key(8, "counts"), static_cast<uint64_t>(i),
                                                            static_cast<uint64_t>(most + 1))));
            const auto R = static_cast<int64_t>(std::accumulate(counts.begin(), counts.end(), 0.0));
            const View of = arena.from({P, L}, DType::f32, counts);
            int64_t padded = 0;
            for (int64_t e = 0; e < L; ++e) {
                int64_t rows = 0;
                for (int64_t p = 0; p < P; ++p) rows += static_cast<int64_t>(counts[static_cast<size_t>(p * L + e)]);
                padded += (rows + multiple - 1) / multiple * multiple;
            }
            const View order = arena.empty({padded}, DType::i32), places = arena.empty({R}, DType::i32);
            arena.start();
            table.order_arrivals(stream, of, multiple, order, places);
            arena.result("order", order, exactly);
            arena.result("places", places, exactly);
        });
}

}  // namespace

void add_choices(std::vector<Case>& all) {
    for (const Load load : {Load::even, Load::uneven, Load::one, Load::dropped}) {
        for (const auto& [N, k, E] :
             {std::array<int64_t, 3>{0, 2, 5}, {1, 1, 1}, {7, 3, 4}, {100, 4, 60}, {513, 2, 33}, {700, 3, 130}})
            add_sort(all, {.N = N, .k = k, .E = E, .load = load});
        add_sort(all, {.N = 90, .k = 3, .E = 12, .owners = 4, .load = load});
        add_sort(all, {.N = 300, .k = 2, .E = 12, .owners = 3, .copies = 2, .load = load});
        add_sort(all, {.N = 260, .k = 5, .E = 16, .owners = 2, .copies = 4, .load = load});
        add_sort(all, {.N = 300, .k = 2, .E = 9, .load = load, .slots = false});
        add_sort(all, {.N = 300, .k = 2, .E = 9, .load = load, .sent = false, .slots = false});
        for (const Weights weights : {Weights::tied, Weights::none, Weights::with_nan}) {
            add_accept(all,
                       {.A = 10, .k = 2, .E = 4, .capacity = 5, .first = 0, .N = 10, .load = load, .weights = weights});
            add_accept(
                all,
                {.A = 300, .k = 3, .E = 5, .capacity = 60, .first = 100, .N = 150, .load = load, .weights = weights});
            add_accept(
                all,
                {.A = 200, .k = 2, .E = 40, .capacity = 0, .first = 190, .N = 10, .load = load, .weights = weights});
        }
    }
    add_sort(all, {.N = 20000, .k = 1, .E = 40, .load = Load::uneven});  // more blocks than a warp has lanes
    add_sort(all, {.N = 600, .k = 2, .E = 4096});
    for (const auto& [P, L, most] : {std::array<int64_t, 3>{1, 1, 0},
                                     {1, 1, 5},
                                     {1, 5, 9},
                                     {2, 2, 1},
                                     {3, 7, 2},
                                     {4, 8, 40},
                                     {16, 3, 300},
                                     {9, 60, 5},
                                     {64, 4, 20},
                                     {8, 130, 3}})
        for (const int64_t multiple : {1, 16}) add_arrivals(all, P, L, most, multiple);
}

}  // namespace tutti::kernels::cases
