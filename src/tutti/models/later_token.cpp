#include "tutti/models/later_token.h"

namespace tutti::models {

using namespace nn;

LaterToken::LaterToken(const spec::ModelSpec& s, int64_t layer, std::unique_ptr<Module> block)
    : block_(std::move(block)) {
    const std::string name = concat("model.layers.", layer);
    const auto norm = [&](const char* of) {
        return make_rms_norm(concat(name, ".", of), s.width, s.norm_eps, Role::norm, s.norm_offset ? 1 : 0);
    };
    of_embedding_ = norm("enorm");
    of_hidden_ = norm("hnorm");
    norm_ = norm("shared_head.norm");
    // Of whole tokens, like a norm: a rank projects the tokens that it has between products.
    projection_ = make_linear(name + ".eh_proj", 2 * s.width, s.width, {.role = Role::norm, .std = s.init_std});
}

Var LaterToken::operator()(Tape& tape, const Var& h, const Var& embeddings, const Batch& batch) {
    const Var both = join_channels(tape, of_embedding_(tape, embeddings), of_hidden_(tape, h));
    return block_->forward(tape, projection_(tape, both), batch);
}

void own(autograd::Unit& unit, LaterToken& part) {
    own_all(unit, part.of_embedding_, part.of_hidden_, part.projection_);
    const autograd::Unit& block = part.block_->unit;
    unit.parameters.insert(unit.parameters.end(), block.parameters.begin(), block.parameters.end());
    unit.gradients_in_forward.insert(unit.gradients_in_forward.end(), block.gradients_in_forward.begin(),
                                     block.gradients_in_forward.end());
    unit.attention.insert(unit.attention.end(), block.attention.begin(), block.attention.end());
    own_all(unit, part.norm_);
}

}  // namespace tutti::models
