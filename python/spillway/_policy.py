"""Policies written in Python."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Mapping, Sequence, Tuple, Type, TypeVar, Union

from . import _core
from ._errors import InputError
from ._plan import Plan
from ._values import text_of


@dataclass(frozen=True)
class Domain:
    """Which values an option takes. Made by Number, Whole, Elements, Choice and OnOff."""

    kind: str
    least: float = 0.0
    most: float = 0.0
    words: Tuple[str, ...] = ()
    open: bool = False

    def or_auto(self) -> "Domain":
        """The same, and `auto`, whose value is None: placements() says what it may be."""
        return Domain(self.kind, self.least, self.most, self.words, True)


def Number(least: float, most: float) -> Domain:
    """A number from `least` to `most`."""
    return Domain("number", least, most)


def Whole(least: int, most: int) -> Domain:
    """A whole number from `least` to `most`."""
    return Domain("whole", least, most)


def Elements(least: int = 0) -> Domain:
    """A number of elements of at least that: 500000000, also written 5e8."""
    return Domain("elements", least)


def Choice(*words: str) -> Domain:
    """One of these words."""
    return Domain("choice", words=words)


def OnOff() -> Domain:
    """on or off: True or False."""
    return Domain("on_off")


fraction = Number(0, 1)


class Option:
    """A setting of a policy, as an attribute of its class.

        class Mine(spillway.Policy):
            delayed = spillway.Option(0.25, spillway.fraction, help="share of an update that waits")

    In plan() and step(), `self.delayed` is its value.

    Args:
        default: a value of the domain.
        domain: which values it takes.
        help: what it is, in a line.
        frugal: values that take less memory, the gentlest first: hints try them where a plan does
            not fit.
    """

    def __init__(self, default: Any, domain: Domain, *, help: str = "",  # noqa: A002
                 frugal: Sequence[Any] = ()) -> None:
        self.default = default
        self.domain = domain
        self.help = help
        self.frugal = tuple(frugal)
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self.default

    def _declared(self) -> Dict[str, Any]:
        return {"name": self.name, "default": text_of(self.default), "help": self.help,
                "frugal": [text_of(value) for value in self.frugal], "kind": self.domain.kind,
                "least": float(self.domain.least), "most": float(self.domain.most),
                "words": list(self.domain.words), "open": self.domain.open}


class Policy:
    """A schedule's author: a plan, and the order of work. Derive from it, and register the class.

    The class says its `name`, and may name its `paper`; the first line of its docstring is its
    idea. Options are attributes of type Option. What no plan or order can be is refused by raising
    InputError. docs/write-a-policy.md has examples.

    An object is a policy with values for its options: `Mine(delayed=0.5)` may stand wherever a
    policy is named.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""

    def __init__(self, **options: Any) -> None:
        known = type(self).options()
        for option, value in options.items():
            if option not in known:
                raise InputError(f"policy {type(self).name} has no option '{option}'",
                                 f"its options: {', '.join(known) or 'it has none'}")
            setattr(self, option, value)

    def plan(self, problem: "_core.Problem", costs: "_core.Costs") -> Plan:
        """Where everything rests, how far ahead it is fetched, what is kept for backward."""
        raise NotImplementedError(f"{type(self).__name__}.plan(problem, costs) returns a Plan")

    def step(self, step: "_core.Step") -> None:
        """The order of work of one step; unless it is overridden, what the plan's `order` says."""
        step.in_order_of_plan()

    def check(self, problem: "_core.Problem") -> None:
        """Raises InputError where the problem is not one that this policy can run."""

    def placements(self, problem: "_core.Problem") -> List[Mapping[str, Any]]:
        """Values for options left at `auto`, from the least use of slow memories to the most: the
        first that fits is taken."""
        return [{}]

    @classmethod
    def options(cls) -> Dict[str, Option]:
        """By name, in the order in which they are declared, those of base classes first."""
        return {name: value for base in reversed(cls.__mro__)
                for name, value in vars(base).items() if isinstance(value, Option)}

    def _placement_texts(self, problem: "_core.Problem") -> List[Dict[str, str]]:
        return [{name: text_of(value) for name, value in one.items()}
                for one in self.placements(problem)]

    def __str__(self) -> str:
        given = [f"{name}={text_of(getattr(self, name))}" for name, option in self.options().items()
                 if text_of(getattr(self, name)) != text_of(option.default)]
        return type(self).name + (":" + ",".join(given) if given else "")


Class = TypeVar("Class", bound=Type[Policy])
AnyPolicy = Union[str, Type[Policy], Policy, Plan]

# Classes stay for as long as C++ may make objects of them.
_registered: Dict[Type[Policy], str] = {}


def register(cls: Class) -> Class:
    """Makes a policy known by its name, wherever a policy is named; as a decorator, too.

    A class that was written anew (a cell of a notebook run again) takes the place of the one of the
    same name and module. Raises InputError for a name that is taken or is none, and for an option
    whose default is not in its domain.
    """
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        raise InputError(f"{cls!r} is no class derived from spillway.Policy",
                         "register(Mine) after class Mine(spillway.Policy)")
    if cls.plan is Policy.plan:
        raise InputError(f"policy {cls.name or cls.__name__} has no plan()",
                         "def plan(self, problem, costs): return spillway.Plan()")
    if cls in _registered:
        return cls
    idea = (inspect.getdoc(cls) or cls.__name__).splitlines()[0] if cls.__doc__ else cls.__name__
    _core.register_policy(cls, {
        "name": cls.name, "paper": cls.paper or "Python", "idea": idea,
        "from": f"{cls.__module__}.{cls.__qualname__}", "hash": _hash_of(cls),
        "has_step": cls.step is not Policy.step, "has_check": cls.check is not Policy.check,
        "has_placements": cls.placements is not Policy.placements,
        "options": [option._declared() for option in cls.options().values()]})
    _registered[cls] = cls.name
    return cls


def policy_text(policy: AnyPolicy) -> str:
    """The text that names a policy; a class or object of Python is registered on the way."""
    if isinstance(policy, Plan):
        return policy.policy
    if isinstance(policy, Policy):
        register(type(policy))
    elif isinstance(policy, type):
        return register(policy).name
    return str(policy)


def _hash_of(cls: Type[Policy]) -> str:
    """Of its source or, where that is not to be had, of its code."""
    try:
        text = inspect.getsource(cls)
    except (OSError, TypeError):
        methods = [value for value in vars(cls).values() if inspect.isfunction(value)]
        text = repr([(one.__name__, one.__code__.co_code, one.__code__.co_names,
                      [constant for constant in one.__code__.co_consts
                       if not inspect.iscode(constant)]) for one in methods])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
