#include "tutti/models/feed_forward.h"

#include "tutti/models/decoder.h"

namespace tutti::models {

using namespace nn;

FeedForward::FeedForward(const spec::ModelSpec& s, int64_t /*layer*/, const std::string& name,
                         const FeedForwardNames& names) {
    const LinearOptions column{.role = Role::column, .std = s.init_std, .bias = s.mlp_bias};
    const LinearOptions row{.role = Role::row, .std = residual_std(s), .bias = s.mlp_bias};
    gate_ = make_linear(concat(name, ".", names.gate), s.width, s.ffn, column);
    up_ = make_linear(concat(name, ".", names.up), s.width, s.ffn, column);
    down_ = make_linear(concat(name, ".", names.down), s.ffn, s.width, row);
}

Var FeedForward::operator()(Tape& tape, const Var& x, const Batch&) { return swiglu_mlp(tape, x, gate_, up_, down_); }

void own(autograd::Unit& unit, FeedForward& part) { own_all(unit, part.gate_, part.up_, part.down_); }

}  // namespace tutti::models
