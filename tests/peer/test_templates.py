"""Chat templates: Tutti's rendering against jinja2 with the environment of transformers.

    test_templates.py tutti_peer_render TESTDATA [FOLDER...]

TESTDATA is src/tutti/jinja/testdata: its expressions and templates. FOLDERs are searched for more templates
(*.jinja), such as those of installed packages; without one, those of the installed trl and axolotl.
"""

import importlib.util
import json
import pathlib
import subprocess
import sys

from make_template_vectors import CONVERSATIONS, EXPRESSIONS, TOKENS, environment, rendered


def found_templates(folders):
    if not folders:
        specs = [importlib.util.find_spec(name) for name in ("trl", "axolotl", "llamafactory")]
        folders = [place for spec in specs if spec for place in spec.submodule_search_locations]
    return sorted(path for folder in folders for path in pathlib.Path(folder).rglob("*.jinja"))


def main():
    program, testdata, *folders = sys.argv[1:]
    paths = sorted(pathlib.Path(testdata).glob("*.jinja")) + found_templates(folders)
    cases = [(f"{path.name} {name}", path.read_text(encoding="utf-8"), {**TOKENS, **conversation})
             for path in paths for name, conversation in CONVERSATIONS.items()]
    cases += [(source, source, {}) for source in EXPRESSIONS]
    letters = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE002 and code != 0x3A3]
    cases += [(f"letters from {i:#x}", "{{ x | upper }}{{ x | lower }}", {"x": "".join(letters[i:i + 4096])})
              for i in range(0, len(letters), 4096)]
    requests = "".join(json.dumps({"template": source, "input": values}) + "\n" for _, source, values in cases)
    answers = subprocess.run([program], input=requests, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    wrong = refused = 0
    for (name, source, values), line in zip(cases, answers, strict=True):
        ours, theirs = json.loads(line), rendered(environment(), source, values)
        if "text" in theirs:
            same = ours.get("text") == theirs["text"] and ours["generation"] == theirs["generation"]
        else:  # a template that refuses the conversation says why; other errors have words of their own
            refused += 1
            same = "text" not in ours and ("refused" not in theirs or ours.get("refused") == theirs["refused"])
        if not same:
            wrong += 1
            print(f"{name}\n  jinja2: {json.dumps(theirs)[:1500]}\n  Tutti:  {line[:1500]}")
    print(f"{len(paths)} templates, {len(cases)} renderings, of which {refused} end in an error; {wrong} differ")
    if wrong or len(paths) < 10:
        sys.exit(1)


if __name__ == "__main__":
    main()
