"""Training for real."""

from __future__ import annotations

import os
import warnings
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from . import _core
from ._errors import InputError
from ._policy import AnyPolicy, policy_text
from ._results import Trace, read_trace
from ._tables import Table, frame_of, structured
from ._values import bytes_text, overrides_of, setting_text

Path = Union[str, "os.PathLike[str]"]

_known: Dict[str, Dict[str, Any]] = {one["name"]: one for one in _core.train_settings()}


class Training:
    """A training that has ended.

    Attributes:
        run: its folder, as `spillway watch`, `validate` and `export` take it.
        policy: its policy, with open options settled.
        first_step, steps: the step it began with, and how many are done in all.
        stopped: it ended before its last step; resume() goes on.
        weights: the file of the exported weights; "" where none were written.
        weights_hash: of the trained weights: equal weights have equal hashes.
        predicted_step_seconds: what was predicted; None without a prediction.
    """

    def __init__(self, core: "_core.Trained") -> None:
        self.run: str = core.run
        self.policy: str = core.policy
        self.first_step: int = core.first_step
        self.steps: int = core.done
        self.stopped: bool = core.stopped
        self.weights: str = core.weights
        self.weights_hash: int = core.weights_hash
        self.predicted_step_seconds: Optional[float] = core.predicted_step_seconds
        self._trace: str = core.trace
        self.history = structured(core.steps())

    history: "np.ndarray[Any, Any]"
    """Structured array, a row a step: step, loss (mean over the tokens that count), gradient_norm
    (before clipping), seconds, ssd_bytes_read, ssd_bytes_written. Shape (steps of this run,)."""

    @property
    def losses(self) -> "np.ndarray[Any, Any]":
        """The loss of each step of this run, float64, shape (steps,)."""
        return self.history["loss"]

    def trace(self) -> Trace:
        """What was recorded of the first steps."""
        return read_trace(self._trace)

    def to_pandas(self) -> Any:
        """The history as a data frame."""
        return frame_of(self.history, {})

    def __repr__(self) -> str:
        loss = f", loss {self.losses[-1]:.4f}" if len(self.losses) else ""
        return f"<training {self.run} by {self.policy}: {self.steps} steps{loss}>"


def train_settings() -> Table:
    """Everything that train() takes: name, default, help."""
    return Table({"name": one["name"], "default": one["default"], "help": one["help"]}
                 for one in _known.values())


def train(model: Path, *, policy: AnyPolicy = "auto",
          on_step: Optional[Callable[[Mapping[str, Any]], None]] = None,
          on_note: Optional[Callable[[str], None]] = None, **settings: Any) -> Training:
    """Trains, as `spillway train` does it, and returns when it is done.

        spillway.train("gpt-tiny", data="text.txt", policy="greedysnake", steps=20, batch=8,
                       micro_batch=2, gpu_memory="32MB", host_memory="64MB", run="runs/first")

    Ctrl-C, or an exception of on_step, ends it after the step that is running; that is committed,
    and resume() goes on from there.

    Args:
        model: a built-in name, a TOML file, or a folder of Hugging Face's.
        policy: as in simulate(): a policy of Python's trains, too.
        on_step: called after each step with step, loss, gradient_norm and seconds; training waits
            for it.
        on_note: called with what people should know; default: a warning.
        **settings: what `spillway train` takes, with _ for -: train_settings() lists them. A list
            of `data` or `samples` is one; `set` is a dictionary as in simulate().

    Returns the training. Raises InputError, FitError, MachineError.
    """
    settings["model"] = os.fspath(model)
    settings["policy"] = policy_text(policy)
    return _run(settings, False, on_step, on_note)


def resume(run: Path, *, policy: Optional[AnyPolicy] = None,
           on_step: Optional[Callable[[Mapping[str, Any]], None]] = None,
           on_note: Optional[Callable[[str], None]] = None, **settings: Any) -> Training:
    """Goes on with a run from its last commit, bit for bit: `resume("runs/first", steps=200)`.

    What is not given is as it was. Raises InputError, FitError, MachineError.
    """
    settings["run"] = os.fspath(run)
    if policy is not None:
        settings["policy"] = policy_text(policy)
    return _run(settings, True, on_step, on_note)


def _run(settings: Mapping[str, Any], resumes: bool, on_step: Any, on_note: Any) -> Training:
    texts = {name: _texts_of(name, value) for name, value in settings.items()
             if value is not None and not (value is False and _flag(name))}
    return Training(_core.train(texts, resumes, on_step, on_note or _warn))


def _flag(name: str) -> bool:
    return name in _known and bool(_known[name]["is_flag"])


def _texts_of(name: str, value: Any) -> List[str]:
    if name not in _known:
        raise InputError(f"there is no setting {name}", "spillway.train_settings() lists them")
    if name == "set":
        return overrides_of(value)
    if _flag(name):
        return ["true" if value is True else str(value)]
    if name in ("gpu_memory", "host_memory"):
        return [bytes_text(value)]
    if isinstance(value, os.PathLike):
        return [os.fspath(value)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = [os.fspath(one) if isinstance(one, os.PathLike) else setting_text(name, one)
                 for one in value]
        return parts if _known[name]["is_list"] else [",".join(parts)]
    return [setting_text(name, value)]


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)
