// kernels/cuda/gemm_cublaslt.cpp over the emulated GPU and the fake library: the requested product is the right one;
// the algorithm that runs, with and without a tuning; the multiprocessors that products leave to communication.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>

#include "tests/cuda/emulation/api.h"
#include "tests/cuda/training_runs.h"
#include "tutti/base/float8.h"
#include "tutti/base/philox.h"
#include "tutti/base/read_file.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/cli/cli.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/device/cuda/cuda_device.h"
#include "tutti/device/cuda/library.h"
#include "tutti/engine/step.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/kernel_table.h"
#include "tutti/kernels/scale_layout.h"
#include "tutti/nn/mixture.h"
#include "tutti/nn/quantized.h"
#include "tutti/spec/toml.h"
#include "tutti/tensor/tensor.h"

namespace tutti {
namespace {

using train::Settings, train::operator+;

class FakeCublasLt {
  public:
    FakeCublasLt() {
        setenv("TUTTI_CUBLASLT", TUTTI_FAKE_CUBLASLT, 1);
        library_ = dlopen(TUTTI_FAKE_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
        check(library_ != nullptr, "the fake cuBLASLt: ", library_ != nullptr ? "" : dlerror());
    }
    void version(size_t is) const { function<void(size_t)>("fake_cublaslt_version")(is); }
    void refuse(int algorithm) const { function<void(int)>("fake_cublaslt_refuse")(algorithm); }
    void forget() const { function<void()>("fake_cublaslt_forget")(); }
    int64_t asked() const { return function<int64_t()>("fake_cublaslt_asked")(); }  // times that its heuristic was
    int64_t runs(uint64_t algorithm) const { return function<int64_t(uint64_t)>("fake_cublaslt_runs")(algorithm); }
    int64_t runs_with(int64_t multiprocessors) const {
        return function<int64_t(int64_t)>("fake_cublaslt_runs_with")(multiprocessors);
    }

  private:
    template <class Signature>
    Signature* function(const char* name) const {
        return reinterpret_cast<Signature*>(dlsym(library_, name));
    }
    void* library_;
};

// A machine with the libraries of CUDA 12 alone.
TEST(CublasLtFile, IsThatOfAnOlderVersionWhereTheNewerIsNowhere) {
    const ScratchFolder folder;
    std::filesystem::create_directory(folder.path("lib64"));
    std::filesystem::copy_file(TUTTI_FAKE_CUBLASLT, folder.path("lib64/libtutti-example.so.12"));
    setenv("CUDA_HOME", folder.path("").c_str(), 1);
    cuda::Library library{
        .what = "a test", .file = "libtutti-example.so.13", .variable = "TUTTI_EXAMPLE", .remedy = "none"};
    EXPECT_THROW(cuda::open_library(library), UsageError);
    library.other = "libtutti-example.so.12";
    EXPECT_NE(cuda::open_library(library), nullptr);
    std::filesystem::copy_file(TUTTI_FAKE_CUBLASLT, folder.path("lib64/libtutti-example.so.13"));
    void* const newer = dlopen(folder.path("lib64/libtutti-example.so.13").c_str(), RTLD_NOW | RTLD_LOCAL);
    EXPECT_EQ(cuda::open_library(library), newer);
    unsetenv("CUDA_HOME");
}

FakeCublasLt& fake() {
    static FakeCublasLt the_fake;
    return the_fake;
}

// Multiprocessors of the emulated GPU, as of an H100.
constexpr int kMultiprocessors = 132;

std::vector<float> numbers(int64_t n, int seed) {
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>((i * 37 + seed * 11) % 17 - 8) / 8);
    return values;
}

// Integers over 8 and 64 terms: every order of sums is exact, and a wrong matrix gives a different result.
TEST(CublasLt, MakesTheProductThatWasMeant) {
    fake();
    const auto device = make_cuda_device(0);
    const auto cpu = make_cpu_device(1);
    constexpr int64_t M = 6, N = 10, K = 64;
    for (const bool transpose_a : {false, true})
        for (const bool transpose_b : {false, true})
            for (const bool accumulate : {false, true})
                for (const bool bias : {false, true}) {
                    const auto result = [&](Device& on, const kernels::KernelTable& table) {
                        const auto tensor = [&](Shape shape, int seed) {
                            return Tensor::from_host<float>(on, shape, numbers(shape.numel(), seed),
                                                            Purpose::activations);
                        };
                        const Tensor a = tensor(transpose_a ? Shape{K, M} : Shape{M, K}, 1);
                        const Tensor b = tensor(transpose_b ? Shape{N, K} : Shape{K, N}, 2);
                        const Tensor c = tensor({M, N}, 3), d = tensor({N}, 4);
                        table.gemm(on.stream(), {.a = a.view(),
                                                 .b = b.view(),
                                                 .c = c.view(),
                                                 .transpose_a = transpose_a,
                                                 .transpose_b = transpose_b,
                                                 .accumulate = accumulate,
                                                 .bias = bias ? d.view() : View()});
                        return c.to_host<float>();
                    };
                    EXPECT_EQ(result(*device, kernels::cuda_table()), result(*cpu, kernels::reference_table()))
                        << transpose_a << transpose_b << accumulate << bias;
                }
}

// Groups of 1 to 300 rows, drawn at random: the products are the right ones, forward and for weights, and the heuristic
// is asked for multiples of 64 rows only. A refused algorithm of such a size is replaced by that of the rows
// themselves.
TEST(CublasLt, GroupsOfOtherRowsAskForFewAlgorithms) {
    fake();
    const auto device = make_cuda_device(0);
    const auto cpu = make_cpu_device(1);
    constexpr int64_t E = 3, N = 12, K = 20;
    std::set<int64_t> sizes;
    const int64_t before = fake().asked();
    for (uint64_t round = 0; round < 40; ++round) {
        if (round == 30) fake().refuse(0);
        std::vector<int64_t> rows;
        for (uint64_t e = 0; e < E; ++e)
            rows.push_back(static_cast<int64_t>(uniform_below(random_key(9, "rows"), 3 * round + e, 300)) + 1);
        for (const int64_t n : rows) sizes.insert((n + 63) / 64);
        const int64_t M = std::accumulate(rows.begin(), rows.end(), int64_t{0});
        for (const bool of_weights : {false, true}) {
            const auto result = [&](Device& on, const kernels::KernelTable& table) {
                const auto tensor = [&](Shape shape, int seed) {
                    return Tensor::from_host<float>(on, shape, numbers(shape.numel(), seed), Purpose::activations);
                };
                const Tensor a = tensor({M, K}, 1), b = tensor(of_weights ? Shape{M, N} : Shape{E, N, K}, 2);
                const Tensor c = tensor(of_weights ? Shape{E, K, N} : Shape{M, N}, 3);
                table.grouped_gemm(on.stream(), {{.a = a,
                                                  .b = b,
                                                  .c = c,
                                                  .transpose_a = of_weights,
                                                  .transpose_b = !of_weights,
                                                  .accumulate = of_weights},
                                                 rows});
                return c.to_host<float>();
            };
            EXPECT_EQ(result(*device, kernels::cuda_table()), result(*cpu, kernels::reference_table())) << round;
        }
        if (round == 29) {
            EXPECT_LE(fake().asked() - before, 2 * static_cast<int64_t>(sizes.size()));
        }
    }
    fake().refuse(-1);
}

// Codes with a divisor for each matrix: whole numbers of few bits, whose sums are exact in every order. Both formats.
TEST(CublasLt, MultipliesCodes) {
    fake();
    const auto device = make_cuda_device(0);
    const auto cpu = make_cpu_device(1);
    constexpr int64_t M = 32, N = 48, K = 64;
    const auto coded = [&](Device& on, DType format, const Shape& shape, int seed) {
        std::vector<uint8_t> codes;
        for (const float x : numbers(shape.numel(), seed)) codes.push_back(float8_code(x, float8_of(format)));
        const Tensor tensor = Tensor::empty(on, shape, format, Purpose::activations);
        on.copy_in(tensor.view().data, codes.data(), tensor.bytes());
        return tensor;
    };
    for (const auto& [left, right] : {std::pair{DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}})
        for (const bool accumulate : {false, true}) {
            const Tensor a = coded(*device, left, {M, K}, 1), b = coded(*device, right, {N, K}, 2);
            const auto f32 = [&](const Shape& shape, std::vector<float> values) {
                return Tensor::from_host<float>(*device, shape, values, Purpose::activations);
            };
            const Tensor by_a = f32({1, 1}, {0.5f}), by_b = f32({1, 1}, {4.0f}), c = f32({M, N}, numbers(M * N, 3));
            kernels::Gemm g{.a = a, .b = b, .c = c, .transpose_b = true, .accumulate = accumulate};
            g.a_scales = {by_a, {}};
            g.b_scales = {by_b, {}};
            ASSERT_TRUE(kernels::cuda_table().gemm_of_codes(device->stream(), g));
            kernels::cuda_table().gemm(device->stream(), g);
            const std::vector<float> result = c.to_host<float>(), x = numbers(M * K, 1), y = numbers(N * K, 2);
            const std::vector<float> before = numbers(M * N, 3);
            for (int64_t m = 0; m < M; ++m)
                for (int64_t n = 0; n < N; ++n) {
                    double sum = 0;
                    for (int64_t k = 0; k < K; ++k)
                        sum += static_cast<double>(float8_value(
                                   float8_code(x[static_cast<size_t>(m * K + k)], float8_of(left)), float8_of(left))) *
                               static_cast<double>(float8_value(
                                   float8_code(y[static_cast<size_t>(n * K + k)], float8_of(right)), float8_of(right)));
                    const auto at = static_cast<size_t>(m * N + n);
                    ASSERT_EQ(static_cast<double>(result[at]),
                              2 * sum + (accumulate ? static_cast<double>(before[at]) : 0.0))
                        << m << ' ' << n;
                }
            g.a_scales.group = {1, 128};
            EXPECT_FALSE(kernels::cuda_table().gemm_of_codes(device->stream(), g));
            g.a_scales.group = {};
            g.b.shape[1] = g.a.shape[1] = 40;  // no multiple of 16
            EXPECT_FALSE(kernels::cuda_table().gemm_of_codes(device->stream(), g));
        }
}

// The emulated GPU of another generation, until the end of a scope.
class Generation {
  public:
    explicit Generation(int capability) { emulation::set_capability(capability / 10, capability % 10); }
    ~Generation() { emulation::set_capability(9, 0); }
    Generation(const Generation&) = delete;
    Generation& operator=(const Generation&) = delete;
};

// Codes with divisors of groups, in the orders of the library's modes: of x and dy, and of w on the right. Blackwell
// has no unit for groups of 128, but one for four equal divisors of 32 each.
TEST(CublasLt, MultipliesCodesOfGroups) {
    fake();
    const auto cpu = make_cpu_device(1);
    const kernels::KernelTable& cuda = kernels::cuda_table();
    constexpr int64_t M = 256, N = 384, K = 640;  // 5 groups of 128: rows of 128 x 128 are padded
    struct Coded {
        Tensor codes, divisors;
        kernels::Scales scales;
        std::vector<double> numbers;
    };
    const auto coded = [&](Device& device, const Shape& shape, const kernels::GroupShape& group, DType of_recipe,
                           int seed) {
        std::vector<float> values = numbers(shape.numel(), seed);
        for (size_t i = 0; i < values.size(); ++i) values[i] *= std::ldexp(1.0f, static_cast<int>(i / 32 % 9) - 4);
        const Tensor x = Tensor::from_host<float>(*cpu, shape, values, Purpose::activations);
        const Tensor codes = Tensor::empty(*cpu, shape, DType::e4m3, Purpose::activations);
        const int64_t R = shape[0] / group.rows, C = shape[1] / group.columns;
        const auto [divisors, layout] = cuda.scale_form(device.stream(), of_recipe, group);
        const Tensor places =
            Tensor::empty(*cpu, {kernels::scale_values(layout, R, C)}, divisors, Purpose::activations);
        const kernels::Quantize q{.x = x, .codes = codes, .scales = {places, group, layout}};
        kernels::reference_table().quantize(cpu->stream(), q);
        Coded made;
        const Tensor decoded = Tensor::empty(*cpu, shape, DType::f32, Purpose::activations);
        kernels::reference_table().dequantize(cpu->stream(), {.codes = codes, .scales = q.scales, .y = decoded});
        for (const float v : decoded.to_host<float>()) made.numbers.push_back(static_cast<double>(v));
        const auto moved = [&](const Tensor& from) {
            const Tensor to = Tensor::empty(device, from.shape(), from.dtype(), Purpose::activations);
            device.copy_in(to.view().data, from.view().data, from.bytes());
            return to;
        };
        made.codes = moved(codes), made.divisors = moved(places);
        made.scales = {made.divisors, group, layout};
        return made;
    };
    struct Kind {
        int capability;
        kernels::GroupShape a, b;
        DType divisors;
    };
    for (const Kind& kind : {Kind{90, {1, 128}, {128, 128}, DType::f32},
                             {90, {1, 128}, {1, 128}, DType::f32},
                             {100, {1, 128}, {128, 128}, DType::f32},
                             {100, {1, 128}, {1, 128}, DType::f32},
                             {100, {1, 32}, {1, 32}, DType::e8m0}}) {
        const Generation generation(kind.capability);
        const auto device = make_cuda_device(0);
        const Coded a = coded(*device, {M, K}, kind.a, kind.divisors, 1),
                    b = coded(*device, {N, K}, kind.b, kind.divisors, 2);
        const Tensor c = Tensor::empty(*device, {M, N}, DType::f32, Purpose::activations);
        kernels::Gemm g{.a = a.codes, .b = b.codes, .c = c, .transpose_b = true};
        g.a_scales = a.scales, g.b_scales = b.scales;
        EXPECT_TRUE(cuda.gemm_of_codes(device->stream(), g));
        Stream other = device->stream();
        for (const int capability : {80, 89, 90, 100}) {
            other.capability = capability;
            EXPECT_EQ(cuda.gemm_of_codes(other, g), capability == kind.capability) << capability;
        }
        cuda.gemm(device->stream(), g);
        const std::vector<float> result = c.to_host<float>();
        for (int64_t m = 0; m < M; m += 5)
            for (int64_t n = 0; n < N; n += 3) {
                double sum = 0, sizes = 0;
                for (int64_t k = 0; k < K; ++k) {
                    const double term =
                        a.numbers[static_cast<size_t>(m * K + k)] * b.numbers[static_cast<size_t>(n * K + k)];
                    sum += term, sizes += std::abs(term);
                }
                // K f32 additions.
                ASSERT_NEAR(static_cast<double>(result[static_cast<size_t>(m * N + n)]), sum, K * 0x1p-24 * sizes)
                    << kind.b.rows << ' ' << m << ' ' << n;
            }
        if (kind.b.rows == 128) {  // no unit multiplies 128 x 128 by itself
            g.a_scales = b.scales;
            EXPECT_FALSE(cuda.gemm_of_codes(device->stream(), g));
        }
    }
}

// Runs whose products multiply codes follow those that decode them, and gathers of codes keep all bits also where
// products read them transposed, or their divisors in another order.
class Codes : public train::CudaTraining {};
TEST_F(Codes, OfARunAreMultiplied) {
    fake().version(130100);
    fake().refuse(-1);
    const Settings model = {"model.width=128",         "model.layers=3",     "model.heads=1",
                            "model.kv_heads=1",        "model.head_dim=128", "model.ffn=256",
                            "model.max_positions=128", "train.seq_len=128",  "train.micro_batch=1",
                            "train.global_batch=2",    "train.steps=2",      "parallel.zero=3"};
    for (const char* recipe : {"tensor", "delayed", "block"}) {
        SCOPED_TRACE(recipe);
        const Settings set = model + Settings{concat("precision.recipe=", recipe)};
        const auto multiplied = run("cuda", set, 2);
        expect_follows(multiplied, run("cuda", set + Settings{"precision.emulate=true"}, 2), 1e-3);
        EXPECT_EQ(run("cuda", set + Settings{"precision.gather=weights"}, 2), multiplied);
    }
    EXPECT_THROW(run("cuda", model + Settings{"precision.recipe=mxfp8"}, 2), Error);  // the GPU is a Hopper
}

// Three blocks with four experts.
const Settings kExperts = {"model.width=128",         "model.layers=3",
                           "model.heads=1",           "model.kv_heads=1",
                           "model.head_dim=128",      "model.moe.experts=4",
                           "model.moe.top_k=2",       "model.moe.ffn=128",
                           "model.max_positions=128", "train.seq_len=128",
                           "train.micro_batch=1",     "train.global_batch=2",
                           "train.steps=2",           "model.moe.capacity_factor=0"};

// Experts: a product for each, of its rows and zeros behind them.
TEST_F(Codes, OfExpertsAreMultiplied) {
    fake().version(130100);
    fake().refuse(-1);
    compares_rehearsal_ = false;
    struct Layout {
        Settings set;
        int ranks;
        bool gathers;
    };
    for (const Layout& layout : {Layout{{}, 1, false},
                                 {{"parallel.ep=2", "recompute.policy=full"}, 2, false},
                                 {{"parallel.zero=3"}, 2, true},
                                 {{"model.moe.capacity_factor=1.0", "offload.activations=true"}, 1, false}})
        for (const char* recipe : {"tensor", "delayed", "block"}) {
            SCOPED_TRACE(concat(recipe, ' ', joined(layout.set, " ")));
            const Settings set = kExperts + layout.set + Settings{concat("precision.recipe=", recipe)};
            const auto multiplied = run("cuda", set, layout.ranks);
            expect_follows(multiplied, run("cuda", set + Settings{"precision.emulate=true"}, layout.ranks), 1e-3);
            if (layout.gathers) {
                EXPECT_EQ(run("cuda", set + Settings{"precision.gather=weights"}, layout.ranks), multiplied);
            }
        }
}

// A mixture with biases, its numbers and gradients on the emulated GPU. `recipe`: "none" for products in f32.
using Named = std::map<std::string, std::vector<float>>;
Named mixture_with_biases(const std::string& recipe, bool emulate, bool selective) {
    using autograd::Parameter, autograd::Role;
    constexpr int64_t kT = 100, kC = 128, kF = 256, kE = 4;
    const auto device = make_cuda_device(0);
    ops::Context ctx{*device, kernels::cuda_table()};
    const auto lost = std::make_shared<nn::LostValues>();
    lost->allocate(ctx);
    lost->begin_step(ctx);
    std::shared_ptr<const nn::ProductRule> rule;
    if (recipe != "none")
        rule = std::make_shared<nn::QuantizedProducts>(spec::recipe_of({.recipe = recipe}).value(), nn::ScaleRanks{},
                                                       emulate, false, nullptr, lost);
    const auto numbers_of = [](const std::string& name, int64_t n, float size) {
        std::vector<float> values;
        for (int64_t i = 0; i < n; ++i) values.push_back(size * normal(random_key(3, name), static_cast<uint64_t>(i)));
        return values;
    };
    // The first of the C channels of x is 1, and what gate and up make of it takes their biases away: only rows without
    // values get these.
    constexpr float kBias = 16;
    const auto with_first = [](std::vector<float> values, float first) {
        for (size_t i = 0; i < values.size(); i += kC) values[i] = first;
        return values;
    };
    std::map<std::string, Parameter> p;
    const auto add = [&](const char* name, const Shape& shape, Role role, const std::vector<float>& values) {
        p[name] = {.name = name, .shape = shape, .role = role, .rule = shape.rank() == 3 ? rule : nullptr};
        autograd::allocate(ctx, p[name], DType::f32, true);
        device->copy_in(p[name].value.view().data, values.data(), p[name].value.bytes());
    };
    add("router", {kE, kC}, Role::router, numbers_of("router", kE * kC, 0.3f));
    for (const char* name : {"gate", "up"}) {
        add(name, {kE, kF, kC}, Role::expert_column, with_first(numbers_of(name, kE * kF * kC, 0.01f), -kBias));
        add(concat(name, " bias").c_str(), {kE, kF}, Role::expert_column, std::vector<float>(kE * kF, kBias));
    }
    add("down", {kE, kC, kF}, Role::expert_row, numbers_of("down", kE * kC * kF, 0.1f));
    add("down bias", {kE, kC}, Role::expert, numbers_of("down bias", kE * kC, 0.1f));

    const spec::MixtureSpec spec{.experts = kE, .top_k = 2, .ffn = kF, .bias = true, .aux_loss = "none"};
    autograd::Tape tape(ctx, true);
    tape.set_selective(selective);
    const auto tensor = [&](const std::vector<float>& values) {
        return Tensor::from_host<float>(*device, {1, kT, kC}, values, Purpose::activations);
    };
    const autograd::Var x = tape.input(tensor(with_first(numbers_of("x", kT * kC, 0.3f), 1)));
    const autograd::Var y = nn::mixture(tape, x,
                                        {.spec = spec,
                                         .router = {p["router"], nullptr},
                                         .expert_bias = nullptr,
                                         .gate = {p["gate"], &p["gate bias"]},
                                         .up = {p["up"], &p["up bias"]},
                                         .down = {p["down"], &p["down bias"]}},
                                        nn::make_batch(*device, std::vector<int32_t>(kT + 1, 1), 1, 0));
    Named all = {{"y", y.value.to_host<float>()}};
    tape.backward(y, tensor(numbers_of("dy", kT * kC, 1)));
    all["dx"] = tape.take_gradient(x).to_host<float>();
    for (auto& [name, parameter] : p) all[name] = parameter.gradient.to_host<float>();
    if (rule == nullptr) return all;
    // x of gate and up, x of down, and dy of each, of two experts for each token; without what pads their rows.
    EXPECT_EQ(lost->counts(ctx)[2], 2 * kT * (kC + kF + kF + kF + kC));
    return all;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double square = 0, norm = 0;
    for (size_t i = 0; i < b.size(); ++i) {
        square += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
        norm += std::pow(static_cast<double>(b[i]), 2);
    }
    return std::sqrt(square / norm);
}

// Biases of experts would fill the rows of padding with values thousands of times those of the others, and the scales
// would be theirs. Numbers of both ways differ by the order of sums in f32, of terms that nearly cancel: by 1e-4, which
// moves one code in some hundreds by 6 %.
TEST(CublasLt, MultipliesCodesOfExpertsWhoseBiasesHaveNoPartInScales) {
    fake().version(130100);
    fake().refuse(-1);
    const Named plain = mixture_with_biases("none", false, false);
    for (const auto& [capability, recipe] : {std::pair{90, "tensor"}, {90, "block"}, {100, "block"}, {100, "mxfp8"}})
        for (const bool selective : {false, true}) {
            SCOPED_TRACE(concat(capability, ' ', recipe, ", selective ", selective));
            const Generation generation(capability);
            const Named multiplied = mixture_with_biases(recipe, false, selective),
                        decoded = mixture_with_biases(recipe, true, selective);
            for (const auto& [name, values] : decoded) {
                EXPECT_LT(distance(multiplied.at(name), values), 1e-2) << name;
                EXPECT_LT(distance(values, plain.at(name)), 0.2) << name;
            }
        }
}

// Every token chooses all experts, so their loads are those of a rehearsal. SmallRun compares memory and messages.
TEST_F(Codes, OfExpertsTakeTheMemoryThatWasRehearsed) {
    fake().version(130100);
    fake().refuse(-1);
    for (const char* recipe : {"tensor", "delayed", "block"}) {
        const Settings set = kExperts + Settings{"model.moe.top_k=4", concat("precision.recipe=", recipe)};
        SCOPED_TRACE(recipe);
        run("cuda", set);
        run("cuda", set + Settings{"parallel.ep=2", "recompute.policy=full"}, 2);
        run("cuda", set + Settings{"parallel.zero=3", "precision.gather=weights"}, 2);
    }
}

// Steps of a model on one GPU of another generation than that for which the program is compiled.
std::vector<double> losses_on(int capability, const std::string& recipe, bool emulate, bool experts) {
    const Generation generation(capability);
    std::vector<std::string> set = {"model.preset=llama-tiny",
                                    "model.width=128",
                                    "model.layers=3",
                                    "model.heads=1",
                                    "model.kv_heads=1",
                                    "model.head_dim=128",
                                    "model.ffn=256",
                                    "model.vocab=256",
                                    "model.max_positions=128",
                                    "train.seq_len=128",
                                    "train.micro_batch=1",
                                    "train.global_batch=2",
                                    "train.device=cuda",
                                    "data.train=none.bin",
                                    "precision.recipe=" + recipe,
                                    concat("precision.emulate=", emulate ? "true" : "false")};
    if (experts) set.insert(set.end(), {"model.moe.experts=4", "model.moe.top_k=2", "model.moe.ffn=128"});
    const spec::RunSpec run = spec::parse_text("", "generation", set);
    std::vector<double> losses;
    comm::run_ranks(1, {.timeout_s = 60}, [&](comm::World& world) {
        engine::Engine engine(
            run, world, {make_cuda_device(0), kernels::cuda_table()},
            [&](ops::Context& ctx, const engine::BatchShard& share) { return engine::fixed_batches(ctx, run, share); });
        for (int step = 1; step <= 3; ++step) losses.push_back(engine::train_step(engine, step).loss);
    });
    return losses;
}

TEST(CublasLt, MultipliesCodesOfRunsByTheUnitsOfAGeneration) {
    fake().version(130100);
    fake().refuse(-1);
    const auto expect = [](int capability, const char* recipe, bool experts) {
        SCOPED_TRACE(concat(capability, ' ', recipe, ", experts ", experts));
        const auto multiplied = losses_on(capability, recipe, false, experts),
                   decoded = losses_on(capability, recipe, true, experts);
        for (size_t i = 0; i < decoded.size(); ++i) EXPECT_NEAR(multiplied[i], decoded[i], 1e-3 * decoded[i]) << i;
    };
    for (const bool experts : {false, true}) {
        for (const char* recipe : {"tensor", "block", "mxfp8"}) expect(100, recipe, experts);
        expect(89, "tensor", experts);
    }
    const auto refused = [](int capability, const char* recipe) {
        try {
            losses_on(capability, recipe, false, false);
        } catch (const UsageError& error) {
            return std::string(error.what()).find("precision] emulate = true") != std::string::npos;
        }
        return false;
    };
    EXPECT_TRUE(refused(80, "tensor") && refused(89, "block") && refused(90, "mxfp8") && refused(80, "mxfp8"));
}

class Tuning : public train::CudaTraining {
  protected:
    Tuning() {
        fake().version(130100);
        fake().refuse(-1);
        fake().forget();
    }
    // The file that `tutti bench step --tune` writes for the model of SmallRun.
    std::string tune(const std::string& name, const std::vector<std::string>& set = {}) {
        const std::string file = path(name);
        std::vector<std::string> words = {"tutti", "bench",  "step",   "--model", "llama-tiny", "--device",
                                          "cuda",  "--json", "--tune", file,      "--seconds",  "0.01"};
        for (const char* value : {"model.width=32", "model.layers=2", "model.heads=2", "model.kv_heads=1",
                                  "model.head_dim=16", "model.ffn=48", "train.seq_len=16", "train.global_batch=4",
                                  "train.micro_batch=2", "precision.compute=f32"})
            words.insert(words.end(), {"--set", value});
        for (const std::string& value : set) words.insert(words.end(), {"--set", value});
        std::vector<const char*> argv;
        for (const std::string& word : words) argv.push_back(word.c_str());
        std::ostringstream out, err;
        EXPECT_EQ(cli::run(static_cast<int>(argv.size()), argv.data(), cli::Io{out, err}), 0) << err.str();
        said_ = Json::parse(out.str());
        text_ = err.str();
        return file;
    }
    // The program's message for these words.
    static std::string refused(std::vector<std::string> words) {
        words.insert(words.begin(), "tutti");
        words.insert(words.end(), {"--device", "cuda", "--model", "llama-tiny"});
        std::vector<const char*> argv;
        for (const std::string& word : words) argv.push_back(word.c_str());
        std::ostringstream out, err;
        EXPECT_EQ(cli::run(static_cast<int>(argv.size()), argv.data(), cli::Io{out, err}), 2);
        return err.str();
    }
    kernels::GemmTuning read(const std::string& file) {
        return kernels::read_gemm_tuning(file, kernels::cuda_table().gemm_tuning());
    }
    Settings with(const std::string& file) const { return f32_ + Settings{"train.gemm_tuning=" + file}; }

