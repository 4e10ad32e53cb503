#!/usr/bin/env python3
"""The campaign: kills, stops, I/O calls that fail, and flipped bits, each followed by another start, which must be right.

  scripts/campaign.py                        all of it: 1,000 kills and stops, every I/O call, 100,000 flipped bits
  scripts/campaign.py --sample               a sample of each part in less than a minute, for tests
  scripts/campaign.py --parts kills --kills 200 --seed 7 --log cases.jsonl

Runs are Llamas of 26,000 parameters over a text of 20 kB: one rank, two ranks as threads, two under mpirun. An
undisturbed run of each layout is the reference. A disturbed run is started again, with the same command, until it ends:
its last weights and its log must be those of the reference, to the bit; if a start refuses, its exit code is not 0 and
the reason is on standard error. Violations are printed, and end the campaign with exit code 1.

kills   SIGKILL, SIGTERM, SIGINT, SIGHUP and SIGUSR1 at every kind of I/O call of a start, a step and a save, at random
        moments between two steps' lines of the log, and at random moments of the whole; one to four of them before a run may end.
        A kill costs at most the steps since the checkpoint before the last one, a stop none; 75 says that a checkpoint
        of the last step exists.
faults  every call that a fresh run, a resumed run, an export and a generation make on their files fails once, in each
        way that fits the call, or from there on.
flips   bits of the files of a run and of an export: campaign_flips starts in its own process (see there), and a sample
        of flips is tried by the program itself.

io_faults (tests/campaign/io_faults.cpp) is preloaded into the program; the program is the one that users have.
"""
import argparse
import collections
import concurrent.futures
import itertools

import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-n", "2"]
TWO_HOSTS = [str(ROOT / "tests/mpi/two_hosts.sh"), "--tcp"]
LAYOUTS = {"one rank": ([], []), "two threads": ([], ["--ranks", "2"]), "mpirun -n 2": (MPIRUN, [])}
# Asked for by --layouts: two threads that share out something else than the batch; four processes over TCP in two network
# namespaces, with strangers at all their ports (root).
FURTHER = {
    "tp 2": ([], ["--ranks", "2", "--set", "parallel.tp=2"]),
    "cp 2": ([], ["--ranks", "2", "--set", "parallel.cp=2"]),
    "pp 2": ([], ["--ranks", "2", "--set", "parallel.pp=2", "--set", "train.micro_batch=1"]),
    "ep 2": ([], ["--ranks", "2", "--set", "model.preset=moe-tiny", "--set", "parallel.ep=2"]),
    "8 bits": ([], ["--ranks", "4", "--set", "parallel.tp=2", "--set", "model.layers=3", "--set", "precision.recipe=delayed",
                    "--set", "optimizer.m=u8", "--set", "optimizer.v=u8"]),
    "two hosts": (TWO_HOSTS, ["--set", "train.micro_batch=1"]),
}
PROCESSES = {"mpirun -n 2": ("0", "1"), "two hosts": ("0", "1", "2", "3")}  # ranks that are processes
STOPS = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"]
ERRORS = {
    "create": ["EIO", "ENOSPC", "EDQUOT", "EACCES"], "open": ["EIO", "EACCES", "EINTR"],
    "write": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "short"], "read": ["EIO", "EINTR", "short"],
    "fallocate": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "EOPNOTSUPP"], "ftruncate": ["EIO"],
    "fsync": ["EIO", "ENOSPC", "EDQUOT"], "close": ["EIO", "ENOSPC", "EDQUOT"],
    "rename": ["EIO", "ENOSPC", "EDQUOT"], "mkdir": ["EIO", "ENOSPC", "EDQUOT"], "unlink": ["EIO"], "rmdir": ["EIO"],
    "opendir": ["EIO"], "readdir": ["EIO"], "stat": ["EIO"], "mmap": ["ENOMEM"], "flock": ["EIO", "ENOLCK", "EINTR"]}
