#!/usr/bin/env python3
"""The table at the end of bench/gpu.sh, from the logs in its folder; also written there as summary.json. Exit code 1: a
test failed."""

import json
import pathlib
import re
import statistics
import sys

WARM_UP = 3  # steps of PyTorch that compile kernels or grow its cache of memory
KERNELS = 10  # of a step that are shown


def document(folder, name):
    """What a command of Tutti said in JSON; None, and a line, when it failed."""
    try:
        said = json.loads((folder / f"{name}.log").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        said = {"error": "no JSON"}
    if "error" not in said:
        return said
    print(f"{name} failed ({said['error'].splitlines()[0]}): see {folder}/{name}.err")
    return None


def pytorch_steps(folder, name):
    path = folder / f"{name}.log"
    steps = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            steps.append(json.loads(line))
        except json.JSONDecodeError:  # a warning, or a line that was cut off
            continue
    return [x for x in steps if isinstance(x, dict) and "seconds" in x][WARM_UP:]


def outcome(folder, name):
    """Of a test program: its exit code, what failed, and in which test it ended when it did not come to its end."""
    if not (folder / f"{name}.code").exists():
        return {"exit_code": 1, "says": "did not run to its end", "failed": []}
    lines = (folder / f"{name}.log").read_text().splitlines()
    passed = [x for x in lines if x.startswith("[  PASSED  ]")]
    failed = sorted({re.split(r" \(|, where", x[13:])[0] for x in lines if re.match(r"\[  FAILED  \] \S+\.\S", x)})
    says = passed[-1][13:] if passed else "no summary"
    if not passed and lines:
        started = [x for x in lines if x.startswith("[ RUN      ]")]
        says = f"ended in {started[-1][13:]}" if started else f"ended with: {lines[-1]}"
    return {"exit_code": int((folder / f"{name}.code").read_text()), "says": says, "failed": failed}


def print_tests(tests):
    for name, result in tests.items():
        print(f"{name:24} exit code {result['exit_code']}: {result['says']}, {len(result['failed'])} failed")
        for test in result["failed"][:10]:
            print(f"    failed: {test}")


def print_kernels(said):
    """Where the time of a step goes, the longest first, and how near each kernel is to the least that it can cost."""
    for row in sorted(said["rows"], key=lambda x: -x["seconds"])[:KERNELS]:
        print(f"    {row['kernel'] + ' ' + row['shape']:56} {row['seconds'] * 1e3:8.2f} ms {row['share']:6.1%} of the step"
              f" {row['floor_s'] / row['seconds']:6.1%} of what {row['bound_by']} allows")


def main():
    folder = pathlib.Path(sys.argv[1])
    setup = json.loads((folder / "setup.json").read_text())
    tests = ["tests_kernels", "tests_training"] + ["tests_cudnn"] * (folder / "tests_cudnn.code").exists()
    summary = {"setup": setup, "tests": {x: outcome(folder, x) for x in tests}, "steps": []}
    print()
    print_tests(summary["tests"])
    benches = {x: document(folder, x) for x in ("gemm", "attention", "attention_tensor", "memory", "health")}
    gemm, memory, health = (benches[x] for x in ("gemm", "memory", "health"))
    if gemm:
        summary["gemm"] = {row["name"]: row["flops_per_s"] for row in gemm["rows"]}
        print(f"\n{gemm['machine']}, {gemm['gemm_engine']}, peak {gemm['device_peak_flops_per_s'] / 1e12:.4g} TFLOP/s")
        for row in gemm["rows"]:
            print(f"gemm {row['name']:12} {row['flops_per_s'] / 1e12:10.2f} TFLOP/s {row['share_of_peak']:7.1%}"
                  f"  by {row['engine']}")
    for name in ("attention", "attention_tensor"):
        for row in benches[name]["rows"] if benches[name] else []:
            print(f"{name:16} T {row['T']:6} D {row['D']:4} {row['pass']:18} {row['flops_per_s'] / 1e12:10.2f} TFLOP/s"
                  f"  by {row['by']}")
    for row in memory["rows"] if memory else []:
        print(f"memory {row['name']:12} {row['bytes_per_s'] / 1e9:8.0f} GB/s")
    for said in (benches["attention"], memory):
        for note in said["notes"] if said else []:
            print(f"note: {note.splitlines()[0]}")
    if health:
        summary["health"] = {"healthy": health["healthy"], "findings": health["findings"], "ranks": health["ranks"]}
        print(f"health: {'healthy' if health['healthy'] else 'NOT healthy'}")
        for finding in health["findings"]:
            print(f"    {finding['text']}")

    # MFU counts 6 FLOPs per token of a weight and the causal half of attention, against the device's dense peak.
    print(f"\n{'step':36} {'tokens/s':>10} {'TFLOP/s':>9} {'MFU':>7} {'memory':>10} {'loss':>8}")
    for model in setup["models"]:
        ours = document(folder, f"step_{model}")
        rows = []
        if ours:
            rows.append(("Tutti", ours["tokens_per_s"], ours["mem_peak_bytes"], ours["last_loss"]))
        for label, name in (("PyTorch eager", f"pytorch_{model}"), ("torch.compile", f"pytorch_compiled_{model}")):
            steps = pytorch_steps(folder, name)
            if steps:
                seconds = statistics.median(step["seconds"] for step in steps)
                rows.append((label, setup["batch"] * setup["seq_len"] / seconds, steps[-1].get("peak_bytes", 0),
                             steps[-1]["loss"]))
            else:
                print(f"{model}, {label}: failed, no step after {WARM_UP} to warm up: see {folder}/{name}.err")
        for label, rate, peak_bytes, loss in rows:
            flops = rate * ours["flops_per_token_causal"] if ours else None
            share = flops / ours["device_peak_flops_per_s"] if ours else None
            summary["steps"].append({"model": model, "contender": label, "tokens_per_s": rate, "flops_per_s": flops,
                                     "mfu": share, "peak_bytes": peak_bytes, "loss": loss})
            figures = f"{flops / 1e12:9.2f} {share:7.1%}" if ours else f"{'-':>9} {'-':>7}"
            print(f"{model + ', ' + label:36} {rate:10.0f} {figures} {peak_bytes / 2**30:6.1f} GiB {loss:8.4f}")
        if ours:
            print_kernels(ours)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\nraw: {folder}")
    return 1 if any(x["exit_code"] for x in summary["tests"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
