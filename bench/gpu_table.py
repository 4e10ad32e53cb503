#!/usr/bin/env python3
"""What a run of bench/gpu.sh found, from the logs in its folder: what to read first, the tables, and last each figure to
reach (docs/results.md has all of them), reached or not or not measured; also written there as summary.json. Exit code 1: a
test failed, or a loss curve is too far from PyTorch's; 3: a figure was not measured."""

import csv
import json
import pathlib
import re
import statistics
import sys

MFU = {"llama3.2-1b": 0.55, "llama3.2-3b": 0.57, "gpt2-124m": 0.47}  # causal, to reach
COMPILED, COPY, PRODUCTS, CUDNN = 1.15, 0.85, 1.03, 0.90  # times torch.compile; of the copy; of the fastest time; of cuDNN's rate
LOOSE_US = 20  # a shorter kernel is bound by its launch
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


class Figures:
    """What was asked for, beside what came."""

    def __init__(self):
        self.rows = []

    def add(self, what, reached, measured):
        """`reached` None: not measured."""
        self.rows.append({"figure": what, "reached": reached, "measured": measured})

    def show(self):
        print("\n== Figures to reach")
        for row in self.rows:
            word = {None: "NOT MEASURED", True: "reached", False: "NOT reached"}[row["reached"]]
            print(f"{word:13} {row['figure']:66} {row['measured']}")
        return 3 if any(row["reached"] is None for row in self.rows) else 0


def first_failure(log):
    """The lines of the first failure of a test, or the last lines of a program that died."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    start = next((i for i, x in enumerate(lines) if re.search(r": Failure$|^=========", x)), max(0, len(lines) - 3))
    return lines[start:start + 6]


def codes_of_tests(folder, summary):
    """Prints what came of each part's tests, with the first failures; returns the exit codes by part and test."""
    codes_of = {}
    for codes in sorted(folder.glob("*.codes")):
        name, rows = codes.stem, [line.split(" ", 1) for line in codes.read_text().splitlines()]
        codes_of[name] = {test: code for code, test in rows}
        bad = [test for code, test in rows if code not in ("0", "skip", "not-run")]
        hung = [test for code, test in rows if code in ("124", "137")]
        skipped = [test for code, test in rows if code == "skip"]
        not_run = [test for code, test in rows if code == "not-run"]
        summary[name] = {"tests": len(rows), "failed": bad, "hung": hung, "skipped": skipped, "not_run": not_run}
        print(f"{name:12} {len(rows):4} tests, {len(bad)} failed, {len(hung)} of these hung; {len(skipped)} skipped,"
              f" {len(not_run)} not run")
        for test in bad[:5]:
            print(f"    {test}")
            for line in first_failure(folder / name / (test.replace("/", "_") + ".log")):
                print(f"        {line[:160]}")
    return codes_of


def tests(folder, summary, figures, parts):
    codes_of = codes_of_tests(folder, summary)

    def figure(what, part, named=None):
        """A figure that tests of a part decide: those `named`, else all but the skipped ones."""
        codes = codes_of.get(part, {})
        mine = {test: code for test, code in codes.items() if test in named} if named else codes
        ran = [code for code in mine.values() if code not in ("skip", "not-run")]
        cut = [test for test, code in mine.items() if code == "not-run"]
        good = sum(code == "0" for code in ran)
        complete = ran and not cut and (not named or len(mine) == len(named))
        reached = False if good < len(ran) else True if complete else None
        figures.add(what, reached, f"{good} of {len(mine)} tests of `{part}` passed, {len(cut)} not run")

    if "kernels" in parts:
        figure("kernels green on the GPU, f32 and bf16 within derived bounds", "kernels")
    if "training" in parts:
        figure("trainings green on the GPU", "training")
        figure("f32: losses of 20 steps within 1e-5 of the CPU's", "training", ["CudaTraining.TwentyStepsFollowTheCpu"])
        figure("bf16: losses of 20 steps within the derived bound of the CPU's", "training",
               ["CudaTraining.TwentyStepsInBf16FollowTheCpu"])
    if "sanitizers" in parts:
        for tool in ("memcheck", "synccheck", "racecheck", "initcheck"):
            figure(f"compute-sanitizer {tool} clean", tool)
    return any(summary[name]["failed"] for name in codes_of)


