#!/usr/bin/env python3
"""Does `tutti verify` notice faults of the engine? Applies one mutation after another to a copy of the tree (a missing
sum, a doubled one, a wrong mask, a stale weight, a dropped scale, another rank's shard, ...), builds the program and asks
it to verify layouts in which the mutated code runs. Every answer but "NOT the same as one rank", or an error that ends the
run, is a mutation that would not be noticed. The unchanged program must find every layout the same. Faults of 8-bit
products are as small as the rounding that `verify` bears, or one rank has them too: suites of tests must notice these.

    scripts/mutate_engine.py --scratch /tmp/mutants [--only NAME]... [--out bench/results/verify_mutations.txt]
    scripts/mutate_engine.py --scratch /tmp/mutants --only codes: --out bench/results/codes_mutations.txt
    scripts/mutate_engine.py --check                 # is each text that a mutation replaces in its file, once?

The scratch folder keeps its build, so that a second call compiles what a mutation changes and nothing else. `--first` and
`--count` take a part of the mutations."""

import argparse
import pathlib
import random
import re
import subprocess
import sys

from scratch_tree import ROOT, ScratchTree

NN, PARALLEL, ENGINE = "src/tutti/nn/", "src/tutti/parallel/", "src/tutti/engine/"

MODEL = ["model.width=32", "model.heads=4", "model.kv_heads=2", "model.head_dim=8", "model.ffn=48", "model.layers=3",
         "model.max_positions=64", "model.init_std=0.1", "train.threads=1", "train.device=cpu", "train.seq_len=32",
         "train.global_batch=8", "train.micro_batch=1", "train.steps=3", "optimizer.warmup_steps=0", "comm.timeout_s=60",
         "precision.compute=f32"]
MOE = ["model.preset=moe-tiny", "model.moe.experts=4", "model.moe.ffn=16", "model.moe.aux_loss=microbatch",
       "model.moe.aux_coef=0.01", "model.moe.z_coef=0.01"]
SANDWICH = ["model.preset=gemma2-tiny", "model.score_cap=0.5", "model.window=7", "model.window_layers=\"0\""]
DELAYED = ["precision.recipe=delayed", "precision.scales=f32", "precision.bf16_first=0", "precision.bf16_last=0"]
RESPECTED = ["data.documents=respected", "data.train=corpus.jsonl"]
# name: ranks, settings
LAYOUTS = {
    "dp zero 0": (2, ["parallel.zero=0"]),
    "dp zero 1": (2, ["parallel.zero=1"]),
    "dp zero 2": (2, ["parallel.zero=2"]),
    "dp zero 3": (2, ["parallel.zero=3"]),
    "dp zero 1 bf16": (2, ["parallel.zero=1", "precision.compute=bf16"]),
    "hsdp": (4, ["parallel.zero=3", "parallel.dp_replicate=2"]),
    "documents": (2, RESPECTED),
    "tp": (2, ["parallel.tp=2", "parallel.sequence_parallel=false"]),
    "tp sp": (2, ["parallel.tp=2"]),
    "tp sp bf16": (2, ["parallel.tp=2", "precision.compute=bf16"]),
    "tp sp bf16 gradients": (2, ["parallel.tp=2", "precision.gradients=bf16"]),
    "tp overlap": (2, ["parallel.tp=2", "parallel.tp_overlap=2"]),
    "tp copies": (4, ["parallel.tp=4"]),
    "tp sp dropout": (2, ["parallel.tp=2", "model.dropout=0.1"]),
    "ring": (2, ["parallel.cp=2"]),
    "ring bf16": (2, ["parallel.cp=2", "precision.compute=bf16"]),
    "ring documents": (2, ["parallel.cp=2"] + RESPECTED),
    "all_gather": (2, ["parallel.cp=2", "parallel.cp_method=all_gather"]),
    "ulysses": (2, ["parallel.cp=2", "parallel.cp_method=ulysses"]),
    "pp": (2, ["parallel.pp=2"]),
    "pp zb": (2, ["parallel.pp=2", "parallel.schedule=zb-h1"]),
    "recompute": (2, ["recompute.policy=full", "model.dropout=0.1"]),
    "selective zb zero 3": (4, ["parallel.pp=2", "parallel.schedule=zb-h1", "parallel.zero=3", "recompute.policy=selective"]),
    "ep": (2, MOE + ["parallel.ep=2"]),
    "moe tp": (2, MOE + ["parallel.tp=2"]),
    "moe pp": (2, MOE + ["parallel.pp=2", "model.moe.aux_loss=all_layers"]),
    "muon": (2, ["optimizer.name=muon"]),
    "muon tp bf16": (4, ["optimizer.name=muon", "parallel.tp=2", "precision.compute=bf16"]),
    "conv cp": (2, ["model.preset=lfm2-tiny", "model.conv_layers=\"0-1\"", "parallel.cp=2"]),
    "scan tp": (4, ["model.preset=granite4-tiny", "model.layers=4", "parallel.tp=4"]),
    "delta cp": (2, ["model.preset=qwen3.5-tiny", "model.layers=4", "parallel.cp=2"]),
    "ulysses copies": (4, ["parallel.cp=4", "parallel.cp_method=ulysses"]),
    "loss scale": (2, ["precision.loss_scale=16", "optimizer.name=sgd"]),
    "bf16 gradients": (2, ["parallel.zero=0", "precision.gradients=bf16"]),
    "dp zero 3 bf16": (2, ["parallel.zero=3", "precision.compute=bf16"]),
    "delayed": (2, DELAYED + ["precision.compute=bf16"]),
    "delayed zero 1": (2, DELAYED + ["precision.compute=bf16", "parallel.zero=1"]),
    "codes tp": (2, ["parallel.tp=2", "precision.recipe=tensor", "precision.scales=f32", "precision.bf16_first=0"]),
    "window ring": (2, ["parallel.cp=2", "model.window=7"]),
    "gpt2 tp sp": (2, ["model.preset=gpt2-124m", "model.vocab=256", "model.kv_heads=4", "parallel.tp=2"]),
    "head norms tp": (2, ["model.head_norm=true", "parallel.tp=2"]),
    "norms behind tp sp": (2, SANDWICH + ["parallel.tp=2"]),
    "norms behind ring": (2, SANDWICH + ["parallel.cp=2"]),
    "norms over heads tp": (2, ["model.preset=olmo2-tiny", "parallel.tp=2"]),
    "rotations by layer ring": (2, ["model.preset=smollm3-tiny", "model.nope_layers=\"1\"", "parallel.cp=2"]),
}

