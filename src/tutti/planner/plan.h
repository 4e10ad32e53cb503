// planner/plan.h: the answer to a request: the best layouts, the reason why each next one is slower, and what a lecture
// and a published run would take.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/planner/finalists.h"
#include "tutti/planner/search.h"

namespace tutti::planner {

struct Plan {
    Request request;
    SearchResult found;
    Finalists finalists;
    std::string certified;  // "rehearsed by the engine for NVIDIA h100"
};

// UsageError where no layout fits, with the gate that stopped the layouts and what to try.
Plan make_plan(const Request& request, size_t top);

// The kind of time that makes `other` slower than `best`, such as the pipeline bubble, and whether the difference is
// below the model's error.
struct Comparison {
    double slower = 0;  // share: 0.03 is 3 %
    std::string kind;
    double difference = 0;  // seconds of that kind
    bool within_error = false;
};
Comparison compare(const simulate::RehearsedStep& best, const simulate::RehearsedStep& other);
// "+3 %: pipeline bubble +120 ms, within the model's error"
std::string render(const Comparison& comparison);

// The six rules of a lecture's scaling recipe, and the nearest published run, beside the choice (explain.cpp).
struct RecipeRule {
    std::string rule, recipe, choice;  // recipe "-": the rule does not apply here
    bool agrees = false;
};
struct Recipe {
    std::optional<Candidate> layout;            // by rules 1 to 5; none: no such layout fits
    std::string published;                      // the run, its layout, its source
    std::optional<Candidate> published_layout;  // its axes on this request's devices; none: they do not divide or fit
    std::vector<RecipeRule> rules;
    std::string verdict;
};
Recipe field_recipe(const Request& request, const Finalist& choice);

// present.cpp
std::string render(const Plan& plan);
std::string render(const Recipe& recipe);
Json to_json(const Plan& plan);
Json to_json(const Recipe& recipe);
// The config that `tutti train` runs, with its plan in comments.
std::string to_config(const Plan& plan, const Finalist& finalist);
// page.cpp: one self-contained HTML page.
std::string to_html(const Plan& plan);

}  // namespace tutti::planner
