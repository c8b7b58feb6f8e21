"""What the tests of the Python package share."""

import os
import subprocess

import pytest

spillway = pytest.importorskip("spillway")

TESTBED = {"model": "gpt-tiny", "machine": "testbed"}
WORKLOAD = {"batch": 4, "micro_batch": 1, "sequence": 16}


@pytest.fixture
def program():
    """Runs the program: its standard output. Skips where the tests have no program."""
    path = os.environ.get("SPILLWAY_PROGRAM")
    if not path:
        pytest.skip("SPILLWAY_PROGRAM names no program to compare with")

    def run(*arguments):
        return subprocess.run([path, *map(str, arguments)], check=True, capture_output=True,
                              text=True).stdout

    return run


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("It spills over, and still it runs. " * 200)
    return path
