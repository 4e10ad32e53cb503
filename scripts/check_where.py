#!/usr/bin/env python3
"""Holds docs/where.md against the tree: every file is there and has the name in it. Exit code 1 with the rows that do not."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$")


def main():
    page = ROOT / "docs/where.md"
    wrong, rows = [], 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        row = ROW.match(line)
        if not row:
            if line.startswith("|") and not re.match(r"^\|(-+\||.*topic)", line):
                wrong.append(f"docs/where.md:{number}: not a row of topic, `file` and `name`: {line}")
            continue
        rows += 1
        path, name = ROOT / row[2], row[3]
        if not path.is_file():
            wrong.append(f"docs/where.md:{number}: {row[2]} does not exist ({row[1]})")
        elif not re.search(rf"\b{re.escape(name)}\b", path.read_text()):
            wrong.append(f"docs/where.md:{number}: {row[2]} has no {name} ({row[1]})")
    for line in wrong:
        print(line)
    print(f"check_where: {rows} rows, {len(wrong)} wrong")
    return 1 if wrong or rows == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
