#!/usr/bin/env python3
"""Do the tests notice a wrong operator or a missing statement? Draws mutants of the sources of seven rooms by a seed,
compiles all of them into one copy of the tree (scripts/mutants.h: an environment variable says which one acts), runs each
test once to learn which mutants it reaches, and then each mutant under the tests that reach it, the quickest of its own
room first. A mutant under which a test fails, crashes or does not end is killed; one that all pass survives.

    scripts/mutate.py --scratch /tmp/mutants --seed 1 --count 150 [--out bench/results/mutants.txt]
    scripts/mutate.py --scratch /tmp/mutants --seed 1 --count 200 --first 150 --labels fast    # the next 50, by fewer tests
    scripts/mutate.py --seed 1 --count 20 --list          # draw, and build nothing

The same seed and count draw the same mutants of the same sources. One that does not compile is none. The scratch folder
keeps its build and what the tests reach."""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

from scratch_tree import ROOT, ScratchTree

ROOMS = ["autograd", "parallel", "pipeline", "comm", "optim", "nn", "checkpoint"]
LABELS = ["fast", "slow", "mpi"]
MODEST = {"GOMP_SPINCOUNT": "1000"}  # threads that wait leave the cores to the other tests


def modest():
    """A mutant that takes all memory ends before its neighbours do. (Rehearsals map far more than they use.)"""
    pathlib.Path("/proc/self/oom_score_adj").write_text("1000")


# clang-format sets blanks around binary operators, and around no other < > * &.
OPERATORS = {"<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"], "==": ["!="], "!=": ["=="], "&&": ["||"],
             "||": ["&&"], "+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "%": ["*"], "+=": ["-="], "-=": ["+="], "*=": ["/="]}
LETTER = {"<=": "l", ">=": "g", "!=": "!"}  # of operators in mutants.h; of others the first character
BINARY = re.compile(r"(?<= )(?:" + "|".join(re.escape(o) for o in sorted(OPERATORS, key=len, reverse=True)) + r")(?=[ \n])")
CONSTANT = re.compile(r"\b(?:true|false)\b")
CONDITION = re.compile(r"\b(?:if|while) \((?!const |auto )")
# A call, an assignment or a step as a statement of its own on one line: no declaration, no return.
STATEMENT = re.compile(r"^ +(?!return|throw|break|continue|using|case|default|const|auto|static|namespace|class|struct|friend|template)"
                       r"[\w:.\->\[\]()*+]+(?:\(.*\)| [-+*/|&]?= .*|\+\+|--)?;$")
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^ *#[^\n]*', re.S | re.M)
OPEN, CLOSE = "([{", ")]}"


# Without tests, and without what those of a build for CPUs and threads do not run.
def sources(room):
    return sorted(p for p in (ROOT / "src/tutti" / room).rglob("*.cpp")
                  if not {"testing", "nccl", "mpi"} & set(p.parts) and not re.search(r"_(?:test|cases|fixtures)\.cpp$", p.name))


def blank_text(text):
    return COMMENT_OR_TEXT.sub(lambda m: re.sub(r"[^\n]", "_", m.group()), text)


def operand(code, at, step, ends=("||",)):
    """Where the operand of && or || beside offset `at` ends: at a bracket that is not its own, or at a weaker operator."""
    inner, outer = (OPEN, CLOSE) if step > 0 else (CLOSE, OPEN)
    depth = 0
    while 0 <= at < len(code):
        c = code[at]
        if c in inner:
            depth += 1
        elif c in outer:
            if depth == 0:
                break
            depth -= 1
        elif depth == 0:
            around = code[max(at - 1, 0):at + 2]
            if c in ",;?" or (c == ":" and "::" not in around) or any(e in around for e in ends):
                break
            if c == "=" and not re.search(r"[=!<>]=|==", around) or code[max(at - 6, 0):at + 1] == "return ":
                break
        at += step
    return at + (step < 0)


class Mutant:
    """A change of a source: what is read, and the texts to insert, at which offsets, that make it one of many."""

    def __init__(self, path, text, offset, old, new, inserted):
        self.path, self.old, self.new, self.inserted = path, old, new, inserted
        self.offset, self.line = offset, text[:offset].count("\n") + 1

    def place(self):
        return self.path, self.offset, self.old

    def __str__(self):
        return f"{self.path.relative_to(ROOT)}:{self.line} | {' '.join(self.old.split())} -> {self.new}"


