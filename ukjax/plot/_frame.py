"""The common parts of all pictures: panels over one axis, units that are easy to read, styles, notebooks.

There is no global state: figures are made without pyplot.
"""

import contextlib
import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, TypedDict

import matplotlib.style
import numpy as np
from jaxtyping import ArrayLike
from matplotlib.animation import FuncAnimation
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import _check


# A style of matplotlib: its name, a file, settings, or a list of these.
Style = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None
Size = tuple[float, float] | None


class Canvas(TypedDict, total=False):
    """The options that all figures have: where a figure is drawn, how large, and in which style.

    Attributes:
        ax: Your own axes of matplotlib, one for each panel, such as `figure.subplots(2)`. The figure is then drawn into
            them. Without `ax` there is a new figure.
        figsize: Width and height of a new figure [in].
        style: A style of matplotlib: its name, a file, settings, or a list of these.

    Raises:
        TypeError: If there is another option.
        ValueError: If `ax` are not as many axes as there are panels, `figsize` is no size, or there is no such style.
    """

    ax: Axes | Sequence[Axes] | None
    figsize: Size
    style: Style


SMALLEST = 1e-18  # smaller errors are drawn as this: they are rounding of rounding, and would hide all others
MOST_NAMES = 8  # most curves that a legend names
LONGEST = 24  # most letters in the label of an axis that lists names
STEADY = 0.05  # relative change below which an axis of forces or energies shows zero too


class Picture(Figure):
    """A figure that a notebook shows, although pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        return png(self)


class Film(FuncAnimation):
    """An animation that a notebook plays."""

    def _repr_html_(self) -> str:
        return self.to_jshtml()


class Page(str):
    """The text of a web page, which a notebook shows as that page."""

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self)}" width="100%" height="560" style="border: 0"></iframe>'


def png(figure: Figure, dpi: float | None = None) -> bytes:
    """The figure as a PNG file."""
    stream = BytesIO()
    figure.savefig(stream, format="png", dpi=figure.dpi if dpi is None else dpi)
    return stream.getvalue()


@contextlib.contextmanager
def placed(canvas: Canvas) -> Iterator[tuple[Axes | Sequence[Axes] | None, Size]]:
    """Gives artists the properties of a canvas's style, and returns its axes and size; raises what `Canvas` says."""
    if unknown := sorted(canvas.keys() - Canvas.__annotations__.keys()):
        raise TypeError(f"A figure has the options {', '.join(Canvas.__annotations__)}, but got {', '.join(unknown)}.")
    style = canvas.get("style")
    with contextlib.ExitStack() as stack:
        try:
            one: Any = style if isinstance(style, str | Mapping) else list(style or ())
            stack.enter_context(matplotlib.style.context(one))
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"style must be one of matplotlib.style.available, a file, or settings of matplotlib, but is "
                f"{style!r}: {error}"
            ) from error
        yield canvas.get("ax"), canvas.get("figsize")


@contextlib.contextmanager
def framed(rows: Sequence[int], size: tuple[float, float], title: str, canvas: Canvas) -> "Iterator[Frame]":
    """Panels on a canvas; see `Frame`."""
    with placed(canvas) as (ax, figsize):
        yield Frame(rows, ax, figsize, size, title)


def sized(figsize: Size, size: tuple[float, float]) -> tuple[float, float]:
    """The given width and height of a figure, or those that suit it [in]; raises ValueError if they are none."""
    if figsize is None:
        return size
    if np.shape(figsize) != (2,):
        raise ValueError(f"figsize must be a width and a height in inches, but is {figsize!r}.")
    width, height = (_check.positive(x, "figsize") for x in figsize)
    return width, height


