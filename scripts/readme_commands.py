#!/usr/bin/env python3
"""scripts/readme_commands.py PROGRAM: runs every `tutti` command of README.md in its order, in a folder that has what the
README says there is: the examples and the text that the quickstart prepares, of which the Gospels stand for the whole.
Trainings are cut to a few steps; `tutti init --demo` writes its files without the training, which scripts/test_package.sh
runs. A command that does not end with 0 fails the test.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent
SHORT = " --set train.steps=2 --set train.eval_batches=1"


def commands():
    """-> the lines of README's code blocks that call tutti or set a variable for those that do."""
    inside = False
    for line in (SOURCE / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = not inside
        elif inside and re.match(r"tutti |[A-Z]=", line):
            yield line


def shortened(command):
    if command.startswith("tutti train"):
        begin, hash_, comment = command.partition("  #")
        return begin.rstrip() + SHORT + " " + hash_ + comment
    return command.replace("tutti init --demo", "tutti init")


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(SOURCE / "examples", pathlib.Path(folder, "examples"))
        pathlib.Path(folder, "build/data").mkdir(parents=True)
        os.symlink(SOURCE / "src/tutti/cli/gospels.txt", pathlib.Path(folder, "build/data/kjv.txt"))
        environment = dict(os.environ, PATH=f"{program.parent}:{os.environ['PATH']}")
        variables, count, failures = "", 0, 0
        for command in commands():
            if re.match(r"[A-Z]=", command):
                variables += command + "; "
                continue
            count += 1
            done = subprocess.run(["bash", "-c", variables + shortened(command)], cwd=folder, env=environment,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=False)
            if done.returncode != 0:
                failures += 1
                print(f"{command}\nended with {done.returncode}:\n{done.stdout}")
        print(f"{count} commands of README.md, {failures} failed")
        sys.exit(failures > 0 or count < 8)


if __name__ == "__main__":
    main()
