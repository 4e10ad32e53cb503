#!/usr/bin/env python3
"""What an optimizer, and the types of its state, do to the loss: the same model on the same text, several seeds.

    bench/optimizers.py --tutti BUILD/tutti --text FILE --out DIR [--model llama-5m] [--steps 240] [--seq-len 128]
        [--batch 8] [--seeds 1234,1235,1236] [--only adamw,muon] [--window 20] [--threads N]

Every run reads the text as bytes, has a warm-up of 20 steps and then a constant learning rate, so that a curve can be read
at any step. Runs of one seed start from the same weights and see the same samples; a seed changes both. The loss of a step
is that of samples that the run has not seen yet. A figure is a mean of --window steps.

Muon has the learning rate and the weight decay of AdamW (muon_scale = match_adamw); Lion a quarter of the rate and four
times the decay, as its authors advise (Chen et al. 2023). A run in DIR that has enough steps is kept, so the script can be repeated.

Writes DIR/optimizers.json (every loss, and the figures) and DIR/optimizers.svg, and prints a table. No figure is a
condition: the spread of AdamW's own seeds stands beside them. Exit code 3: a training did not run.
"""

import argparse
import json
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys

LR, DECAY = 1e-3, 0.1
RECIPES = {  # name: (title, keys)
    "adamw": ("AdamW, f32 states", {}),
    "f16": ("AdamW, f16 with a loss scale", {"precision.compute": "f16"}),
    **{f"fp8_{name}": (f"AdamW, 8-bit products, {name}", {"precision.recipe": name})
       for name in ("tensor", "delayed", "block", "mxfp8")},
    "adamw_u8": ("AdamW, 8-bit states", {"optimizer.m": "u8", "optimizer.v": "u8"}),
    "adamw_bf16": ("AdamW, bf16 states", {"optimizer.m": "bf16", "optimizer.v": "bf16"}),
    "no_master": ("AdamW, no master weights", {"precision.master": "none"}),
    "bf16_gradients": ("AdamW, bf16 gradients and m", {"precision.gradients": "bf16", "optimizer.m": "bf16"}),
    "muon": ("Muon", {"optimizer.name": "muon"}),
    "lion": ("Lion", {"optimizer.name": "lion", "optimizer.lr": LR / 4, "optimizer.weight_decay": 4 * DECAY}),
}
COLOURS = ["#1f4e79", "#c0504d", "#4f9d69", "#8064a2", "#7f7f7f", "#e08e0b", "#17a2b8", "#b83b8e"]


def losses(options, name, seed):
    """Of every step."""
    run = options.out / f"{name}_{seed}"
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    if len(lines) < options.steps:
        shutil.rmtree(run, ignore_errors=True)
        keys = {"data.train": str(options.text), "model.preset": options.model, "train.steps": options.steps,
                "train.seq_len": options.seq_len, "train.global_batch": options.batch, "train.micro_batch": options.batch,
                "train.seed": seed, "train.threads": options.threads, "optimizer.schedule": "constant",
                "optimizer.lr": LR, "optimizer.weight_decay": DECAY, "optimizer.warmup_steps": 20, "log.every": 1,
                "checkpoint.every": 0, **RECIPES[name][1]}
        config = options.out / "empty.toml"
        config.write_text("")
        words = [*options.tutti, "train", str(config), "--out", str(run), "--resume", "never"]
        for key, value in keys.items():
            words += ["--set", f"{key}={json.dumps(value)}"]
        with open(options.out / f"{name}_{seed}.log", "w", encoding="utf-8") as log:
            code = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        if code != 0:
            print(f"{name}, seed {seed}: exit code {code}, see {log.name}", file=sys.stderr)
            sys.exit(3)
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        lines = metrics.read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines][:options.steps]


def smooth(curve, window):
    """Element i: the mean of the steps that end with step i + window."""
    return [statistics.fmean(curve[i:i + window]) for i in range(len(curve) - window + 1)]


def first_step_below(curve, loss, window):
    """The step at whose end the mean of `window` steps is at most `loss`."""
    return next((i + window for i, x in enumerate(smooth(curve, window)) if x <= loss), None)


def figures(curves, window):
    """By recipe: the last mean of every seed, its distance from AdamW's, and AdamW's final loss reached."""
    last = {name: [smooth(c, window)[-1] for c in by_seed.values()] for name, by_seed in curves.items()}
    result = {}
    for name, by_seed in curves.items():
        reached = [first_step_below(c, smooth(curves["adamw"][seed], window)[-1], window) for seed, c in by_seed.items()]
        apart = [x / y - 1 for x, y in zip(last[name], last["adamw"])]
        result[name] = {"last": last[name], "against_adamw": apart, "mean_against_adamw": statistics.fmean(apart),
                        "reaches_adamw_at": reached,
                        "share_of_steps": None if None in reached else
                        statistics.fmean(r / len(c) for r, c in zip(reached, by_seed.values()))}
    return result