STICKY = {"create", "write", "fallocate", "fsync", "close", "rename", "mkdir"}
CONFIG = """[model]
preset = "llama-tiny"
width = 32
layers = 2
heads = 2
kv_heads = 2
head_dim = 16
ffn = 48
[data]
train = "{folder}/text.txt"
[train]
steps = {steps}
seq_len = 16
global_batch = 4
micro_batch = 2
threads = 1
[parallel]
zero = 3
[log]
every = 1
[checkpoint]
every = {every}
keep = 2
last_wait_s = 0
[comm]
timeout_s = 20
"""
TIMES = {"bubble", "step_ms", "tokens_per_s", "mfu", "hfu", "mem_peak_bytes", "comm", "comm_bytes", "ranks",
         "seconds", "time"}


class Result:
    def __init__(self, code, out, err, timed_out):
        self.code, self.out, self.err, self.timed_out = code, out, err, timed_out


class Bench:
    """What all cases share: programs, references, and what was found."""

    def __init__(self, options):
        self.options = options
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="campaign_", dir=options.scratch))
        self.text = "".join(f"line {i * i} of a text that repeats itself\n" for i in range(500))
        self.commit = commit()
        self.counts = collections.Counter()
        self.violations = []
        self.moments, self.calls_met = collections.Counter(), set()  # at which kills and stops came
        self.log = open(options.log, "w") if options.log else None
        self.references = {}
        self.folders = 0

    def reference(self, layout, steps=6, every=2):
        if (layout, steps, every) not in self.references:
            self.references[layout, steps, every] = Reference(self, layout, steps, every)
        return self.references[layout, steps, every]

    def folder(self, steps, every, base=None):
        """A folder with a config, a text and, of `base`, the run directory."""
        self.folders += 1
        folder = self.scratch / f"case-{self.folders}"
        folder.mkdir()
        (folder / "text.txt").write_text(self.text)
        (folder / "tiny.toml").write_text(CONFIG.format(folder=folder, steps=steps, every=every))
        for name in ("run", "exported"):
            if base and (base / name).exists():
                shutil.copytree(base / name, folder / name)
        return folder

    def start(self, folder, command, layout="one rank", fault=None):
        """Runs the program. `fault`: variables of io_faults."""
        launcher, more = (LAYOUTS | FURTHER)[layout]
        environment = dict(os.environ, GOMP_SPINCOUNT="1000", OMP_NUM_THREADS="1")
        if fault is not None:
            environment.update(LD_PRELOAD=str(self.options.io_faults), IO_FAULTS_ROOT=str(folder),
                               IO_FAULTS_LOG=str(folder) + ".calls", **fault)
        if launcher == TWO_HOSTS:
            launcher = [*TWO_HOSTS, f"--strangers={self.scratch}/strangers.log"]
        if launcher:  # several mpirun of one user at once trip over each other's files of sessions
            environment["TMPDIR"] = str(folder) + ".mpi"
            pathlib.Path(environment["TMPDIR"]).mkdir(exist_ok=True)
        arguments = [*launcher, str(self.options.program), *command]
        if command[0] == "train":
            arguments += more
        with open(str(folder) + ".out", "w+b") as out, open(str(folder) + ".err", "w+b") as err:
            child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
                                     cwd=self.scratch, start_new_session=True)
            timed_out = False
            try:
                child.wait(300)
            except subprocess.TimeoutExpired:
                timed_out = True
                os.killpg(child.pid, signal.SIGTERM)
                try:
                    child.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        return Result(child.returncode, *texts, timed_out)

    def train(self, folder, layout, fault=None, more=()):
        return self.start(folder, ["train", str(folder / "tiny.toml"), "--out", str(folder / "run"), "--force", *more], layout, fault)

    def calls(self, folder):
        """The calls that io_faults saw, and whether the fault came."""
        path = pathlib.Path(str(folder) + ".calls")
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if not line.startswith("!")], any(line.startswith("!") for line in lines)

    def done(self, folder):
        for path in (folder, str(folder) + ".mpi"):
            shutil.rmtree(path, ignore_errors=True)
        for suffix in (".out", ".err", ".calls"):
            pathlib.Path(str(folder) + suffix).unlink(missing_ok=True)

    def record(self, part, what, outcome, problems, result=None):
        self.counts[(part, *what[:2], outcome if not problems else "VIOLATION")] += 1
        if part == "kills" and len(what) > 2:
            self.moments[f"{what[0]}, {what[2]}"] += 1
            if what[2] == "I/O call":
                self.calls_met.add((what[0], what[1], kind_of(what[3]["IO_FAULTS_CALL"])))
        case = {"part": part, "what": what, "outcome": outcome, "problems": problems}
        if problems:
            case["stderr"] = result.err[-2000:] if result else ""
            self.violations.append(case)
            print("VIOLATION", json.dumps(case, indent=1), file=sys.stderr, flush=True)
        if self.log:
            self.log.write(json.dumps(case) + "\n")
            self.log.flush()


