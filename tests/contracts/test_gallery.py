"""The gallery lists every example, and the notebooks are those of their Python files."""

import ast
import json
import re

import hooks
import make_notebooks
import matplotlib
import pytest

from tests.contracts.sources import REPOSITORY, name_of, read
from tests.contracts.test_docs import EXAMPLES, shortened

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.py"))
GALLERY = read(REPOSITORY / "docs" / "gallery.md")
MOST_BYTES = 300_000  # of a notebook

SMALL = """\
# %% [markdown]
# # A title
#
# Text.

# %%
two = 2
print("printed")
two + 1

# %%
import matplotlib.pyplot as plt

_, axes = plt.subplots(figsize=(1, 1))
axes.plot([two, 1])
"""


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_the_gallery_has_every_example_once_with_its_docstring():
    found = {name: one_line(text) for name, text in hooks.EXAMPLE.findall(GALLERY)}
    docs = {
        path.name: one_line(ast.get_docstring(ast.parse(read(path))) or "") for path in EXAMPLES
    }
    assert found == docs
    assert GALLERY.count("(../examples/") == len(docs)


def test_the_gallery_unfolds_the_source():
    class Page:
        class file:
            src_uri = hooks.GALLERY

    page = hooks.on_page_markdown(GALLERY, Page, None, None)
    for path in EXAMPLES:
        assert "".join(read(path).split()) in "".join(page.split())
    assert page.count("\n??? example ") == len(EXAMPLES)
    assert "](../examples" not in page


def test_cells_are_read():
    cells = make_notebooks.read_cells(SMALL)
    assert [cell.is_code for cell in cells] == [False, True, True]
    assert cells[0].text == "# A title\n\nText."
    assert cells[1].text == 'two = 2\nprint("printed")\ntwo + 1'
    with pytest.raises(ValueError, match="import os"):
        make_notebooks.read_cells("import os\n# %%\n")


def test_cells_are_executed():
    matplotlib.use("agg")
    cells = make_notebooks.read_cells(SMALL)
    notebook = json.loads(make_notebooks.to_notebook(cells, make_notebooks.execute_all(cells)))
    assert make_notebooks.sources_of(notebook) == cells
    text, first, second = notebook["cells"]
    assert (first["execution_count"], second["execution_count"]) == (1, 2)
    assert "outputs" not in text
    printed, value = first["outputs"]
    assert (printed["name"], printed["text"]) == ("stdout", ["printed\n"])
    assert value["data"] == {"text/plain": ["3"]}
    (figure,) = second["outputs"]  # the value of `axes.plot` is no output
    picture = figure["data"]["image/png"]
    assert picture.startswith("iVBORw0KGgo")  # the signature of PNG, in base 64

    page = make_notebooks.to_markdown(notebook)
    assert page.startswith("# A title\n\nText.\n\n```python\ntwo = 2\n")
    assert '```text title="Output"\nprinted\n```' in page
    assert f'<img alt="a figure" src="data:image/png;base64,{picture}">' in page


def test_an_error_in_a_cell_is_an_error():
    with pytest.raises(ZeroDivisionError):
        make_notebooks.execute_all(make_notebooks.read_cells("# %%\n1 / 0\n"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_are_those_of_their_files(path):
    stored = read(path.with_suffix(".ipynb"))
    notebook = json.loads(stored)
    cells = make_notebooks.read_cells(read(path))
    assert make_notebooks.sources_of(notebook) == cells, "run: python docs/make_notebooks.py"
    outputs = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    kinds = {kind for outs in outputs for out in outs for kind in out.get("data", {"text": 0})}
    assert kinds >= {"image/png", "text"}
    assert "error" not in {out["output_type"] for outs in outputs for out in outs}
    assert len(stored.encode()) < MOST_BYTES
    assert not re.search(r"/(work|home|root|tmp|Users)/| at 0x[0-9a-f]+>", stored)


def test_every_notebook_has_a_file():
    stored = {path.stem for path in (REPOSITORY / "notebooks").glob("*.ipynb")}
    assert stored == {path.stem for path in NOTEBOOKS} and len(stored) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_run(path):
    """With fewer steps."""
    matplotlib.use("agg")
    cells = make_notebooks.read_cells(shortened(read(path)))
    outputs = make_notebooks.execute_all(cells)
    assert any("image/png" in output.get("data", {}) for cell in outputs for output in cell)