def svg(curves, title, window):
    """Means over the seeds, with the band of all seeds behind each."""
    width, height, left, right, top, bottom = 930, 520, 60, 260, 40, 50
    means = {n: [statistics.fmean(v) for v in zip(*(smooth(c, window) for c in by_seed.values()))] for n, by_seed in curves.items()}
    bands = {n: [(min(v), max(v)) for v in zip(*(smooth(c, window) for c in by_seed.values()))] for n, by_seed in curves.items()}
    steps = len(next(iter(means.values())))
    low, high = min(map(min, means.values())) * 0.98, max(m[steps // 10] for m in means.values())

    def at(i, loss):
        x = left + (width - left - right) * i / (steps - 1)
        return f"{x:.1f},{top + (height - top - bottom) * (high - min(loss, high)) / (high - low):.1f}"

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
           f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="24" font-size="15">{title}</text>']
    for k in range(6):
        loss = low + (high - low) * k / 5
        y = at(0, loss).split(",")[1]
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{y}" y2="{y}" stroke="#ddd"/>'
                   f'<text x="{left - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        i = (steps - 1) * k // 5
        out.append(f'<text x="{at(i, low).split(",")[0]}" y="{height - bottom + 20}" text-anchor="middle">{i + window}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle">step '
               f'(mean loss of the last {window})</text>')
    for (name, mean), colour in zip(means.items(), COLOURS):
        band = [at(i, b[1]) for i, b in enumerate(bands[name])] + [at(i, b[0]) for i, b in reversed(list(enumerate(bands[name])))]
        out.append(f'<polygon points="{" ".join(band)}" fill="{colour}" opacity="0.12"/>')
        out.append(f'<polyline points="{" ".join(at(i, x) for i, x in enumerate(mean))}" fill="none" stroke="{colour}" '
                   'stroke-width="1.8"/>')
    for k, ((name, mean), colour) in enumerate(zip(means.items(), COLOURS)):
        y = top + 24 * k + 10
        out.append(f'<line x1="{width - right + 14}" x2="{width - right + 38}" y1="{y}" y2="{y}" stroke="{colour}" '
                   f'stroke-width="3"/><text x="{width - right + 44}" y="{y + 4}">{RECIPES[name][0]}</text>')
    return "\n".join([*out, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutti", type=shlex.split, required=True, help="the program, or a command that starts it")
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--model", default="llama-5m")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seeds", default="1234,1235,1236")
    parser.add_argument("--only", default=",".join(RECIPES), help=f"of {', '.join(RECIPES)}; adamw always")
    parser.add_argument("--window", type=int, default=20, help="steps of a mean")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    names = [name for name in RECIPES if name in ["adamw", *options.only.split(",")]]
    if options.steps < 2 * options.window or not set(options.only.split(",")) <= set(RECIPES):
        parser.error(f"--steps must be at least {2 * options.window}, got {options.steps}; --only takes names of {', '.join(RECIPES)}")
    options.out.mkdir(parents=True, exist_ok=True)

    curves = {name: {} for name in names}
    for seed in map(int, options.seeds.split(",")):
        for name in names:
            curves[name][seed] = losses(options, name, seed)
    result = figures(curves, options.window)
    setting = {"model": options.model, "steps": options.steps, "seq_len": options.seq_len, "batch": options.batch,
               "window": options.window, "lr": LR, "weight_decay": DECAY, "cores": os.cpu_count()}
    (options.out / "optimizers.json").write_text(json.dumps({"setting": setting, "figures": result, "losses": curves}) + "\n")
    (options.out / "optimizers.svg").write_text(
        svg(curves, f"{options.model}, {options.batch} x {options.seq_len} tokens a step, {len(curves['adamw'])} seeds", options.window))
    print(f"{'':35}{'last loss by seed':32}{'against AdamW':>15}{'AdamW reached at':>20}")
    for name, f in result.items():
        share = "never" if f["share_of_steps"] is None else f"{f['share_of_steps']:.0%} of steps"
        print(f"{RECIPES[name][0]:35}{'  '.join(f'{x:.4f}' for x in f['last']):32}{f['mean_against_adamw']:>15.2%}{share:>20}")


if __name__ == "__main__":
    main()
