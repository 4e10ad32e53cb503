#!/usr/bin/env python3
"""What a run of bench/gpu.sh found, from the logs in its folder: what to read first, then the tables; also written there
as summary.json. Exit code 1: a test failed, or a loss curve is too far from PyTorch's."""

import csv
import json
import pathlib
import re
import statistics
import sys

WARM_UP = 3  # steps of PyTorch that compile kernels or grow its cache of memory
KERNELS = 10  # of a step that are shown


def document(folder, name):
    """What a command of Tutti said in JSON; None, and a line, when it failed."""
    if not (folder / f"{name}.log").exists():
        return None
    try:
        said = json.loads((folder / f"{name}.log").read_text())
    except json.JSONDecodeError:
        said = {"error": "no JSON"}
    if "error" not in said:
        return said
    print(f"{name} failed ({said['error'].splitlines()[0]}): see {folder}/{name}.err")
    return None


def lines_of_json(path):
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:  # a warning, or a line that was cut off
            continue
    return [x for x in found if isinstance(x, dict)]


def first_failure(log):
    """The lines of the first failure of a test, or the last lines of a program that died."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    start = next((i for i, x in enumerate(lines) if re.search(r": Failure$|^=========", x)), max(0, len(lines) - 3))
    return lines[start:start + 6]


def correctness(folder, summary):
    failed = 0
    for codes in sorted(folder.glob("*.codes")):
        name, rows = codes.stem, [line.split(" ", 1) for line in codes.read_text().splitlines()]
        bad = [test for code, test in rows if code != "0"]
        failed += len(bad)
        summary[name] = {"tests": len(rows), "failed": bad}
        print(f"{name:12} {len(rows):4} tests, {len(bad)} failed")
        for test in bad[:5]:
            print(f"    {test}")
            for line in first_failure(folder / name / (test.replace("/", "_") + ".log")):
                print(f"        {line[:160]}")
    differs = (folder / "equal_bits.log").read_text() if (folder / "equal_bits.log").exists() else ""
    weights = list((folder / "train_1").rglob("*.safetensors"))
    equal = bool(weights) and "differ" not in differs
    summary["equal_bits"] = equal
    print(f"two trainings of 20 steps: {'equal bits' if equal else 'NOT equal, see equal_bits.log'} ({len(weights)} files)")
    return 1 if failed or not equal else 0


def print_tuning(folder, model, summary):
    """The products of a step by the first candidate of cuBLASLt's heuristic and by the fastest, those with most to gain
    first; and the step with either."""
    said = document(folder, f"tune_{model}")
    if not said:
        return
    rows = sorted(said["rows"], key=lambda x: x["best_s"] - x["first_s"])
    first, best = (sum(x[name] for x in rows) for name in ("first_s", "best_s"))
    slow = sum(x["first_s"] > 1.03 * x["best_s"] for x in rows)
    print(f"\n{model}: {len(rows)} products by cuBLASLt's candidates, each once: first {first * 1e3:.3f} ms, fastest"
          f" {best * 1e3:.3f} ms; {slow} of the first are more than 3 % slower than the fastest")
    for x in rows[:KERNELS]:
        print(f"    {x['first_s'] * 1e6:9.1f} us {x['best_s'] * 1e6:9.1f} us  {x['candidate'] + 1} of {x['candidates']}"
              f"  {x['product']}")
    steps = {name: document(folder, f"{name}_step_{model}") for name in ("heuristic", "tuned")}
    if all(steps.values()):
        before, after = (steps[name]["tokens_per_s"] for name in ("heuristic", "tuned"))
        print(f"    step: {before:.0f} tokens/s by the first, {after:.0f} by the fastest ({after / before - 1:+.1%})")
    summary[f"tune_{model}"] = {"first_s": first, "best_s": best, "slower_by_3_percent": slow}


def rates(folder, summary):
    for path in sorted(folder.glob("gemm_*.log")):
        model = path.stem[5:]
        said = document(folder, path.stem)
        if not said:
            continue
        torch = {x["name"] + x["product"]: x["flops_per_s"]
                 for x in lines_of_json(folder / f"torch_mm_{model}.log") if "name" in x}
        print(f"\n{model}: {said['machine']}, {said['gemm_engine']}, peak {said['device_peak_flops_per_s'] / 1e12:.4g} TFLOP/s")
        print(f"{'':24}{'TFLOP/s':>9} {'of peak':>8} {'by':>9} {'of torch.mm':>12}")
        summary[path.stem] = []
        for row in said["rows"]:
            beside = torch.get(row["name"] + row["product"])
            share = row["flops_per_s"] / beside if beside else None
            summary[path.stem].append({"name": row["name"], "flops_per_s": row["flops_per_s"], "torch": beside})
            print(f"{row['name']:24}{row['flops_per_s'] / 1e12:9.2f} {row['share_of_peak']:8.1%} {row['engine']:>9}"
                  f" {share if share is None else format(share, '.2f')!s:>12}")
    for path in sorted(folder.glob("tune_*.log")):
        print_tuning(folder, path.stem[5:], summary)
    for name in ("attention", "attention_tensor", "attention_cudnn"):
        said = document(folder, name)
        for row in said["rows"] if said else []:
            print(f"{name:16} T {row['T']:6} D {row['D']:4} {row['pass']:18} {row['flops_per_s'] / 1e12:10.2f} TFLOP/s"
                  f"  by {row['by']}")
        summary[name] = said["rows"] if said else None
    memory = document(folder, "memory")
    for row in memory["rows"] if memory else []:
        print(f"memory {row['name']:12} {row['bytes_per_s'] / 1e9:8.0f} GB/s {row['share_of_copy']:7.1%} of the copy's rate")
    summary["memory"] = memory["rows"] if memory else None
    health = document(folder, "health")
    if health:
        summary["health"] = {"healthy": health["healthy"], "findings": health["findings"]}
        print(f"health: {'healthy' if health['healthy'] else 'NOT healthy'}")
        for finding in health["findings"]:
            print(f"    {finding['text']}")
    for path in sorted(folder.glob("ncu_*.log")):
        print(f"ncu: {path}")
    return 0


def print_kernels(said):
    """Where the time of a step goes, the longest first, and how near each kernel is to the least that it can cost."""
    for row in sorted(said["rows"], key=lambda x: -x["seconds"])[:KERNELS]:
        print(f"    {row['kernel'] + ' ' + row['shape']:56} {row['seconds'] * 1e3:8.2f} ms {row['share']:6.1%} of the step"
              f" {row['floor_s'] / row['seconds']:6.1%} of what {row['bound_by']} allows")


def clocks(folder):
    path = folder / "clocks.csv"
    rows = list(csv.reader(path.read_text().splitlines())) if path.exists() else []
    figures = [[float(re.sub(r"[^\d.]", "", x) or 0) for x in row[1:4]] for row in rows[1:] if len(row) >= 4]
    busy = [x for x in figures if x[1] > 0.5 * max(y[1] for y in figures)]
    if busy:
        mhz, watts, degrees = (statistics.median(x[i] for x in busy) for i in range(3))
        print(f"while busy: {mhz:.0f} MHz, {watts:.0f} W, {degrees:.0f} C (medians of {len(busy)} samples)")
    return len(busy)


def curves(folder, summary):
    """Loss curves beside PyTorch's; 1 when one is too far away."""
    code = 0
    for path in sorted(folder.glob("curve_*/loss_curve.json")):
        said = json.loads(path.read_text())
        summary[path.parent.name] = {"wrong": said["wrong"], **said["figures"]}
        for line in (folder / f"{path.parent.name}.log").read_text().splitlines():
            print(f"{path.parent.name}: {line}")
        code = max(code, 1 if said["wrong"] else 0)
    return code


