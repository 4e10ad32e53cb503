// Run directories that earlier versions wrote (tests/golden, a folder for each version) go on in this one: they resume
// under one rank and under four, with the losses that the version itself had, and write and export the same text.
#include <algorithm>

#include "program.h"
#include "tutti/base/json.h"

namespace tutti::testing {
namespace {

const fs::path kGolden = TUTTI_SOURCE "/tests/golden";
constexpr int kLastStep = 8;

// "c490f67/dense" of every version and kind.
std::vector<std::string> golden_runs() {
    std::vector<std::string> runs;
    for (const auto& version : fs::directory_iterator(kGolden)) {
        if (!version.is_directory()) continue;
        for (const auto& run : fs::directory_iterator(version))
            runs.push_back(fs::relative(run.path(), kGolden).string());
    }
    std::sort(runs.begin(), runs.end());
    return runs;
}

std::vector<Json> lines_of(const fs::path& jsonl) {
    std::istringstream text(read_file(jsonl));
    std::vector<Json> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
}

class Golden : public ProgramTest, public ::testing::WithParamInterface<std::string> {
  protected:
    Golden() : golden_(kGolden / GetParam()) {}
    bool mixture() const { return golden_.filename() == "mixture"; }
    // The version orthogonalised the taps of convolutions, which AdamW updates now.
    bool taps_by_muon() const { return GetParam() == "a7f511d0/hybrid"; }

    // A copy of the run, since a run writes into its directory.
    std::string copied(const std::string& name) const {
        fs::copy(golden_, folder_ / name, fs::copy_options::recursive);
        return path(name);
    }
    Result resume(const std::string& run, int ranks, const std::vector<std::string>& set) const {
        std::vector<std::string> arguments = {"train",    run + "/config.toml",
                                              "--out",    run,
                                              "--ranks",  std::to_string(ranks),
                                              "--resume", "strict",
                                              "--set",    concat("train.steps=", kLastStep),
                                              "--set",    concat("data.train=", kGolden.string(), "/text.txt")};
        for (const std::string& key : set) arguments.insert(arguments.end(), {"--set", key});
        return this->run(arguments);
    }
    // Prompt and tokens are fewer than the run's 32 positions: an exported model has more.
    std::string text_of(const std::string& model) const {
        const Result r = run(
            {"generate", model, "--prompt", "the License", "--max-tokens", "20", "--temperature", "1", "--seed", "36"});
        EXPECT_EQ(r.exit_code, 0) << r.err;
        return r.out;
    }

    const fs::path golden_;
};

// All runs are in f32. Sums in another order, of other ranks or other instructions, change a term by 2^-24: c490f67
// differs from itself by 1e-8 of the loss and 5e-8 of the norm between the layouts here, after four steps. The bounds
// are a hundred times that. Another sample, step or state is far outside: neighbouring steps differ by thousands of
// bounds.
TEST_P(Golden, GoesOnAsItsOwnVersionDid) {
    const std::vector<Json> expected = lines_of(golden_ / "expected.jsonl");
    ASSERT_EQ(expected.size(), 4u);
    constexpr std::pair<const char*, double> kBounds[] = {{"loss", 1e-6}, {"grad_norm", 5e-6}};
    std::vector<std::string> of_four = {"parallel.tp=2", "parallel.zero=3", "parallel.ep=1"};
    if (mixture()) of_four.back() = "parallel.ep=2";
    for (const auto& [ranks, set] :
         {std::pair(1, std::vector<std::string>{"parallel.tp=1", "parallel.ep=1"}), {4, of_four}}) {
        const std::string run = copied(concat("resumed-by-", ranks));
        const Result r = resume(run, ranks, set);
        ASSERT_EQ(r.exit_code, 0) << r.err;
        expect_contains(r.out, "continuing after step 4");
        std::vector<Json> steps = lines_of(run + "/metrics.jsonl");
        ASSERT_EQ(steps.size(), size_t{kLastStep});
        steps.erase(steps.begin(), steps.begin() + 4);
        for (size_t i = 0; i < steps.size(); ++i) {
            ASSERT_EQ(steps[i].at("step"), expected[i].at("step"));
            EXPECT_EQ(steps[i].at("tokens"), expected[i].at("tokens"));
            if (taps_by_muon() && i > 0) {  // a thousandth of the loss is a twentieth of a step's change
                const double value = expected[i].at("loss").get<double>();
                EXPECT_NEAR(steps[i].at("loss").get<double>(), value, 1e-3 * value) << "step " << i + 5;
                continue;
            }
            for (const auto& [key, bound] : kBounds) {
                const double value = expected[i].at(key).get<double>();
                EXPECT_NEAR(steps[i].at(key).get<double>(), value, bound * value) << key << " of step " << i + 5;
                if (i == 0) continue;
                EXPECT_GT(std::abs(expected[i - 1].at(key).get<double>() - value), 1000 * bound * value) << key;
            }
        }
    }
}

TEST_P(Golden, WritesAndExportsTheTextOfItsVersion) {
    const std::string expected = read_file(golden_ / "expected.txt"), run = copied("run");
    EXPECT_GT(expected.size(), 30u);
    EXPECT_EQ(text_of(run), expected);
    const Result r = this->run({"convert", "--from", run, "--to", path("exported"), "--format", "hf"});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    EXPECT_EQ(text_of(path("exported")), expected);
}

INSTANTIATE_TEST_SUITE_P(Versions, Golden, ::testing::ValuesIn(golden_runs()), [](const auto& tested) {
    std::string name = tested.param;
    std::replace(name.begin(), name.end(), '/', '_');
    return name;
});

}  // namespace
}  // namespace tutti::testing