def equal_bits(folder, summary, figures):
    differs = (folder / "equal_bits.log").read_text() if (folder / "equal_bits.log").exists() else ""
    weights = list((folder / "train_1").rglob("*.safetensors"))
    summary["equal_bits"] = bool(weights) and "differ" not in differs
    print(f"two trainings of 20 steps: {'equal bits' if summary['equal_bits'] else 'NOT equal, see equal_bits.log'}"
          f" ({len(weights)} files)")
    figures.add("two runs of 20 steps: equal bits", summary["equal_bits"] if weights else None, f"{len(weights)} files of weights")
    return not summary["equal_bits"]


def curves(folder, summary, figures):
    """Loss curves beside PyTorch's; whether one is too far away."""
    said = []
    for path in sorted(folder.glob("curve_*/loss_curve.json")):
        curve = json.loads(path.read_text())
        said.append(curve)
        summary[path.parent.name] = {"wrong": curve["wrong"], **curve["figures"]}
        for line in (folder / f"{path.parent.name}.log").read_text().splitlines():
            print(f"{path.parent.name}: {line}")
    wrong = any(x["wrong"] for x in said)
    figures.add("loss curves of 200 steps beside PyTorch's", not wrong if said else None, f"{len(said)} compared")
    return wrong


def print_tuning(folder, model, summary, figures):
    """The products of a step by the first candidate of cuBLASLt's heuristic and by the fastest, those with most to gain
    first; and the step with either."""
    said, what = document(folder, f"tune_{model}"), f"{model}: products within 3 % of cuBLASLt's fastest candidate"
    if not said or not said["rows"]:
        figures.add(what, None, f"no tune_{model}.log")
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
    # A run takes the first candidate of each, or with train.gemm_tuning the fastest.
    figures.add(what, first <= PRODUCTS * best, f"first candidates {first / best - 1:+.1%}; with train.gemm_tuning 0 %")
    summary[f"tune_{model}"] = {"first_s": first, "best_s": best, "slower_by_3_percent": slow}


def compare_attention(rows, figures):
    """The fastest of ours beside cuDNN's: rows of one T, D and pass that differ in `by`."""
    rates = {}
    for row in rows:
        of = rates.setdefault((row["T"], row["D"], row["pass"]), {})
        by = "cudnn" if row["by"] == "cudnn" else "own"
        of[by] = max(of.get(by, 0), row["flops_per_s"])
    shares = {case: rate["own"] / rate["cudnn"] for case, rate in rates.items() if "own" in rate and "cudnn" in rate}
    what = "attention within 10 % of cuDNN's"
    if not shares:
        return figures.add(what, None, "no row by cuDNN: its library or its headers were missing (the notes of attention.log)")
    (T, D, name), least = min(shares.items(), key=lambda x: x[1])
    return figures.add(what, least >= CUDNN, f"least {least:.2f} of cuDNN's rate, at T {T}, D {D}, {name}; {len(shares)} cases")


def products(folder, summary, figures):
    for path in sorted(folder.glob("gemm_*.log")):
        model = path.stem[5:]
        said = document(folder, path.stem)
        if not said:
            continue
        torch = {x["name"] + x["product"]: x["flops_per_s"]
                 for x in lines_of_json(folder / f"torch_mm_{model}.log") if "name" in x}
        print(f"\n{model}: {said['machine']}, {said['gemm_implementation']}, peak {said['device_peak_flops_per_s'] / 1e12:.4g} TFLOP/s")
        print(f"{'':24}{'TFLOP/s':>9} {'of peak':>8} {'by':>9} {'of torch.mm':>12}")
        summary[path.stem] = []
        for row in said["rows"]:
            beside = torch.get(row["name"] + row["product"])
            share = row["flops_per_s"] / beside if beside else None
            summary[path.stem].append({"name": row["name"], "flops_per_s": row["flops_per_s"], "torch": beside})
            print(f"{row['name']:24}{row['flops_per_s'] / 1e12:9.2f} {row['share_of_peak']:8.1%} {row['implementation']:>9}"
                  f" {share if share is None else format(share, '.2f')!s:>12}")
    for model in summary["setup"]["models"]:
        # torch.mm makes no f32 sums of 16-bit factors, which our weight gradients are.
        ratios = [x["flops_per_s"] / x["torch"] for x in summary.get(f"gemm_{model}", [])
                  if x["torch"] and not x["name"].endswith(" dw")]
        what = f"{model}: products beside torch.mm within 3 %"
        figures.add(what, None if not ratios else min(ratios) >= 1 / PRODUCTS,
                    f"least {min(ratios):.2f} of torch.mm's rate, {len(ratios)} products" if ratios else "no row of PyTorch")


