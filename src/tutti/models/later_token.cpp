#include "tutti/models/later_token.h"

#include "tutti/spec/later_names.h"

namespace tutti::models {

using namespace nn;

LaterToken::LaterToken(const spec::ModelSpec& s, int64_t k, std::vector<std::unique_ptr<Module>> blocks)
    : blocks_(std::move(blocks)) {
    const spec::LaterNames names = spec::later_names(s, k);
    const auto norm = [&](const std::string& name) {
        return make_rms_norm(name, s.width, s.norm_eps, Role::norm, s.norm_offset ? 1 : 0);
    };
    of_embedding_ = norm(names.embedding_norm);
    of_hidden_ = norm(names.hidden_norm);
    norm_ = norm(names.norm);
    // Of whole tokens, like a norm: a rank projects the tokens that it has between products.
    projection_ = make_linear(names.projection, 2 * s.width, s.width, {.role = Role::norm, .std = s.init_std});
}

Var LaterToken::operator()(Tape& tape, const Var& h, const Var& embeddings, const Batch& batch) {
    Var x = projection_(tape, join_channels(tape, of_embedding_(tape, embeddings), of_hidden_(tape, h)));
    for (const std::unique_ptr<Module>& block : blocks_) x = block->forward(tape, x, batch);
    return x;
}

void own(autograd::Unit& unit, LaterToken& part) {
    own_all(unit, part.of_embedding_, part.of_hidden_, part.projection_);
    const auto append = [](auto& to, const auto& more) { to.insert(to.end(), more.begin(), more.end()); };
    for (const std::unique_ptr<Module>& block : part.blocks_) {
        append(unit.parameters, block->unit.parameters);
        append(unit.gradients_in_forward, block->unit.gradients_in_forward);
        append(unit.attention, block->unit.attention);
        unit.state_flops += block->unit.state_flops;
    }
    own_all(unit, part.norm_);
}

}  // namespace tutti::models