def mutants_of(path):
    """All of a source. In texts to insert, @ is the mutant's number."""
    text = path.read_text()
    code = blank_text(text)
    found = []

    def add(offset, old, new, *inserted):
        found.append(Mutant(path, text, offset, old, new, inserted))

    for m in BINARY.finditer(code):
        old, (start, end) = m.group(), m.span()
        for new in OPERATORS[old]:
            if old in ("&&", "||"):
                name = "both" if old == "&&" else "either"
                add(start, old, new, (operand(code, start - 1, -1), f"::mutants::{name}<@>(static_cast<bool>("),
                    (start, "), [&]() -> bool { return static_cast<bool>("), (end, None), (operand(code, end, 1, ("||", "&&") if old == "&&" else ("||",)), "); })"))
            else:
                letter = LETTER.get(new, new[0])
                add(start, old, new, (end, f" ::mutants::Switch<@, '{letter}'>{{}} {old}"))
    for m in CONSTANT.finditer(code):
        add(m.start(), m.group(), "false" if m.group() == "true" else "true", (m.start(), "::mutants::negated<@>("), (m.end(), ")"))
    for m in CONDITION.finditer(code):
        end = operand_of_bracket(code, m.end())
        if ";" not in code[m.end():end]:
            add(m.end(), text[m.end():end], f"!({' '.join(text[m.end():end].split())})",
                (m.end(), "::mutants::negated<@>(static_cast<bool>("), (end, "))"))
    offset = 0
    for line in code.splitlines(keepends=True):
        bare = line.rstrip("\n")
        if STATEMENT.match(bare) and bare.count("(") == bare.count(")"):
            start, end = offset + len(bare) - len(bare.lstrip()), offset + len(bare)
            add(start, text[start:end], "(dropped)", (start, "{ if (!::mutants::acts<@>()) "), (end, " }"))
        offset += len(line)
    return found


def operand_of_bracket(code, at):
    depth = 1
    while True:
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if depth == 0:
            return at
        at += 1


def draw(seed, count):
    """Rooms take turns, and the places of a room have equal chances."""
    of_room = {room: [m for path in sources(room) for m in mutants_of(path)] for room in ROOMS}
    drawn = []
    while len(drawn) < count:
        room = ROOMS[len(drawn) % len(ROOMS)]
        of = random.Random(f"{seed}:{len(drawn)}")
        left = of_room[room]
        drawn.append(of.choice(left))
        of_room[room] = [m for m in left if m.place() != drawn[-1].place()]
    return drawn


def write_together(tree, mutants, dropped):
    """The sources with all mutants in them, line by line where they were."""
    (tree.folder / "src/tutti/base/mutants.h").write_bytes((ROOT / "scripts/mutants.h").read_bytes())
    by_file = {}
    for number, mutant in enumerate(mutants):
        if number not in dropped:
            by_file.setdefault(mutant.path, []).append((number, mutant))
    for path in {m.path for m in mutants}:
        if path not in by_file:
            tree.restore(path.relative_to(ROOT))
            continue
        text, edits = path.read_text(), []
        for number, mutant in by_file[path]:
            spans = [at for at, _ in mutant.inserted]
            for i, (at, inserted) in enumerate(mutant.inserted):
                if inserted is None:
                    continue
                # Of texts at one offset, those of the longer span are outside.
                span = spans[-1] - spans[0]
                opens = i == 0
                edits.append((at, 1 if opens else 0, -span if opens else span, number, i, inserted.replace("@", str(number)),
                              mutant.inserted[i + 1][0] if i + 1 < len(spans) and mutant.inserted[i + 1][1] is None else at))
        out, last = [], 0
        for at, _, _, _, _, inserted, resume in sorted(edits):
            out += [text[last:at], inserted]
            last = max(resume, at)
        out.append(text[last:])
        name = path.relative_to(ROOT)
        # A system header has no warnings.
        body = tree.folder / name.with_suffix(".mutants")
        write(body, f'#pragma GCC system_header\n#include "tutti/base/mutants.h"\n#line 1\n{"".join(out)}')
        write(tree.folder / name, f'#include "{body.name}"\n')


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def build(tree, mutants, first, programs):
    """Builds the tests with the mutants from `first` on; returns the numbers of the others, and of those that do not compile."""
    dropped = set(range(first))
    while True:
        write_together(tree, mutants, dropped)
        refusal = tree.try_build(*programs)
        if refusal is None:
            return dropped
        places = {(m.group(1), int(m.group(2)))
                  for m in re.finditer(r"(src/tutti/[\w/]+)\.mutants:(\d+):\d+: +(?:error|required from here)", refusal)}
        wrong = {n for n, m in enumerate(mutants) if n not in dropped and (str(m.path.relative_to(ROOT).with_suffix("")), m.line) in places}
        if not wrong:
            raise SystemExit(refusal[-4000:])
        print(f"{len(wrong)} mutants do not compile: " + ", ".join(str(mutants[n]) for n in sorted(wrong)), flush=True)
        dropped |= wrong


