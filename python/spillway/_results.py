"""Simulations, comparisons, searches: functions and what they return."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core
from ._errors import Error, InputError
from ._plan import Plan
from ._policy import AnyPolicy, policy_text
from ._tables import Table, flat, frame_of, html_table, import_pandas, structured
from ._values import request

Path = Union[str, "os.PathLike[str]"]


class Trace:
    """What happened, or was simulated: spans on lanes, and memory over time.

    Attributes:
        lanes, kinds, phases, tiers: names, by the numbers that the arrays have.
        metadata: model, machine, policy, workload and more, as `spillway validate` reads them.
    """

    def __init__(self, core: "_core.Trace") -> None:
        self._core = core
        self.lanes: List[str] = core.lanes
        self.kinds: List[str] = core.kinds
        self.phases: List[str] = core.phases
        self.tiers: List[str] = core.tiers
        self.metadata: Dict[str, Any] = core.metadata

    @property
    def spans(self) -> "np.ndarray[Any, Any]":
        """Structured array, a row a span: task, kind, lane, phase, segment, step, layer (-1: none),
        micro_batch (-1: none), start_ns, end_ns, bytes, flops, params. Shape (spans,)."""
        return structured(self._core.spans())

    @property
    def memory(self) -> "np.ndarray[Any, Any]":
        """Structured array, a row a change: time_ns, tier, bytes that are live from then on."""
        return structured(self._core.memory())

    def to_pandas(self) -> Any:
        """The spans as a data frame, with names for kinds, lanes and phases; times in ns."""
        return frame_of(self.spans, {"kind": self.kinds, "lane": self.lanes, "phase": self.phases})

    def memory_to_pandas(self) -> Any:
        """Memory over time as a data frame: time_ns, tier, bytes."""
        return frame_of(self.memory, {"tier": self.tiers})

    def write(self, path: Path) -> None:
        """Writes a file that opens in Perfetto; compressed where its name ends in .gz."""
        self._core.write(os.fspath(path))

    def __repr__(self) -> str:
        return f"<trace of {self.metadata.get('policy')}: {len(self.spans)} spans>"


class Result:
    """A policy on a problem: its schedule and, where it fits, how long that takes.

    Every metric of `spillway simulate --json` (docs/metrics.md) is an item, those inside others by
    dots: `result["memory.gpu.peak_bytes"]`. The most used ones are attributes.
    """

    def __init__(self, core: "_core.Result") -> None:
        self._core = core
        self._metrics: Optional[Dict[str, Any]] = None

    @property
    def metrics(self) -> Dict[str, Any]:
        """All metrics, nested as in JSON. Times in seconds, sizes in bytes."""
        if self._metrics is None:
            self._metrics = self._core.metrics()
        return self._metrics

    def __getitem__(self, name: str) -> Any:
        value: Any = self.metrics
        for key in name.split("."):
            if not isinstance(value, Mapping) or key not in value:
                # Lanes have a dot in their names.
                return flat(self.metrics)[name]
            value = value[key]
        return value

    @property
    def policy(self) -> str:
        """Its text, with every option that was left open settled."""
        return self._core.policy

    @property
    def problem(self) -> "_core.Problem":
        """Model, machine and workload, the micro-batch settled."""
        return self._core.problem

    @property
    def fits(self) -> bool:
        return self._core.fits

    @property
    def step_seconds(self) -> Optional[float]:
        """Of a steady step; None where it does not fit."""
        return self._core.step_seconds

    @property
    def tokens_per_second(self) -> Optional[float]:
        return self.metrics["tokens_per_second"]

    @property
    def model_tflops(self) -> Optional[float]:
        """3 x forward FLOPs per step / step time, in TFLOPS."""
        return self.metrics["model_tflops"]

    @property
    def bound_seconds(self) -> Optional[float]:
        """No schedule with this work can be faster."""
        return self.metrics["bound_seconds"]

    @property
    def bound_by(self) -> Optional[str]:
        """The lane or resource that sets the bound."""
        return self.metrics["bound_by"]

    @property
    def fingerprint(self) -> int:
        """Equal schedules have equal fingerprints."""
        return self._core.fingerprint

    @property
    def plan(self) -> Plan:
        """Its policy's plan for this problem."""
        return Plan._of(_core.plan_of(self._core.problem, self._core.policy))

    @property
    def tasks(self) -> "np.ndarray[Any, Any]":
        """Structured array, a row a task in program order: task, kind, lane, phase, moves (what a
        copy moves; -1: nothing is copied), step, layer (-1: none; from the number of layers on:
        embedding, head), micro_batch (-1: none), start_ns, end_ns (-1 where it does not fit),
        bytes, flops, params. Shape (tasks,).

        `kind`, `lane`, `phase` and `moves` are numbers: spillway.task_kinds, .lanes, .phases and
        .buffer_kinds name them.
        """
        return structured(self._core.tasks())

    @property
    def edges(self) -> "np.ndarray[Any, Any]":
        """Structured array, a row a dependency: task `before` ends before task `after` starts.
        Tasks of one lane run in order without an edge. Shape (edges,)."""
        return structured(self._core.edges())

    @property
    def buffers(self) -> "np.ndarray[Any, Any]":
        """Structured array, a row a buffer: buffer, kind, tier, persistent, layer, micro_batch,
        bytes, offset in the tier's arena, first_task, last_task. Shape (buffers,)."""
        return structured(self._core.buffers())

    def tasks_to_pandas(self) -> Any:
        """The tasks as a data frame, with names for numbers; times in ns."""
        return frame_of(self.tasks, {"kind": _core.task_kinds, "lane": _core.lanes,
                                     "phase": _core.phases, "moves": _core.buffer_kinds})

    def buffers_to_pandas(self) -> Any:
        """The buffers as a data frame, with names for kinds and tiers."""
        return frame_of(self.buffers, {"kind": _core.buffer_kinds, "tier": _core.tiers})

    def trace(self) -> Trace:
        """The simulation as the record that training writes, too. Raises FitError."""
        return Trace(self._core.trace())

    def gantt(self, path: Optional[Path] = None) -> "Picture":
        """One steady step, a row a lane, drawn by gnuplot: an SVG that a notebook shows, or a file
        `path` (.svg or .png). Raises MachineError without gnuplot, FitError."""
        form = "svg" if path is None else os.path.splitext(os.fspath(path))[1][1:]
        if form not in ("svg", "png"):
            raise InputError(f"{os.fspath(path or '')}: neither .svg nor .png",
                             "name a picture: step.svg")
        drawn = self._core.gantt(form)
        if path is not None:
            with open(path, "wb") as file:
                file.write(drawn)
        return Picture(drawn if form == "svg" else self._core.gantt("svg"))

    def explain(self) -> str:
        """The schedule for reading: where states rest, then one steady step lane by lane."""
        return self._core.schedule_text()

    def to_pandas(self) -> Any:
        """All metrics as a data frame of one row, nested keys as `outer.inner`."""
        return import_pandas().DataFrame([flat(self.metrics)])

    def _short(self) -> Dict[str, Any]:
        problem = self._core.problem
        row: Dict[str, Any] = {
            "policy": self.policy, "micro_batch": problem.workload.micro_batch, "fits": self.fits,
            "step_seconds": self.step_seconds}
        for name in ("tokens_per_second", "model_tflops", "bound_by"):
            row[name] = self.metrics[name]
        for tier in _core.tiers:
            row[f"{tier} GB"] = self.metrics["memory"][tier]["peak_bytes"] / 1e9
        return row

    def __repr__(self) -> str:
        problem = self._core.problem
        what = f"{problem.model.name} on {problem.machine.name}, {self.policy}"
        seconds = self.step_seconds
        if seconds is None:
            return f"<{what}: does not fit>"
        return f"<{what}: {seconds:.4g} s a step, {self.tokens_per_second:.4g} tokens/s>"

    def _repr_html_(self) -> str:
        return html_table([self._short()])