def tuning(folder, summary, figures):
    for model in summary["setup"]["models"]:
        print_tuning(folder, model, summary, figures)


def attention(folder, summary, figures):
    said = document(folder, "attention")
    for row in said["rows"] if said else []:
        print(f"attention T {row['T']:6} D {row['D']:4} {row['pass']:18} {row['flops_per_s'] / 1e12:10.2f} TFLOP/s  by {row['by']}")
    summary["attention"] = said["rows"] if said else None
    compare_attention(summary["attention"] or [], figures)


def memory(folder, summary, figures):
    said = document(folder, "memory")
    rows = said["rows"] if said else []
    for row in rows:
        print(f"memory {row['name']:18} {row['bytes_per_s'] / 1e9:8.0f} GB/s {row['share_of_copy']:7.1%} of the copy's rate")
    summary["memory"] = rows or None
    shares = {row["name"]: row["share_of_copy"] for row in rows if row["name"] != "copy"}
    worst = min(shares, key=shares.get, default="")
    figures.add("memory-bound kernels at 85 % of the copy's rate", all(x >= COPY for x in shares.values()) if shares else None,
                f"least {worst} {shares[worst]:.1%} of {', '.join(shares)}" if shares else "no memory.log")


def health(folder, summary, _):
    said = document(folder, "health")
    if said:
        summary["health"] = {"healthy": said["healthy"], "findings": said["findings"]}
        print(f"health: {'healthy' if said['healthy'] else 'NOT healthy'}")
        for finding in said["findings"]:
            print(f"    {finding['text']}")


def ncu(folder, *_):
    for path in sorted(folder.glob("ncu_*.log")):
        print(f"ncu: {path}")


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


def slow_passes(said):
    """The kernels of a step that memory bounds and that reach less than COPY of the copy's rate; and their number."""
    bound = [x for x in said["rows"] if x["bound_by"] == "memory" and x["seconds"] / x["calls"] > LOOSE_US * 1e-6]
    slow = [x for x in bound if x["floor_s"] < COPY * x["seconds"]]
    return sorted(slow, key=lambda x: -x["seconds"]), len(bound)


def judge_steps(best, compiled, summary, figures):
    """best, compiled: by model, the fastest row of Tutti's, and tokens/s of torch.compile."""
    compared = summary["setup"]["compared"] if "pytorch" in summary["setup"]["parts"] else []
    for model in summary["setup"]["stepped"]:
        said, beside, asked = best.get(model), compiled.get(model), MFU.get(model)
        if asked:
            figures.add(f"{model}: {asked:.0%} MFU, causal", said and said["mfu_causal"] >= asked,
                        f"{said['mfu_causal']:.1%} of {said['device_peak_flops_per_s'] / 1e12:.0f} TFLOP/s" if said else "no row")
        if model in compared:
            times = said["tokens_per_s"] / beside if said and beside else None
            figures.add(f"{model}: {COMPILED} times torch.compile", times and times >= COMPILED,
                        f"{times:.2f} times" if times else "no row of torch.compile" if said else "no row")
        if said:
            slow, count = slow_passes(said)
            figures.add(f"{model}: its memory-bound kernels at 85 % of the copy's rate", not slow if count else None,
                        f"{count - len(slow)} of {count}" + (f"; longest below: {slow[0]['kernel']} {slow[0]['shape']},"
                                                            f" {slow[0]['floor_s'] / slow[0]['seconds']:.0%}" if slow else ""))


