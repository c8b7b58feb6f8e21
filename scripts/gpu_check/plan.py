"""The plan of gpu-check: plan.json as values, with what a file given as --plan replaces in it."""

import dataclasses
import json
import pathlib

PLAN = pathlib.Path(__file__).resolve().parent / "plan.json"


@dataclasses.dataclass
class Part:
    name: str
    stage: str
    do: str
    seconds: float  # expected
    limit: float  # after so many it is ended
    always: bool = False  # in every call, for the next call may find another machine
    needed: bool = False  # by others, so that it keeps its place after a kill
    hopper: bool = False  # with attention's kernels for Hopper, and on a Hopper only
    arguments: dict = dataclasses.field(default_factory=dict)
    spare: bool = False  # only if time is left


@dataclasses.dataclass
class Stage:
    name: str
    minutes: float  # None: as many as are left
    about: str
    parts: list


@dataclasses.dataclass
class Plan:
    sizes: dict
    stages: list

    @property
    def parts(self):
        return [part for stage in self.stages for part in stage.parts]


def load(other=None):
    """The plan; `other` is a file with "sizes", with "parts" by name, or with "only", names of the parts to do."""
    described = json.loads(PLAN.read_text())
    changes = json.loads(other.read_text()) if other else {}
    unknown = set(changes) - {"about", "sizes", "parts", "only"}
    names = [part["name"] for stage in described["stages"] for part in stage["parts"]]
    unknown |= {*changes.get("parts", {}), *changes.get("only", [])} - set(names)
    if unknown:
        raise ValueError(f"{other}: the plan has no {', '.join(sorted(unknown))}")
    wanted = changes.get("only", names)
    stages = []
    for stage in described["stages"]:
        parts = [part_of({**part, **changes.get("parts", {}).get(part["name"], {})}, stage)
                 for part in stage["parts"] if part["name"] in wanted]
        stages.append(Stage(stage["name"], stage["minutes"], stage["about"], parts))
    return Plan({**described["sizes"], **changes.get("sizes", {})}, stages)


def part_of(words, stage):
    seconds = words["seconds"]
    return Part(words["name"], stage["name"], words["do"], seconds, words.get("limit", 2 * seconds + 30), words.get("always", False),
                words.get("needed", False), words.get("hopper", False), words.get("with", {}), stage["minutes"] is None)


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def times(plan):
    """When each part is expected to begin, if all take as long as expected: (seconds, part)."""
    at = 0
    for part in plan.parts:
        yield at, part
        at += part.seconds
