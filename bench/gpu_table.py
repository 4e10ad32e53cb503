#!/usr/bin/env python3
"""The table at the end of bench/gpu.sh, from the logs in its folder; also written there as summary.json."""

import json
import pathlib
import statistics
import sys

WARM_UP = 3  # steps of PyTorch that compile kernels or grow its cache of memory


def document(folder, name):
    """What a command of Tutti said in JSON; None when it failed."""
    try:
        said = json.loads((folder / f"{name}.log").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return None if "error" in said else said


def pytorch_steps(folder, name):
    path = folder / f"{name}.log"
    lines = [json.loads(x) for x in path.read_text().splitlines() if x.startswith("{")] if path.exists() else []
    return lines[WARM_UP:]


def outcome(folder, name):
    """The last line that says something, of a test program."""
    code = (folder / f"{name}.code").read_text().strip()
    lines = [x for x in (folder / f"{name}.log").read_text().splitlines() if "PASSED" in x or "FAILED" in x]
    return {"exit_code": int(code), "says": lines[-1].strip() if lines else "nothing"}


def main():
    folder = pathlib.Path(sys.argv[1])
    summary = {"tests": {name: outcome(folder, name) for name in ("tests_kernels", "tests_training")}, "steps": []}
    print()
    for name, result in summary["tests"].items():
        print(f"{name:24} exit code {result['exit_code']}, {result['says']}")

    benches = {name: document(folder, name) for name in ("gemm", "attention", "attention_tensor", "memory")}
    gemm, memory = benches["gemm"], benches["memory"]
    for name, said in benches.items():
        if said is None:
            print(f"bench {name:18} failed: see {folder}/{name}.err")
    if gemm:
        summary["gemm"] = {row["name"]: row["flops_per_s"] for row in gemm["rows"]}
        print(f"\n{gemm['machine']}, {gemm['gemm_engine']}, peak {gemm['device_peak_flops_per_s'] / 1e12:.0f} TFLOP/s")
        for row in gemm["rows"]:
            print(f"gemm {row['name']:12} {row['flops_per_s'] / 1e12:8.1f} TFLOP/s {row['share_of_peak']:7.1%}")
    for name in ("attention", "attention_tensor"):
        for row in benches[name]["rows"] if benches[name] else []:
            print(f"{name:16} T {row['T']:6} D {row['D']:4} {row['pass']:18} {row['flops_per_s'] / 1e12:8.1f} TFLOP/s")
    for row in memory["rows"] if memory else []:
        print(f"memory {row['name']:12} {row['bytes_per_s'] / 1e9:8.0f} GB/s")

    print(f"\n{'step':36} {'tokens/s':>10} {'TFLOP/s':>9} {'MFU':>7} {'memory':>10} {'loss':>8}")
    for model in ("llama3.2-1b", "llama3.2-3b"):
        ours = document(folder, f"step_{model}")
        rows = []
        if ours:
            rows.append(("Tutti", ours["tokens_per_s"], ours["mem_peak_bytes"], ours["last_loss"]))
        for label, name in (("PyTorch eager", f"pytorch_{model}"), ("torch.compile", f"pytorch_compiled_{model}")):
            steps = pytorch_steps(folder, name)
            if steps:
                tokens = 4 * 4096
                seconds = statistics.median(step["seconds"] for step in steps)
                rows.append((label, tokens / seconds, steps[-1]["peak_bytes"], steps[-1]["loss"]))
        for label in [x for x in ("Tutti", "PyTorch eager", "torch.compile") if x not in [row[0] for row in rows]]:
            print(f"{model + ', ' + label:36} failed: see {folder}")
        for label, rate, peak_bytes, loss in rows:
            flops = rate * ours["flops_per_token_causal"] if ours else None
            share = flops / ours["device_peak_flops_per_s"] if ours else None
            summary["steps"].append({"model": model, "contender": label, "tokens_per_s": rate, "flops_per_s": flops,
                                     "mfu": share, "peak_bytes": peak_bytes, "loss": loss})
            print(f"{model + ', ' + label:36} {rate:10.0f} {flops / 1e12 if flops else 0:9.1f} "
                  f"{share if share else 0:7.1%} {peak_bytes / 2**30:6.1f} GiB {loss:8.4f}")
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\nraw: {folder}")


if __name__ == "__main__":
    main()
