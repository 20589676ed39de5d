"""The result of an assembly: the state, and its distance from the given one."""

from collections.abc import Iterator

import equinox as eqx
import numpy as np
from jaxtyping import Array

from .._result import is_traced


class Assembly(eqx.Module):
    """A consistent state, which unpacks as `q, v = assemble(...)`, and its distance from the given one.

    `print` shows the coordinates and rates that were moved, and how far, the largest first.

    Attributes:
        q: Coordinates (n,) [m or rad].
        v: Rates of q (n,) [m/s or rad/s].
        moved_q: q less the given one (n,), without gradient.
        moved_v: v less the given one (n,), without gradient.
    """

    q: Array
    v: Array
    moved_q: Array
    moved_v: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.q, self.v))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index):
        return (self.q, self.v)[index]

    def __str__(self) -> str:
        if is_traced(self.moved_q, self.moved_v) or not all(isinstance(x, Array) for x in (self.moved_q, self.moved_v)):
            return repr(self)
        rows = [_report("q", self.q, self.moved_q), _report("v", self.v, self.moved_v)]
        batch = self.moved_q.shape[:-1]
        where = f" Of a batch {batch} the largest moves:" if batch else ""
        return f"The nearest consistent state.{where}\n" + "\n".join(rows)


def _report(name: str, values: Array, moved: Array) -> str:
    """Lists the entries of `values` that moved by more than rounding, largest first; for a batch the largest moves."""
    changes = np.asarray(moved).reshape(-1, moved.shape[-1])
    after = np.asarray(values).reshape(changes.shape)
    if not np.isfinite(changes).any():
        return f"  {name}: no consistent state was found"
    sizes = np.where(np.isfinite(changes), np.abs(changes), -1.0)
    rows, columns = np.argmax(sizes, axis=0), np.arange(changes.shape[1])
    changes, after = changes[rows, columns], after[rows, columns]
    rounding = 64 * np.finfo(changes.dtype).eps * np.nanmax(np.abs(after) + np.abs(changes))
    order = [i for i in np.argsort(-np.abs(changes), kind="stable") if abs(changes[i]) > rounding]
    if not order:
        return f"  {name}: nothing moved"
    return "\n".join(
        f"  {name}[{i}] moved by {changes[i]:+.3g}, from {after[i] - changes[i]:.6g} to {after[i]:.6g}" for i in order
    )
