#!/usr/bin/env python3
"""Checks what the documentation says about the tree against the tree. Exit code 1 with the places that are wrong.

- docs/where.md: the file of every row is there and has the name in it.
- docs/architecture.md and docs/parallelism: every linked file is there; `name` as the text of a link is in the file,
  Suite.Name as a test of it; every `section.key` of a config is in docs/config.md.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$")
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)[^)]*\)")
SECTION = re.compile(r"^## \[(\w+)\]$", re.MULTILINE)


def has_name(path, name):
    spelled = re.escape(name).replace(r"\.", r"(\.|, )")  # TEST(Suite, Name)
    return re.search(rf"(?<!\w){spelled}(?!\w)", path.read_text()) is not None


def config_keys():
    text = (ROOT / "docs/config.md").read_text()
    parts = SECTION.split(text)[1:]
    return {f"{section}.{key}" for section, rows in zip(parts[::2], parts[1::2])
            for key in re.findall(r"^\| `(.+?)` \|", rows, re.MULTILINE)}, set(parts[::2])


def check_rows(page, wrong):
    rows = 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        row = ROW.match(line)
        if not row:
            if line.startswith("|") and not re.match(r"^\|(-+\||.*topic)", line):
                wrong.append(f"docs/where.md:{number}: not a row of topic, `file` and `name`: {line}")
            continue
        rows += 1
        path = ROOT / row[2]
        if not path.is_file():
            wrong.append(f"docs/where.md:{number}: {row[2]} does not exist ({row[1]})")
        elif not has_name(path, row[3]):
            wrong.append(f"docs/where.md:{number}: {row[2]} has no {row[3]} ({row[1]})")
    return rows


def check_page(page, keys, sections, wrong):
    links, where = 0, page.relative_to(ROOT)
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for text, target in LINK.findall(line):
            if re.match(r"https?:", target):
                continue
            links += 1
            path = (page.parent / target).resolve()
            name = text[1:-1] if text.startswith("`") and text.endswith("`") else ""
            if not path.exists():
                wrong.append(f"{where}:{number}: {target} does not exist")
            elif name and path.is_file() and not str(path).endswith(name) and not has_name(path, name):
                wrong.append(f"{where}:{number}: {target} has no {name}")
        for key in re.findall(r"(?:`|--set |--vary )([a-z]+\.[a-z0-9_.]+)", line):
            if key.split(".")[0] in sections and key not in keys:
                wrong.append(f"{where}:{number}: {key} is no key of docs/config.md")
    return links


def main():
    wrong = []
    rows = check_rows(ROOT / "docs/where.md", wrong)
    keys, sections = config_keys()
    pages = [ROOT / "docs/architecture.md", *sorted((ROOT / "docs/parallelism").glob("*.md"))]
    links = sum(check_page(page, keys, sections, wrong) for page in pages)
    for line in wrong:
        print(line)
    print(f"check_where: {rows} rows, {links} links of {len(pages)} pages, {len(wrong)} wrong")
    return 1 if wrong or rows == 0 or links == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
