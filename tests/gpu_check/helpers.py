"""What the tests of gpu-check share: the modules under test, stand-ins, and a Session with parts of any name."""

import importlib.machinery
import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

from gpu_check.plan import Part  # noqa: E402
from gpu_check.session import Session  # noqa: E402

GPU = {"name": "NVIDIA Stand-in", "compute_capability": "9.0", "memory_mib": 1000, "free_mib": 500, "driver": "1"}


class Clock:
    """In place of the module `time`, where nobody is to wait."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


def script():
    """scripts/gpu-check as a module."""
    loader = importlib.machinery.SourceFileLoader("gpu_check_script", str(ROOT / "scripts" / "gpu-check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check_script", loader))
    loader.exec_module(module)
    return module


def part(name, seconds=5, limit=None, **more):
    return Part(name, "right", name, seconds, limit or 2 * seconds + 30, **more)


class Case(unittest.TestCase):
    """With a folder of its own, and a session there whose program is the stand-in."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.said = []

    def session(self, seconds=600, **more):
        return Session(self.folder, seconds, HERE / "stand_in" / "spillway", speak=self.said.append, **more)

    def do(self, session, name, function, **more):
        session.do(part(name, **more), function)
        return session.result_of(name)

    def stand_in(self, name, text, shell="#!/bin/bash"):
        path = self.folder / "tools" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{shell}\n{text}")
        path.chmod(0o755)
        return path

    def environment(self, **values):
        """Variables for as long as the test runs."""
        for name, value in values.items():
            before = os.environ.get(name)
            if before is None:
                self.addCleanup(os.environ.pop, name, None)
            else:
                self.addCleanup(os.environ.__setitem__, name, before)
            os.environ[name] = str(value)
