"""python/test_notebook.py NOTEBOOK PROGRAM: runs the code cells of a notebook in their order, without Jupyter. A cell that
raises fails the test; the value of a cell's last expression is rendered as a notebook would (_repr_html_)."""

import ast
import json
import os
import pathlib
import sys


def run(source, names, title):
    tree = ast.parse(source, title)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, title, "exec"), names)
    value = eval(compile(ast.Expression(last.value), title, "eval"), names) if last else None
    if hasattr(value, "_repr_html_"):
        page = value._repr_html_()
        assert page.startswith(("<svg", "<pre", "<iframe")), f"{title}: {page[:80]}"
        print(f"[{title}: {len(page)} characters of HTML]")


def main():
    notebook, program = sys.argv[1:]
    os.environ["TUTTI_PROGRAM"] = os.path.abspath(program)
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    cells = json.loads(pathlib.Path(notebook).read_text(encoding="utf-8"))["cells"]
    names = {"__name__": "__main__"}
    for i, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            run("".join(cell["source"]), names, f"cell {i}")


if __name__ == "__main__":
    main()
