"""Display of results: text for `repr` and `print`, HTML with small curves for notebooks.

A display never raises: where numbers are not known (under `jit`, `vmap` or `eval_shape`) it is the pytree's structure.
"""

import abc
import html
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, PyTree

from ._result import SUCCESS, code_of, codes, message


Row = TypeVar("Row")

# Entries that are listed one by one; rows of a table, curves of a batch and points of a curve that are shown.
MOST_ENTRIES, MOST_ROWS, MOST_CURVES, MOST_POINTS = 8, 16, 20, 160
# Arrays with more entries than this are described by their shape: a repr has to be instant.
MOST_NUMBERS = 10**7


class Report(NamedTuple):
    """The contents of a display.

    Attributes:
        title: The kind of the result, and how it ended.
        rows: Texts in columns.
        head: Titles of the columns; empty for rows of a name and a text.
        notes: Lines below.
        curves: Curves (k, T) for each row, drawn in notebooks only; empty for none.
    """

    title: str
    rows: Sequence[Sequence[str]] = ()
    head: Sequence[str] = ()
    notes: Sequence[str] = ()
    curves: Sequence[np.ndarray] = ()


class AbstractShown(eqx.Module):
    """A result that shows itself, in a terminal and in a notebook."""

    @abc.abstractmethod
    def _report(self) -> Report:
        """Returns the contents of the display; may raise anything where numbers are not known."""

    def __repr__(self) -> str:
        report = _report_of(self)
        if report is not None:
            return as_text(report)
        try:
            return eqx.tree_pformat(self)
        except Exception:  # equinox shows the number of a result, which may be deleted or no number at all
            return f"{type(self).__name__}(...)"

    def _repr_html_(self) -> str | None:
        report = _report_of(self)
        return None if report is None else as_html(report)


def _report_of(shown: AbstractShown) -> Report | None:
    """Returns the report, or None if numbers are not known."""
    if not all(map(_is_known, jax.tree_util.tree_leaves(shown))):
        return None
    try:
        return shown._report()
    except Exception:  # a pytree may hold anything in place of its arrays, and a display must not raise
        return None


def _is_known(leaf: object) -> bool:
    if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
        return leaf.is_fully_addressable and not leaf.is_deleted()
    return not isinstance(leaf, Tracer | jax.ShapeDtypeStruct)


def as_text(report: Report) -> str:
    """Returns the report as text: columns of numbers flush right, others flush left."""
    rows = [row for row in (report.head, *report.rows) if row]
    lines = [report.title] if report.title else []
    indent = "  " if lines else ""
    right = _numeric(report)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{x:>{w}}" if r else f"{x:{w}}" for x, w, r in zip(row, widths, right, strict=True)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join([*lines, *(indent + note for note in report.notes)])


def _numeric(report: Report) -> list[bool]:
    """Whether each column holds numbers only, beside names in the first one."""

    def is_number(x: str) -> bool:
        try:
            return not x or isinstance(float(x), float)
        except ValueError:
            return False

    columns = list(zip(*report.rows, strict=True)) or [()] * len(report.head)
    return [bool(report.head) and i > 0 and all(map(is_number, column)) for i, column in enumerate(columns)]


def as_html(report: Report) -> str:
    """Returns the report as HTML, with a small picture of the curves of each row."""

    sides = ["right" if right else "left" for right in _numeric(report)]

    def line(cells: Sequence[str], tag: str, curves: str = "") -> str:
        styled = zip(sides, cells, strict=True)
        made = [f'<{tag} style="text-align: {side}">{html.escape(x)}</{tag}>' for side, x in styled]
        return f"<tr>{''.join(made)}{curves}</tr>"

    head = line(report.head, "th", "<th></th>" if report.curves else "") if report.head else ""
    pictures = [f"<td>{_picture(x)}</td>" for x in report.curves] or [""] * len(report.rows)
    body = "".join(line(row, "td", picture) for row, picture in zip(report.rows, pictures, strict=True))
    table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>" if report.rows else ""
    notes = "".join(f"<div>{html.escape(note)}</div>" for note in report.notes)
    title = f"<div><b>{html.escape(report.title)}</b></div>" if report.title else ""
    return f"<div>{title}{table}{notes}</div>"


