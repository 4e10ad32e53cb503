#!/usr/bin/env python3
"""Training steps of Tutti, PyTorch eager and torch.compile on this machine, interleaved: for docs/results.md.

    bench/vs_pytorch.py [--quick] [--models gpt2-124m llama-110m] [--dtypes bf16 f32] [--threads 1 2] ...
    bench/vs_pytorch.py --threads 2 --batch 2 --contenders tutti tutti-zero1 tutti-zero3 ddp fsdp2 ddp-compiled ...
    bench/vs_pytorch.py --threads 2 --models llama-110m --contenders tutti-tp tutti-tp-overlap dtensor

Every contender is a process that trains (`tutti train`, bench/pytorch_step.py): same sizes, batch, optimizer (AdamW,
clip 1.0) and token file, pinned to as many cores as it has threads. This script watches the lines that each writes
after a finished step, so all are timed from outside by one clock, from the start of the process. The first step is the
time to first step; the later ones give tokens/s. For each case the contenders take turns, A B C A B C. MFU counts
6 N + 6 L T C FLOPs per token (attention's causal half) against the fastest matrix product that Tutti or PyTorch reached
in the same run with that dtype and number of threads. Memory is the peak of resident memory (VmHWM) of the process that
was started; of PyTorch's ranks, which are others, nothing is shown. Contenders of two ranks have half of the threads
each, and half of the batch or, with tensor parallelism, of every layer: Tutti's as threads of one process, PyTorch's as
processes over gloo. The loss of the first step, before any update, is noted: both draw their weights from the same
distributions, so that losses differ in the third digit and not in the first.

A run during which other processes used more than --disturbed cores is repeated, at most --retries times; the table is
made of the least disturbed ones and says in its last column how much was left. Nothing is deleted from the JSON.

Needs torch in --python. Writes one JSON with every raw time and prints a Markdown table.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# what the table says, ranks (each with its share of the threads), and what makes of it what it is: keys of [parallel]
CONTENDERS = {"tutti": ("Tutti", 1, {"zero": 0}), "eager": ("PyTorch eager", 1, None), "compiled": ("torch.compile", 1, None)}
RANKS = {
    "tutti-zero1": ("Tutti, 2 ranks, ZeRO-1", 2, {"zero": 1}),
    "tutti-zero3": ("Tutti, 2 ranks, ZeRO-3 (FSDP)", 2, {"zero": 3}),
    "tutti-tp": ("Tutti, tp 2", 2, {"tp": 2}),
    "tutti-tp-overlap": ("Tutti, tp 2, overlap 2", 2, {"tp": 2, "tp_overlap": 2}),
    "dtensor": ("PyTorch DTensor, tp 2", 2, "tp"),
    "ddp": ("PyTorch DDP, 2 ranks", 2, "ddp"), "ddp-compiled": ("PyTorch DDP, 2 ranks, compiled", 2, "ddp"),
    "fsdp2": ("PyTorch FSDP2, 2 ranks", 2, "fsdp2"), "fsdp2-compiled": ("PyTorch FSDP2, 2 ranks, compiled", 2, "fsdp2"),
}
EVERYONE = {**CONTENDERS, **RANKS}
# vocab, C, L, and the values of the matrices of one block, as the presets have them
MODELS = {"gpt2-124m": (50257, 768, 12, 12 * 768 * 768), "llama-110m": (32000, 768, 12, 4 * 768 * 768 + 3 * 768 * 2048),
          "llama-5m": (256, 256, 6, 4 * 256 * 256 + 3 * 256 * 704)}


def flops_per_token(model, seq_len):
    vocab, width, layers, block = MODELS[model]
    return 6 * (layers * block + vocab * width) + 6 * layers * seq_len * width


# --- one process -----------------------------------------------------------------------------------------------------

def busy_seconds():
    """CPU time that all processes of the machine have used, stolen time included."""
    fields = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def peak_resident_bytes(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return None


def line_count(path):
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def watch(command, environment, cores, lines_of, wanted, limit, log):
    """Runs `command` until `wanted` lines are in `lines_of`, then kills it. Times are seconds from its start."""
    load, busy, begin = os.getloadavg()[0], busy_seconds(), time.monotonic()
    arrivals, outcome, memory, others = [], "finished", None, None
    lines_of.unlink(missing_ok=True)
    with open(log.with_suffix(".out"), "wb") as output, open(log, "wb") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment, start_new_session=True,
                                   preexec_fn=lambda: os.sched_setaffinity(0, cores))
    try:
        while len(arrivals) < wanted:
            ended = process.poll() is not None  # before the count: no line comes after the end
            now, lines = time.monotonic() - begin, line_count(lines_of)
            arrivals += [now] * (lines - len(arrivals))
            if ended and len(arrivals) < wanted:
                outcome = f"ended with {process.returncode}: {log.read_text(errors='replace')[-400:]}"
                break
            if now > limit:
                outcome = f"stopped at the limit of {limit:g} s"
                break
            time.sleep(0.005)
        wall = time.monotonic() - begin
        if process.poll() is None:
            memory = peak_resident_bytes(process.pid)
            others = max(0.0, busy_seconds() - busy - own_seconds(process.pid)) / wall
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # only what was started here: it leads a session of its own
        process.wait()
    return {"outcome": outcome, "first_step_s": arrivals[0] if arrivals else None,
            "step_s": [b - a for a, b in zip(arrivals, arrivals[1:])], "peak_resident_bytes": memory, "wall_s": wall,
            "cores_used_by_others": others, "load_before": load, "command": [str(word) for word in command]}


def own_seconds(leader):
    """CPU time of the processes in the session of `leader`, with their ended children (compilers of torch.compile)."""
    total = 0
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == leader:  # its session
            total += sum(int(x) for x in fields[11:15])
    return total / os.sysconf("SC_CLK_TCK")


# --- contenders ------------------------------------------------------------------------------------------------------

def tutti_run(options, case, folder, ranks, parallel):
    shutil.rmtree(folder / "run", ignore_errors=True)
    config = folder / "bench.toml"
    keys = "\n".join(f"{key} = {value}" for key, value in parallel.items())
    config.write_text(f"""