class Frame:
    """Panels that share the axis below them, in rows: new ones, or axes of the caller's.

    Args:
        rows: The number of panels in each row.
        ax: Axes for each panel, from left to right and from above; None for a new figure.
        figsize: Width and height of a new figure [in]; None for `size`.
        size: Likewise.
        title: Title above a new figure.

    Raises:
        ValueError: If `ax` is not as many axes as there are panels, or is given with a title or a size.
    """

    def __init__(
        self,
        rows: Sequence[int],
        ax: Axes | Sequence[Axes] | None,
        figsize: Size,
        size: tuple[float, float],
        title: str,
    ) -> None:
        self.named: set[tuple[str, ...]] = set()
        if ax is None:
            self.figure: Any = Picture(figsize=sized(figsize, size), layout="constrained")
            self.axes = self._new_axes(rows)
            self.lowest = self.axes[-rows[-1] :]
            self.figure.suptitle(title)
        else:
            self.axes = self.lowest = given_axes(ax, sum(rows), title, figsize)
            self.figure = self.axes[0].figure

    def _new_axes(self, rows: Sequence[int]) -> list[Axes]:
        columns = math.lcm(*rows)
        grid = self.figure.add_gridspec(len(rows), columns)
        axes: list[Axes] = []
        for row, count in enumerate(rows):
            for i in range(count):
                span = slice(i * columns // count, (i + 1) * columns // count)
                axes.append(self.figure.add_subplot(grid[row, span], sharex=axes[0] if axes else None))
                axes[-1].tick_params(labelbottom=row == len(rows) - 1)
        return axes

    def curves(
        self, i: int, x: ArrayLike, curves: Mapping[str, ArrayLike], what: str, unit: str, from_zero: bool = False
    ) -> float:
        """Draws curves in panel `i` in a unit that suits their size, and returns the factor to that unit.

        With `from_zero` the axis has zero if the curves hardly change.
        """
        axis = self.axes[i]
        factor, unit = suited(curves.values(), unit)
        for name, values in curves.items():
            axis.plot(x, factor * np.asarray(values), label=name)
        axis.set_ylabel(axis_label(what, unit))
        if axis.get_yscale() == "linear":  # axes of the caller's may have another one
            axis.ticklabel_format(axis="y", useOffset=False)
            if from_zero:
                show_zero(axis)
        if len(curves) > 1:
            self.legend(axis, list(curves))
        axis.grid(visible=True, alpha=0.3)
        return factor

    def errors(self, i: int, x: ArrayLike, errors: Mapping[str, ArrayLike], what: str) -> None:
        """Draws sizes of errors in panel `i`, on a logarithmic axis that ends at `SMALLEST`."""
        axis = self.axes[i]
        for name, values in errors.items():
            values = np.asarray(values)
            axis.semilogy(x, np.maximum(values, SMALLEST), ".", ms=3, label=name)  # lines between roundings are a block
        axis.set_ylabel(what)
        self.legend(axis, list(errors))
        axis.grid(visible=True, alpha=0.3)

    def legend(self, axis: Axes, names: Sequence[str]) -> None:
        """Names the curves, unless a panel above has the same ones."""
        if tuple(names) not in self.named:
            self.named.add(tuple(names))
            legend(axis, len(names))

    def finished(self, label: str) -> Figure:
        """The figure, with a label at the axis that all panels share; at each of the caller's, wherever they are."""
        for axis in self.lowest:
            axis.set_xlabel(label)
        return self.figure


def given_axes(ax: Axes | Sequence[Axes], count: int, title: str, figsize: Size) -> list[Axes]:
    """The caller's axes as a list; raises ValueError if they are not as many as there are panels."""
    axes = [ax] if isinstance(ax, Axes) else list(np.ravel(np.asarray(ax, dtype=object)))
    if len(axes) != count or not all(isinstance(axis, Axes) for axis in axes):
        raise ValueError(
            f"ax must be {count} axes of matplotlib, one for each panel: pass those of figure.subplots({count})."
            if count > 1
            else "ax must be axes of matplotlib, such as figure.subplots()."
        )
    if title or figsize is not None:
        raise ValueError("title and figsize are of a new figure: leave them out, or leave out ax.")
    return axes


# Powers of ten, and symbols before a unit.
PREFIXES = {-12: "p", -9: "n", -6: "µ", -3: "m", 3: "k", 6: "M", 9: "G"}
# Units that may have one; angles have none for thousands, and a kilogram has one already.
PREFIXED = re.compile(r"(?P<one>m|s|N|J|W|Pa|V|A|Hz|rad)(?![\w^])")


def suited(values: Any, unit: str) -> tuple[float, str]:
    """A factor, and the unit in which values times it need no power of ten: metres of some 1e-6 become µm."""
    largest = max(float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0)) for x in map(np.asarray, values))
    if largest == 0 or 1e-3 <= largest < 1e4:
        return 1.0, unit
    power = 3 * math.floor(math.log10(largest) / 3)
    found = PREFIXED.match(unit)
    if found and power in PREFIXES and not (power > 0 and found["one"] in ("rad", "s")):
        return 10.0**-power, PREFIXES[power] + unit
    return 10.0**-power, f"$10^{{{power}}}$ {unit}".rstrip()


def show_zero(axis: Axes) -> None:
    """Makes the vertical axis show zero if the curves hardly change, so that a ripple does not look like a jump."""
    values = np.concatenate([np.asarray(line.get_ydata(), float).ravel() for line in axis.get_lines()])
    values = values[np.isfinite(values)]
    largest = np.max(np.abs(values), initial=0.0)
    if largest == 0:
        axis.set_ylim(-1, 1)
    elif np.ptp(values) < STEADY * largest:
        low, high = min(0.0, float(np.min(values))), max(0.0, float(np.max(values)))
        axis.set_ylim(1.1 * low, 1.1 * high)


def axis_label(what: str, unit: str) -> str:
    """The label of an axis: a quantity and its unit, if it has one."""
    return f"{what} [{unit}]" if unit else what


def listed(names: Sequence[str], before: str, many: str) -> str:
    """Names in a row with a text before, or what they are if they are many."""
    found = before + ", ".join(names)
    return found if len(found) <= LONGEST else many


def legend(axis: Axes, curves: int) -> None:
    """Adds a legend above the axis, where no curve is, unless there are too many curves."""
    if curves <= MOST_NAMES:
        longest = max((len(str(line.get_label())) for line in axis.get_lines()), default=0)
        ncols = max(1, min(4, 56 // (longest + 4)))
        # It is on the right, because on the left an axis writes its power of ten.
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), fontsize="small", ncols=ncols, frameon=False, borderpad=0)
