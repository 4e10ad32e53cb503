// The gated delta rule, and the scan of Mamba-2, over context-parallel ranks, which hand its state from one to the
// next, against one rank: values and gradients, with documents that begin anywhere; its cache; and the gradients of its
// decay.
#include "tutti/nn/delta_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/nn/testing/sequence_share.h"

namespace tutti::nn::delta_rule_test {
namespace {

constexpr int64_t kB = 2, kT = 288, kHk = 2, kHv = 4, kDk = 6, kDv = 5;

struct Heads {
    Parameter a_log, dt_bias, skip;
};
Heads make_heads(Device& device) {
    ops::Context ctx{device, kernels::cpu_table(kernels::best_isa())};
    const auto make = [&](const char* name) {
        Parameter p{.name = name, .shape = {kHv}};
        p.value = Tensor::from_host<float>(device, p.shape, numbers(kHv, name), Purpose::weights);
        p.gradient = ops::zeros(ctx, p.shape, DType::f32);
        return p;
    };
    return {make("a_log"), make("dt_bias"), make("skip")};
}

// The inputs of the rule and the widths of a token's values: query, key, value, x of the decay, b.
constexpr std::pair<const char*, int64_t> kInputs[] = {
    {"query", kHk* kDk}, {"key", kHk* kDk}, {"value", kHv* kDv}, {"x", kHv}, {"b", kHv}};

// By name and token of the sequences (b T + t); "o" and the gradients of the inputs. By name, of parameters.
struct Outcome {
    std::map<std::string, std::map<int64_t, std::vector<float>>> of_tokens;
    std::map<std::string, std::vector<double>> of_parameters;
};

enum class Kind : uint8_t { rule, scan };

Outcome run(int ranks, int ulysses, bool documents, Kind kind = Kind::rule) {
    Outcome all;
    std::mutex mutex;
    comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& world) {
        const auto device = make_cpu_device(1);
        ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
        const SequenceShare share(*device, world, ulysses, kB, kT, documents ? 37 : kT);
        const auto own = [&](const char* name, int64_t width) {
            return share.own(numbers(kB * kT * width, name), width);
        };
        Heads parameters = make_heads(*device);
        Tape tape(ctx, true);
        std::map<std::string, Var> in;
        for (const auto& [name, width] : kInputs) in[name] = tape.input(own(name, width));
        DeltaRuleInputs inputs{.query = split_heads(tape, in["query"], kDk),
                               .key = split_heads(tape, in["key"], kDk),
                               .value = split_heads(tape, in["value"], kDv)};
        if (kind == Kind::rule) {
            inputs.g = decay(tape, in["x"], parameters.a_log, parameters.dt_bias);
            inputs.b = in["b"];
        } else {
            inputs.g = decay_and_steps(tape, in["x"], parameters.a_log, parameters.dt_bias, {0.25F, 1.5F});
            inputs.skip = &parameters.skip;
        }
        const Var o = join_heads(tape, delta_rule(tape, inputs, share.batch, 0));
        tape.backward(o, own("do", kHv * kDv));
        const auto add = [&](const std::string& name, const Tensor& x) {
            const std::vector<float> values = x.to_floats();
            const size_t width = values.size() / share.tokens.size();
            for (size_t i = 0; i < share.tokens.size(); ++i) {
                const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i * width);
                all.of_tokens[name][share.tokens[i]] = {begin, begin + static_cast<std::ptrdiff_t>(width)};
            }
        };
        const std::lock_guard lock(mutex);
        add("o", o.value);
        for (const auto& [name, width] : kInputs)
            if (kind == Kind::rule || name != std::string("b")) add(name, tape.take_gradient(in[name]));
        for (const Parameter* p : {&parameters.a_log, &parameters.dt_bias, &parameters.skip}) {
            std::vector<double>& sum = all.of_parameters[p->name];
            sum.resize(kHv);
            const std::vector<float> gradient = p->gradient.to_host<float>();
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
        }
    });
    return all;
}