# --- what is compared

def weights(folder, step):
    """The bytes of the ranks' files of a checkpoint; None when it is not there."""
    checkpoint = folder / "run/checkpoints" / f"step-{step:010}"
    if not (checkpoint / "MANIFEST.json").exists():
        return None
    return {file.name: file.read_bytes() for file in sorted(checkpoint.glob("*.safetensors"))}


def metrics(folder):
    lines = []
    path = folder / "run/metrics.jsonl"
    for text in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue  # torn by a kill
        lines.append({key: value for key, value in line.items() if key not in TIMES})
    return lines


def committed(folder):
    steps = [int(path.parent.name[5:]) for path in (folder / "run/checkpoints").glob("step-*/MANIFEST.json")
             if re.fullmatch(r"step-\d{10}", path.parent.name)]
    return max(steps, default=0)


def debris(folder):
    return [str(path) for path in (folder / "run").rglob("*") if re.search(r"\.tmp|\.trash", path.name)]


def reason(result):
    """The last line on standard error that says why, "" if none."""
    lines = [line for line in result.err.splitlines() if line.startswith("tutti: ")]
    return lines[-1] if lines else ""


class Reference:
    """An undisturbed run, and one that was killed in the middle, from which others start."""

    def __init__(self, bench, layout, steps, every):
        self.layout, self.steps, self.every = layout, steps, every
        folder = bench.folder(steps, every)
        begin = time.monotonic()
        result = bench.train(folder, layout)
        self.seconds = time.monotonic() - begin
        assert result.code == 0, result.err
        self.weights, self.metrics = weights(folder, steps), metrics(folder)
        assert self.weights and len(self.metrics) == steps
        lines = (folder / "run/metrics.jsonl").read_text().splitlines()
        self.step_ms = statistics.median(json.loads(line)["step_ms"] for line in lines)
        bench.done(folder)
        self.processes = PROCESSES.get(layout, ("",))  # their ranks
        self.fresh_calls = self.calls_from(bench, None)
        self.kill_half_way(bench)

    def calls_from(self, bench, base):
        """The calls of each process of an undisturbed run."""
        calls = {}
        for rank in self.processes:
            folder = bench.folder(self.steps, self.every, base)
            result = bench.train(folder, self.layout, {"IO_FAULTS_RANK": rank})
            assert result.code == 0 and not self.problems(folder), f"{self.problems(folder)} {result.err}"
            calls[rank], _ = bench.calls(folder)
            bench.done(folder)
        return calls

    def kill_half_way(self, bench):
        """`half`: a run with lines in its log that are newer than its only checkpoint; `complete`: resumed from it."""
        self.half = bench.folder(self.steps, self.every)
        kill = {"IO_FAULTS_CALL": f"write run/metrics.jsonl {2 * self.every}", "IO_FAULTS_DO": "SIGKILL",
                "IO_FAULTS_RANK": self.processes[0]}
        bench.train(self.half, self.layout, kill, ["--set", "checkpoint.async=false"])  # so that the save is done
        assert committed(self.half) == self.every and len(metrics(self.half)) == 2 * self.every - 1
        self.complete = bench.folder(self.steps, self.every, self.half)
        result = bench.train(self.complete, self.layout)
        assert result.code == 0 and not self.problems(self.complete), result.err
        self.resumed_calls = self.calls_from(bench, self.half)

    def problems(self, folder, after_warning=False):
        """What is wrong with a run that ended well."""
        found = []
        if weights(folder, self.steps) != self.weights:
            found.append("the last weights are not those of the undisturbed run")
        if not after_warning and metrics(folder) != self.metrics:
            found.append("the log is not that of the undisturbed run")
        return found + [f"left behind: {name}" for name in debris(folder)]