def steps(folder, summary, figures):
    # MFU counts 6 FLOPs per token of a weight and the causal half of attention, against the device's dense peak.
    clocks(folder)
    print(f"{'step':50} {'tokens/s':>10} {'TFLOP/s':>9} {'MFU':>7} {'memory':>10} {'loss':>8}")
    summary["steps"], best, compiled = [], {}, {}
    for path in sorted(folder.glob("step_*.log")):
        said = document(folder, path.stem)
        if not said:
            continue
        row = path.stem[5:]
        model = said["model"]
        summary["steps"].append({"row": row, "contender": "Tutti", "tokens_per_s": said["tokens_per_s"], "mfu": said["mfu_causal"]})
        print(f"{row + ', Tutti':50} {said['tokens_per_s']:10.0f} {said['flops_per_s_causal'] / 1e12:9.2f}"
              f" {said['mfu_causal']:7.1%} {said['mem_peak_bytes'] / 2**30:6.1f} GiB {said['last_loss']:8.4f}")
        for note in said.get("notes", []):
            print(f"    note: {note}")
        if model not in best or said["tokens_per_s"] > best[model]["tokens_per_s"]:
            best[model] = said
        for label, name in (("PyTorch eager", f"pytorch_eager_{row}"), ("torch.compile", f"pytorch_compiled_{row}")):
            told = [x for x in lines_of_json(folder / f"{name}.log") if "seconds" in x][WARM_UP:]
            if not told:
                continue
            rate = said["tokens_per_step"] / statistics.median(x["seconds"] for x in told)
            flops = rate * said["flops_per_token_causal"]
            share = flops / said["device_peak_flops_per_s"]
            summary["steps"].append({"row": row, "contender": label, "tokens_per_s": rate, "mfu": share})
            if label == "torch.compile":
                compiled[model] = max(rate, compiled.get(model, 0))
            print(f"{row + ', ' + label:50} {rate:10.0f} {flops / 1e12:9.2f} {share:7.1%}"
                  f" {told[-1].get('peak_bytes', 0) / 2**30:6.1f} GiB {told[-1]['loss']:8.4f}")
    for model, said in best.items():
        print(f"\n{model}, its fastest row: {said['mfu_causal']:.1%} MFU. Where the time goes:")
        print_kernels(said)
    judge_steps(best, compiled, summary, figures)


READ_FIRST = {"first": "failed tests, each with the lines of its first failure; then MFU of each model, and its longest kernels far"
                       " from what limits them",
              "correctness": "failed tests, each with the lines of its first failure; WRONG lines of the loss curves; then memcheck,"
                             " synccheck, racecheck and initcheck",
              "rates": "products by `own` (cuBLASLt has no kernel for them) and below 0.97 of torch.mm; first candidates that"
                       " are slower than the fastest; memory below 85 %",
              "steps": "MFU of the fastest row of each model; then its longest kernels far from what limits them"}

TESTS = {"kernels", "training", "nccl", "cudnn", "sanitizers"}  # parts that `tests` reads
PARTS = [equal_bits, curves, products, tuning, attention, memory, health, ncu, steps]  # by name; each: whether something is wrong


def main():
    folder = pathlib.Path(sys.argv[1])
    setup = json.loads((folder / "setup.json").read_text())
    parts = setup["parts"]
    summary = {"setup": setup}
    print(f"\n== Read first: {READ_FIRST[setup['run']]}")
    figures = Figures()
    wrong = [tests(folder, summary, figures, parts)] if TESTS & set(parts) else []
    wrong += [part(folder, summary, figures) for part in PARTS if part.__name__ in parts]
    code = 1 if any(wrong) else 0
    not_measured = figures.show()
    summary["missing"] = (folder / "missing.txt").read_text().split("\n")[:-1] if (folder / "missing.txt").exists() else []
    code = code or not_measured
    summary["figures"] = figures.rows
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\nraw: {folder}")
    return code


if __name__ == "__main__":
    sys.exit(main())
