#!/usr/bin/env python3
"""scripts/lecture_pages.py PROGRAM [--check]: writes the pages of docs/lectures from docs/lectures/*.toml: what a slide
says, the command, what the program says. --check: says whether the pages are up to date.

An item has `slide`, `run` (one command or several, each after "tutti"), `says`, and `why` where the two differ;
with `each` the one command runs for each value of its N.
In `says` and `why`, {EXPRESSION} is computed from the JSON documents of the commands: d is the first, docs all of them.
`idea` is that of the item before, where it is missing. With `measured = true` the figures are those of the reader's
machine: the commands are not run, but their options must exist, and `says` has no figures.

--check also follows the links of README.md: every page of a lecture and every page that explains an idea must be at
most two links away, and every command of an item must be in `tutti --help`.
"""
import difflib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "lectures"

# Ideas in the order of the index, with the page that explains each one.
IDEAS = {
    "Why scale": "../commands.md#before-a-run",
    "Hardware": "../clusters.md",
    "Data parallelism": "../parallelism/data-parallel.md",
    "Memory of the state": "../parallelism/memory.md",
    "Activations and recompute": "../parallelism/memory.md",
    "Offload": "../parallelism/memory.md",
    "ZeRO, FSDP, HSDP": "../parallelism/data-parallel.md",
    "Pipeline parallelism": "../parallelism/pipeline.md",
    "Tensor and sequence parallelism": "../parallelism/tensor.md",
    "Context parallelism": "../parallelism/context.md",
    "Experts": "../parallelism/expert.md",
    "Precision": "../precision.md",
    "Utilization": "../glossary.md#numbers",
    "All together": "../parallelism/README.md",
    "Around a run": "../commands.md",
}


