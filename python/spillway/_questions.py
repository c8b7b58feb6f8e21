"""What fits, and what more of a machine gains."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Sequence, Union

from . import _core
from ._policy import AnyPolicy, policy_text
from ._results import Path, Result, settings_text
from ._tables import Table
from ._values import bytes_text, request, text_of

Progress = Callable[[int, int], None]


class Fit:
    """What memory allows, by policy.

    Attributes:
        metrics: the object of `spillway fit --json` (docs/questions.md).
    """

    def __init__(self, metrics: Dict[str, Any]) -> None:
        self.metrics = metrics

    @property
    def policies(self) -> Table:
        """A row for each policy: policy, and what was asked for of largest_model, largest_batch and
        least_memory; or refused, with the reason why it cannot run the problem at all."""
        return Table(self.metrics["policies"])

    def __getitem__(self, policy: str) -> Dict[str, Any]:
        """The row of a policy, as it was asked for. Raises KeyError."""
        for row in self.policies:
            if row["policy"] == policy:
                return row
        raise KeyError(f"{policy}: not one of {', '.join(row['policy'] for row in self.policies)}")

    def to_pandas(self) -> Any:
        """A data frame with a row for each policy, nested keys as `outer.inner`."""
        return self.policies.to_pandas()

    def __repr__(self) -> str:
        return f"<what fits: {self.metrics['model']} on {self.metrics['machine']}, " \
               f"{len(self.policies)} policies>"


class Knee:
    """Throughput over the size of a machine's resources.

    Attributes:
        now: the plan of the machine as it is, as a result.
        metrics: the object of `spillway knee --json` (docs/metrics.md), without its plan.
    """

    def __init__(self, metrics: Dict[str, Any], now: "_core.Result") -> None:
        self.metrics = metrics
        self.now = Result(now)

    @property
    def knees(self) -> Dict[str, Optional[float]]:
        """By resource, the value beyond which more of it gains less than was asked for: drives, bytes,
        or times the rate there is. None: there is none among those that were tried."""
        return {one["resource"]: one.get("knee") for one in self.metrics["resources"]}

    def points(self) -> Table:
        """A row for each resource and value: resource, value, fits, policy, step_seconds, ..."""
        return Table({"resource": one["resource"], **point} for one in self.metrics["resources"]
                     for point in one.get("points", []))

    def to_pandas(self) -> Any:
        """points() as a data frame."""
        return self.points().to_pandas()

    def __repr__(self) -> str:
        return f"<knees: {self.knees}>"


def _texts(value: "Union[str, Sequence[str]]") -> "list[str]":
    return [value] if isinstance(value, str) else list(value)


def _values(resource: str, values: Any) -> str:
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = [values]
    to_text = bytes_text if resource.endswith(".memory") else text_of
    return ",".join(to_text(one) for one in values)


def fit(model: Path, machine: Path,
        policies: "Union[AnyPolicy, Sequence[AnyPolicy], None]" = None, *,
        largest: "Union[str, Sequence[str]]" = (), least: "Union[str, Sequence[str]]" = (),
        durability: str = "", progress: Optional[Progress] = None, **settings: Any) -> Fit:
    """The largest model, the largest batch and the least memory, by policy.

    Returns the answers; a policy that nothing fits has none. Raises InputError.
    """
    if policies is None:
        policies = []
    elif isinstance(policies, (str, type)) or not isinstance(policies, Sequence):
        policies = [policies]
    return Fit(_core.fit(request(model, machine, **settings), [policy_text(one) for one in policies],
                         _texts(largest), _texts(least), durability, progress))


def knee(model: Path, machine: Path, policy: AnyPolicy = "auto", *,
         resources: "Union[str, Sequence[str], Mapping[str, Any]]" = (),
         gain: float = 0.03, durability: str = "", progress: Optional[Progress] = None,
         **settings: Any) -> Knee:
    """Where more drives, more memory, a faster link stop paying.

    Returns throughput over each of them. Raises FitError where the machine as it is does not do,
    InputError.
    """
    if isinstance(resources, Mapping):
        resources = [f"{name}={_values(name, values)}" for name, values in resources.items()]
    metrics, now = _core.knee(request(model, machine, **settings), policy_text(policy),
                              _texts(resources), gain, durability, progress)
    return Knee(metrics, now)


for _function, _policy in (
        (fit, "policies: as in simulate(), one or a list; None: all that `auto` chooses among.\n"
              "        largest: \"model\", \"batch\" or both; least: of \"gpu\", \"host\", \"ssd\". All where\n"
              "            neither is given. progress(done, all): answers."),
        (knee, "policy: as in simulate().\n"
               "        resources: names, or a dictionary of values: {\"ssd.count\": [2, 4, 8]}; by default\n"
               "            drives, memories and the link. gain: more pays where it gains this share\n"
               "            of the throughput. progress(done, all): machines.")):
    _function.__doc__ = (_function.__doc__ or "") + settings_text(_policy, "steps")

__all__ = ["Fit", "Knee", "fit", "knee"]