[model]
preset = "{case['model']}"
[data]
train = ["{case['data']}"]
format = "nanogpt"
[train]
steps = 1000000
seq_len = {options.seq_len}
global_batch = {options.batch}
micro_batch = {options.batch * parallel.get('tp', 1) // ranks}
threads = {case['threads'] // ranks}
[parallel]
{keys}
[optimizer]
schedule = "constant"
warmup_steps = 0
[precision]
compute = "{case['dtype']}"
[checkpoint]
every = 0
[log]
every = 1
""")
    command = [options.tutti, "train", config, "--out", folder / "run", "--ranks", str(ranks)]
    return command, dict(os.environ), folder / "run" / "metrics.jsonl"


def pytorch_run(options, case, folder, contender):
    _, ranks, parallel = EVERYONE[contender]
    threads = str(case["threads"] // ranks)
    command = [options.python, ROOT / "bench" / "pytorch_step.py", "step", "--model", case["model"], "--dtype",
               case["dtype"], "--threads", threads, "--batch", str(options.batch), "--seq-len",
               str(options.seq_len), "--steps", str(options.steps + 2), "--data", case["data"], "--ranks", str(ranks)]
    command += ["--parallel", parallel] if parallel else []
    command += ["--compile"] if contender.endswith("compiled") else []
    environment = dict(os.environ, OMP_NUM_THREADS=threads,
                       TORCHINDUCTOR_CACHE_DIR=str(folder / f"inductor-{contender}-{case['name']}"))
    return command, environment, folder / "log.out"  # its standard output


def check_flops(options, case, folder):
    """The formula above against Tutti's own: a table with the wrong numerator is worth nothing."""
    (tutti, train, config, *_), environment, _ = tutti_run(options, case, folder, *EVERYONE["tutti"][1:])
    command = [tutti, train, config, "--dry-run", "--json"]
    output = subprocess.run(command, capture_output=True, text=True, env=environment)
    if output.returncode != 0:
        raise SystemExit(f"vs_pytorch: {' '.join(map(str, command))}: exit code {output.returncode}\n{output.stderr}")
    theirs, ours = json.loads(output.stdout)["flops_per_token"]["causal"], case["flops_per_token"]
    if theirs != ours:
        raise SystemExit(f"vs_pytorch: FLOPs per token of {case['model']}: {ours} here, {theirs} by tutti")


def run_contender(options, contender, case, folder):
    if contender.startswith("tutti"):
        command, environment, lines_of = tutti_run(options, case, folder, *EVERYONE[contender][1:])
    else:
        command, environment, lines_of = pytorch_run(options, case, folder, contender)
    cores = sorted(os.sched_getaffinity(0))[:case["threads"]]
    result = watch(command, environment, cores, lines_of, options.steps + 1, options.limit, folder / "log.err")
    finished = lines_of.read_text().splitlines() if lines_of.exists() else []
    return {**result, "first_loss": json.loads(finished[0])["loss"] if finished else None}


def measure_peak(options, dtype, threads):
    """FLOP/s of the fastest matrix product on either side, now."""
    cores = sorted(os.sched_getaffinity(0))[:threads]

    def pin():
        os.sched_setaffinity(0, cores)

    common = ["--dtype", dtype, "--threads", str(threads), "--seconds", "6"]
    tutti = subprocess.run([options.tutti, "bench", "gemm", "--json", *common], capture_output=True, text=True,
                           preexec_fn=pin, check=True)
    torch = subprocess.run([options.python, ROOT / "bench" / "pytorch_step.py", "gemm", *common], capture_output=True,
                           text=True, preexec_fn=pin, check=True, env=dict(os.environ, OMP_NUM_THREADS=str(threads)))
    ours, theirs = json.loads(tutti.stdout), json.loads(torch.stdout)
    return {"dtype": dtype, "threads": threads, "tutti_flops_per_s": ours["best_gemm_flops_per_s"],
            "tutti_shape": ours["best_gemm_shape"], "tutti_device_flops_per_s": ours["device_peak_flops_per_s"],
            "gemm_implementation": ours["gemm_implementation"], "pytorch_flops_per_s": theirs["flops_per_s"],
            "pytorch_shape": theirs["shape"]}


# --- the run ---------------------------------------------------------------------------------------------------------

def describe_machine(options):
    def output(*command):
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip()

    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = int(open("/proc/meminfo").readline().split()[1]) * 1024
    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "commit": output("git", "rev-parse", "HEAD"),
            "uncommitted_changes": output("git", "status", "--porcelain").count("\n"),
            "command": " ".join(sys.argv), "cpu": cpu, "cores": len(os.sched_getaffinity(0)), "memory_bytes": memory,
            "kernel": platform.release(), "tutti": json.loads(output(options.tutti, "version", "--json")),
            "torch": output(options.python, "-c", "import torch; print(torch.__version__)")}


def make_tokens(folder, model, count):
    """A nanoGPT file of random tokens below the model's vocabulary."""
    import random
    from array import array
    path = folder / f"{model}.bin"
    if not path.exists():
        source = random.Random(1234)
        path.write_bytes(array("H", (source.randrange(MODELS[model][0]) for _ in range(count))).tobytes())
    return path


def least_disturbed(runs):
    """Of each round the attempt in which other processes used the least."""
    rounds = {}
    for run in runs:
        best = rounds.get(run["round"])
        if best is None or (run["cores_used_by_others"] or 0) < (best["cores_used_by_others"] or 0):
            rounds[run["round"]] = run
    return list(rounds.values())


def summarise_runs(all_runs, tokens, flops, peak):
    runs = least_disturbed(all_runs)
    steps = [s for r in runs for s in r["step_s"]]
    first = [r["first_step_s"] for r in runs if r["first_step_s"] is not None]
    row = {"steps": len(steps), "problems": [r["outcome"] for r in runs if r["outcome"] != "finished"],
           "peak_resident_bytes": max((r["peak_resident_bytes"] or 0 for r in runs), default=0),
           "cores_used_by_others": max((r["cores_used_by_others"] or 0 for r in runs), default=0)}
    if steps:
        rate = tokens / statistics.median(steps)
        row.update(tokens_per_s=rate, tokens_per_s_min=tokens / max(steps), tokens_per_s_max=tokens / min(steps),
                   mfu=rate * flops / peak)
    if first:
        row.update(first_step_s=statistics.median(first[1:] or first), first_step_s_min=min(first),
                   first_step_s_max=max(first), first_step_cold_s=all_runs[0]["first_step_s"])
    return row


def summarise(options, document):
    """One row per case and contender."""
    rows = []
    for case in document["cases"]:
        peak = max(max(p["tutti_flops_per_s"], p["pytorch_flops_per_s"]) for p in document["peaks"]
                   if (p["dtype"], p["threads"]) == (case["dtype"], case["threads"]))
        for contender in options.contenders:
            runs = [r for r in case["runs"] if r["contender"] == contender]
            rows.append({**{key: case[key] for key in ("model", "dtype", "threads")}, "contender": contender,
                         "peak_flops_per_s": peak,
                         **summarise_runs(runs, options.batch * options.seq_len, case["flops_per_token"], peak)})
    return rows


def markdown(rows):
    """Time to first step is that of the later rounds (warm caches); of torch.compile the cold one stands beside it."""
    lines = ["| model | dtype | threads | | tokens/s (min–max) | MFU | peak memory | first step | others' cores |",
             "|---|---|---:|---|---:|---:|---:|---:|---:|"]
    for r in rows:
        rate = mfu = memory = first = "–"
        if r["steps"]:
            rate = f"{r['tokens_per_s']:.0f} ({r['tokens_per_s_min']:.0f}–{r['tokens_per_s_max']:.0f})"
            mfu = f"{100 * r['mfu']:.1f} %"
            if r["contender"].startswith("tutti") or EVERYONE[r["contender"]][1] == 1:
                memory = f"{r['peak_resident_bytes'] / 2**30:.2f} GiB"
        if "first_step_s" in r:
            first = f"{r['first_step_s']:.1f} s"
            if r["contender"].endswith("compiled") and r["first_step_cold_s"]:
                first += f" (cold {r['first_step_cold_s']:.1f} s)"
        lines.append(f"| {r['model']} | {r['dtype']} | {r['threads']} | {EVERYONE[r['contender']][0]} | {rate} | {mfu} "
                     f"| {memory} | {first} | {r['cores_used_by_others']:.2f} |")
    return "\n".join(lines)


def run_case(options, case, document, folder):
    check_flops(options, case, folder)
    for turn in range(1, options.rounds + 1):
        document["peaks"].append(measure_peak(options, case["dtype"], case["threads"]))
        for contender in options.contenders:
            for attempt in range(1, options.retries + 2):
                result = run_contender(options, contender, case, folder)
                case["runs"].append({"contender": contender, "round": turn, "attempt": attempt, **result})
                tell(case, case["runs"][-1])
                save(options, document)
                if (result["cores_used_by_others"] or 0) <= options.disturbed:
                    break


def tell(case, run):
    steps = ", ".join(f"{s:.2f}" for s in run["step_s"])
    print(f"{case['name']} round {run['round']} {run['contender']}: first step {run['first_step_s'] or -1:.2f} s, "
          f"loss {run['first_loss'] or -1:.4f}, then "
          f"[{steps}] s, others used {run['cores_used_by_others'] or 0:.2f} cores, {run['outcome']}", file=sys.stderr,
          flush=True)


def save(options, document):
    document["summary"] = summarise(options, document)
    part = options.out.with_suffix(".part")
    text = json.dumps(document, indent=1)
    for place, name in ((str(ROOT) + "/", ""), (str(pathlib.Path.home()), "~"), (tempfile.gettempdir(), "$TMPDIR")):
        text = text.replace(place, name)  # results are read elsewhere
    part.write_text(text + "\n")
    part.replace(options.out)


def parse_options():
    venv = pathlib.Path(os.environ.get("TUTTI_PEER_VENV") or pathlib.Path.home() / ".cache/tutti/peer-venv")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["gpt2-124m", "llama-110m"])
    parser.add_argument("--dtypes", nargs="+", choices=["bf16", "f32"], default=["bf16", "f32"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--contenders", nargs="+", choices=EVERYONE, default=list(CONTENDERS))
    parser.add_argument("--seq-len", type=int, help="default 1024; 256 with --quick")
    parser.add_argument("--batch", type=int, help="default 4; 2 with --quick")
    parser.add_argument("--steps", type=int, help="measured steps of a process; default 4; 3 with --quick")
    parser.add_argument("--rounds", type=int, help="turns of each contender; default 3; 1 with --quick")
    parser.add_argument("--limit", type=float, default=900, help="seconds of one process")
    parser.add_argument("--disturbed", type=float, default=0.15, help="cores of other processes that spoil a run")
    parser.add_argument("--retries", type=int, help="repetitions of a spoilt run; default 2; 0 with --quick")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work, not what is it worth")
    parser.add_argument("--tutti", type=pathlib.Path, default=ROOT / "build/release/tutti")
    parser.add_argument("--python", type=pathlib.Path, default=venv / "bin/python")
    parser.add_argument("--out", type=pathlib.Path, help="default bench/results/vs_pytorch[_quick].json")
    options = parser.parse_args()
    ranks = max(EVERYONE[name][1] for name in options.contenders)
    defaults = (("seq_len", 1024, 256), ("batch", 4, 2), ("steps", 4, 3), ("rounds", 3, 1), ("retries", 2, 0))
    for key, full, quick in defaults:
        if getattr(options, key) is None:
            setattr(options, key, quick if options.quick else full)
    if options.out is None:
        options.out = ROOT / "bench/results" / ("vs_pytorch_quick.json" if options.quick else "vs_pytorch.json")
    if any(n % ranks for n in (*options.threads, options.batch)):
        parser.error(f"--threads {options.threads} and --batch {options.batch} must divide by {ranks}, the ranks of a "
                     "contender")
    for path, what in ((options.tutti, "--tutti: build it with cmake --preset release"),
                       (options.python, "--python: a Python with torch; scripts/test.sh --peer makes it")):
        if not path.exists():
            parser.error(f"{path} is not there ({what})")
    return options


def main():
    options = parse_options()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {key: getattr(options, key)
                for key in ("seq_len", "batch", "steps", "rounds", "limit", "quick", "disturbed", "retries")}
    document = {**describe_machine(options), "settings": settings, "peaks": [], "cases": []}
    with tempfile.TemporaryDirectory(prefix="tutti-bench-") as temporary:
        folder = pathlib.Path(temporary)
        for model in options.models:
            tokens = make_tokens(folder, model, (options.steps + 3) * options.batch * options.seq_len + 1)
            for dtype in options.dtypes:
                for threads in options.threads:
                    case = {"name": f"{model}-{dtype}-{threads}", "model": model, "dtype": dtype, "threads": threads,
                            "flops_per_token": flops_per_token(model, options.seq_len), "data": str(tokens), "runs": []}
                    document["cases"].append(case)
                    run_case(options, case, document, folder)
    print(markdown(document["summary"]))


if __name__ == "__main__":
    main()