// Chunks begin elsewhere where a rank's tokens do, so sums have another order: all values are of order one.
TEST(DeltaRule, IsThatOfOneRankHoweverTheSequenceIsSharedOut) {
    for (const auto& [kind, documents] :
         {std::pair{Kind::rule, false}, {Kind::rule, true}, {Kind::scan, false}, {Kind::scan, true}}) {
        const Outcome one = run(1, 1, documents, kind);
        double largest_of_one = 1;  // states of the scan grow with the steps
        for (const auto& [name, tokens] : one.of_tokens)
            for (const auto& [token, row] : tokens)
                for (const double x : row) largest_of_one = std::max(largest_of_one, std::abs(x));
        if (kind == Kind::rule) largest_of_one = 1;
        for (const auto& [ranks, ulysses] : {std::pair{2, 1}, {3, 1}, {2, 2}, {4, 2}, {6, 2}}) {
            SCOPED_TRACE(concat(kind == Kind::rule ? "rule, " : "scan, ", ranks, " ranks, ", ulysses,
                                documents ? ", documents" : ""));
            const Outcome many = run(ranks, ulysses, documents, kind);
            for (const auto& [name, tokens] : one.of_tokens) {
                ASSERT_EQ(tokens.size(), to_size(kB * kT)) << name;
                double largest = 0;
                for (const auto& [token, row] : tokens)
                    for (size_t i = 0; i < row.size(); ++i) {
                        const double there = many.of_tokens.at(name).at(token).at(i);
                        largest = std::max(largest, std::abs(there - static_cast<double>(row[i])));
                    }
                EXPECT_LT(largest, 2e-5 * largest_of_one) << name;
            }
            for (const auto& [name, values] : one.of_parameters)
                for (size_t i = 0; i < values.size(); ++i)
                    EXPECT_NEAR(many.of_parameters.at(name)[i], values[i], 1e-4 * largest_of_one) << name;
        }
    }
}

// What a document computes is what it computes alone, and no gradient crosses its beginning.
TEST(DeltaRule, DocumentsAreSeparate) {
    const Outcome whole = run(1, 1, false), cut = run(1, 1, true);
    double first = 0, later = 0;
    for (const auto& [token, row] : whole.of_tokens.at("o"))
        for (size_t i = 0; i < row.size(); ++i)
            (token % kT < 37 ? first : later) += std::abs(row[i] - cut.of_tokens.at("o").at(token)[i]);
    EXPECT_LT(first, 1e-4);
    EXPECT_GT(later, 10);
}

// Tokens in pieces with a cache against all at once.
TEST(DeltaRule, ACacheGivesTheValuesOfTheWholeSequence) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    Heads parameters = make_heads(*device);
    const auto of = [&](int64_t first, int64_t tokens, std::vector<KvCache*> caches) {
        const std::vector<int32_t> ids(to_size(tokens));
        const Batch batch = caches.empty() ? make_prompt(*device, ids, 1) : make_continuation(*device, ids, caches);
        Tape tape(ctx, false);
        const auto input = [&](size_t i) {
            const auto& [name, width] = kInputs[i];
            const std::vector<float> all = numbers(kT * width, name);
            const std::vector<float> rows(all.begin() + first * width, all.begin() + (first + tokens) * width);
            return Var{Tensor::from_host<float>(*device, {1, tokens, width}, rows, Purpose::data)};
        };
        const Var o = delta_rule(tape,
                                 {.query = split_heads(tape, input(0), kDk),
                                  .key = split_heads(tape, input(1), kDk),
                                  .value = split_heads(tape, input(2), kDv),
                                  .g = decay(tape, input(3), parameters.a_log, parameters.dt_bias),
                                  .b = input(4)},
                                 batch, 1);
        advance(batch);
        return o.value.to_floats();
    };
    const std::vector<float> whole = of(0, kT, {});
    KvCache cache(2, kT);
    for (int again = 0; again < 2; ++again) {  // a cache of length 0 has no state
        std::vector<float> pieces;
        cache.length = 0;
        for (int64_t at = 0, size = 100; at < kT; at += size, size = std::min<int64_t>(size % 3 + 1, kT - at)) {
            const auto piece = of(at, size, {&cache});
            pieces.insert(pieces.end(), piece.begin(), piece.end());
        }
        ASSERT_EQ(pieces.size(), whole.size());
        for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(pieces[i], whole[i], 1e-5) << i;
    }
}

}  // namespace
}  // namespace tutti::nn::delta_rule_test