class Picture:
    """An SVG picture; a notebook shows it."""

    def __init__(self, svg: bytes) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg.decode()

    def __repr__(self) -> str:
        return f"<picture of {len(self.svg)} bytes of SVG>"


class Comparison(Sequence[Result]):
    """Policies on one problem, side by side; a sequence of results.

    Attributes:
        refused: policies that cannot run the problem at all, each with the reason.
    """

    def __init__(self, core: "_core.Comparison") -> None:
        self._results = [Result(one) for one in core.results]
        self.refused: Dict[str, str] = dict(core.refused)
        self._fastest, self._auto, self._writes_less = core.fastest, core.auto_choice, core.writes_less

    def _at(self, index: Optional[int]) -> Optional[Result]:
        return None if index is None else self._results[index]

    @property
    def fastest(self) -> Optional[Result]:
        """The fastest of those that are compared like with like, as `spillway compare` marks it: all as
        published, each at its best, or all with the same recomputation. None: fewer than two are."""
        return self._at(self._fastest)

    @property
    def auto(self) -> Optional[Result]:
        """What policy `auto` takes, also of plans that were searched for; None where nothing fits, or
        where others than its candidates were compared."""
        return self._at(self._auto)

    @property
    def writes_less(self) -> Optional[Result]:
        """One that is nearly as fast and writes least to the drives; None: the fastest does."""
        return self._at(self._writes_less)

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, index: Any) -> Any:
        """By position, or by a policy's name or text."""
        if not isinstance(index, str):
            return self._results[index]
        for one in self._results:
            if index in (one.policy, one.policy.split(":")[0]):
                return one
        raise KeyError(f"{index}: {self.refused.get(index, 'not one of those compared')}")

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    def to_pandas(self) -> Any:
        """A data frame with a row for each policy and a column for each metric, nested keys as
        `outer.inner`; `fastest` marks one."""
        frame = import_pandas().DataFrame([flat(one.metrics) for one in self._results])
        frame.insert(1, "fastest", [at == self._fastest for at in range(len(self))])
        return frame

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._results))

    def _repr_html_(self) -> str:
        return html_table(one._short() for one in self._results)


