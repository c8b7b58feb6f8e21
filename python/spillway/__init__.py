"""Spillway: train a language model that does not fit in GPU memory, as fast as the machine allows.

    import spillway

    result = spillway.simulate("gpt-13b", "rtx4090-12ssd", "greedysnake", batch=32)
    result.step_seconds, result["lanes.ssd.read.busy_fraction"]
    result.tasks                                    # a structured array of numpy
    spillway.compare("gpt-65b", "rtx4090-12ssd", batch=32).to_pandas()

Settings have the names that the program's options have, with _ for -; sizes are bytes or texts such
as "24GB", times are seconds unless a name ends in _ns. Errors are InputError, FitError and
MachineError, each with a message and a hint. Work in C++ is done without the interpreter's lock.
docs/python.md is a tour, docs/write-a-policy.md shows policies written in Python.
"""

from __future__ import annotations

import os as _os
from typing import Any, Dict, Mapping, Optional

# What a training on a GPU loads, where the package was built with it.
_module = _os.path.join(_os.path.dirname(__file__), "libspillway_cuda.so")
if _os.path.exists(_module):
    _os.environ.setdefault("SPILLWAY_CUDA_MODULE", _module)

from . import _core  # noqa: E402
from ._core import Costs, Machine, Model, Problem, Step, Workload  # noqa: E402
from ._errors import Error, FitError, InputError, MachineError  # noqa: E402
from ._plan import Plan  # noqa: E402
from ._policy import (Choice, Domain, Elements, Number, OnOff, Option, Policy, Whole,  # noqa: E402
                      fraction, register)
from ._questions import Fit, Knee, fit, knee  # noqa: E402
from ._results import (Comparison, Picture, Result, Trace, Tuned, compare, estimate,  # noqa: E402
                       plan, read_trace, simulate, tune)
from ._sweep import Sweep, sweep  # noqa: E402
from ._tables import Table  # noqa: E402
from ._train import Training, resume, train, train_settings  # noqa: E402
from ._values import overrides_of as _overrides_of  # noqa: E402

__version__: str = _core.version

lanes = _core.lanes
task_kinds = _core.task_kinds
phases = _core.phases
tiers = _core.tiers
buffer_kinds = _core.buffer_kinds


def models() -> Table:
    """The built-in models: name, parameters, layers, hidden, heads, vocabulary, architecture."""
    return Table(_model_row(_core.load_model(name)) for name in _core.models())


def machines() -> Table:
    """The built-in machines: name, description, sizes in bytes, rates in bytes/s and FLOP/s."""
    return Table(_machine_row(_core.load_machine(name)) for name in _core.machines())


def parts() -> Table:
    """Cards, hosts and drives that machines are made of: CARD+HOST+NxDRIVE."""
    return Table(_core.parts())


def frameworks() -> Table:
    """Programs whose habits can be laid over a schedule in simulation."""
    return Table(_core.frameworks())


def policies() -> Table:
    """All policies, those of plugins and of Python among them: name, idea, paper, origin, options.

    Each option has its default, the values it takes in words, samples of them, and a help text.
    """
    return Table(_core.policies())


def policy(name: str) -> Dict[str, Any]:
    """One of policies(). Raises KeyError."""
    return policies().named(name)


def workload_settings() -> Table:
    """What simulate() and the others take beside model, machine and policy: batch, precision, ..."""
    return Table(_core.workload_settings())


def model(name: "str | _os.PathLike[str]", set: Optional[Mapping[str, Any]] = None) -> Model:  # noqa: A002
    """A model by its name or file, with keys set: `model("gpt-13b", {"layers": 20})`."""
    return _core.load_model(_os.fspath(name), _overrides_of(set))


def machine(name: "str | _os.PathLike[str]", set: Optional[Mapping[str, Any]] = None) -> Machine:  # noqa: A002
    """A machine by its name, parts or file, with keys set: `machine("h200", {"ssd.count": 4})`."""
    return _core.load_machine(_os.fspath(name), _overrides_of(set))


def load_plugin(path: "str | _os.PathLike[str]") -> "list[str]":
    """Loads a shared library with policies (docs/write-a-policy.md). Returns their names. Raises
    InputError where it is none, or was built for another version: `plugin_build` says for which."""
    return _core.load_plugin(_os.fspath(path))


def get_include() -> str:
    """The folder of the headers that plugins are compiled with: c++ -I."""
    return _os.path.join(_os.path.dirname(_os.path.abspath(__file__)), "include")


def _model_row(one: Model) -> Dict[str, Any]:
    return {"name": one.name, "parameters": one.parameters, "layers": one.layers,
            "hidden": one.hidden, "heads": one.heads, "vocabulary": one.vocabulary,
            "positions": one.positions, "architecture": one.architecture}


def _machine_row(one: Machine) -> Dict[str, Any]:
    return {"name": one.name, "gpus": one.gpus, "gpu_memory": one.gpu.memory,
            "gpu_flops": one.gpu.flops, "host_memory": one.host.memory, "pcie_h2d": one.pcie.h2d,
            "ssd_count": one.ssd.count, "ssd_capacity": one.ssd.capacity, "ssd_read": one.ssd.read,
            "ssd_write": one.ssd.write, "description": one.description}


__all__ = ["Choice", "Comparison", "Costs", "Domain", "Elements", "Error", "Fit", "FitError",
           "InputError", "Knee", "Machine", "MachineError", "Model", "Number", "OnOff", "Option",
           "Picture", "Plan", "Policy", "Problem", "Result", "Step", "Sweep", "Table", "Trace",
           "Training", "Tuned", "Whole", "Workload", "buffer_kinds", "compare", "estimate", "fit",
           "fraction", "frameworks", "get_include", "knee", "lanes", "load_plugin", "machine",
           "machines", "model", "models", "parts", "phases", "plan", "policies", "policy",
           "read_trace", "register", "resume", "simulate", "sweep", "task_kinds", "tiers", "train",
           "train_settings", "tune", "workload_settings"]
