#!/usr/bin/env python3
"""Do the tests notice a wrong operator or a missing statement? Draws mutants of the sources of seven rooms by a seed, builds
each in a copy of the tree and runs the tests that could see it: those of its room, of the rooms above and, with --all, the
whole fast set. A mutant whose tests fail, crash or do not end is killed; one that they pass survives.

    scripts/mutate.py --scratch /tmp/mutants --seed 1 --count 150 [--first N] [--all] [--out bench/results/mutants.txt]
    scripts/mutate.py --seed 1 --count 20 --list          # draw, and build nothing

A mutant is a seed and a number: parts of a draw (--first, --count) are those of the whole, and --out is added to. One that
does not compile is none. The scratch folder keeps its build."""

import argparse
import pathlib
import random
import re
import resource
import subprocess
import sys

from scratch_tree import ROOT, ScratchTree

# Rooms, and the rooms above whose tests run their code, the quickest first.
ABOVE = {
    "autograd": ["nn", "models", "engine"],
    "parallel": ["engine", "rehearsal", "train"],
    "pipeline": ["schedule", "rehearsal", "engine"],
    "comm": ["parallel", "launch", "engine"],
    "optim": ["parallel", "train", "engine"],
    "nn": ["models", "infer", "engine"],
    "checkpoint": ["train", "hf", "infer"],
}
SECONDS = 900  # for the tests of a room
GIB = 1 << 30

# clang-format sets blanks around binary operators, and around no other < > * &.
OPERATORS = {"<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"], "==": ["!="], "!=": ["=="], "&&": ["||"],
             "||": ["&&"], "+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "%": ["*"], "+=": ["-="], "-=": ["+="], "*=": ["/="]}
BINARY = re.compile(r"(?<= )(?:" + "|".join(re.escape(o) for o in sorted(OPERATORS, key=len, reverse=True)) + r")(?= )")
CONSTANT = re.compile(r"\b(?:true|false)\b")
CONDITION = re.compile(r"\b(?:if|while) \((?!const |auto )")
# A call, an assignment or a step as a statement of its own on one line: no declaration, no return.
STATEMENT = re.compile(r"^ +(?!return|throw|break|continue|using|case|default|const|auto|static|namespace|class|struct|friend|template)"
                       r"[\w:.\->\[\]()*+]+(?:\(.*\)| [-+*/|&]?= .*|\+\+|--)?;$")
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^ *#[^\n]*', re.S | re.M)


# Without tests, and without what those of a build for CPUs and threads do not run.
def sources(room):
    return sorted(p for p in (ROOT / "src/tutti" / room).rglob("*.cpp")
                  if not {"testing", "nccl", "mpi"} & set(p.parts) and not re.search(r"_(?:test|cases|fixtures)\.cpp$", p.name))


def places(path):
    """(offset, text, replacements) of each place that may be mutated."""
    text = path.read_text()
    code = COMMENT_OR_TEXT.sub(lambda m: re.sub(r"[^\n]", "_", m.group()), text)
    found = [(m.start(), m.group(), OPERATORS[m.group()]) for m in BINARY.finditer(code)]
    found += [(m.start(), m.group(), ["false" if m.group() == "true" else "true"]) for m in CONSTANT.finditer(code)]
    for m in CONDITION.finditer(code):
        depth, end = 1, m.end()
        while depth and end < len(code):
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
        condition = text[m.end():end - 1]
        if ";" not in code[m.end():end]:
            found.append((m.end(), condition, [f"!({condition})"]))
    offset = 0
    for line in code.splitlines(keepends=True):
        bare = line.rstrip("\n")
        if STATEMENT.match(bare) and bare.count("(") == bare.count(")"):
            blanks = len(bare) - len(bare.lstrip())
            found.append((offset + blanks, text[offset + blanks:offset + len(bare)], [";"]))
        offset += len(line)
    return sorted(found)