class Tuned:
    """What a search over plans has found.

    Attributes:
        best: the fastest plan that fits, as a result; None where none was found.
        metrics: the object of `spillway tune --json` (docs/metrics.md).
    """

    def __init__(self, metrics: Dict[str, Any], best: Optional["_core.Result"]) -> None:
        self.metrics = metrics
        self.best = None if best is None else Result(best)

    @property
    def bound_seconds(self) -> float:
        """No plan takes less."""
        return self.metrics["bound_seconds"]

    def front(self) -> Table:
        """Plans of which none is better in all of time, memory and writes."""
        return Table(self.metrics["front"])

    def __repr__(self) -> str:
        return f"<tuned: {self.best!r}; bound {self.bound_seconds:.4g} s>"


_settings = """
    Args:
        model: a built-in name (spillway.models()), a TOML file, or a folder of Hugging Face's.
        machine: a built-in name (spillway.machines()), parts ("rtx4090+desktop-ddr5+2x990pro"), or
            a TOML file.
        {policy}
        set: keys of the machine and, after "model.", of the model:
            {{"ssd.count": 4, "model.layers": 48}}.
        gpu_memory, host_memory: limits, in bytes or as "24GB".
        framework: the program whose habits are laid over the schedule (spillway.frameworks()).
        steps: steps that are simulated.
        durability: "off", "step", "interval=N": what is committed, and written for it.
        **workload: batch (sequences a step), micro_batch (default: the best that fits), sequence
            (tokens), precision, ... : spillway.workload_settings().
"""


def simulate(model: Path, machine: Path, policy: AnyPolicy = "auto", *,
             steps: int = _core.default_steps, durability: str = "", **settings: Any) -> Result:
    """Simulates one policy on one machine.

    Returns the result. Raises FitError, with what would make it fit, and InputError.
    """
    return Result(_core.simulate(request(model, machine, **settings), policy_text(policy), steps,
                                 durability))


