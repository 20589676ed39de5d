"""Terms of the equation of motion."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.tree_util import Partial
from jaxtyping import Array

from ._expand import Lowering
from ._rounding import with_rounding_errors
from ._types import Matrix, Partition, Rows, RowValues, Vector


class Terms(eqx.Module):
    """Terms of the equation of motion at one state; `nonideal` maps the ideal constraint force to c.

    `partition` holds the blocks of M where it is block-diagonal, `rows` the name and the number of rows of each
    constraint, in order. `rounding` holds the sizes of the rounding errors of A and of b, (m, n) and (m,), where they
    are known. `loose` marks the rows that may be nothing but rounding errors.
    """

    M: Matrix
    Q: Vector
    A: Rows
    b: RowValues
    nonideal: Callable[[Vector], Vector] | None = None
    partition: Partition | None = eqx.field(static=True, default=None)
    rows: tuple[tuple[str, int], ...] | None = eqx.field(static=True, default=None)
    rounding: tuple[Rows, RowValues] | None = None
    loose: tuple[bool, ...] = eqx.field(static=True, default=())

    @property
    def without_rounding(self) -> "Terms":
        """Returns these terms with every row set to zero that consists of rounding errors only.

        b of such a row stays if it exceeds rounding errors: then no acceleration satisfies the row.
        """
        if self.rounding is None:
            return self
        of_A, of_b = self.rounding
        none = stop_gradient(jnp.all(jnp.abs(self.A) <= of_A, axis=1))
        A = jnp.where(none[:, None], 0, self.A)
        b = jnp.where(none & (jnp.abs(stop_gradient(self.b)) <= of_b), 0, self.b)
        return eqx.tree_at(lambda terms: (terms.A, terms.b), self, (A, b))


class ModularTerms(NamedTuple):
    """Terms of the equation of motion block by block.

    `masses` holds the blocks of M (k, n_k, n_k) of each kind of module; `rows` the rows A (k, m, n_k) and b (k, m) of
    each kind of constraint.
    """

    masses: tuple[Array, ...]
    Q: Vector
    rows: tuple[tuple[Array, Array], ...]


class BlockTerms(NamedTuple):
    """The structure of a mechanism made of modules.

    Attributes:
        partition: The coordinates of the modules, by kind.
        groups: The coordinates that constraints depend on, by kind.
        terms: A function of the state (q, v, t).
    """

    partition: Partition
    groups: Partition
    terms: Callable[..., ModularTerms]


class Pivots(NamedTuple):
    """Pivots (n,) of a factorisation of M, and the diagonal of M, with which they are compared."""

    pivots: Vector
    diagonal: Vector


class ForwardDynamics(NamedTuple):
    """The acceleration of a system without constraints.

    Attributes:
        acceleration: (q, v, t) -> M^-1 Q (n,), and how M was factorised; None if M itself is to be factorised.
        slopes: (q, v, t, acceleration) -> derivatives of the acceleration by q and v (n, 2 n), where q' = v; None if
            nothing cheaper than automatic differentiation is known.
        lowering: How `acceleration` becomes a program.
        slopes_lowering: How `slopes` becomes a program.
    """

    acceleration: Callable[..., tuple[Vector, Pivots]] | None
    slopes: Partial | None
    lowering: Lowering
    slopes_lowering: Lowering


class TermsFunctions(NamedTuple):
    """The terms as functions of the state (q, v, t): in one piece, and for a system of modules also block by block.

    `dense` leaves out the sizes of rounding errors unless it is given `rows_by`. `rows_by(of, q, v, t)` returns
    `of(q, v, t)`: A and b of each constraint whose rows are loose, and the sizes of their rounding errors, or None.

    `free`: the dynamics without M, where the system has no constraint and can do so.

    `imbalance`: (`Terms.rows`, q, v, t, a, l) -> Q - M a + A^T l (n,) and b - A a (m,), for accelerations a and
    multipliers l, where there are constraints and the system finds these two without M.
    """

    dense: Callable[..., Terms]
    modular: BlockTerms | None = None
    free: ForwardDynamics | None = None
    imbalance: Partial | None = None

    @property
    def soon(self) -> "TermsFunctions":
        """These functions, for a program whose first result matters most: long recursions stay loops."""
        if self.free is None or self.free.lowering is Lowering.SCALAR:
            return self
        return self._replace(free=self.free._replace(lowering=Lowering.TILES))

    def whole(self, *state: Array) -> Terms:
        """Returns the dense terms with the sizes of their rounding errors."""
        return self.dense(*state, rows_by=with_rounding_errors)


def of_loose(loose: Sequence[bool], errors: Sequence[tuple[Rows, RowValues]]) -> tuple[Rows, RowValues] | None:
    """Returns sizes of rounding errors of all rows, from those of the loose constraints; None if no row is loose."""
    if not any(loose):
        return None
    A, b = (jnp.concatenate(x) for x in zip(*errors, strict=True))
    if all(loose):
        return A, b
    at, m = np.flatnonzero(loose), len(loose)
    return jnp.zeros((m, A.shape[1]), A.dtype).at[at].set(A), jnp.zeros(m, b.dtype).at[at].set(b)
