// lectures/budget.h: what compute buys: the parameters and tokens that published scaling laws call best for a budget,
// the loss that they predict, and a run beside them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/base/json.h"

namespace tutti::lectures {

// A model of N parameters trained on D tokens: C = 6 N D FLOPs.
struct Spent {
    double parameters = 0, tokens = 0;
    double flops() const { return 6 * parameters * tokens; }
};

// Losses are nats a token of the law's own text and tokenizer: they rank runs by one law; two laws' are not comparable.
struct ScalingLaw {
    std::string name;  // "Chinchilla, approach 3"
    std::string formula, source;
    // L(N, D) = E + A / N^alpha + B / D^beta. A = 0: the law says what is best, and not the loss.
    double E = 0, A = 0, B = 0, alpha = 0, beta = 0;
    double factor = 0, power = 0;  // the best N is factor C^power
    bool has_loss() const { return A > 0; }
    double loss(const Spent& spent) const;
    Spent best(double flops) const;
    // The FLOPs with which the best run reaches a loss; nothing: none does.
    std::optional<double> flops_for(double loss) const;
};
const std::vector<ScalingLaw>& scaling_laws();

// Tokens of a step beyond which a larger batch saves few steps, at a loss (Kaplan et al. 2020, eq. 1.4).
double critical_batch(double loss);

struct BudgetPlan {
    double flops = 0;
    std::optional<Spent> run;         // the reader's own
    std::string of;                   // its model, where it has a name
    std::string machines;             // "1024 x h100"; "": time and money are not asked for
    double mfu = 0, rate = 0;         // FLOP/s of all devices
    double seconds = 0, dollars = 0;  // dollars 0: the price is not known
};
std::string render(const BudgetPlan& plan);
Json to_json(const BudgetPlan& plan);
std::string to_html(const BudgetPlan& plan);  // one self-contained page with the loss over the parameters

}  // namespace tutti::lectures
