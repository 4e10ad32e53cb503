// The campaign over layouts: draws trials, judges them, and reduces each failure to its smallest layout.
//
//   draw_layouts --seed 1 --count 300                  trials 0 to 299, of every comparison in turn
//   draw_layouts --seed 1 --first 300 --count 1000     the next part
//   draw_layouts --seed 1 --first 17 --count 1 --show  what trial 17 is
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "tests/layouts/judge.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/testing/scratch.h"

namespace tutti::layouts {
namespace {

struct Arguments {
    uint64_t seed = 1;
    int64_t first = 0, count = 300;
    int threads = 2;
    bool show = false, reduce = true, coded = false;
    std::string only;
};

std::string description_of(const Trial& t) {
    std::string text = concat(t.model, ", ", name_of(t.compare), ", ", t.steps, " steps\n  run: ", text_of(t.run),
                              "\n  --ranks ", t.ranks, " ", text_of(t.layout));
    if (!t.other.empty()) text += concat("\n  other: --ranks ", t.other_ranks, " ", text_of(t.other));
    return text;
}

// The recipe of a trial's products, and what its layouts gather as codes.
std::set<std::string> codes_of(const Trial& t) {
    std::set<std::string> all;
    for (const Settings* part : {&t.run, &t.layout, &t.other})
        for (const auto& [key, value] : *part)
            if ((key == "precision.recipe" || key == "precision.gather") && value != "none")
                all.insert(concat(key.substr(key.find('.') + 1), ' ', value));
    return all;
}

class Campaign {
  public:
    explicit Campaign(const Arguments& arguments) : arguments_(arguments) { write_corpus(folder_.path()); }

    // The number of faults.
    int64_t run() {
        std::vector<std::thread> threads;
        for (int i = 0; i < arguments_.threads; ++i) threads.emplace_back([this] { work(); });
        for (std::thread& thread : threads) thread.join();
        Json summary = {{"seed", arguments_.seed}, {"first", arguments_.first}, {"count", arguments_.count},
                        {"faults", faults_},       {"refused", refused_},       {"compared", compared_},
                        {"excused", excused_},     {"models", models_},         {"codes", codes_}};
        std::cout << summary.dump() << std::endl;
        return faults_;
    }

  private:
    void work() {
        for (int64_t i = next_++; i < arguments_.count; i = next_++) one(arguments_.first + i);
    }
    void one(int64_t number) {
        constexpr Compare kKinds[] = {Compare::one_rank, Compare::twin, Compare::resumed, Compare::verify};
        Compare compare = kKinds[number % 4];
        if (arguments_.coded) compare = number % 2 == 0 ? Compare::twin : Compare::verify;  // the others draw no recipe
        for (const Compare kind : kKinds)
            if (arguments_.only == name_of(kind)) compare = kind;
        Trial trial;
        Verdict verdict;
        int attempt = 0;
        do {
            trial = draw(arguments_.seed, number, attempt++, compare);
            if (arguments_.coded && codes_of(trial).empty()) {
                verdict.refused = "no recipe";
                continue;
            }
            if (arguments_.show) say(concat("trial ", arguments_.seed, ':', number, ": ", description_of(trial)));
            verdict = judge(trial, folder_.path());
            if (arguments_.show && !verdict.refused.empty()) say(concat("refused: ", verdict.refused));
        } while (!verdict.refused.empty());
        {
            const std::lock_guard lock(mutex_);
            ++compared_[name_of(compare)];
            ++models_[trial.model];
            for (const std::string& what : codes_of(trial)) ++codes_[what];
            refused_ += attempt - 1;
            faults_ += verdict.fault ? 1 : 0;
            if (!verdict.excuse.empty()) ++excused_[verdict.excuse];
        }
        if (!verdict.excuse.empty()) say(concat("excused ", arguments_.seed, ':', number, ": ", verdict.excuse));
        if (!verdict.fault) return;
        say(concat("FAULT ", arguments_.seed, ':', number, ' ', verdict.fault->kind, ": ", verdict.fault->text, "\n  ",
                   description_of(trial)));
        if (!arguments_.reduce) return;
        const Trial smallest = reduced(trial, *verdict.fault, folder_.path());
        const Verdict again = judge(smallest, folder_.path());
        say(concat("SMALLEST of ", arguments_.seed, ':', number, ": ",
                   again.fault ? again.fault->text : "it comes and goes", "\n  ", description_of(smallest)));
    }
    void say(const std::string& line) {
        const std::lock_guard lock(mutex_);
        std::cout << line << std::endl;
    }

    Arguments arguments_;
    ScratchFolder folder_;
    std::mutex mutex_;
    std::atomic<int64_t> next_{0};
    int64_t faults_ = 0, refused_ = 0;
    std::map<std::string, int64_t> compared_, excused_, models_, codes_;
};

}  // namespace
}  // namespace tutti::layouts

int main(int argc, char** argv) {
    tutti::layouts::Arguments a;
    CLI::App app("Draws layouts at random and compares each with one rank.");
    app.add_option("--seed", a.seed);
    app.add_option("--first", a.first, "number of the first trial");
    app.add_option("--count", a.count, "trials");
    app.add_option("--threads", a.threads, "trials at once");
    app.add_option("--only", a.only, "one_rank, twin, resumed or verify");
    app.add_flag("--show", a.show, "print every trial");
    app.add_flag("--coded", a.coded, "only trials with 8-bit products: twin and verify in turn");
    app.add_flag("!--no-reduce", a.reduce, "do not look for the smallest layout of a fault");
    CLI11_PARSE(app, argc, argv);
    if (a.coded && (a.only == "one_rank" || a.only == "resumed")) {
        std::cerr << "--coded --only " << a.only << ": only twin and verify draw recipes\n";
        return 2;
    }
    return tutti::layouts::Campaign(a).run() == 0 ? 0 : 1;
}