    Json said_;
    std::string text_;
};

TEST_F(Tuning, TheFastestOfTheCandidatesIsKept) {
    const kernels::GemmTuning tuning = read(tune("products.json"));
    EXPECT_EQ(tuning.library, "cuBLASLt 13.1.0");
    EXPECT_NE(tuning.gpu.find("emulated GPU"), std::string::npos);
    ASSERT_FALSE(tuning.products.empty());
    // Each product with all multiprocessors, where the third algorithm is the fastest, and with those that NCCL leaves,
    // where the second one is (fake_cublaslt.cpp).
    std::map<int64_t, int> of_target;
    for (const auto& [key, product] : tuning.products) {
        ++of_target[key.back()];
        EXPECT_EQ(product.candidate, key.back() == 0 ? 2 : 1) << product.text;
        EXPECT_EQ(product.algorithm[7], static_cast<uint64_t>(product.candidate));
        ASSERT_EQ(product.seconds.size(), 4U);
        EXPECT_NEAR(product.seconds[0], 0.4, 0.05);
        EXPECT_NEAR(product.seconds[2], key.back() == 0 ? 0.1 : 0.3, 0.05);
    }
    EXPECT_EQ(of_target.size(), 2U);
    EXPECT_EQ(of_target[0], of_target[kMultiprocessors - 16]);
    EXPECT_EQ(said_["tuned_products"], static_cast<int64_t>(tuning.products.size()));
    ASSERT_EQ(said_["rows"].size(), tuning.products.size());
    EXPECT_NEAR(said_["rows"][0]["first_s"].get<double>(), 0.4, 0.05);
    EXPECT_NE(text_.find("candidate"), std::string::npos);
}

// One GPU measures the products of every rank of tensor parallelism. 257 rows of the vocabulary: ranks differ.
TEST_F(Tuning, RanksOfTensorParallelismFindTheirProducts) {
    const std::string tp = "parallel.tp=2", heads = "model.kv_heads=2";
    const std::string file = tune("products.json", {tp, heads});
    EXPECT_EQ(said_["tp"], 2);
    EXPECT_EQ(said_["tuned_products"], static_cast<int64_t>(read(file).products.size()));
    for (const auto& [key, product] : read(file).products)
        EXPECT_EQ(product.candidate, key.back() == 0 ? 2 : 1) << product.text;
    fake().forget();
    const auto run = options_of("cuda", with(file) + Settings{tp, heads}, 2);
    train::train(run);
    EXPECT_GT(fake().runs(2), 0);
    for (const uint64_t other : {0, 1, 3}) EXPECT_EQ(fake().runs(other), 0);
    EXPECT_EQ(Json::parse(read_file(run.out + "/run.json"))["gemm_tuning"]["missed"], 0);
}

TEST_F(Tuning, OtherAxesAreRefused) {
    EXPECT_NE(refused({"bench", "step", "--set", "parallel.tp=2"}).find("--tune FILE"), std::string::npos);
    EXPECT_NE(refused({"bench", "step", "--tune", "x", "--set", "parallel.pp=2"}).find("= 2: must divide"),
              std::string::npos);
}

TEST_F(Tuning, ARefusedCandidateIsPassedOver) {
    fake().refuse(2);
    for (const auto& [key, product] : read(tune("products.json", {"comm.spare_multiprocessors=false"})).products) {
        EXPECT_EQ(key.back(), 0);
        EXPECT_EQ(product.candidate, 3);
        EXPECT_TRUE(std::isnan(product.seconds[2]));
    }
}

// The measured algorithms run, the same in every run; without a tuning the first one does.
TEST_F(Tuning, ARunTakesTheMeasuredAlgorithms) {
    const std::string file = tune("products.json");
    fake().forget();
    const auto first = options_of("cuda", f32_);
    train::train(first);
    EXPECT_GT(fake().runs(0), 0);
    for (const uint64_t other : {1, 2, 3}) EXPECT_EQ(fake().runs(other), 0);
    std::vector<train::TrainOptions> tuned;
    for (int i = 0; i < 2; ++i) {
        fake().forget();
        tuned.push_back(options_of("cuda", with(file)));
        train::train(tuned.back());
        EXPECT_GT(fake().runs(2), 0);
        for (const uint64_t other : {0, 1, 3}) EXPECT_EQ(fake().runs(other), 0);
    }
    EXPECT_EQ(metrics(tuned[0]), metrics(tuned[1]));
    EXPECT_EQ(weights(tuned[0]), weights(tuned[1]));
    EXPECT_NE(weights(tuned[0]), weights(first)) << "the algorithms have the same bits: the test tells nothing";
    expect_follows(metrics(tuned[0]), metrics(first), 1e-4);
    const Json totals = Json::parse(read_file(tuned[0].out + "/run.json"));
    EXPECT_EQ(totals["gemm_tuning"]["file"], file);
    EXPECT_EQ(totals["gemm_tuning"]["missed"], 0);
}

TEST_F(Tuning, ProductsOfOtherSizesAreSaid) {
    const std::string file = tune("products.json");
    std::ostringstream console;
    auto run = options_of("cuda", with(file) + Settings{"train.micro_batch=1", "train.steps=1"});
    run.warnings = run.console = &console;
    fake().forget();
    train::train(run);
    EXPECT_GT(fake().runs(0), 0);
    EXPECT_NE(console.str().find("has no algorithm for"), std::string::npos) << console.str();
    EXPECT_NE(console.str().find("measured algorithms of cuBLASLt 13.1.0 from " + file), std::string::npos)
        << console.str();
}

TEST_F(Tuning, AFileOfAnotherLibraryIsRefused) {
    const std::string file = tune("products.json");
    fake().version(130200);
    const std::string why = refusal([&] { train::train(options_of("cuda", with(file))); });
    EXPECT_NE(why.find("cuBLASLt 13.1.0; this rank has "), std::string::npos) << why;
    EXPECT_NE(why.find("cuBLASLt 13.2.0"), std::string::npos) << why;
}

TEST_F(Tuning, AFileThatIsNoneIsRefused) {
    const std::string file = path("other.json");
    std::ofstream(file) << "{\"format\": \"something else\"}";
    EXPECT_NE(refusal([&] { train::train(options_of("cuda", with(file))); }).find("\"format\" must be"),
              std::string::npos);
    std::ofstream(file) << "{";
    EXPECT_NE(refusal([&] { train::train(options_of("cuda", with(file))); }).find(file), std::string::npos);
    EXPECT_NE(refusal([&] { train::train(options_of("cpu", with(tune("products.json")))); }).find("cuBLASLt must make"),
              std::string::npos);
}

class Spared : public Tuning {
  protected:
    struct Runs {
        int64_t all, fewer;
    };
    Runs runs(const Settings& set, int ranks, int64_t ctas = 16) {
        fake().forget();
        train::train(options_of("cuda", f32_ + Settings{"train.steps=2", "train.global_batch=8"} + set, ranks));
        return {fake().runs_with(0), fake().runs_with(kMultiprocessors - ctas)};
    }
};

// Two products of three are gradients.
TEST_F(Spared, TheLayoutDecidesWhichProductsLeaveMultiprocessors) {
    const Runs alone = runs({}, 1);
    EXPECT_EQ(alone.fewer, 0);
    const Runs reduced = runs({"parallel.zero=1"}, 2);
    EXPECT_EQ(reduced.fewer, 2 * reduced.all);
    const Runs gathered = runs({"parallel.zero=3"}, 2);
    EXPECT_EQ(gathered.all, 0);
    EXPECT_EQ(gathered.fewer, reduced.all + reduced.fewer);
    const Runs eight = runs({"parallel.zero=3", "comm.max_ctas=8"}, 2, 8);
    EXPECT_EQ(eight.fewer, gathered.fewer);
    for (const char* off : {"comm.max_ctas=0", "comm.spare_multiprocessors=false"})
        EXPECT_EQ(runs({"parallel.zero=3", off}, 2).fewer, 0) << off;
}

// A forward that the backward repeats has the bits of the first one, however many multiprocessors the backward's own
// products leave.
TEST_F(Spared, RecomputedForwardsHaveTheirBits) {
    const Settings set = f32_ + Settings{"parallel.zero=1", "train.micro_batch=1"};
    const auto kept = options_of("cuda", set, 2);
    const auto again = options_of("cuda", set + Settings{"recompute.policy=full"}, 2);
    train::train(kept);
    train::train(again);
    EXPECT_EQ(metrics(kept), metrics(again));
    EXPECT_EQ(weights(kept), weights(again));
}

}  // namespace
}  // namespace tutti
