"""The example of docs/write-a-policy.md is the tested one; the notebook runs and is small."""

import json
import pathlib

import pytest

import spillway

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOK = ROOT / "python/examples/tour.ipynb"


def test_the_example_in_the_document_is_the_tested_one():
    tested = (ROOT / "tests/python/policies_for_tests.py").read_text()
    tested = tested.split("# [example begins]\n")[1].split("# [example ends]")[0]
    assert f"```python\n{tested}```" in (ROOT / "docs/write-a-policy.md").read_text()


def test_the_stub_knows_what_the_module_has():
    stub = (pathlib.Path(spillway.__file__).parent / "_core.pyi").read_text()
    for name in ("class Step:", "class Problem:", "def simulate(", "def micro_batch("):
        assert name in stub
    assert (pathlib.Path(spillway.__file__).parent / "py.typed").exists()


def test_every_public_name_has_a_docstring():
    for name in spillway.__all__:
        value = getattr(spillway, name)
        if callable(value):
            assert (value.__doc__ or "").strip(), name


def test_the_notebook_holds_its_outputs():
    assert NOTEBOOK.stat().st_size < 300_000
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"]
             if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/svg+xml" in output.get("data", {}) or "image/png" in output.get("data", {})
               for output in outputs)


def test_the_notebook_runs(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3",
                            resources={"metadata": {"path": str(tmp_path)}}).execute()
