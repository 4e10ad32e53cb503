// tests/layouts/judge.h: runs a trial on ranks that are threads, and says what is wrong with it.
#pragma once

#include <optional>
#include <string>

#include "tests/layouts/trial.h"

namespace tutti::layouts {

struct Fault {
    std::string kind;  // "loss", "memory", "throws": a smaller trial must fail in the same kind
    std::string text;  // "step 2: 5.4 in place of 5.5"
};

struct Verdict {
    std::optional<Fault> fault = {};
    std::string excuse = {};   // not "": a difference that shows no fault, for this reason
    std::string refused = {};  // not "": the layout cannot run, for this reason (a schedule that does not exist)
};

// `folder`: a scratch folder with corpus.txt and corpus.jsonl.
Verdict judge(const Trial& trial, const std::string& folder);
void write_corpus(const std::string& folder);

// The smallest trial found, by leaving out settings and halving ranks, that fails in the same kind.
Trial reduced(const Trial& trial, const Fault& fault, const std::string& folder);

}  // namespace tutti::layouts