def identities(calls):
    """Calls by name, pattern and number. Names of processes in paths are patterns."""
    seen = collections.Counter()
    unique = []
    for call in calls:
        operation, path = call.split(" ", 1)
        pattern = re.sub(r"(tmp|replaced)-[A-Za-z0-9_]+-\d+", r"\1-*", path)
        seen[operation, pattern] += 1
        unique.append((operation, pattern, seen[operation, pattern]))
    return unique


def crash(result):
    """Ends that no program should have."""
    if result.timed_out:
        return ["it did not end within five minutes"]
    if result.code < 0 or result.code > 128:
        return [f"it died of signal {abs(result.code) % 128}"]
    return []


# --- kills

def kind_of(call):
    """Which call of a start, a step or a save this is, whatever the step: "fsync run/checkpoints/step-N.tmp-*"."""
    operation, pattern = call.split(" ")[:2]
    return operation + " " + re.sub(r"\d{5,}", "N", pattern)


def moments(reference, calls, source):
    """Endless variables of io_faults: each kind of call in turn, and random moments between."""
    kinds = collections.defaultdict(list)
    for operation, pattern, count in identities(calls):
        call = f"{operation} {pattern} {count}"
        kinds[kind_of(call)].append(call)
    order = sorted(kinds)
    source.shuffle(order)
    for turn, kind in enumerate(itertools.cycle(order)):
        yield "I/O call", {"IO_FAULTS_CALL": source.choice(kinds[kind])}
        step = source.randrange(1, reference.steps)
        yield "step", {"IO_FAULTS_CALL": f"write run/metrics.jsonl {step}",
                       "IO_FAULTS_DELAY_US": str(int(source.uniform(1, 1500 * reference.step_ms)))}
        if turn % 4 == 0:
            yield "any time", {"IO_FAULTS_CALL": "stat run 1",
                               "IO_FAULTS_DELAY_US": str(int(source.uniform(1, 1e6 * reference.seconds)))}


