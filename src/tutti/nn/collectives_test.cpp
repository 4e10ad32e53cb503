// The conjugate collectives over 2 to 4 ranks, values and gradients by hand. With L the sum over ranks of <c, y>, where
// c differs by rank (each rank uses the value for different outputs) or is the same for all ranks (the value is used
// once), dL/dx follows the convention of collectives.h.
#include "tutti/nn/collectives.h"

#include <gtest/gtest.h>

#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"

namespace tutti::nn {
namespace {

constexpr int64_t kB = 2, kT = 12, kC = 3;  // kT divides by 2, 3 and 4

// Whole numbers, so that sums are exact.
std::vector<float> numbers(int64_t count, int seed) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>((i * 7 + seed * 13) % 17 - 8));
    return values;
}

std::vector<float> sum_over(int ranks, int64_t count, int seed) {
    std::vector<float> sum(to_size(count));
    for (int r = 0; r < ranks; ++r) {
        const std::vector<float> one = numbers(count, seed + r);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
    }
    return sum;
}

using Function = std::function<Var(Tape&, Var, comm::Communicator&)>;

struct Result {
    std::vector<float> y, dx;
};

Result run(comm::World& world, const Function& f, const Shape& shape, int x_seed, const Shape& output, int c_seed) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::reference_table()};
    const auto group = world.everyone("tp");
    Tape tape(ctx, true);
    const auto tensor = [&](const Shape& s, int seed) {
        return Tensor::from_host<float>(*device, s, numbers(s.numel(), seed), Purpose::activations);
    };
    const Var x = tape.input(tensor(shape, x_seed));
    const Var y = f(tape, x, *group);
    EXPECT_EQ(y.value.shape(), output);
    const Tensor c = tensor(output, c_seed);
    tape.backward(y, c);
    EXPECT_EQ(c.to_host<float>(), numbers(output.numel(), c_seed));       // the caller's
    EXPECT_EQ(x.value.to_host<float>(), numbers(shape.numel(), x_seed));  // and the input: other nodes may hold them
    return {y.value.to_host<float>(), tape.take_gradient(x).to_host<float>()};
}

std::vector<float> rows(const std::vector<float>& all, int rank, int ranks) {
    const auto n = static_cast<int64_t>(all.size()) / ranks;
    return {all.begin() + rank * n, all.begin() + (rank + 1) * n};
}

class Collectives : public ::testing::TestWithParam<int> {
  protected:
    void on_ranks(const std::function<void(comm::World&, int, int)>& test) {
        const int P = GetParam();
        comm::run_ranks(P, {.timeout_s = 30}, [&](comm::World& world) { test(world, world.rank(), P); });
    }
    const Shape whole_{kB, kT, kC};
    const int64_t size_ = kB * kT * kC;
    Shape part() const { return {kB, kT / GetParam(), kC}; }
};

TEST_P(Collectives, CopyToRegion) {
    on_ranks([&](comm::World& world, int r, int P) {
        const Result result = run(
            world, [](Tape& t, Var x, comm::Communicator& g) { return copy_to_region(t, x, g); }, whole_, 1, whole_,
            20 + r);
        EXPECT_EQ(result.y, numbers(size_, 1));
        EXPECT_EQ(result.dx, sum_over(P, size_, 20));
    });
}

TEST_P(Collectives, ReduceFromRegion) {
    on_ranks([&](comm::World& world, int r, int P) {
        const Result result = run(
            world, [](Tape& t, Var x, comm::Communicator& g) { return reduce_from_region(t, std::move(x), g); }, whole_,
            1 + r, whole_, 20);
        EXPECT_EQ(result.y, sum_over(P, size_, 1));
        EXPECT_EQ(result.dx, numbers(size_, 20));
    });
}

TEST_P(Collectives, GatherFromSequence) {
    on_ranks([&](comm::World& world, int r, int P) {
        const Result result = run(
            world, [](Tape& t, Var x, comm::Communicator& g) { return gather_from_sequence(t, x, g); }, part(), 1 + r,
            whole_, 20 + r);
        std::vector<float> expected;
        for (int other = 0; other < P; ++other)
            for (const float value : numbers(size_ / P, 1 + other)) expected.push_back(value);
        EXPECT_EQ(result.y, expected);
        EXPECT_EQ(result.dx, rows(sum_over(P, size_, 20), r, P));
    });
}

