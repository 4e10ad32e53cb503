#!/usr/bin/env python3
"""Writes later_tokens.json: models of fixtures.json with a block that predicts one token further, and the golden values
of their training by transformers in float64: the block is a model of transformers by itself, of one depth, whose layers
and last norm have the names of the published files. Needs torch and transformers 5; rerun: make_later_tokens.py"""
import json
import pathlib
import tempfile

import torch

# Every float32 of the modeling files is float64.
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
torch.set_default_dtype(torch.float64)

import safetensors.torch  # noqa: E402
import transformers  # noqa: E402

HERE = pathlib.Path(__file__).parent
MASK = (1 << 64) - 1

# The layers of the block: names in files, and the layer of the base model that they are like.
BLOCKS = {
    "qwen3_next": {
        "config": {"num_hidden_layers": 1, "layer_types": ["full_attention"], "mlp_only_layers": []},
        "like": {"mtp.layers.0.": "model.layers.3."},
        "model": "model.", "last_norm": ("mtp.norm.weight", "model.norm.weight"),
        "stem": ("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.fc.weight"),
        "key": {"mtp_num_hidden_layers": 1},
    },
    "nemotron_h": {
        "config": {"num_hidden_layers": 2, "hybrid_override_pattern": "*E"},
        "like": {"mtp.layers.0.": "backbone.layers.1.", "mtp.layers.1.": "backbone.layers.3."},
        "model": "backbone.", "last_norm": ("mtp.layers.1.final_layernorm.weight", "backbone.norm_f.weight"),
        "stem": ("mtp.layers.0.enorm.weight", "mtp.layers.0.hnorm.weight", "mtp.layers.0.eh_proj.weight"),
        "key": {"num_nextn_predict_layers": 1},
    },
}
WEIGHT = 0.7


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def values(name, shape, c, a, seed):
    fnv = 0xCBF29CE484222325
    for byte in name.encode():
        fnv = ((fnv ^ byte) * 0x100000001B3) & MASK
    key = mix64(mix64(seed) ^ fnv)
    count = int(torch.tensor(shape).prod())
    numbers = [c + a * ((mix64((key + i) & MASK) >> 48) - 32768) / 32768 for i in range(count)]
    return torch.tensor(numbers).reshape(shape)


def load(config, tensors):
    """A model of transformers with these tensors, by their names in files."""
    with tempfile.TemporaryDirectory() as directory:
        (pathlib.Path(directory) / "config.json").write_text(json.dumps(config))
        safetensors.torch.save_file(tensors, f"{directory}/model.safetensors", {"format": "pt"})
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    return model.train()


def squares(model, names, renamed):
    """Sum of squares of the gradient of each tensor in files; `renamed`: the name there of the model's own."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    found = {}
    for name in names:
        wanted = renamed.get(name, name)
        if wanted not in own and wanted.startswith("backbone."):
            wanted = "model." + wanted[len("backbone."):].replace("norm_f", "norm_f")
        if wanted in own:
            grad = own[wanted].grad
            found[name] = None if grad is None else float((grad**2).sum())
            continue
        block, expert, matrix = wanted.split(".experts.")[0], int(wanted.split(".experts.")[1].split(".")[0]), wanted.split(".")[-2]
        if f"{block}.experts.gate_up_proj" in own and matrix != "down_proj":
            grad = own[f"{block}.experts.gate_up_proj"].grad[expert]
            half = grad.shape[0] // 2
            grad = grad[:half] if matrix == "gate_proj" else grad[half:]
        else:
            grad = own[f"{block}.experts.{matrix}"].grad[expert]
        found[name] = float((grad**2).sum())
    return found


def family(name, all_fixtures):
    base, block = all_fixtures["families"][name], BLOCKS[name]
    seed, ids = all_fixtures["weights"]["seed"], torch.tensor([all_fixtures["ids"]])
    tensors = {n: t[:3] for n, t in base["tensors"].items()}
    width = base["config"]["hidden_size"]
    inside = {}  # name in files -> name in the block's own model
    for prefix, like in block["like"].items():
        place = prefix.split(".")[-2]
        for n, t in base["tensors"].items():
            if n.startswith(like):
                tensors[prefix + n[len(like):]] = t[:3]
                inside[prefix + n[len(like):]] = f"{block['model']}layers.{place}.{n[len(like):]}"
    norm = base["tensors"][block["last_norm"][1]][:3]
    for n in (block["last_norm"][0], *block["stem"][:2]):
        tensors[n] = norm
    tensors[block["stem"][2]] = [[width, 2 * width], 0.0, 0.25]
    inside[block["last_norm"][0]] = block["last_norm"][1]
    weights = {n: values(n, *t, seed) for n, t in tensors.items()}

    main = load(base["config"], {n: weights[n] for n in base["tensors"]})
    embedding = next(n for n in base["tensors"] if "embed" in n)
    of_block = {inside[n]: weights[n] for n in inside} | {embedding: weights[embedding], "lm_head.weight": weights["lm_head.weight"]}
    later = load(base["config"] | block["config"], of_block)
    stem = [torch.nn.Parameter(weights[n]) for n in block["stem"]]
    eps = base["config"].get("rms_norm_eps", base["config"].get("layer_norm_epsilon"))
    offset = 1 if name == "qwen3_next" else 0

    def normed(x, w):
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * (w + offset)

    core = main.model if hasattr(main, "model") else main.backbone
    block_core = later.model if hasattr(later, "model") else later.backbone
    h = core(ids, use_cache=False).last_hidden_state
    targets, count = ids[:, 1:], ids.shape[1] - 1
    loss = torch.nn.functional.cross_entropy(main.lm_head(h)[0, :-1], targets[0], reduction="sum") / count
    e = main.get_input_embeddings()(ids[:, 1:])
    u = torch.cat([normed(e, stem[0]), normed(h[:, :-1], stem[1])], -1) @ stem[2].T
    further = main.lm_head(block_core(inputs_embeds=u, use_cache=False).last_hidden_state)
    later_loss = torch.nn.functional.cross_entropy(further[0, :-1], ids[0, 2:], reduction="sum") / count
    (loss + WEIGHT * later_loss).backward()

    with torch.no_grad():
        logits = main(ids, use_cache=False).logits[0, -1, :16]
    grads = squares(main, base["tensors"], {}) | squares(later, inside, inside)
    grads |= {n: float((p.grad**2).sum()) for n, p in zip(block["stem"], stem)}
    untrained = [n for n in tensors if "e_score_correction_bias" in n]
    return {"config": base["config"] | block["key"], "mtp_depth": 1, "mtp_weight": WEIGHT, "loss": float(loss),
            "mtp_losses": [float(later_loss)], "logits_last16": [float(x) for x in logits],
            "tensors": {n: [*tensors[n], None if n in untrained else grads[n]] for n in sorted(tensors)}}


def main():
    fixtures = json.loads((HERE / "fixtures.json").read_text())
    result = {"about": "Models of fixtures.json with a block that predicts the token two places ahead; see its `about`. "
                       "Trained is loss + mtp_weight * mtp_losses[0]; both are sums divided by the 11 predictions of "
                       "loss. Made by make_later_tokens.py with transformers " + transformers.__version__ + ".",
              "families": {f"{name}_later": family(name, fixtures) for name in BLOCKS}}
    (HERE / "later_tokens.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")
    for name, f in result["families"].items():
        print(name, f["loss"], f["mtp_losses"], fixtures["families"][name[:-6]]["loss"])


main()
