// plan/card.h: the plan card: what a run is going to be, on one screen, before it starts; and, after the first step,
// what it really holds. Stands on flops.h, memory.h and units.h; train/ and `tutti train --dry-run` print it.
#pragma once

#include <string>
#include <vector>

#include "tutti/plan/memory.h"
#include "tutti/spec/run_spec.h"

namespace tutti::plan {

// What is known before the first step. Everything else on the card follows from it.
struct Card {
    spec::RunSpec run;    // validated
    std::string machine;  // what the caller knows: "AMD EPYC 9R14, 2 threads, avx512"
    MemoryPlan memory;
    int ranks = 1;
    int rank = 0;               // whose memory and communication these are
    int64_t capacity = 0;       // bytes of the machine's memory; 0: not known
    bool fits = true;           // in it
    std::string pipeline = {};  // in words; "": none
    // What the rank communicates in a step: of each group and operation. `bytes` of the tensors, `sent` over links.
    struct Communication {
        std::string group;
        std::vector<int> ranks;
        std::string operation;
        int64_t calls = 0, bytes = 0, sent = 0;
    };
    std::vector<Communication> communication = {};
};

struct CardStyle {
    bool unicode = true;  // box drawing; false: plain ASCII
    int columns = 100;    // at least 60; long lines are wrapped between words
};

// Each ends with a newline; every line is exactly style.columns wide.
std::string render_card(const Card& card, const CardStyle& style = {});
// Predicted and measured at the peak of the sum, and how far the measurement is above the prediction.
std::string render_measured(const MemoryPlan& plan, const MemoryByPurpose& measured, const CardStyle& style = {});

// What a locale says: "UTF-8" in the first set one of LC_ALL, LC_CTYPE, LANG. The caller reads the environment.
bool is_utf8_locale(const std::string& lc_all, const std::string& lc_ctype, const std::string& lang);

}  // namespace tutti::plan
