"""Make notebooks with outputs from plain Python files. Jupyter is not needed.

    python docs/make_notebooks.py                # every notebooks/*.py
    python docs/make_notebooks.py first_agent    # one of them

`# %%` begins a cell of code, `# %% [markdown]` a cell of text, whose lines are comments. The cells
are executed in order, with the names of those before them, in an empty directory. The outputs of a
cell are what it prints and the figures that it has drawn, or else the value of its last expression.
"""

import ast
import base64
import contextlib
import io
import json
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import matplotlib.pyplot as plt

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
MARK = re.compile(r"^# %%(.*)$", re.M)
DOTS_PER_INCH = 90
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


@final
@dataclass(frozen=True)
class Cell:
    """A cell of code or of Markdown."""

    text: str
    is_code: bool


def read_cells(source: str) -> list[Cell]:
    """Divide a file into its cells."""
    before, *parts = MARK.split(source)
    if before.strip():
        raise ValueError(f"the first cell begins after other lines: {before.strip()}")
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [_cell(text.strip("\n"), "[markdown]" not in title) for title, text in pairs]


def _cell(text: str, is_code: bool) -> Cell:
    return Cell(text if is_code else re.sub(r"^# ?", "", text, flags=re.M), is_code)


def execute(code: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Execute a cell of code; return its outputs in the format of notebooks."""
    tree, value = ast.parse(code), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs = [_stream(printed.getvalue())] if printed.getvalue() else []
    figures = [_data("image/png", picture) for picture in _figures()]
    if value is not None and not figures:  # beside a figure, it is a part of that figure
        outputs.append(_data("text/plain", repr(value)))
    return outputs + figures


def _figures() -> list[str]:
    """Return the open figures as PNG in base 64, and close them."""
    pictures = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        # Without the version of matplotlib, so that a new run of the cells changes less.
        plt.figure(number).savefig(
            file, dpi=DOTS_PER_INCH, bbox_inches="tight", metadata={"Software": None}
        )
        pictures.append(base64.b64encode(file.getvalue()).decode())
    plt.close("all")
    return pictures


def _stream(text: str) -> dict[str, Any]:
    return {"name": "stdout", "output_type": "stream", "text": _lines(text)}


def _data(kind: str, content: str) -> dict[str, Any]:
    data = {kind: content if kind == "image/png" else _lines(content)}
    return {"data": data, "metadata": {}, "output_type": "display_data"}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def execute_all(cells: list[Cell]) -> list[list[dict[str, Any]]]:
    """Execute the cells of code in order; return the outputs of each cell."""
    names: dict[str, Any] = {"__name__": "notebook"}
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        return [execute(cell.text, names) if cell.is_code else [] for cell in cells]


def to_notebook(cells: list[Cell], outputs: list[list[dict[str, Any]]]) -> str:
    """Return a notebook in the format 4.5 of Jupyter."""
    written, count = [], 0
    for index, (cell, results) in enumerate(zip(cells, outputs, strict=True)):
        common = {"id": f"cell-{index}", "metadata": {}, "source": _lines(cell.text)}
        count += cell.is_code
        code = {"cell_type": "code", "execution_count": count, "outputs": results}
        written.append(common | (code if cell.is_code else {"cell_type": "markdown"}))
    whole = {"cells": written, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def sources_of(notebook: dict[str, Any]) -> list[Cell]:
    """Return the cells of a notebook, without outputs."""
    cells = notebook["cells"]
    return [Cell("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]


def to_markdown(notebook: dict[str, Any]) -> str:
    """Return a notebook as a page of the documentation, with its outputs."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
        parts += [_shown(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    if picture := output.get("data", {}).get("image/png"):
        return f'<p><img alt="a figure" src="data:image/png;base64,{picture}"></p>'
    text = "".join(output["text"] if "text" in output else output["data"]["text/plain"])
    return f'```text title="Output"\n{text.rstrip()}\n```'


def main() -> None:
    plt.switch_backend("agg")
    for path in sorted(NOTEBOOKS.glob("*.py")):
        if path.stem in sys.argv[1:] or not sys.argv[1:]:
            cells, target = read_cells(path.read_text(encoding="utf-8")), path.with_suffix(".ipynb")
            target.write_text(to_notebook(cells, execute_all(cells)), encoding="utf-8")
            print(f"{target.name}: {target.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