# name: program of tests, the suites in it
SUITES = {
    "recipes: orders": ("engine_tests", "Recipes.HaveTheSameBitsHowever*"),
    "recipes: weights": ("engine_tests", "Recipes.HaveTheSameBitsWhereWeights*:Recipes.GatherCodesOf*"),
    "recipes: evaluations": ("engine_tests", "Recipes.GatherCodesAgain*"),
    "recipes: parts": ("engine_tests", "Recipes.TakeTheScale*"),
    "recipes: delayed": ("engine_tests", "Recipes.Delayed*"),
    "products": ("nn_tests", "QuantizedProducts.*:PrecisionFixtures*:ProductRule.*"),
    "rules of keys": ("spec_tests", "Validate.RecipesOfProducts"),
    "emulated GPU": ("cuda_cublaslt_tests", "CublasLt.MultipliesCodesOfExperts*"),
}

# name, file, text, its replacement, layouts and suites
MUTATIONS = [
    ("a sum over replicas is missing", PARALLEL + "data_parallel.cpp",
     "    state.replica_reduction = state.replicas->all_reduce(gradients);",
     "    (void)gradients;", ["dp zero 0", "hsdp"]),
    ("a sum over replicas is doubled", PARALLEL + "data_parallel.cpp",
     "    state.replica_reduction = state.replicas->all_reduce(gradients);",
     "    state.replicas->all_reduce(gradients).wait();\n    state.replica_reduction = state.replicas->all_reduce(gradients);",
     ["dp zero 0", "hsdp"]),
    ("a microbatch's gradient is dropped", PARALLEL + "data_parallel.cpp",
     "    if (state.received.defined()) state.flat->add_to_gradient_shard(std::exchange(state.received, {}));",
     "    state.received = {};", ["dp zero 2", "dp zero 3"]),
    ("a microbatch's gradient is added twice", PARALLEL + "data_parallel.cpp",
     "    if (state.received.defined()) state.flat->add_to_gradient_shard(std::exchange(state.received, {}));",
     "    if (state.received.defined()) state.flat->add_to_gradient_shard(state.received);\n"
     "    if (state.received.defined()) state.flat->add_to_gradient_shard(std::exchange(state.received, {}));",
     ["dp zero 2", "dp zero 3"]),
    ("weights are not gathered after the update", PARALLEL + "data_parallel.cpp",
     "        } else if (!std::exchange(state->published, state->frozen())) {",
     "        } else if (!std::exchange(state->published, true)) {", ["dp zero 1", "dp zero 2"]),
    ("gathered weights of ZeRO-3 are kept over the update", PARALLEL + "data_parallel.cpp",
     "            state->idle = false;\n            state->flat->free_weights();\n        } else",
     "            state->idle = false;\n        } else", ["dp zero 3"]),
    ("each rank updates the shard of the next one", PARALLEL + "data_parallel.cpp",
     "        flat.shard = state->shards->rank();",
     "        flat.shard = (state->shards->rank() + 1) % state->shards->size();", ["dp zero 1", "dp zero 3"]),
    ("the norm is of this rank's shard alone", PARALLEL + "data_parallel.cpp",
     "    groups_.world().sum(squares);\n", "", ["dp zero 1", "pp"]),
    ("the norm counts copies", PARALLEL + "data_parallel.cpp",
     "        if (state->flat->owned() && state->flat", "        if (state->flat", ["tp", "hsdp"]),
    ("targets are counted on one rank", ENGINE + "batches.cpp",
     "        terms_ = share_.sum(targets_in(targets_));", "        terms_ = targets_in(targets_);", ["dp zero 1", "documents"]),
    ("every rank has the samples of the first", ENGINE + "batches.cpp",
     "return (index * share_.ranks + share_.rank) * micro_batch_; }", "return index * share_.ranks * micro_batch_; }",
     ["dp zero 1"]),
    ("f: the gradient of a region's input is not summed", NN + "collectives.cpp",
     "        return Tensors{all_reduce(ctx, dy, ranks)};", "        (void)ranks, (void)ctx;\n        return Tensors{dy};",
     ["tp"]),
    ("g: a region's output is not summed", NN + "collectives.cpp",
     "    const Tensor sum = all_reduce(tape.context(), std::exchange(x.value, {}), ranks);",
     "    const Tensor sum = std::exchange(x.value, {});\n    (void)ranks;", ["tp"]),
    ("g: a region's output is summed twice", NN + "collectives.cpp",
     "    const Tensor sum = all_reduce(tape.context(), std::exchange(x.value, {}), ranks);",
     "    const Tensor sum = all_reduce(tape.context(), all_reduce(tape.context(), std::exchange(x.value, {}), ranks), ranks);",
     ["tp"]),
    ("norms under sequence parallelism are not summed", PARALLEL + "apply.cpp",
     "        case Role::norm: return sequence_parallel ? kTp : Axes();", "        case Role::norm: return Axes();",
     ["tp sp", "tp sp bf16", "tp sp bf16 gradients"]),
    ("copies of key heads are not summed", PARALLEL + "apply.cpp",
     "        case Role::key_value: return Axis::tp_copy;", "        case Role::key_value: return Axes();",
     ["tp copies"]),
    ("a vocabulary part begins at the first word", NN + "functions.cpp",
     "    return ranks && weight.role == Role::vocabulary ? ranks->rank() * weight.value.dim(0) : 0;",
     "    (void)ranks;\n    return 0;", ["tp", "tp sp"]),
    ("dropout of a sequence's part has the first part's mask", ENGINE + "passes.cpp",
     "        batch.row_index = nn::rows_of(batch.row_index, tp.rank(), tp.size());",
     "        batch.row_index = nn::rows_of(batch.row_index, 0, tp.size());", ["tp sp dropout"]),
    ("the last piece of an overlapped product is sent from another place", NN + "overlapped.cpp",
     "        sums_.push_back(layer_.ranks->reduce_scatter(piece, result.narrow(0, first, count)));",
     "        sums_.push_back(layer_.ranks->reduce_scatter(piece, result.narrow(0, first > 0 ? first - 1 : 0, count)));",
     ["tp overlap"]),
    ("ring: the mask begins at the wrong chunk", NN + "context_attention.cpp",
     "            visit(i, j, {true, chunks.begin(ranks_.rank(), i), chunks.begin(source, j), order_.window, first_key});",
     "            visit(i, j, {true, chunks.begin(ranks_.rank(), i), chunks.begin(ranks_.rank(), j), order_.window, first_key});",
     ["ring", "ring bf16"]),
    ("ring: no causal mask", NN + "context_attention.cpp",
     "            visit(i, j, {true, chunks.begin(ranks_.rank(), i)", "            visit(i, j, {false, chunks.begin(ranks_.rank(), i)",
     ["ring", "ring bf16"]),
    ("ring: documents of the other half", NN + "context_attention.cpp",
     "                first_key = ops::contiguous(ctx_, half(first_key_, i));\n            visit",
     "                first_key = ops::contiguous(ctx_, half(first_key_, 0));\n            visit", ["ring documents"]),
    ("ring: the gradients of keys that arrive are dropped", NN + "context_attention.cpp",
     "        ops::accumulate(ctx, arriving.k, sum.k);\n", "", ["ring", "ring bf16"]),
    ("all_gather: the chunks of keys in the order of ranks", NN + "context_attention.cpp",
     "                visit(whole.narrow(1, chunks_.begin(rank, i), chunks_.size), half(by_rank.narrow(0, rank * B, B), i));",
     "                visit(whole.narrow(1, (2 * rank + i) * chunks_.size, chunks_.size), half(by_rank.narrow(0, rank * B, B), i));",
     ["all_gather"]),
    ("all_gather: gradients of keys of this rank's queries alone", NN + "context_attention.cpp",
     "        ranks_.reduce_scatter(by_rank, sum).wait();",
     "        ops::copy(ctx_, by_rank.narrow(0, ranks_.rank() * dx.dim(0), dx.dim(0)), sum);", ["all_gather"]),
    ("ulysses: copies of heads are not summed", NN + "collectives.cpp",
     "            for (int64_t copy = 0; copy < s.copies; ++copy)", "            for (int64_t copy = 0; copy < 1; ++copy)",
     ["ulysses copies"]),
    ("a convolution without the tokens of the rank before", NN + "short_convolution.cpp",
     "        before_ = runs_.to_next(states, state_shape());", "        (void)states;", ["conv cp"]),
    ("a convolution that sends no gradient back", NN + "short_convolution.cpp",
     "        if (exchanges()) after = runs_.to_previous(found, state_shape());", "", ["conv cp"]),
    ("a delayed weight gradient is dropped", "src/tutti/pipeline/executor.cpp",
     "    if (action.op == Op::backward_weight) return f.tape->backward_weight();",
     "    if (action.op == Op::backward_weight) return action.microbatch == 0 ? void() : f.tape->backward_weight();",
     ["pp zb"]),
    ("the tied matrix is not summed between stages", PARALLEL + "data_parallel.cpp",
     "        if (state->between_stages && !state->frozen()) start_replica_reduction(*state);",
     "        if (state->between_stages && !state->frozen() && false) start_replica_reduction(*state);", ["pp"]),
    ("a recomputed forward drops other values", NN + "functions.cpp",
     "    const kernels::Dropout mask{.key = random_key(batch.seed, \"dropout.\" + place, batch.step),",
     "    const kernels::Dropout mask{.key = random_key(batch.seed + (tape.recomputing() ? 1 : 0), \"dropout.\" + place, batch.step),",
     ["recompute"]),
    ("a recomputed norm reads other weights", NN + "functions.cpp",
     "return ops::norm(ctx, x, weight, bias.defined() ? &bias : nullptr, eps, {}, offset).y;",
     "return ops::norm(ctx, x, ops::zeros(ctx, weight.shape(), weight.dtype()), bias.defined() ? &bias : nullptr, eps, {}, offset).y;",
     ["selective zb zero 3"]),
    ("router: not summed over tp", PARALLEL + "apply.cpp",
     "        case Role::expert_bias: return kTp;", "        case Role::expert_bias: return Axes();", ["moe tp"]),
    ("balancing: loads of this rank's rows alone", NN + "routing.cpp",
     "    if (microbatch) microbatch->all_reduce(sums).wait();",
     "        {}", ["moe tp"]),
    ("experts: gradients divided among too many ranks", PARALLEL + "apply.cpp",
     "            p->partial = mesh::kExpertData;", "            p->partial = Axes();", ["ep", "moe tp"]),
    ("the z-loss has the tokens of this rank", NN + "routing.cpp",
     "        b.z_scale = static_cast<float>(spec.z_coef * batch.share / tokens) * batch.loss_scale;",
     "        b.z_scale = static_cast<float>(spec.z_coef * batch.share / static_cast<double>(routed.shares.defined() ? routed.shares.dim(0) : 1)) * batch.loss_scale;",
     ["moe tp"]),
    ("the means of all layers stay those of the stage", ENGINE + "passes.cpp",
     "                                 .routing = balances_all_layers ? &*s.routing : nullptr});",
     "                                 .routing = balances_all_layers && false ? &*s.routing : nullptr});", ["moe pp"]),
    ("the optimizer leaves out a rank's last shard", "src/tutti/optim/optimizer.cpp",
     "        if (shards_[i].parameter->frozen()) continue;\n        const Rules",
     "        if (shards_[i].parameter->frozen() || (i + 1 == shards_.size() && shards_.size() % 2 == 1 && shards_[i].begin > 0)) continue;\n        const Rules",
     ["dp zero 1", "dp zero 3"]),
    ("weight decay on a part of the ranks", "src/tutti/optim/optimizer.cpp",
     "blocks_[i], group.weight_decay, group.lr_scale});",
     "blocks_[i], shards_[i].begin > 0 ? 0 : group.weight_decay, group.lr_scale});",
     ["dp zero 1", "dp zero 3"]),
    ("the count of updates begins again", "src/tutti/optim/optimizer.cpp",
     "                              .update = ++updates_,", "                              .update = (++updates_, shards_.size() > 0 && shards_.back().begin > 0 ? 1 : updates_),",
     ["dp zero 1", "dp zero 3"]),
    ("Muon: a part of a matrix at the place of another", PARALLEL + "whole_matrices.cpp",
     "        ops::copy(ctx_, exchange.received.narrow(0, at, n).reshape(slice.block.sizes), to(slice));",
     "        ops::copy(ctx_, exchange.received.narrow(0, 0, n).reshape(slice.block.sizes), to(slice));",
     ["muon", "muon tp bf16"]),
    ("packed weights outlive the update", "src/tutti/ops/weight_forms.cpp",
     "    g.b_is_packed = std::exchange(form.version, ctx.weights_version) == ctx.weights_version;",
     "    g.b_is_packed = std::exchange(form.version, ctx.weights_version) >= 0;", ["products"]),
    ("the loss scale of the first rank alone", ENGINE + "passes.cpp",
     "        batch.loss_scale = static_cast<float>(s.loss_scale.value);",
     "        batch.loss_scale = s.groups.world().rank() == 0 ? static_cast<float>(s.loss_scale.value) : 1;", ["loss scale"]),
    ("an update of several ranks forgets the loss scale", ENGINE + "step.cpp",
     "optim::clip_factor(r.grad_norm, s.run.optimizer.clip) / r.loss_scale,",
     "optim::clip_factor(r.grad_norm, s.run.optimizer.clip) / (s.groups.world().size() > 1 ? 1 : r.loss_scale),",
     ["loss scale"]),
    ("the norm of several ranks forgets the loss scale", ENGINE + "step.cpp",
     "return s.data_parallel->gradient_norm() / s.loss_scale.value; }",
     "return s.data_parallel->gradient_norm() / (s.groups.world().size() > 1 ? 1 : s.loss_scale.value); }", ["loss scale"]),
    ("a contribution replaces the gradient in bf16", PARALLEL + "flat_unit.cpp",
     "        add_rounded(ctx_, contribution_, gradients_);", "        ops::cast_into(ctx_, contribution_, gradients_);",
     ["bf16 gradients"]),
    ("ZeRO-3 gathers weights in bf16 that only the first rank has rounded", PARALLEL + "flat_unit.cpp",
     "        ops::cast_into(ctx_, masters_, shard);\n        return shard;",
     "        if (options_.shard == 0) ops::cast_into(ctx_, masters_, shard);\n        return shard;", ["dp zero 3 bf16"]),
    ("delta rule: a rank begins with an empty state", NN + "delta_rule.cpp",
     "            before_[i] = state;", "            before_[i] = Tensor();\n            (void)state;", ["delta cp"]),
    ("delta rule: the gradient of a state that was handed on is dropped", NN + "delta_rule.cpp",
     "ops::contiguous(ctx_, runs_.tokens(dout, i)), after,",
     "ops::contiguous(ctx_, runs_.tokens(dout, i)), wanted ? Tensor() : after,", ["delta cp"]),
    ("groups of heads that all ranks have: their gradients are not summed", PARALLEL + "apply.cpp",
     "divides_groups(p, mesh) ? Axes() : Axes(kTp);", "divides_groups(p, mesh) ? Axes() : Axes();", ["scan tp"]),
    ("ring: no window", NN + "context_attention.cpp",
     "chunks.begin(source, j), order_.window, first_key});", "chunks.begin(source, j), 0, first_key});", ["window ring"]),
    ("ring: scores without their cap", NN + "context_attention.cpp",
     "options.scores, DType::f32));", "{.scale = options.scores.scale}, DType::f32));", ["norms behind ring"]),
    ("parts of the vocabulary: logits without their cap", NN + "functions.cpp",
     "ranks ? &shard : nullptr, cap);", "ranks ? &shard : nullptr, ranks ? 0 : cap);", ["norms behind tp sp"]),
    ("norms behind a block are not summed over a sequence's parts", "src/tutti/models/residual_block.h",
     "s.norm_eps, nn::Role::norm, s.norm_offset ? 1 : 0);",
     "s.norm_eps, of == names.behind_mixer ? nn::Role::replicated : nn::Role::norm, s.norm_offset ? 1 : 0);",
     ["norms behind tp sp"]),
    ("norms of heads are not summed over the heads' ranks", PARALLEL + "apply.cpp",
     "        case Role::every_head: return kTp;", "        case Role::every_head: return Axes();",
     ["head norms tp", "norms over heads tp"]),
    ("a norm over heads sends no gradient back", NN + "functions.cpp",
     "    const Var some = all_to_all_hp2sp(tape, heads, ranks);",
     "    const Var some = all_to_all_hp2sp(tape, {heads.value, -1}, ranks);", ["norms over heads tp"]),
    ("positions of a part begin with the sequence", NN + "batch.cpp",
     "static_cast<int32_t>(i % T) - first_key(i); });", "static_cast<int32_t>(i % (T / part.ranks)) - first_key(i); });",
     ["ring", "rotations by layer ring"]),
    ("position embeddings of a sequence's first part", NN + "functions.cpp",
     "some_rows ? rows_of(all, layer.ranks->rank(), layer.ranks->size()) : all;",
     "some_rows ? rows_of(all, 0, layer.ranks->size()) : all;", ["gpt2 tp sp"]),
    ("codes: delayed scales of this rank's magnitudes", NN + "delayed.cpp",
     "    if (ranks.size() > 1) ranks.all_reduce(amaxes_, comm::Reduce::max).wait();", "    (void)ranks;",
     ["delayed"]),
    ("codes: the largest magnitude of this rank's part", NN + "quantized.cpp",
     "        if (ranks != nullptr) ranks->all_reduce(amax, comm::Reduce::max).wait();", "", ["recipes: parts", "products"]),
    ("codes: the largest magnitude of dy is not reduced over tp", ENGINE + "products.cpp",
     "    {.x = mesh::kCp, .dy = mesh::kTp | mesh::kCp, .w = mesh::kTp},", "    {.x = mesh::kCp, .dy = mesh::kCp, .w = mesh::kTp},",
     ["recipes: parts"]),
    ("codes: the largest magnitude of x is not reduced over cp", ENGINE + "products.cpp",
     "    {.x = mesh::kCp, .dy = mesh::kTp | mesh::kCp, .w = mesh::kTp},",
     "    {.x = Axes(), .dy = mesh::kTp | mesh::kCp, .w = mesh::kTp},", ["recipes: parts"]),
    ("codes: the largest magnitude of w is not reduced over tp", ENGINE + "products.cpp",
     "    {.x = mesh::kCp, .dy = mesh::kTp | mesh::kCp, .w = mesh::kTp},",
     "    {.x = mesh::kCp, .dy = mesh::kTp | mesh::kCp, .w = Axes()},", ["recipes: parts"]),
    ("codes: the largest magnitude of x of a row layer is not reduced over tp", ENGINE + "products.cpp",
     "    {.x = mesh::kTp | mesh::kCp, .dy = mesh::kCp, .w = mesh::kTp, .input_is_saved = true},",
     "    {.x = mesh::kCp, .dy = mesh::kCp, .w = mesh::kTp, .input_is_saved = true},", ["recipes: parts"]),
    ("codes: the largest magnitudes of weights are those of this rank's shard", PARALLEL + "data_parallel.cpp",
     "        m.shards->all_reduce(m.all, comm::Reduce::max).wait();\n", "", ["recipes: weights"]),
    ("codes: the largest magnitude of weights of a rank of tp", PARALLEL + "data_parallel.cpp",
     "        if (m.parts != nullptr) m.parts->all_reduce(m.all, comm::Reduce::max).wait();\n", "", ["recipes: weights"]),
    ("codes: groups of a shard begin with the shard", PARALLEL + "coded_weights.cpp",
     "            .first = run.first,", "            .first = 0,", ["recipes: weights"]),
    ("codes: groups of an expert's rows go on with those of the next", NN + "quantized.cpp",
     "    if (coding.direct || (use.role == GemmRole::weight_gradient && q.along > 0))",
     "    if (coding.direct || (use.role == GemmRole::weight_gradient && q.along < 0))", ["products"]),
    ("codes: a cut inside of a group is legal", "src/tutti/spec/recipe.cpp",
     "        refuse(d.parts > 1 && d.of_rank() % recipe->x.along != 0, share_of(d)",
     "        refuse(false && d.parts > 1 && d.of_rank() % recipe->x.along != 0, share_of(d)", ["rules of keys"]),
    ("codes: tokens of a rank may end inside of a group", "src/tutti/spec/recipe.cpp",
     "    refuse(run.parallel.cp > 1 && unit > 0 &&", "    refuse(false && run.parallel.cp > 1 && unit > 0 &&", ["rules of keys"]),
    ("codes: the scale of dy is that of another microbatch", NN + "quantized.cpp",
     "    const bool counts = lost_ != nullptr",
     "    static thread_local std::map<const Parameter*, int32_t> last;\n"
     "    if (q.along == 0 && factor == DelayedScales::kDy && !given.defined() && use.rows.empty()) {\n"
     "        amax = ops::largest_magnitudes(ctx, x, {});\n"
     "        if (ranks != nullptr) ranks->all_reduce(amax, comm::Reduce::max).wait();\n"
     "        const int32_t own = amax.to_host<int32_t>()[0];\n"
     "        const std::vector<int32_t> of_another = {last.contains(use.layer) ? last[use.layer] : own};\n"
     "        last[use.layer] = own;\n"
     "        amax = Tensor::from_host<int32_t>(ctx.device, {1}, of_another, Purpose::workspace);\n"
     "    }\n"
     "    const bool counts = lost_ != nullptr", ["recipes: orders"]),
    ("codes: those of columns are those of rows, transposed", NN + "quantized.cpp",
     "    return over_rows ? kernels::GroupShape{q.along, q.across} : kernels::GroupShape{q.across, q.along};",
     "    return (void)over_rows, kernels::GroupShape{q.across, q.along};", ["products"]),
    ("codes: magnitudes of a history are those of codes", NN + "quantized.cpp",
     "        if (scales_->recording()) ops::add_magnitudes(ctx, x, place.amax);",
     "        if (scales_->recording())\n"
     "            ops::add_magnitudes(\n"
     "                ctx, ops::decoded(ctx, ops::quantized(ctx, x, q.format, q.divisors, {}, purpose, {}, given)), place.amax);",
     ["recipes: delayed"]),
    ("codes: the largest magnitude over ranks is that of codes", NN + "quantized.cpp",
     "        amax = ops::largest_magnitudes(ctx, x, shared ? std::vector<int64_t>() : coding.segments);",
     "        amax = ops::largest_magnitudes(\n"
     "            ctx, ops::decoded(ctx, ops::quantized(ctx, x, q.format, q.divisors, {}, purpose)),\n"
     "            shared ? std::vector<int64_t>() : coding.segments);", ["recipes: parts", "products"]),
    ("codes: a history moves on at each cast, also of a recompute", NN + "delayed.cpp",
     "    return {amaxes_.narrow(0, 3 * number + of, 1)",
     "    float* const history = histories_[to_size(number)].view().as<float>();\n"
     "    if (recording_ && of == kX && known) {\n"
     "        std::shift_left(history, history + recipe_.history, 1);\n"
     "        history[recipe_.history - 1] = history[recipe_.history - 2];\n"
     "    }\n"
     "    return {amaxes_.narrow(0, 3 * number + of, 1)", ["recipes: orders"]),
    ("codes: x is E5M2", NN + "quantized.cpp", "    return ops::quantized(ctx, x, q.format, q.divisors, std::move(coding), purpose, amax, given,",
     "    return ops::quantized(ctx, x, factor == DelayedScales::kX ? DType::e5m2 : q.format, q.divisors, std::move(coding), purpose, amax, given,",
     ["products"]),
    ("codes: dy is E4M3", NN + "quantized.cpp", "    return ops::quantized(ctx, x, q.format, q.divisors, std::move(coding), purpose, amax, given,",
     "    return ops::quantized(ctx, x, factor == DelayedScales::kDy ? DType::e4m3 : q.format, q.divisors, std::move(coding), purpose, amax, given,",
     ["products"]),
    ("codes: the scale is inverted", "src/tutti/kernels/cpu/float8.cpp", "    return scale.factor;", "    return 1 / scale.factor;",
     ["products"]),
    ("codes: the scale of a history is inverted", NN + "delayed.cpp", "    factor = float8_factor(", "    factor = 1 / float8_factor(",
     ["products", "recipes: delayed"]),
    ("codes: the scale of a shard is inverted", "src/tutti/kernels/cpu/float8.cpp",
     "to - from, scale.factor, q.codes", "to - from, 1 / scale.factor, q.codes", ["recipes: weights"]),
    ("codes: the divisor is inverted", "src/tutti/kernels/cpu/float8.cpp",
     "                const float times = divisor(", "                const float times = 1 / divisor(", ["products"]),
    ("codes: those of a weight outlive the update", "src/tutti/ops/weight_forms.cpp",
     "        if (form.version != ctx.weights_version) {", "        if (form.version < 0) {", ["recipes: orders", "products"]),
    ("codes: those that an evaluation gathered outlive its end", PARALLEL + "data_parallel.cpp",
     "        if (state->flat->coded() && std::exchange(state->idle, false)) state->flat->free_weights();\n", "", ["recipes: evaluations"]),
    ("codes: saved ones are of the tensor of another layer", NN + "quantized.cpp",
     "    const Use of_first{use.role, use.rows, made.layer};", "    const Use of_first{use.role, use.rows, use.layer};",
     ["recipes: orders"]),
    ("codes: biases of experts fill their padding", NN + "mixture.cpp",
     "    const Tensor unit_of_rows = clears ? without_padding(ctx, upper.y, d) : upper.y;",
     "    const Tensor unit_of_rows = upper.y;", ["emulated GPU"]),
    ("codes: biases of experts fill their padding when recomputed", NN + "mixture.cpp",
     "            return clears ? without_padding(ctx, y, d) : y;", "            return (void)clears, y;", ["emulated GPU"]),
    ("codes: padding counts as values", NN + "quantized.cpp", "lost_->of_cast(x.numel() - use.padding * x.shape()[-1])",
     "lost_->of_cast(x.numel())", ["emulated GPU"]),
]