def steps(folder, summary):
    code = curves(folder, summary)
    # MFU counts 6 FLOPs per token of a weight and the causal half of attention, against the device's dense peak.
    clocks(folder)
    print(f"{'step':50} {'tokens/s':>10} {'TFLOP/s':>9} {'MFU':>7} {'memory':>10} {'loss':>8}")
    summary["steps"], best = [], {}
    for path in sorted(folder.glob("step_*.log")):
        said = document(folder, path.stem)
        if not said:
            continue
        row = path.stem[5:]
        model = said["model"]
        figures = {"row": row, "contender": "Tutti", "tokens_per_s": said["tokens_per_s"], "mfu": said["mfu_causal"]}
        summary["steps"].append(figures)
        print(f"{row + ', Tutti':50} {said['tokens_per_s']:10.0f} {said['flops_per_s_causal'] / 1e12:9.2f}"
              f" {said['mfu_causal']:7.1%} {said['mem_peak_bytes'] / 2**30:6.1f} GiB {said['last_loss']:8.4f}")
        for note in said.get("notes", []):
            print(f"    note: {note}")
        if model not in best or said["tokens_per_s"] > best[model]["tokens_per_s"]:
            best[model] = said
        for label, name in (("PyTorch eager", f"pytorch_{row}"), ("torch.compile", f"pytorch_compiled_{row}")):
            told = [x for x in lines_of_json(folder / f"{name}.log") if "seconds" in x][WARM_UP:]
            if not told:
                continue
            rate = said["tokens_per_step"] / statistics.median(x["seconds"] for x in told)
            flops = rate * said["flops_per_token_causal"]
            share = flops / said["device_peak_flops_per_s"]
            summary["steps"].append({"row": row, "contender": label, "tokens_per_s": rate, "mfu": share})
            print(f"{row + ', ' + label:50} {rate:10.0f} {flops / 1e12:9.2f} {share:7.1%}"
                  f" {told[-1].get('peak_bytes', 0) / 2**30:6.1f} GiB {told[-1]['loss']:8.4f}")
    for model, said in best.items():
        print(f"\n{model}, its fastest row: {said['mfu_causal']:.1%} MFU. Where the time goes:")
        print_kernels(said)
    return code


READ_FIRST = {"correctness": "failed tests, each with the lines of its first failure; then memcheck and synccheck",
              "rates": "products by `own` (cuBLASLt has no kernel for them) and below 0.97 of torch.mm; first candidates that"
                       " are slower than the fastest; memory below 85 %",
              "steps": "WRONG lines of the loss curves; MFU of the fastest row of each model; then its longest kernels far"
                       " from what limits them"}


def main():
    folder = pathlib.Path(sys.argv[1])
    setup = json.loads((folder / "setup.json").read_text())
    summary = {"setup": setup}
    print(f"\n== Read first: {READ_FIRST[setup['run']]}")
    code = {"correctness": correctness, "rates": rates, "steps": steps}[setup["run"]](folder, summary)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\nraw: {folder}")
    return code


if __name__ == "__main__":
    sys.exit(main())
