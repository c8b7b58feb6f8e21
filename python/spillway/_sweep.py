"""Sweeps: every combination of settings, in parallel and resumable."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

from . import _core
from ._policy import AnyPolicy, Policy, policy_text
from ._plan import Plan
from ._tables import html_table, import_pandas
from ._values import text_of

Path = Union[str, "os.PathLike[str]"]


class Sweep:
    """The results of a sweep: a row a point.

    Attributes:
        columns: the axes, `status` ("ok", "does not fit", "invalid"), `reason`, `hint`, and every
            metric of `spillway simulate --json` as `outer.inner`.
        rows: cells as texts, "" where there is none.
        points, run, missing, ok, does_not_fit, invalid: numbers of points; `run` of them now.
        csv: the table as a file; None where its folder was a temporary one.
    """

    def __init__(self, core: "_core.Swept", csv: Optional[str]) -> None:
        self.name: str = core.name
        self.columns: List[str] = core.columns
        self.rows: List[List[str]] = core.rows
        self.points, self.run, self.missing = core.points, core.run, core.missing
        self.ok, self.does_not_fit, self.invalid = core.ok, core.does_not_fit, core.invalid
        self.csv = csv

    def to_pandas(self) -> Any:
        """A data frame with a row a point; columns of numbers are numbers, empty cells missing."""
        pandas = import_pandas()
        frame = pandas.DataFrame(self.rows, columns=self.columns).replace("", None)
        for column in frame.columns:
            known = frame[column].dropna()
            if known.empty:
                continue
            if known.isin(["true", "false"]).all():
                frame[column] = frame[column].map({"true": True, "false": False})
                continue
            numbers = pandas.to_numeric(known, errors="coerce")
            if numbers.notna().all():
                frame[column] = pandas.to_numeric(frame[column])
        return frame

    def __repr__(self) -> str:
        return (f"<sweep {self.name}: {self.points} points, {self.ok} ok, {self.does_not_fit} not "
                f"fitting, {self.invalid} invalid>")

    def _repr_html_(self) -> str:
        most = 20
        shown = [dict(zip(self.columns, row)) for row in self.rows[:most]]
        return html_table(shown) + f"<p>{self!r}</p>"


def sweep(what: Union[Path, Mapping[str, Any]], out: Optional[Path] = None, *,
          jobs: Optional[int] = None, shard: Optional[str] = None,
          progress: Optional[Callable[[int, int], None]] = None, **axes: Any) -> Sweep:
    """Simulates every combination of settings.

        spillway.sweep({"model": "gpt-13b", "machine": "rtx4090-12ssd", "policy": ["zero-infinity",
                        "greedysnake"], "batch": [8, 16, 32], "ssd.count": [2, 4, 12]})

    Args:
        what: a sweep file (docs/sweep.md), or settings by their keys: a list is an axis, any other
            value holds for all points. Policies of Python's may be among them.
        out: folder of the results, where an earlier run of the sweep is gone on with; None: a
            temporary one.
        jobs: points evaluated at once; None: one a core.
        shard: "I/N": only this share of the points.
        progress: called with the points done and all points of this run.
        **axes: more settings: `batch=[8, 16]`.

    Returns the table. Raises InputError, of a file with the place in it.
    """
    if isinstance(what, Mapping):
        text, origin = _toml_of({**what, **axes}), ""
    else:
        if axes:
            raise TypeError("settings beside a sweep file: put them into the file")
        origin = os.fspath(what)
        with open(origin, encoding="utf-8") as file:
            text = file.read()
    if out is not None:
        swept = _core.sweep(text, origin, os.fspath(out), jobs, shard, progress)
        return Sweep(swept, swept.csv)
    with tempfile.TemporaryDirectory(prefix="spillway-sweep-") as folder:
        return Sweep(_core.sweep(text, origin, folder, jobs, shard, progress), None)


def _quoted(value: Any) -> str:
    """A value for TOML. Texts are what Spillway reads everywhere."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if hasattr(value, "item"):
        return _quoted(value.item())
    is_policy = isinstance(value, (Policy, Plan)) or isinstance(value, type)
    text = policy_text(value) if is_policy else text_of(value)
    escaped = "".join(f"\\u{ord(sign):04x}" if ord(sign) < 32 or sign in '"\\' else sign
                      for sign in text)
    return f'"{escaped}"'


def _toml_of(settings: Mapping[str, Any]) -> str:
    fixed: List[str] = []
    axes: List[str] = []
    for key, value in settings.items():
        name = _quoted(key)
        if hasattr(value, "tolist"):  # an array of numpy
            value = value.tolist()
        if isinstance(value, (list, tuple, range)):
            axes.append(f"[[axis]]\n{name} = [{', '.join(map(_quoted, value))}]\n")
        else:
            fixed.append(f"{name} = {_quoted(value)}\n")
    return "[fixed]\n" + "".join(fixed) + "".join(axes)


__all__ = ["AnyPolicy", "Dict", "Sweep", "sweep"]
