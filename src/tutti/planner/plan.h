// planner/plan.h: the answer to a request: the best layouts, the reason why each next one is slower, and the layout of
// the field's recipe.
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
    Found found;
    Finalists finalists;
    std::string certified;  // "rehearsed for NVIDIA H100 80GB", or why the memory is that of closed forms
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
Comparison compare(const simulate::Prediction& best, const simulate::Prediction& other);
// "+3 %: pipeline bubble +120 ms, within the model's error"
std::string render(const Comparison& comparison);

// The recipe of the field, step by step, beside the choice (explain.cpp).
struct RecipeRule {
    std::string rule, recipe, choice;
    bool agrees = false;
};
struct Recipe {
    std::optional<Candidate> layout;  // none: no layout of the recipe fits
    std::vector<RecipeRule> rules;
    std::string verdict;
};
Recipe field_recipe(const Request& request, const Candidate& choice);

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
