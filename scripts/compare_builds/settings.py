"""The settings that two builds are compared over: grids in a TOML file, multiplied out."""

import dataclasses
import itertools
import re
import shlex
import tomllib

# Keys of a grid that become an option of `spillway simulate`, in the order in which a setting's name tells them.
OPTIONS = {
    "model": "--model",
    "machine": "--machine",
    "batch": "--batch",
    "micro_batch": "--micro-batch",
    "sequence": "--sequence",
    "gpu_memory": "--gpu-memory",
    "host_memory": "--host-memory",
    "precision": "--precision",
    "moments": "--moments",
    "gradient_bits": "--gradient-bits",
    "gradient_clip": "--gradient-clip",
    "on_nonfinite": "--on-nonfinite",
    "sequences_at_once": "--sequences-at-once",
    "durability": "--durability",
    "steps": "--steps",
    "set": "--set",
}
SIDES = {"old", "new", "old_arguments", "new_arguments"}


class BadInput(Exception):
    """What the person who called can mend."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One problem and policy; `old` and `new` are the words after `simulate --json` for each program."""

    grid: str
    name: str
    family: str  # the policy without its options
    old: tuple
    new: tuple
    variants: dict  # name -> the words for the new program


def expand(text):
    """'a{b,c}' -> ['ab', 'ac'], as the shell does; alternatives may be empty."""
    found = re.search(r"\{([^{}]*)\}", text)
    if not found:
        return [text]
    return [head for choice in found[1].split(",")
            for head in expand(text[: found.start()] + choice + text[found.end():])]


def tidy(policy):
    """A policy text from which options were taken, without the commas that they leave."""
    return re.sub(r"(?<=:),+|,+(?=,)|[:,]+$", "", policy)


def policy_pairs(entry, where):
    """(old text, new text, old arguments, new arguments) of one entry of `policy`; new text None: as old, by the rules."""
    if isinstance(entry, str):
        return [(text, None, (), ()) for text in expand(entry)]
    if not isinstance(entry, dict) or "old" not in entry or set(entry) - SIDES:
        raise BadInput(f"{where}: a policy is a text, or a table with old and any of new, old_arguments, new_arguments")
    old = expand(entry["old"])
    new = expand(entry["new"]) if "new" in entry else [None] * len(old)
    if len(old) != len(new):
        raise BadInput(f"{where}: {entry['old']} and {entry['new']} do not name as many policies")
    words = tuple(shlex.split(entry.get("old_arguments", ""))), tuple(shlex.split(entry.get("new_arguments", "")))
    return [(*pair, *words) for pair in zip(old, new)]


def multiply(table):
    """Every combination of the values of a table, as dictionaries; a list is a choice, any other value is fixed."""
    keys = list(table)
    choices = [table[key] if isinstance(table[key], list) else [table[key]] for key in keys]
    return [dict(zip(keys, values)) for values in itertools.product(*choices)]


def problems(grid, defaults, where):
    """The problems of a grid: its own keys times each of its `cases`."""
    own = {key: value for key, value in grid.items() if key not in ("name", "cases", "policy")}
    found = []
    for case in grid.get("cases", [{}]):
        found += multiply({**defaults, **own, **case})
    for problem in found:
        unknown = set(problem) - set(OPTIONS)
        if unknown:
            raise BadInput(f"{where}: unknown key {sorted(unknown)[0]}; known: policy, cases, {', '.join(OPTIONS)}")
    return found


def words_of(problem, machines):
    """The words of a problem; a value of "" leaves its option out. With a folder of machines a machine is its file there."""
    words = []
    for key, option in OPTIONS.items():
        value = str(problem.get(key, ""))
        if key == "machine" and value and machines:
            value = str(machines / f"{value}.toml")
        if value:
            words += [option, *(value.split() if key == "set" else [value])]
    return tuple(words)


def name_of(problem, policy):
    """One line that tells this setting from all others of the file."""
    told = ["model", "machine", "batch", "micro_batch", "sequence"]
    parts = [problem.get("model", ""), problem.get("machine", ""),
             f"B{problem.get('batch', '')}/{problem.get('micro_batch', '') or 'auto'}", f"T{problem.get('sequence', '')}"]
    parts += [str(problem[key]) if key == "set" else f"{key}={problem[key]}"
              for key in OPTIONS if key not in told and problem.get(key, "") != ""]
    return " ".join([*parts, policy])


def for_new(policy, rules):
    """The policy text and further words by which the new program says what `policy` says to the old one."""
    words = []
    for rule in rules:
        if re.search(rule["policy"], policy):
            words += shlex.split(rule.get("arguments", ""))
            for pattern, text in rule.get("replace", []):
                policy = re.sub(pattern, text, policy)
    return tidy(policy), tuple(words)


def change(policy, words, options, more):
    """The words of a variant: policy options and arguments added."""
    joined = policy + ("," if ":" in policy else ":") + options if options else policy
    return (*words, "--policy", joined, *more)


def parse_variants(texts):
    """{name: (policy options, words)} of texts like 'nearest=retention=nearest' and 'ratel=--framework ratel'."""
    found = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        words = shlex.split(rest)
        if not name or not equals or not words or name in ("old", "new"):
            raise BadInput(f"--variant {text}: expected NAME=CHANGE, e.g. nearest=retention=nearest")
        first = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
        found[name] = (",".join(words[:first]), tuple(words[first:]))
    return found


def load(path, variants, machines=None):
    """All settings of a file, each once; their machines by name, or, with a folder, from files there."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path}: {error}") from error
    defaults, rules = content.get("defaults", {}), content.get("new", [])
    found = {}
    for grid in content.get("grid", []):
        where = f"{path}: grid '{grid.get('name', '')}'"
        if not grid.get("name") or "policy" not in grid:
            raise BadInput(f"{where}: a grid has a name and a policy")
        entries = grid["policy"] if isinstance(grid["policy"], list) else [grid["policy"]]
        pairs = [pair for entry in entries for pair in policy_pairs(entry, where)]
        for problem, pair in itertools.product(problems(grid, defaults, where), pairs):
            setting = make(grid["name"], problem, pair, rules, variants, machines)
            found.setdefault((setting.old, setting.new), setting)
    return list(found.values())


def make(grid, problem, pair, rules, variants, machines):
    old, new, old_words, new_words = pair
    old = tidy(old)
    rule_words = ()
    if new is None:
        new, rule_words = for_new(old, rules)
    words = words_of(problem, machines)
    after = (*rule_words, *new_words)
    return Setting(grid, name_of(problem, old), old.partition(":")[0], (*words, "--policy", old, *old_words),
                   (*words, "--policy", new, *after),
                   {name: change(new, words, options, (*after, *more)) for name, (options, more) in variants.items()})