class Mutant:
    """Number `number` of the draw `seed`: the rooms take turns, and a room's places have equal chances."""

    def __init__(self, seed, number, all_places):
        self.name = f"{seed}:{number}"
        self.room = list(ABOVE)[number % len(ABOVE)]
        draw = random.Random(self.name)
        self.path, (self.offset, self.old, replacements) = draw.choice(all_places[self.room])
        self.new = draw.choice(replacements)
        self.file = str(self.path.relative_to(ROOT))
        self.line = self.path.read_text()[:self.offset].count("\n") + 1

    def apply(self, tree):
        text = self.path.read_text()
        (tree.folder / self.file).write_text(text[:self.offset] + self.new + text[self.offset + len(self.old):])

    def __str__(self):
        return f"{self.name} | {self.file}:{self.line} | {' '.join(self.old.split())} -> {self.new if self.new != ';' else '(dropped)'}"


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (12 * GIB, 12 * GIB))


# How the tests of a room notice the mutant, or None.
def noticed_by(tree, room):
    tests = f"{room}_tests"
    try:
        done = subprocess.run([str(tree.folder / tree.where / tests), "--gtest_brief=1", "--gtest_fail_fast"], cwd=tree.folder / tree.where,
                              capture_output=True, text=True, errors="replace", timeout=SECONDS, preexec_fn=limit_memory)
    except subprocess.TimeoutExpired:
        return f"{tests}: no end in {SECONDS} s"
    if done.returncode == 0:
        return None
    failed = re.search(r"\[  FAILED  \] ([\w/.]+)", done.stdout)
    return f"{tests}: {failed.group(1) if failed else f'exit code {done.returncode}'}"


def noticed_by_all(tree):
    done = subprocess.run(["ctest", "-L", "fast", "-j2", "--stop-on-failure", "--timeout", str(SECONDS)], cwd=tree.folder / tree.where,
                          capture_output=True, text=True, errors="replace")
    if done.returncode == 0:
        return None
    failed = re.search(r"\d+ - (\S+) \((?:Failed|Timeout|SEGFAULT|Subprocess)", done.stdout)
    return f"fast set: {failed.group(1) if failed else 'a test'}"


def fate(tree, mutant, whole):
    rooms = [mutant.room, *ABOVE[mutant.room]]
    for i, room in enumerate(rooms):
        if tree.try_build(f"{room}_tests") is not None:
            return "does not compile" if i == 0 else f"killed by {room}_tests: does not compile"
        if by := noticed_by(tree, room):
            return f"killed by {by}"
    if whole:
        tree.build("all")
        if by := noticed_by_all(tree):
            return f"killed by {by}"
    return "survived"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--count", type=int, default=150, help="mutants, those that do not compile included")
    parser.add_argument("--all", action="store_true", help="those that survive meet the whole fast set")
    parser.add_argument("--list", action="store_true", help="draw only")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, help="file to which the lines are added")
    arguments = parser.parse_args()
    all_places = {room: [(path, place) for path in sources(room) for place in places(path)] for room in ABOVE}
    mutants = [Mutant(arguments.seed, n, all_places) for n in range(arguments.first, arguments.first + arguments.count)]
    if arguments.list:
        for mutant in mutants:
            print(mutant)
        return 0
    if not arguments.scratch:
        parser.error("--scratch FOLDER is required")
    tree = ScratchTree(arguments.scratch, jobs=arguments.jobs, tests=True)
    fates = {"killed": 0, "survived": 0, "does": 0}
    for mutant in mutants:
        mutant.apply(tree)
        line = f"{mutant} | {fate(tree, mutant, arguments.all)}"
        tree.restore(mutant.file)
        fates[line.rsplit(" | ", 1)[1].split()[0]] += 1
        print(line, flush=True)
        if arguments.out:
            with arguments.out.open("a") as out:
                out.write(line + "\n")
    built = fates["killed"] + fates["survived"]
    print(f"{built} mutants that compile ({fates['does']} do not): {fates['killed']} killed, {fates['survived']} survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