def lives(reference, source):
    """Endless: the signal, one to four moments at which it comes, and the run that stands there before, if any."""
    of_base = {None: sum(reference.fresh_calls.values(), []), reference.half: sum(reference.resumed_calls.values(), [])}
    calls = {signal: {base: moments(reference, of_base[base], source) for base in of_base}
             for signal in ("SIGKILL", "stop")}
    for i in itertools.count():
        what = "SIGKILL" if i % 2 == 0 else STOPS[i // 2 % 4]
        base = reference.half if i % 3 == 2 else None
        stream = calls["SIGKILL" if what == "SIGKILL" else "stop"][base]
        chosen = [next(stream) for _ in range(source.choice([1, 1, 2, 4]))]
        if reference.layout in PROCESSES:
            for _, fault in chosen:
                fault["IO_FAULTS_RANK"] = source.choice([*PROCESSES[reference.layout], ""])  # "": all
        yield what, chosen, base


def ends_of_a_stop(folder, reference, what, result, mpi, log_before):
    """What is wrong with the end of a run that was told to stop."""
    if result.code == 0:
        return reference.problems(folder)
    if result.code == 75 and "preempted: stopped by" in result.err:  # before the first step: nothing was to be saved
        return [] if metrics(folder) == log_before else ["steps were logged by a run that was stopped before its first"]
    if result.code == 75:
        last = metrics(folder)[-1]["step"] if metrics(folder) else 0
        if committed(folder) != last or f"step-{last:010}" not in result.err:
            return [f"75 after step {last}, the newest checkpoint is of step {committed(folder)}"]
        return []
    before = result.code in (-getattr(signal, what), 128 + getattr(signal, what)) or (mpi and result.code not in (4, 5))
    if before and metrics(folder) == log_before:  # before the handler was there; nothing was computed
        return []
    return crash(result) or [f"exit code {result.code} after {what}"]


def one_life(bench, reference, life):
    """Kills or stops of one run, then an end in peace. Returns what is to be recorded."""
    what, chosen, base = life
    layout, mpi = reference.layout, reference.layout in PROCESSES
    folder = bench.folder(reference.steps, reference.every, base)
    records = []
    for name, fault in chosen:
        before, log_before = committed(folder), metrics(folder)
        pathlib.Path(str(folder) + ".calls").unlink(missing_ok=True)
        result = bench.train(folder, layout, dict(fault, IO_FAULTS_DO=what))
        fired = bench.calls(folder)[1]
        problems = []
        if result.timed_out:
            problems = crash(result)
        elif what != "SIGKILL" and fired:
            problems = ends_of_a_stop(folder, reference, what, result, mpi, log_before)
        elif result.code == 0:
            problems = reference.problems(folder)
        elif not fired:
            problems = [f"exit code {result.code} without a kill"]
        lines, after = metrics(folder), committed(folder)
        if after < before:
            problems.append(f"the newest checkpoint was of step {before}, now of {after}")
        # Saves go on beside the steps: of a run that is killed, the one of the step before the last may be under way.
        if after > before and lines and after < lines[-1]["step"] - 2 * reference.every:
            problems.append(f"step {lines[-1]['step']} is logged, the newest checkpoint is of step {after}")
        if fired or problems:
            records.append((["kills", [layout, what, name, fault], f"exit code {result.code}", problems, result], fired))
        if not fired:
            break
    newest = committed(folder)
    last = bench.train(folder, layout)
    problems = reference.problems(folder) if last.code == 0 else [f"the last start: exit code {last.code}"]
    said = re.search(r"continuing after step (\d+)|already at step (\d+)", last.out)
    if newest != (int(said[1] or said[2]) if said else 0):
        problems.append(f"the newest checkpoint is of step {newest}, the next start says {said and said[0]}")
    records.append((["kills", [layout, "the start after"], "the undisturbed run's weights and log", problems, last], False))
    bench.done(folder)
    return records


def kills(bench):
    source = random.Random(bench.options.seed)
    share = {"one rank": 0.35, "two threads": 0.35, "mpirun -n 2": 0.3} | dict.fromkeys(FURTHER, 0.35)
    for layout in bench.options.layouts:
        reference = bench.reference(layout, 24, 1)
        wanted = round(bench.options.kills * share[layout] / sum(share[l] for l in bench.options.layouts))
        all_lives, came = lives(reference, source), 0
        with concurrent.futures.ThreadPoolExecutor(bench.options.jobs) as pool:
            while came < wanted:
                batch = list(itertools.islice(all_lives, 1 + (wanted - came) // 2))
                for records in pool.map(lambda life: one_life(bench, reference, life), batch):
                    for record, fired in records:
                        bench.record(*record)
                        came += fired


# --- faults

def fault_cases(calls):
    for operation, pattern, count in identities(calls):
        for error in ERRORS[operation]:
            yield operation, pattern, count, error, False
        if operation in STICKY:
            yield operation, pattern, count, "ENOSPC", True


def judge_training(bench, reference, folder, result, error):
    """The run with the fault, and the start after it."""
    warned = "warning: " in result.err
    if crash(result):
        problems, outcome = crash(result), "crash"
    elif result.code == 0:
        problems, outcome = reference.problems(folder, warned), "done, with a warning" if warned else "done"
        if warned:  # what could not be removed is removed by the next start
            problems = [p for p in problems if not p.startswith("left behind")]
    elif result.code in (2, 3, 4, 5):
        problems, outcome = [] if reason(result) else ["no reason on standard error"], f"refused with {result.code}"
    else:
        problems, outcome = [f"exit code {result.code}"], ""
    if "Success" in result.err or "errno 0" in result.err:
        problems.append("the reason names no error")
    if error in ("short", "EINTR") and result.code != 0:
        problems.append(f"{error} is no failure")
    after = bench.train(folder, reference.layout)
    if after.code != 0:
        problems.append(f"the start after: exit code {after.code}: {after.err[-300:]}")
    else:
        problems += ["the start after: " + p for p in reference.problems(folder, warned)]
    return outcome, problems


def fault_jobs(bench):
    for layout in bench.options.layouts:
        reference = bench.reference(layout)
        for scenario, calls, base in (("fresh", reference.fresh_calls, None),
                                      ("resumed", reference.resumed_calls, reference.half)):
            for rank in reference.processes:
                for case in fault_cases(calls[rank]):
                    yield reference, scenario, base, rank, case


def one_fault(bench, job):
    reference, scenario, base, rank, (operation, pattern, count, error, sticky) = job
    folder = bench.folder(reference.steps, reference.every, base)
    fault = {"IO_FAULTS_CALL": f"{operation} {pattern} {count}", "IO_FAULTS_DO": error,
             "IO_FAULTS_STICKY": "1" if sticky else "", "IO_FAULTS_RANK": rank}
    result = bench.train(folder, reference.layout, fault)
    fired = bench.calls(folder)[1]
    outcome, problems = judge_training(bench, reference, folder, result, error)
    bench.done(folder)
    what = [reference.layout, operation, scenario, rank, pattern, count, error + (" from there on" if sticky else "")]
    return what, outcome if fired else "not reached", problems, result


def commands(folder):
    """What reads a run, and what it makes."""
    return {"convert": ["convert", "--from", str(folder / "run"), "--to", str(folder / "exported")],
            "generate": ["generate", str(folder / "run"), "--prompt", "line 4", "--greedy", "--max-tokens", "8",
                         "--threads", "1", "--device", "cpu"]}


def made(folder, result):
    exported = folder / "exported"
    files = {str(path.relative_to(exported)): path.read_bytes() for path in sorted(exported.rglob("*")) if path.is_file()}
    return result.out.replace(str(folder), "") if result.code == 0 else "", files


class Reading:
    """A command that reads a complete run, undisturbed."""

    def __init__(self, bench, reference, name):
        self.name, self.reference = name, reference
        folder = bench.folder(reference.steps, reference.every, reference.complete)
        result = bench.start(folder, commands(folder)[name], fault={})
        assert result.code == 0, result.err
        self.made = made(folder, result)
        self.calls, _ = bench.calls(folder)
        bench.done(folder)


def reading_jobs(bench):
    reference = bench.reference("one rank")
    for name in ("convert", "generate"):
        reading = Reading(bench, reference, name)
        for case in fault_cases(reading.calls):
            yield reading, case


def one_reading_fault(bench, job):
    reading, (operation, pattern, count, error, sticky) = job
    folder = bench.folder(reading.reference.steps, reading.reference.every, reading.reference.complete)
    command = commands(folder)[reading.name]
    result = bench.start(folder, command, fault={"IO_FAULTS_CALL": f"{operation} {pattern} {count}", "IO_FAULTS_DO": error,
                                                 "IO_FAULTS_STICKY": "1" if sticky else ""})
    fired = bench.calls(folder)[1]
    problems, outcome = crash(result), ""
    if result.code == 0:
        # A damaged or unreadable checkpoint is passed over with a warning: then an older one is used.
        warned = "warning: " in result.err
        outcome = "done, with a warning" if warned else "done"
        if made(folder, result) != reading.made and not warned:
            problems.append("what was made is not what was to be made")
    elif result.code in (2, 3, 4):
        outcome = f"refused with {result.code}"
        problems += [] if reason(result) else ["no reason on standard error"]
        if (folder / "exported").exists() and made(folder, result)[1] != reading.made[1]:
            problems.append("a part of an export is left behind")
    if "Success" in result.err or "errno 0" in result.err:
        problems.append("the reason names no error")
    if error in ("short", "EINTR") and result.code != 0:
        problems.append(f"{error} is no failure")
    shutil.rmtree(folder / "exported", ignore_errors=True)
    after = bench.start(folder, command)
    if after.code != 0 or made(folder, after) != reading.made:
        problems.append(f"the start after: exit code {after.code}: {after.err[-300:]}")
    bench.done(folder)
    what = ["one rank", operation, reading.name, "", pattern, count, error + (" from there on" if sticky else "")]
    return what, outcome if fired else "not reached", problems, result


def faults(bench):
    jobs = [(one_fault, job) for job in fault_jobs(bench)]
    if "one rank" in bench.options.layouts:
        jobs += [(one_reading_fault, job) for job in reading_jobs(bench)]
    if bench.options.faults:
        jobs = random.Random(bench.options.seed).sample(jobs, min(bench.options.faults, len(jobs)))
    with concurrent.futures.ThreadPoolExecutor(bench.options.jobs) as pool:
        for what, outcome, problems, result in pool.map(lambda job: job[0](bench, job[1]), jobs):
            bench.record("faults", what, outcome, problems, result)


# --- flips

def flips_folder(bench):
    """A run of four steps with a tokenizer of its own, whose config asks for a fifth, and its export."""
    folder = bench.folder(4, 2)
    text = (folder / "tiny.toml").read_text().replace("layers = 2", "layers = 1")
    text = text.replace("[train]", f'tokenizer = "{folder}/tokenizer.json"\n[train]').replace("width", "vocab = 320\nwidth")
    (folder / "tiny.toml").write_text(text)
    for command in (["data", "train-tokenizer", str(folder / "text.txt"), "--vocab", "320", "--out",
                     str(folder / "tokenizer.json")],
                    ["train", str(folder / "tiny.toml"), "--out", str(folder / "run")],
                    ["convert", "--from", str(folder / "run"), "--to", str(folder / "exported")]):
        result = bench.start(folder, command)
        assert result.code == 0, result.err
    config = folder / "run/config.toml"
    config.write_text(config.read_text().replace("steps = 4", "steps = 5", 1))
    (folder / "tiny.toml").unlink()
    return folder


def flips(bench):
    jobs = bench.options.jobs
    # In one process each: many starts a second, and a crash would end the process.
    children = []
    for job in range(jobs):
        folder, share = flips_folder(bench), bench.options.flips // jobs + (job < bench.options.flips % jobs)
        err = open(str(folder) + ".flips", "w+")
        children.append((subprocess.Popen([str(bench.options.flips_program), str(folder), str(share),
                                           str(bench.options.seed + job)], stdout=subprocess.PIPE, stderr=err, text=True,
                                          env=dict(os.environ, OMP_NUM_THREADS="1"), cwd=bench.scratch), err))
    for child, err in children:
        out = child.communicate()[0]
        err.seek(0)
        if child.returncode != 0:
            bench.record("flips", ["in one process", "campaign_flips"], "", [f"exit code {child.returncode}"],
                         Result(child.returncode, out, err.read(), False))
            continue
        report = json.loads(out)
        for command, files in report["outcomes"].items():
            for file, outcomes in files.items():
                for outcome, count in outcomes.items():
                    bench.counts[("flips", command, file, outcome)] += count
        bench.violations += report["violations"]
        for violation in report["violations"]:
            print("VIOLATION", json.dumps(violation, indent=1), file=sys.stderr, flush=True)
    flips_of_processes(bench)


def flips_of_processes(bench):
    """Whole programs: a flip in a checkpoint, the config or the data of a killed run, for each layout."""
    source = random.Random(bench.options.seed)
    for layout in bench.options.layouts:
        reference = bench.reference(layout)
        files = [path.relative_to(reference.half) for path in sorted(reference.half.rglob("*"))
                 if path.is_file() and path.stat().st_size > 0 and path.name not in ("tiny.toml", ".lock", "run.lock")]
        cases = [(source.choice(files), source.random()) for _ in range(bench.options.flips // 300)]

        def one(case):
            file, place = case
            folder = bench.folder(reference.steps, reference.every, reference.half)
            content = bytearray((folder / file).read_bytes())
            bit = int(place * 8 * len(content))
            content[bit // 8] ^= 1 << bit % 8
            (folder / file).write_bytes(content)
            result = bench.train(folder, layout)
            warned = "warning: " in result.err
            if result.code in (2, 3):
                outcome, problems = "refused with the reason", [] if reason(result) else ["no reason"]
            elif result.code == 0:
                outcome, problems = "the same, damage named" if warned else "the same", reference.problems(folder, warned)
                if problems == ["the log is not that of the undisturbed run"] and file.name == "metrics.jsonl":
                    outcome, problems = "the same, a value of the log changed", []
            else:
                outcome, problems = "", [f"exit code {result.code}"]
            bench.done(folder)
            return [layout, re.sub(r"\d{5,}", "N", str(file)), bit], outcome, problems, result

        with concurrent.futures.ThreadPoolExecutor(bench.options.jobs) as pool:
            for case in pool.map(one, cases):
                bench.record("flips", *case)


# --- the whole

def machine():
    fields = dict(line.split(":", 1) for line in subprocess.run(["lscpu"], capture_output=True, text=True).stdout
                  .splitlines() if ":" in line)
    return {key: fields.get(key, "?").strip() for key in ("Model name", "CPU family", "Model", "CPU(s)")}


def commit():
    said = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7"],
                          capture_output=True, text=True)
    return said.stdout.strip()


def calls_met(bench):
    """Of each layout: at how many kinds of I/O calls SIGKILL came, and one of the stops."""
    met = collections.defaultdict(lambda: {"SIGKILL": set(), "stops": set()})
    for layout, what, kind in bench.calls_met:
        met[layout]["SIGKILL" if what == "SIGKILL" else "stops"].add(kind)
    return {layout: {what: len(kinds) for what, kinds in of.items()} for layout, of in met.items()}


def summary(bench, seconds):
    table = collections.defaultdict(dict)
    for (part, layout, what, outcome), count in sorted(bench.counts.items()):
        table[f"{part}, {layout}, {what}"][outcome] = count
    return {"command": " ".join(sys.argv), "commit": bench.commit, "machine": machine(), "seed": bench.options.seed,
            "seconds": {part: round(s, 1) for part, s in seconds.items()}, "cases": sum(bench.counts.values()),
            "violations": len(bench.violations), "moments of kills and stops": dict(bench.moments),
            "kinds of I/O calls at which they came": calls_met(bench), "outcomes": table}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    build = ROOT / "build/release"
    parser.add_argument("--program", type=pathlib.Path, default=build / "tutti")
    parser.add_argument("--io-faults", type=pathlib.Path, default=build / "libcampaign_io_faults.so")
    parser.add_argument("--flips-program", type=pathlib.Path, default=build / "campaign_flips")
    parser.add_argument("--scratch", default=None, help="a folder for the runs; default: the system's")
    parser.add_argument("--parts", nargs="+", default=["kills", "faults", "flips"], choices=["kills", "faults", "flips"])
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=[*LAYOUTS, *FURTHER])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=0, help="a random choice of so many; default: every one")
    parser.add_argument("--flips", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sample", action="store_true", help="10 kills, 30 faults, 600 flips")
    parser.add_argument("--log", help="one line of JSON per case")
    parser.add_argument("--summary", help="JSON of the counts")
    options = parser.parse_args()
    for name in ("program", "io_faults", "flips_program"):
        setattr(options, name, getattr(options, name).resolve())
    if options.sample:
        options.kills, options.faults, options.flips = 10, 30, 600
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup programs would ignore it
    bench = Bench(options)
    seconds = {}
    try:
        for part in options.parts:
            begin = time.monotonic()
            {"kills": kills, "faults": faults, "flips": flips}[part](bench)
            seconds[part] = time.monotonic() - begin
    finally:
        shutil.rmtree(bench.scratch, ignore_errors=True)
    text = json.dumps(summary(bench, seconds), indent=1)
    if options.summary:
        pathlib.Path(options.summary).write_text(text + "\n")
    print(text)
    return 1 if bench.violations else 0


if __name__ == "__main__":
    sys.exit(main())