TEST_P(Collectives, ReduceScatterToSequence) {
    on_ranks([&](comm::World& world, int r, int P) {
        const Result result = run(
            world, [](Tape& t, Var x, comm::Communicator& g) { return reduce_scatter_to_sequence(t, x, g); }, whole_,
            1 + r, part(), 20 + r);
        EXPECT_EQ(result.y, rows(sum_over(P, size_, 1), r, P));
        std::vector<float> expected;
        for (int other = 0; other < P; ++other)
            for (const float value : numbers(size_ / P, 20 + other)) expected.push_back(value);
        EXPECT_EQ(result.dx, expected);
    });
}

// heads of a section: more than ranks, as many, fewer; and sections of different numbers of heads, as queries and keys
TEST_P(Collectives, HeadsForTokensAndBack) {
    constexpr int64_t T = 3, D = 2;
    const int64_t N = GetParam();
    for (const std::vector<int64_t>& sections : std::vector<std::vector<int64_t>>{
             {12}, {12, 12, 12}, {N, N, N}, {1}, {2}, {12, N, N}, {12, 1, 1}, {2 * N, 2, 2}})
        on_ranks([&](comm::World& world, int r, int P) {
            int64_t S = 0, shares = 0;
            for (const int64_t H : sections) {
                if (H % P != 0 && P % H != 0) return;
                S += H;
                shares += std::max<int64_t>(H / P, 1);
            }
            const Shape tokens{kB, T, S, D}, heads{kB, T * P, shares, D};
            // Visits the index in `tokens` of rank `of` and the index in `heads` of rank `to` of each value.
            const auto for_each = [&](int of, int to, const std::function<void(size_t, size_t)>& visit) {
                int64_t first = 0, first_share = 0;
                for (const int64_t H : sections) {
                    const int64_t share = std::max<int64_t>(H / P, 1), copies = std::max<int64_t>(P / H, 1);
                    for (int64_t b = 0; b < kB; ++b)
                        for (int64_t t = 0; t < T; ++t)
                            for (int64_t h = 0; h < share; ++h)
                                for (int64_t d = 0; d < D; ++d)
                                    visit(to_size(((b * T + t) * S + first + to / copies * share + h) * D + d),
                                          to_size(((b * T * P + of * T + t) * shares + first_share + h) * D + d));
                    first += H;
                    first_share += share;
                }
            };
            std::vector<float> y(to_size(heads.numel())), dx(to_size(tokens.numel()));
            for (int other = 0; other < P; ++other) {
                const auto x = numbers(tokens.numel(), 1 + other), dy = numbers(heads.numel(), 20 + other);
                for_each(other, r, [&](size_t token, size_t head) { y[head] = x[token]; });
                for_each(r, other, [&](size_t token, size_t head) { dx[token] += dy[head]; });
            }
            const Result there = run(
                world, [&](Tape& t, Var v, comm::Communicator& g) { return all_to_all_sp2hp(t, v, g, sections); },
                tokens, 1 + r, heads, 20 + r);
            EXPECT_EQ(there.y, y);
            EXPECT_EQ(there.dx, dx);
            if (sections.size() > 1 || S < P) return;
            const Result back = run(
                world, [](Tape& t, Var v, comm::Communicator& g) { return all_to_all_hp2sp(t, v, g); }, heads, 20 + r,
                tokens, 1 + r);
            EXPECT_EQ(back.y, dx);
            EXPECT_EQ(back.dx, y);
        });
}

TEST_P(Collectives, HeadsThatDoNotDivideAreAnError) {
    on_ranks([&](comm::World& world, int, int P) {
        const auto group = world.everyone("cp_ulysses");
        const auto device = make_cpu_device(1);
        ops::Context ctx{*device, kernels::reference_table()};
        Tape tape(ctx, true);
        const Shape shape{1, 2, 2 * P + 1, 1};
        const Var x = tape.input(Tensor::from_host<float>(*device, shape, numbers(shape.numel(), 0), Purpose::data));
        try {
            all_to_all_sp2hp(tape, x, *group, {2 * P + 1});
            FAIL();
        } catch (const UsageError& error) {
            EXPECT_NE(std::string(error.what()).find(concat(2 * P + 1, " heads over the ", P, " ranks")),
                      std::string::npos)
                << error.what();
        }
    });
}

TEST(Rows, ThatDoNotDivideAreAnError) {
    const auto device = make_cpu_device(1);
    const Tensor x = Tensor::from_host<float>(*device, {1, 6, 1}, numbers(6, 0), Purpose::data);
    EXPECT_EQ(rows_of(x, 1, 3).to_host<float>(), rows(numbers(6, 0), 1, 3));
    EXPECT_THROW(rows_of(x, 0, 4), Error);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(2, 3, 4), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tutti::nn
