"""Plans: what a policy decides for one problem."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Dict, List, Optional

from . import _core
from ._errors import InputError
from ._tables import Table
from ._values import text_of, value_of

_fields: Dict[str, Dict[str, str]] = {field["name"]: field for field in _core.plan_fields()}
_sections = {name[:at] for name in _fields for at in range(len(name)) if name[at] == "."}


class PlanSection:
    """Fields of a plan that belong together: `plan.parameters.rest`."""

    __slots__ = ("_plan", "_prefix")

    def __init__(self, plan: "_core.Plan", prefix: str) -> None:
        object.__setattr__(self, "_plan", plan)
        object.__setattr__(self, "_prefix", prefix)

    def __getattr__(self, name: str) -> Any:
        return _get(self._plan, f"{self._prefix}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        _set(self._plan, f"{self._prefix}.{name}", value)

    def __dir__(self) -> List[str]:
        return _below(self._prefix + ".")

    def __repr__(self) -> str:
        return f"<section {self._prefix} of a plan: {', '.join(dir(self))}>"


class Plan:
    """Where tensors rest, how far ahead they are fetched, what is recomputed, when updates run.

    Fields are attributes, in sections: `plan.parameters.rest = {"host": 0.5, "ssd": 0.5}`,
    `plan.order.snake = True`, `plan.checkpoints.gpu_ahead = 2`. A value is a text, a number, a
    truth value, a share of the memories `gpu`, `host` and `ssd`, or a list with a value for each
    layer. `Plan.fields()` lists them all with their domains; policies/movement/plan.hpp explains
    them. A plan that is not changed is the default: everything in host memory.

    Args:
        text: a plan as `str(plan)` writes it.
        **fields: fields with `__` for each dot: `Plan(parameters__gpu_ahead=2)`.
    """

    __slots__ = ("_core",)

    def __init__(self, text: str = "", **fields: Any) -> None:
        object.__setattr__(self, "_core", _core.Plan.parse(text) if text else _core.Plan())
        for name, value in fields.items():
            self[name.replace("__", ".")] = value

    @classmethod
    def _of(cls, core: "_core.Plan") -> "Plan":
        plan = cls()
        object.__setattr__(plan, "_core", core)
        return plan

    @staticmethod
    def fields() -> Table:
        """Every field: name, default, the values it takes, and what it is."""
        return Table(dict(field) for field in _fields.values())

    def copy(self) -> "Plan":
        return Plan._of(_core.Plan(self._core))

    @property
    def policy(self) -> str:
        """The text of the policy `spillway` with this plan, for simulate() and the program."""
        return self._core.policy()

    def __getitem__(self, name: str) -> Any:
        return _get(self._core, name)

    def __setitem__(self, name: str, value: Any) -> None:
        _set(self._core, name, value)

    def __getattr__(self, name: str) -> Any:
        return _get(self._core, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _set(self._core, name, value)

    def __dir__(self) -> List[str]:
        return [*object.__dir__(self), *_below("")]

    def __str__(self) -> str:
        return self._core.text()

    def __repr__(self) -> str:
        return f"Plan({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and str(self) == str(other)

    def __hash__(self) -> int:
        return self._core.hash()

    def differences(self, other: "Plan") -> Dict[str, Any]:
        """Fields that differ, each as (here, there)."""
        return {name: (self[name], other[name]) for name in _fields if self[name] != other[name]}


def _below(prefix: str) -> List[str]:
    return sorted({name[len(prefix):].split(".")[0] for name in _fields if name.startswith(prefix)})


def _get(plan: "_core.Plan", name: str) -> Any:
    if name in _fields:
        return value_of(plan.get(name))
    if name in _sections:
        return PlanSection(plan, name)
    raise AttributeError(_unknown(name))


def _set(plan: "_core.Plan", name: str, value: Any) -> None:
    if name not in _fields:
        raise InputError(f"a plan has no field {name}", _near(name) or "Plan.fields() lists them")
    if value is None:  # the word of the field's domain for what is left open
        value = _fields[name]["default"]
    plan.set(name, text_of(value))


def _near(name: str) -> Optional[str]:
    near = get_close_matches(name, list(_fields), 3)
    return f"did you mean {' or '.join(near)}?" if near else None


def _unknown(name: str) -> str:
    near = _near(name)
    return f"a plan has no field {name}" + (f"; {near}" if near else "")
