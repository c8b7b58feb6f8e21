"""Records as arrays of numpy, and tables as data frames of pandas, which is imported only for them."""

from __future__ import annotations

from html import escape
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

import numpy as np

Records = Tuple[bytes, List[str], List[str], List[int], int]


def structured(records: Records) -> "np.ndarray[Any, Any]":
    """The rows of C++ as a read-only structured array, without another copy."""
    data, names, formats, offsets, size = records
    layout = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})
    return np.frombuffer(data, layout)


def import_pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("data frames need pandas: pip install pandas") from error
    return pandas


def frame_of(array: "np.ndarray[Any, Any]", names: Mapping[str, Sequence[str]]) -> Any:
    """A structured array as a data frame; columns of numbers that stand for `names` are categories."""
    pandas = import_pandas()
    columns: Dict[str, Any] = {}
    for name in array.dtype.names or ():
        column = np.ascontiguousarray(array[name])
        if name in names:
            column = pandas.Categorical.from_codes(column.astype(np.int16), list(names[name]))
        columns[name] = column
    return pandas.DataFrame(columns)


def flat(tree: Mapping[str, Any], prefix: str = "") -> Dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}; lists stay."""
    all: Dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            all.update(flat(value, f"{prefix}{key}."))
        else:
            all[f"{prefix}{key}"] = value
    return all


class Table(List[Dict[str, Any]]):
    """A list of dictionaries that also shows itself as a table and becomes a data frame."""

    def to_pandas(self) -> Any:
        """A data frame with a row for each, nested keys as `outer.inner`."""
        return import_pandas().DataFrame([flat(row) for row in self])

    def named(self, name: str) -> Dict[str, Any]:
        """The row of that name. Raises KeyError."""
        for row in self:
            if row["name"] == name:
                return row
        raise KeyError(f"{name}: not one of {', '.join(row['name'] for row in self)}")

    def _repr_html_(self) -> str:
        return html_table([{key: value for key, value in row.items()
                            if not isinstance(value, (list, dict))} for row in self])


def html_table(rows: Iterable[Mapping[str, Any]]) -> str:
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell(row.get(name)))}</td>" for name in names)
                   + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