class Test:
    """A test of ctest, run as ctest runs it."""

    def __init__(self, entry):
        of = {p["name"]: p["value"] for p in entry["properties"]}
        self.name, self.command, self.where = entry["name"], entry["command"], of.get("WORKING_DIRECTORY")
        self.environment = dict(e.split("=", 1) for e in of.get("ENVIRONMENT", []))
        self.limit, self.labels = of.get("TIMEOUT", 600), set(of.get("LABELS", []))
        self.passes = [re.compile(p) for p in of.get("PASS_REGULAR_EXPRESSION", [])]
        self.skipped = of.get("SKIP_RETURN_CODE")

    def room(self):
        return pathlib.Path(self.command[0]).name.removesuffix("_tests")

    def run(self, limit, **environment):
        """None if it passes, else how it failed."""
        with subprocess.Popen(self.command, cwd=self.where, env={**os.environ, **MODEST, **self.environment, **environment}, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                              preexec_fn=modest) as process:
            try:
                output = process.communicate(timeout=limit)[0]
            except subprocess.TimeoutExpired:
                output = None
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)  # what a crash leaves behind
                except ProcessLookupError:
                    pass
        if output is None:
            return f"no end in {limit:.0f} s"
        if self.passes:
            return None if any(p.search(output) for p in self.passes) else "other output"
        return None if process.returncode in (0, self.skipped) else f"exit code {process.returncode}"


def tests_of(tree, labels, programs):
    listed = subprocess.run(["ctest", "--show-only=json-v1"], cwd=tree.folder / tree.where, check=True, capture_output=True, text=True).stdout
    tests = [Test(entry) for entry in json.loads(listed)["tests"] if "command" in entry]
    return {t.name: t for t in tests if t.labels & labels and ("all" in programs or pathlib.Path(t.command[0]).name in programs)}


def reached(tree, tests, mutants, jobs):
    """Of each test that passes: its seconds, and the numbers of the mutants that it reaches. Kept for the same sources."""
    key = hashlib.sha256("".join(map(str, mutants)).encode() + (ROOT / "scripts/mutants.h").read_bytes()).hexdigest()
    kept = tree.folder / "reached.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    if known.get("key") != key:
        known = {"key": key, "tests": {}}

    def learn(test):
        file = tree.folder / f"reached-{threading.get_ident()}"
        file.write_bytes(bytes(len(mutants)))
        start = time.monotonic()
        failure = test.run(5 * test.limit, TUTTI_MUTANTS_REACHED=str(file))
        seconds = time.monotonic() - start
        return test.name, {"seconds": seconds, "failure": failure, "reached": [n for n, b in enumerate(file.read_bytes()) if b]}

    left = [t for t in tests.values() if t.name not in known["tests"]]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(learn, test) for test in left]
        for i, done in enumerate(concurrent.futures.as_completed(running)):
            name, found = done.result()
            known["tests"][name] = found
            if found["failure"]:
                print(f"without a mutant, {name} fails: {found['failure']}; it judges none", flush=True)
            if i % 50 == 49 or i == len(left) - 1:
                kept.write_text(json.dumps(known))
    return {name: found for name, found in known["tests"].items() if not found["failure"] and name in tests}


def fate(number, mutant, tests, known, seconds):
    room = mutant.path.relative_to(ROOT / "src/tutti").parts[0]
    able = sorted((name for name, found in known.items() if number in found["reached"]),
                  key=lambda name: (tests[name].room() != room, known[name]["seconds"]))
    if not able:
        return "survived: no test reaches it"
    spent = 0
    for i, name in enumerate(able):
        if spent > seconds:
            return f"survived {i} tests of {len(able)} that reach it, in {spent:.0f} s"
        start = time.monotonic()
        if failure := tests[name].run(30 + 10 * known[name]["seconds"], TUTTI_MUTANT=str(number)):
            return f"killed by {name} ({failure}), the {i + 1}. of {len(able)}"
        spent += time.monotonic() - start
    return f"survived all {len(able)} tests that reach it"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=150, help="mutants, those that do not compile included")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant to judge")
    parser.add_argument("--labels", nargs="+", choices=LABELS, default=LABELS, help="of the tests that judge")
    parser.add_argument("--programs", nargs="+", default=["all"], metavar="NAME", help="to build, whose tests judge: optim_tests, ...")
    parser.add_argument("--list", action="store_true", help="draw only")
    parser.add_argument("--seconds", type=float, default=600, help="of tests for a mutant, after which it has survived")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, help="file to which the lines are written too")
    arguments = parser.parse_args()
    mutants = draw(arguments.seed, arguments.count)
    if arguments.list:
        for number, mutant in enumerate(mutants[arguments.first:], arguments.first):
            print(f"{number} | {mutant}")
        return 0
    if not arguments.scratch:
        parser.error("--scratch FOLDER is required")
    tree = ScratchTree(arguments.scratch, jobs=arguments.jobs, tests=True, warnings=True)
    dropped = build(tree, mutants, arguments.first, arguments.programs)
    tests = tests_of(tree, set(arguments.labels), arguments.programs)
    known = reached(tree, tests, mutants, arguments.jobs)
    alive = [n for n in range(len(mutants)) if n not in dropped]
    lines = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for number, end in zip(alive, pool.map(lambda n: fate(n, mutants[n], tests, known, arguments.seconds), alive)):
            lines.append(f"{number} | {mutants[number]} | {end}")
            print(lines[-1], flush=True)
    killed = sum(" | killed by " in line for line in lines)
    lines.append(f"{len(alive)} mutants that compile ({len(dropped) - arguments.first} do not): {killed} killed, {len(alive) - killed} survived")
    print(lines[-1])
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
