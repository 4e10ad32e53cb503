#!/usr/bin/env python3
"""How well `tutti simulate` predicts published runs that its constants were not fitted to.

    bench/published_left_out.py build/release/tutti RUNS.json PRIOR.json [LAYOUT_SWEEP.json SINGLE_NODE.json]

RUNS.json: published runs, tests/published/runs.json. PRIOR.json: a site with values of the constants that were chosen
before any fit, bench/published_prior.json; each fit starts there and is held near it. The defaults of the program are
no such start: they were fitted to all families. The two data sets of bench/published_layouts.py, if given, are families
of every fit.

Of each family of five rows and more: the mean error when it took part in the fit; when it was left out; when in
addition all families of related software at the same site were left out; and when, after it was left out, three of its
rows were fitted (`--fit` from the constants of the others): the first, the middle and the last, and the mean of five
draws of three. Errors with three rows are of the other rows.
"""
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import published_layouts

RELATED = {"dgxc": "nvidia", "nemo": "nvidia", "megatron": "bridge", "mcore": "bridge"}
DRAWS = 5


def group(family):
    word = family.split("-")[0]
    return RELATED.get(word, word)


class Tool:
    def __init__(self, program, folder):
        self.program, self.folder = program, pathlib.Path(folder)

    def run(self, rows, site, *options):
        table = self.folder / "rows.json"
        table.write_text(json.dumps({"rows": rows}))
        command = [self.program, "simulate", "--table", table, "--site", site, "--json", *options]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["rows"]

    def fit(self, rows, start, name):
        """The site that `start` becomes."""
        self.run(rows, start, "--fit", self.folder / name)
        return self.folder / name

    def error(self, rows, site):
        found = []
        for row, p in zip(rows, self.run(rows, site)):
            if "refused" not in p and seconds(row) > 0:
                found.append(p["step_time_s"] / seconds(row) - 1)
        return statistics.mean(map(abs, found)), statistics.mean(found)


def seconds(row):
    if row.get("iter_time_s"):
        return row["iter_time_s"]
    if row.get("tokens_per_sec_per_gpu"):
        return row["global_batch"] * row["seq_len"] / (row["tokens_per_sec_per_gpu"] * row["num_gpus"])
    return 0


def main():
    if len(sys.argv) not in (4, 6):
        sys.exit(__doc__)
    rows = json.load(open(sys.argv[2]))["rows"]
    others = []
    if len(sys.argv) == 6:
        others += [row for row in published_layouts.sweep_rows(json.load(open(sys.argv[4]))) if row["ran"]]
        others += published_layouts.node_rows(json.load(open(sys.argv[5])))
    prior = sys.argv[3]
    families = {}
    with tempfile.TemporaryDirectory() as folder:
        tool = Tool(sys.argv[1], folder)
        for row, p in zip(rows, tool.run(rows, prior)):
            if "refused" not in p and seconds(row) > 0:
                families.setdefault(row["family"], []).append(row)
        usable = [row for found in families.values() for row in found]
        everything = tool.fit(usable + others, prior, "all.json")
        scores = []
        print(f"{'family':24}{'rows':>6}{'fitted':>9}{'left out':>10}{'bias':>8}{'related too':>13}{'three rows':>12}{'draws':>8}")
        for family, mine in sorted(families.items()):
            if len(mine) < 5:
                continue
            site = tool.fit([row for row in usable if row["family"] != family] + others, prior, "without.json")
            apart = [row for row in usable if group(row["family"]) != group(family)]
            far = tool.fit(apart + others, prior, "far.json")
            choice = random.Random(family)
            anchored = []
            for chosen in [[0, len(mine) // 2, len(mine) - 1]] + [choice.sample(range(len(mine)), 3) for _ in range(DRAWS)]:
                fitted = tool.fit([mine[i] for i in chosen], site, "anchored.json")
                anchored.append(tool.error([row for i, row in enumerate(mine) if i not in chosen], fitted)[0])
            out, bias = tool.error(mine, site)
            scores.append([tool.error(mine, everything)[0], out, bias, tool.error(mine, far)[0], anchored[0], statistics.mean(anchored[1:])])
            a, b, c, d, e, f = (100 * score for score in scores[-1])
            print(f"{family:24}{len(mine):6}{a:8.1f}%{b:9.1f}%{c:7.1f}%{d:12.1f}%{e:11.1f}%{f:7.1f}%", flush=True)
        a, b, c, d, e, f = (100 * statistics.mean(column) for column in zip(*scores))
        print(f"{'mean of ' + str(len(scores)):30}{a:8.1f}%{b:9.1f}%{c:7.1f}%{d:12.1f}%{e:11.1f}%{f:7.1f}%")


if __name__ == "__main__":
    main()