def _picture(curves: np.ndarray, width: int = 180, height: int = 36) -> str:
    """Returns curves (k, T) as an SVG; values that are not finite are gaps."""
    if not curves.size:
        return ""
    chosen = curves[np.unique(np.linspace(0, len(curves) - 1, MOST_CURVES).astype(int))]
    at = np.unique(np.linspace(0, curves.shape[1] - 1, MOST_POINTS).astype(int))
    values = np.asarray(chosen[:, at], float)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return ""
    low, span = finite.min(), np.ptp(finite)
    x = 2 + (width - 4) * at / max(at[-1], 1)
    y = height / 2 + 0 * values if span == 0 else height - 2 - (height - 4) * (values - low) / span
    lines = []
    for row in y:
        parts = np.ma.clump_unmasked(np.ma.masked_invalid(row))
        lines += [" ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[part], row[part], strict=True)) for part in parts]
    opacity = max(0.15, 1 / len(chosen) ** 0.5)
    drawn = "".join(f'<polyline points="{line}"/>' for line in lines)
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" fill="none" stroke="#1f77b4" '
        f'stroke-width="1.2" stroke-opacity="{opacity:.2g}" role="img" aria-label="curve over time">{drawn}</svg>'
    )


def number(x: ArrayLike) -> str:
    """Returns a number as text."""
    return f"{np.asarray(x)[()] + 0:.6g}"  # without the sign of a zero


def values(x: ArrayLike) -> str:
    """Returns an array as text: its numbers if they are few, else its shape and range."""
    array = np.asarray(x)
    if array.dtype == bool:
        return _listed([("no", "yes")[int(entry)] for entry in array.ravel()], array)
    if array.ndim <= 1 and array.size <= MOST_ENTRIES:
        return _listed([number(entry) for entry in array.ravel()], array)
    shape = "x".join(map(str, array.shape))
    if array.size > MOST_NUMBERS or array.dtype.kind not in "fiu":
        return f"{array.dtype} array, {shape}"
    low, high = extent(array)
    return f"{shape} numbers, {number(low)} to {number(high)}"


def _listed(entries: list[str], array: np.ndarray) -> str:
    if len(entries) <= MOST_ENTRIES:
        return ", ".join(entries) if array.size else "none"
    return f"{', '.join(entries[:MOST_ENTRIES])}, ... ({len(entries)} in all)"


def extent(x: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns the least and the largest of the finite numbers, NaN if there are none."""
    finite = np.asarray(x)[np.isfinite(x)]
    return (finite.min(), finite.max()) if finite.size else (np.asarray(np.nan), np.asarray(np.nan))


def outcome(result: PyTree) -> str:
    """Returns in words how a computation ended; for a batch the number of successes, and of each kind of failure."""
    found, names = code_of(result), {code: name for name, code in codes().items()}
    if found.ndim == 0:
        return "successful" if found == SUCCESS else f"FAILED ({names[int(found)]}): {message(result)}"
    found = found.ravel()
    words = f"{np.sum(found == SUCCESS)} of {found.size} successful"
    for code in sorted(set(found.tolist()) - {SUCCESS}):
        at = np.flatnonzero(found == code)
        words += f"; {at.size} {names[code]}, the first is number {at[0]}"
    return words


def parameters(tree: PyTree) -> list[tuple[str, str]]:
    """Returns the arrays of a pytree, by the path that leads to them, as texts."""
    found: list[tuple[str, str]] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(leaf, Array | np.ndarray | float | int):
            found.append((jax.tree_util.keystr(path, simple=True, separator=".") or "value", values(leaf)))
    return found


def shortened(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Returns the first rows, and a note about the number of the others if there are any."""
    more = len(rows) - MOST_ROWS
    return list(rows[:MOST_ROWS]), [f"... and {more} more"] if more > 0 else []