def compare(model: Path, machine: Path, policies: Union[AnyPolicy, Sequence[AnyPolicy]] = "auto", *,
            steps: int = _core.default_steps, durability: str = "",
            run_steps: Optional[int] = None, best: bool = False, recompute: str = "",
            **settings: Any) -> Comparison:
    """Simulates policies side by side: those named, or all that `auto` chooses among. As published; with
    `best` each with the fastest settings that a search finds; with `recompute` ("off", "needed", "full")
    all with this recomputation, where their settings allow it.

    Returns a sequence of results, also of those that do not fit. Raises InputError.
    """
    if isinstance(policies, (str, type)) or not isinstance(policies, Sequence):
        policies = [policies]
    texts = [policy_text(one) for one in policies]
    return Comparison(_core.compare(request(model, machine, **settings), texts, steps, durability,
                                    run_steps, best, recompute))


def tune(model: Path, machine: Path, *, effort: int = _core.default_effort,
         budget_seconds: Optional[float] = None, seed: int = 0, threads: Optional[int] = None,
         durability: str = "", progress: Optional[Callable[[int, int], None]] = None,
         **settings: Any) -> Tuned:
    """Searches for the fastest plan, and proves how good it is.

    Returns the best plan, and a bound that no plan beats. Raises InputError.
    """
    metrics, best = _core.tune(request(model, machine, **settings), effort, budget_seconds, seed,
                               threads, durability, progress)
    return Tuned(metrics, best)


def plan(model: Path, machine: Path, policy: AnyPolicy, **settings: Any) -> Plan:
    """The plan of a policy for a problem, with its open options settled.

    Returns a Plan, to be looked at or changed: simulate() takes one in place of a policy. Raises
    FitError, InputError.
    """
    return simulate(model, machine, policy, **settings).plan


def estimate(model: Path, machine: Path, policy: AnyPolicy = "auto", *,
             tokens: Optional[float] = None, run_steps: Optional[int] = None, durability: str = "",
             **settings: Any) -> Result:
    """Does it fit, how long does a training take, how much is written to the drives.

    Returns the result; with `tokens` or `run_steps`, of the whole training, its item "wear" has
    what that writes and takes. Raises FitError, InputError.
    """
    asked = request(model, machine, **settings)
    if tokens is not None:
        if run_steps is not None:
            raise InputError("tokens and run_steps both say how long the training is",
                             "give one of them")
        run_steps = -int(-tokens // asked.problem().workload.tokens_per_step)
    found = _core.compare(asked, [policy_text(policy)], _core.default_steps, durability, run_steps)
    chosen = found.auto_choice if len(found.results) > 1 else 0
    if chosen is None or not found.results[chosen].fits:
        return simulate(model, machine, policy, durability=durability, **settings)  # says why
    return Result(found.results[chosen])


def read_trace(path: Path) -> Trace:
    """Reads a trace that `spillway train` or `spillway simulate --trace` wrote. Raises
    InputError."""
    return Trace(_core.read_trace(os.fspath(path)))


def settings_text(policy: str, without: str = "") -> str:
    """What the arguments mean that all questions share, of which one may not have `without`."""
    lines = _settings.format(policy=policy).splitlines(keepends=True)
    return "".join(line for line in lines if not without or f"    {without}:" not in line)


for _function, _policy in (
        (simulate, "policy: a name, with options as in \"greedysnake:alpha=0.2\"; a Policy of\n"
                   "            yours, as class or object; a Plan; or \"auto\", the fastest."),
        (compare, "policies: as in simulate(), one or a list."),
        (tune, "effort: plans that are priced at most, beside the policies as published.\n"
               "            budget_seconds: after which the best so far is the answer. seed, threads,\n"
               "            progress(explored, effort)."),
        (plan, "policy: as in simulate()."), (estimate, "policy: as in simulate().")):
    _function.__doc__ = (_function.__doc__ or "") + settings_text(_policy)

__all__ = ["Comparison", "Error", "Picture", "Plan", "Result", "Trace", "Tuned", "compare",
           "estimate", "plan", "read_trace", "simulate", "tune"]