class Document(dict):
    """A JSON object whose members are attributes."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(f"no member {name} of {', '.join(self)}")
        return self[name]


def scaled(value, step, units, one):
    value, i = float(value), 0
    while abs(value) >= 1000 and i + 1 < len(units):
        value, i = value / step, i + 1
    digits = f"{value:.0f}" if i == 0 and value == int(value) or value >= 100 else f"{value:#.3g}"
    return f"{digits} {units[i]}{one}".rstrip()


def size(count):  # bytes, as the program prints memory
    return scaled(count, 1024, ["", "Ki", "Mi", "Gi", "Ti"], "B")


def gb(count):  # bytes, in the units of the slides
    return scaled(count / 1e9, 1000, ["G", "T", "P"], "B")


def number(value):
    return scaled(value, 1000, ["", "k", "M", "B", "T"], "")


def flop(value):
    return scaled(value, 1000, ["", "k", "M", "G", "T", "P", "E", "Z", "Y"], "FLOP")


def seconds(value):
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= unit:
            return f"{value / unit:#.3g} {name}".replace(". ", " ")
    return f"{value / 1e-9:.3g} ns"


def percent(share):
    return f"{100 * share:.1f} %"


def mfu(row):  # of a row of `simulate --table`: the forecast and its interval of 80 %
    steps = [row['step_time_s'] / row[end] for end in ('step_time_high_s', 'step_time_low_s')]
    return percent(row['mfu_full']) + ' (' + ' to '.join(percent(row['mfu_full'] * s) for s in steps) + ')'


def sent(document, group=None):  # bytes that a rank sends in a step
    return sum(row["sent"] for row in document["communication"] if group in (None, row["group"]))


def per(documents, text):  # one entry for each document or row, with commas
    return ", ".join(text(x) for x in documents)


def table(document, identity):  # rows of a table of `plan --tables` by their first column
    found = next(t for t in document["tables"] if t["id"] == identity)
    return [dict(zip(found["columns"], row)) for row in found["rows"]]


def row(document, identity, **match):
    for found in table(document, identity):
        if all(str(found[key]).startswith(str(value)) for key, value in match.items()):
            return found
    raise KeyError(f"no row {match} in {identity}")


def same(document):  # the verdict of `tutti verify`
    return "the same as one rank" if document["within_bound"] else "DIFFERENT from one rank"


def layer(document, name):  # the part of a layout's document with this title
    return next(p for p in document["parts"] if name in p["title"])


def holders(document, name):  # the ranks of the state of a weight: "rank 0", "ranks 1, 2"
    weight = next(g for g in layer(document, "masters").grids if name in g.name)
    ranks = [h.ranks[0] for h in weight.holdings]
    return f"rank{'s' if len(ranks) > 1 else ''} {per(ranks, str)}"


def published(document, identity):  # a row of `simulate --table`
    return next(r for r in document["rows"] if r.get("id") == identity)


WORDS = {f.__name__: f for f in (size, gb, number, flop, seconds, percent, mfu, sent, per, table, row, same, layer,
                                  holders, published)}
WORDS |= {f.__name__: f for f in (sum, max, min, len, next, round, range, float, int, str)}


class Pages:
    def __init__(self, program):
        self.program, self.seen, self.help = program, {}, {}

    def document(self, command):
        if command not in self.seen:
            call = [self.program, *shlex.split(command), "--json"]
            done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"tutti {command}: exit code {done.returncode}: {done.stdout[-400:]}{done.stderr[-400:]}")
            self.seen[command] = json.loads(done.stdout, object_hook=Document)
        return self.seen[command]

    def options_exist(self, command):
        words = shlex.split(command)
        names = [w for w in words[:2] if re.fullmatch(r"[a-z]+", w)] if words[0] in ("bench", "data") else words[:1]
        if tuple(names) not in self.help:
            done = subprocess.run([self.program, *names, "--help"], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"tutti {command}: no such command")
            self.help[tuple(names)] = done.stdout
        for option in (w.split("=")[0] for w in words if w.startswith("--")):
            if not re.search(rf"(?<![\w-]){option}(?![\w-])", self.help[tuple(names)]):
                raise SystemExit(f"tutti {command}: no option {option}")

    def commands(self):
        """-> the names in the table of `tutti --help`."""
        said = subprocess.run([self.program, "--help"], capture_output=True, text=True, check=True).stdout
        return set(re.findall(r"^  ([a-z]+) ", said, re.MULTILINE))

    def filled(self, text, documents, where):
        def value(match):
            try:
                names = WORDS | {"docs": documents, "d": documents[0] if documents else None}
                return eval('f"""' + match[0] + '"""', names)  # the project's own text
            except Exception as error:
                raise SystemExit(f"{where}: {{{match[1]}}}: {type(error).__name__}: {error}") from error

        return re.sub(r"\{([^{}]*)\}", value, text)

    def line(self, count, item, where):
        runs = item.get("run", [])
        runs = [runs] if isinstance(runs, str) else runs
        shown = "<br>".join(f"`tutti {command}`" for command in runs) or "-"
        if "each" in item:  # one command for each value of N
            runs = [re.sub(r"\bN\b", str(value), runs[0]) for value in item["each"]]
            shown += f", N = {', '.join(map(str, item['each']))}"
        if item.get("measured"):
            for command in runs:
                self.options_exist(command)
            documents = []
        else:
            documents = [self.document(command) for command in runs]
        cells = [
            str(count),
            item["slide"],
            shown,
            self.filled(item["says"], documents, where),
            self.filled(item.get("why", ""), documents, where),
        ]
        return "| " + " | ".join(" ".join(c.replace("|", "\\|").split()) for c in cells) + " |"

    def page(self, path):
        lecture = tomllib.loads(path.read_text(encoding="utf-8"))
        lines = [f"# {lecture['title']}", "", *lecture["about"].strip().splitlines(), ""]
        ideas, idea = {}, None
        for count, item in enumerate(lecture["item"], 1):
            idea = item.get("idea", idea)
            if idea not in IDEAS:
                raise SystemExit(f"{path.name}, item {count}: unknown idea {idea}")
            ideas.setdefault(idea, []).append((item, f"{path.name}, item {count}, {item['slide']}"))
        count = 0
        for idea, items in ideas.items():
            rows = [self.line(count + i, item, where) for i, (item, where) in enumerate(items, 1)]
            count += len(rows)
            lines += [f"## {idea}", "", f"Explained in [{IDEAS[idea].split('/')[-1].split('#')[0]}]({IDEAS[idea]}).", ""]
            lines += ["| | the slide | command | Tutti says | why they differ, and what to see |", "|---|---|---|---|---|", *rows, ""]
        lines += [f"Written by [`scripts/lecture_pages.py`](../../scripts/lecture_pages.py) from [`{path.name}`]({path.name}).",
              "A test compares them."]
        return lecture, list(ideas), len(lecture["item"]), "\n".join(lines) + "\n"

    def all(self):
        pages, lectures = {}, []
        for path in sorted(FOLDER.glob("*.toml")):
            if "item" not in tomllib.loads(path.read_text(encoding="utf-8")):
                continue  # a config
            lecture, ideas, count, text = self.page(path)
            pages[path.with_suffix(".md")] = text
            lectures.append((lecture["order"], lecture["title"], path.stem, ideas, count))
        lectures.sort()
        head = (FOLDER / "README.md").read_text(encoding="utf-8").split("## The lectures")[0].rstrip()
        lines = [head, "", "## The lectures", "", "| lecture | items |", "|---|---|"]
        lines += [f"| [{title}]({stem}.md) | {count} |" for _, title, stem, _, count in lectures]
        lines += ["", "## By idea", "", "| idea | explained | items of the lectures |", "|---|---|---|"]
        for idea, target in IDEAS.items():
            anchor = re.sub(r"[^a-z0-9 -]", "", idea.lower()).replace(" ", "-")
            links = [f"[{title}]({stem}.md#{anchor})" for _, title, stem, ideas, _ in lectures if idea in ideas]
            if links:
                lines.append(f"| {idea} | [{target.split('/')[-1].split('#')[0]}]({target}) | {'; '.join(links)} |")
        pages[FOLDER / "README.md"] = "\n".join(lines) + "\n"
        return pages


def links_from(start):
    """-> {page: links on the shortest way from `start`}, over the links between Markdown pages; a folder is its README."""
    distance, waiting = {start.resolve(): 0}, [start.resolve()]
    for page in waiting:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            found = (page.parent / target).resolve()
            found = found / "README.md" if found.is_dir() else found
            if found.suffix == ".md" and found.exists() and found not in distance:
                distance[found] = distance[page] + 1
                waiting.append(found)
    return distance


def far_items(commands):
    """What is more than two links or one --help away from README.md, as sentences."""
    distance, problems = links_from(ROOT / "README.md"), []
    pages = {target.split("#")[0]: f"the page of {idea}" for idea, target in IDEAS.items()}
    for path in sorted(FOLDER.glob("*.toml")):
        lecture = tomllib.loads(path.read_text(encoding="utf-8"))
        if "item" not in lecture:
            continue
        pages[path.with_suffix(".md").name] = f"the {len(lecture['item'])} items of {lecture['title']}"
        for item in lecture["item"]:
            runs = item.get("run", [])
            problems += [f"tutti --help does not list `{run}`" for run in ([runs] if isinstance(runs, str) else runs)
                         if run.split()[0] not in commands]
    for target, what in pages.items():
        links = distance.get((FOLDER / target).resolve())
        if links is None or links > 2:
            problems.append(f"{what}: {links or 'no way of'} links from README.md; at most two are required")
    return problems


def main():
    if len(sys.argv) not in (2, 3) or (len(sys.argv) == 3 and sys.argv[2] != "--check"):
        raise SystemExit(__doc__)
    wrong = False
    all_pages = Pages(str(Path(sys.argv[1]).resolve()))
    for path, text in all_pages.all().items():
        if len(sys.argv) == 2:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            old = path.read_text(encoding="utf-8") if path.exists() else ""
            sys.stderr.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), str(path), "this build"))
            wrong = True
    for problem in far_items(all_pages.commands()):
        raise SystemExit(problem)
    if wrong:
        raise SystemExit("docs/lectures is not what this build says; write it anew: scripts/lecture_pages.py PROGRAM")


if __name__ == "__main__":
    main()