def write_corpus(folder):
    draw = random.Random(3)
    lines = ["".join(draw.choice("abcdefghijklm op") for _ in range(draw.randint(3, 42))) for _ in range(400)]
    (folder / "corpus.txt").write_text("\n".join(lines))
    (folder / "corpus.jsonl").write_text("".join(f'{{"text": "{line}"}}\n' for line in lines))


class Scratch(ScratchTree):
    def __init__(self, folder, build, jobs):
        super().__init__(folder, build, jobs, tests=True)
        (self.folder / "config.toml").write_text('[model]\npreset = "llama-tiny"\n[data]\ntrain = ["corpus.txt"]\n')
        write_corpus(self.folder)

    # None: it does not end.
    def run(self, command, seconds):
        try:
            return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    # "same", "hidden" by rounding, "NOT the same" or "error", and the last lines.
    def verify(self, layout):
        ranks, settings = LAYOUTS[layout]
        command = [str(self.folder / self.where / "tutti"), "verify", "config.toml", "--ranks", str(ranks)]
        # A preset of the layout is where the sizes start from.
        for setting in sorted(MODEL + settings, key=lambda s: s in settings):
            command += ["--set", setting]
        done = self.run(command, 300)
        if done is None:
            return "error", "no end in 300 s"
        lines = [line.strip() for line in (done.stdout.strip() or done.stderr.strip()).splitlines()]
        verdict = next((i for i, line in enumerate(lines) if "one rank" in line and not line.startswith("step ")), len(lines) - 1)
        last = "; ".join(" ".join(line.split()) for line in lines[verdict:verdict + 4] if not line.startswith("next:"))
        if done.returncode == 1 and "rounding hides" in last:
            return "hidden", last
        if done.returncode not in (0, 1, 4, 70, -6, -8, -11):
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return {0: "same", 1: "NOT the same"}.get(done.returncode, "error"), last

    # "passes", "FAILS" or "error", and the first tests that fail.
    def test(self, suite):
        program, chosen = SUITES[suite]
        found = [p for p in (self.folder / self.where).rglob(program) if p.is_file()]
        command = [str(found[0]), f"--gtest_filter={chosen}", "--gtest_brief=1", "--gtest_fail_fast"]
        done = self.run(command, 900)
        if done is None:
            return "error", "no end in 900 s"
        failed = sorted(set(re.findall(r"^\[  FAILED  \] (\w+\.[\w/]+)", done.stdout, re.M)))
        ran = next((line for line in done.stdout.splitlines() if line.startswith("[==========]") and " ran" in line), "no test ran")
        if done.returncode == 0 and " 0 tests ran" in f" {ran}":
            raise SystemExit(f"{' '.join(command)}: no such test")
        return {0: "passes", 1: "FAILS"}.get(done.returncode, "error"), "; ".join(failed) or ran

    def ask(self, what):
        return self.test(what) if what in SUITES else self.verify(what)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="only whether the texts are there")
    parser.add_argument("--build", default="build/work", help="folder of the build in the scratch folder")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation")
    parser.add_argument("--count", type=int, default=1000, help="mutations")
    parser.add_argument("--skip-unchanged", action="store_true", help="do not verify with the unchanged program first")
    parser.add_argument("--only", action="append", default=[], help="mutations whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    texts = {name: (ROOT / name).read_text() for _, name, *_ in MUTATIONS}
    for what, name, old, _, layouts in MUTATIONS:
        if texts[name].count(old) != 1:
            raise SystemExit(f"{what}: {name} has {texts[name].count(old)} times\n{old}")
        if missing := [layout for layout in layouts if layout not in LAYOUTS and layout not in SUITES]:
            raise SystemExit(f"{what}: no layout or suite {missing}")
    if arguments.check:
        return print(f"{len(MUTATIONS)} mutations, each of a text that its file has once") or 0
    if not arguments.scratch:
        parser.error("--scratch FOLDER is required")
    scratch = Scratch(arguments.scratch, arguments.build, arguments.jobs)
    lines, unnoticed, alarms = [], [], []

    def say(line):
        lines.append(line)
        print(line, flush=True)

    chosen = [m for m in MUTATIONS if not arguments.only or any(part in m[0] for part in arguments.only)]
    chosen = chosen[arguments.first:arguments.first + arguments.count]
    used = {layout for *_, layouts in chosen for layout in layouts}
    unchanged = [] if arguments.skip_unchanged else [layout for layout in [*LAYOUTS, *SUITES] if layout in used]

    def programs(layouts):
        return sorted({SUITES[layout][0] if layout in SUITES else "tutti" for layout in layouts})

    scratch.build(*programs(used))
    for layout in unchanged:
        verdict, last = scratch.ask(layout)
        say(f"unchanged | {layout} | {verdict} | {last}")
        if verdict not in ("same", "passes"):
            alarms.append(layout)
    for what, name, old, new, layouts in chosen:
        (scratch.folder / name).write_text(texts[name].replace(old, new))
        scratch.build(*programs(layouts))
        noticed = False
        for layout in layouts:
            verdict, last = scratch.ask(layout)
            say(f"{what} | {layout} | {verdict} | {last}")
            noticed = noticed or verdict in ("NOT the same", "FAILS", "error")
        if not noticed:
            unnoticed.append(what)
        scratch.restore(name)
    say(f"{len(chosen)} mutations, {len(chosen) - len(unnoticed)} noticed; {len(unchanged)} layouts and suites of the unchanged program, "
        f"{len(alarms)} false alarms")
    for what in unnoticed:
        say(f"NOT NOTICED: {what}")
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")
    return 1 if unnoticed or alarms else 0


if __name__ == "__main__":
    sys.exit(main())
