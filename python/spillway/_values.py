"""Values of Python as the texts that Spillway reads, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Dict, List, Optional

from . import _core


def text_of(value: Any) -> str:
    """A value as a setting's text.

    True and False are on and off, None is auto; a mapping is a share ({"host": 0.5, "ssd": 0.5} is
    host:0.5+ssd:0.5); a sequence has a value for each layer, the lowest first.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return "+".join(f"{key}:{text_of(share)}" for key, share in value.items())
    if isinstance(value, Sequence):
        runs = [(text, len(list(same))) for text, same in groupby(text_of(one) for one in value)]
        return "/".join(text if count == 1 and len(runs) > 1 else f"{text}x{count}"
                        for text, count in runs)
    if hasattr(value, "item"):  # a scalar of numpy
        value = value.item()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def value_of(text: str) -> Any:
    """What a text means: a truth value, a number, a share, or the text itself."""
    if text in ("on", "off"):
        return text == "on"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    parts = [part.partition(":") for part in text.split("+")]
    if all(name in _core.tiers and colon for name, colon, _ in parts):
        try:
            return {name: float(share) for name, _, share in parts}
        except ValueError:
            pass
    return text


def setting_text(name: str, value: Any) -> str:
    """As text_of, for a setting of a workload, a machine or a model, where a flag is true or false
    in files and on or off elsewhere."""
    if isinstance(value, bool) and "." in name:
        return "true" if value else "false"
    return text_of(value)


def overrides_of(set: Optional[Mapping[str, Any]]) -> List[str]:  # noqa: A002
    return [f"{key}={setting_text(key, value)}" for key, value in (set or {}).items()]


def request(model: Any, machine: Any, *, set: Optional[Mapping[str, Any]] = None,  # noqa: A002
            framework: str = "spillway", gpu_memory: Any = "", host_memory: Any = "",
            lora: Optional[str] = None, train_layers: Optional[int] = None,
            **workload: Any) -> _core.Request:
    """What simulate, compare and the others ask about."""
    texts: Dict[str, str] = {
        key: setting_text(key, value) for key, value in workload.items() if value is not None
    }
    return _core.Request(
        os.fspath(model), os.fspath(machine), overrides=overrides_of(set), workload=texts,
        framework=framework, gpu_memory=bytes_text(gpu_memory), host_memory=bytes_text(host_memory),
        lora=lora, train_layers=train_layers)


def bytes_text(value: Any) -> str:
    """A size: "24GB" as it is, 24e9 as "24000000000B"; None is no limit."""
    if value is None or value == "":
        return ""
    return value if isinstance(value, str) else f"{int(value)}B"
