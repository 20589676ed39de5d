"""Constraint enforcement on a composite, level by level, at the cost of the modules that a coupling reaches.

x = L^T q'' with M = L L^T; H = A L^-T: rows; P: projector, or covariance, of the levels so far, kept as I - sum of
K_i G_i with K_i = P H^T (H P H^T + R)^+ (n_i, m) and G_i = H P (m, n_i), P and H of level i, both in the coordinates of
the modules that it reaches.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float

from .. import _check
from .._formulation import covariance, gain
from .._linalg import SVD, whiten
from .._types import Coordinates, IntScalar, Matrix, Numbers, Rows, Scalar, Vector
from ._composite import Composite, Coupling, check_size
from ._coupled import Coupled


class Enforced(eqx.Module):
    """The part that one coupling took from P: K G, in these coordinates."""

    K: Float[Array, "n m"]
    G: Rows
    columns: tuple[int, ...] = eqx.field(static=True)


class ModularLevel(eqx.Module):
    """The motion of a composite under the couplings enforced so far; `enforce` adds further ones.

    This is `Level` for a composite: M is kept as its blocks only, and P as the part that each coupling took from it. A
    coupling that joins a module to an assembly of N others costs O(N): it reaches the assembly through one module, and
    so involves only the earlier couplings that reached that module too.

    Attributes:
        acceleration: q'' (n,) [m/s^2 or rad/s^2].
        force: Force that this level's coupling added (n,) [N or N m].
        rank: Number of this level's rows that are independent of those before.

    Source: Orsino (2017), eq. 4.14 to 4.18.
    """

    acceleration: Vector
    force: Vector
    rank: IntScalar
    composite: Composite
    q: Coordinates
    v: Vector
    t: Scalar
    enforced: tuple[Enforced, ...]
    noisy: bool = eqx.field(static=True, default=False, kw_only=True)  # whether any level so far had noise
    L: tuple[Array, ...]
    W: tuple[Array, ...]

    @classmethod
    def start(
        cls, composite: Composite, q: Numbers, v: Numbers, t: Numbers = 0.0, *, applied: Numbers | None = None
    ) -> "ModularLevel":
        """Returns the motion of the modules without couplings: M q'' = Q + applied (n,) [N or N m].

        Raises:
            TypeError: If `composite` is something else.
            ValueError: If q, v, t or `applied` do not fit.
        """
        _check.instance(composite, Composite, "composite", "ukjax.modular.Composite(modules)")
        q, v, t = _check.state(q, v, t)
        check_size(q, composite.size)
        factors = [jax.vmap(whiten)(block) for block in composite.blocks(q, t)]
        L, W, _ = zip(*factors, strict=True)
        Q = composite.force(q, v, t)
        if applied is not None:
            Q = Q + _check.output(applied, q.shape, q.dtype, "applied", "It is one force per coordinate.")
        columns = tuple(range(composite.size))
        free = _times(composite, W, _times(composite, W, Q, columns), columns, transpose=True)
        definite = jnp.all(jnp.stack([jnp.all(found) for *_, found in factors]))
        free = jnp.where(definite, free, jnp.nan)
        return cls(free, jnp.zeros_like(q), jnp.zeros((), int), composite, q, v, t, (), L, W)

    def enforce(
        self,
        coupling: Coupling | Coupled,
        noise: Numbers | None = None,
        *,
        pseudoinverse: lx.AbstractLinearSolver = SVD(),
    ) -> "ModularLevel":
        """Returns the next level, in which `coupling` holds as well.

        Args:
            coupling: A `Coupling`, or an entry of `composite.constraints`, which may hold many of a kind.
            noise: Covariance R of the rows of each, a scalar, (m,) or (m, m); None to enforce them exactly.
            pseudoinverse: The lineax solver for the gain.

        Raises:
            TypeError: If `coupling` is something else.
            ValueError: If `coupling` names a module that does not exist, its functions return a wrong shape, or `noise`
                is negative.
        """
        if not isinstance(coupling, Coupled):
            _check.instance(coupling, Coupling, "coupling", "ukjax.modular.Coupling(modules, ukjax.Holonomic(phi))")
            coupling = self.composite.bind(coupling)
        R = None if noise is None else covariance(noise, coupling.rows_each, "noise")
        acceleration, force, rank, more = _enforce(self, coupling, R, pseudoinverse)
        return dataclasses.replace(
            self,
            acceleration=acceleration,
            force=force,
            rank=rank,
            enforced=(*self.enforced, *more),
            noisy=self.noisy or R is not None,
        )

    @property
    def projector(self) -> Matrix:
        """W^T P L^T (n, n), which maps an acceleration to its part that is still free, as that of `Level`."""
        n = self.composite.size
        everything = tuple(range(n))
        P = jnp.eye(n, dtype=self.q.dtype)
        for one in self.enforced:
            i = np.array(one.columns)
            P = P.at[i[:, None], i[None]].add(-one.K @ one.G)
        rows = jax.vmap(lambda x: _times(self.composite, self.L, x, everything), in_axes=1, out_axes=1)
        columns = jax.vmap(lambda x: _times(self.composite, self.W, x, everything, transpose=True), 1, 1)
        return columns(rows(P.T).T)


@eqx.filter_jit
def _enforce(
    level: ModularLevel, coupling: Coupled, R: Array | None, solver: lx.AbstractLinearSolver
) -> tuple[Vector, Vector, IntScalar, tuple[Enforced, ...]]:
    """Returns acceleration, force and rank with the coupling, and the parts that it took from P."""
    composite, x = level.composite, level.acceleration
    A, b = coupling.each_rows(level.q, level.v, level.t)
    force, rank, more = jnp.zeros_like(x), jnp.zeros((), int), []
    for A_i, b_i, columns in zip(A, b, coupling.alike.columns, strict=True):
        one, more_rank = _take(level, more, A_i, columns, R, solver)
        at = np.array(one.columns)
        added = one.K @ (b_i - A_i @ x[np.array(columns)])
        x = x.at[at].add(_times(composite, level.W, added, one.columns, transpose=True))
        force = force.at[at].add(_times(composite, level.L, added, one.columns))
        rank = rank + more_rank
        more.append(one)
    return x, force, rank, tuple(more)


def _take(
    level: ModularLevel,
    more: list[Enforced],
    A: Rows,
    columns: tuple[int, ...],
    R: Array | None,
    solver: lx.AbstractLinearSolver,
) -> tuple[Enforced, IntScalar]:
    """Returns the part that these rows take from P, and the number of new rows."""
    # Only levels before that reached a module which this one reaches matter: for the others G_i H^T = 0.
    near = [one for one in (*level.enforced, *more) if not set(one.columns).isdisjoint(columns)]
    reach = tuple(sorted({*columns, *(i for one in near for i in one.columns)}))
    H = jax.vmap(lambda row: _times(level.composite, level.W, row, columns))(A)
    wide = jnp.zeros((A.shape[0], len(reach)), A.dtype).at[:, _places(columns, reach)].set(H)
    G = wide
    for one in near:
        at = _places(one.columns, reach)
        G = G.at[:, at].add(-(wide[:, at] @ one.K) @ one.G)
    K, rank = gain(solver, G, wide, None if R is None and not level.noisy else G @ wide.T, R)
    return Enforced(K, G, reach), rank


def _places(columns: tuple[int, ...], among: tuple[int, ...]) -> np.ndarray:
    """Returns the positions of `columns` in `among`."""
    return np.searchsorted(np.array(among), np.array(columns))


def _times(
    composite: Composite, blocks: tuple[Array, ...], x: Array, columns: tuple[int, ...], *, transpose: bool = False
) -> Array:
    """Returns the product of a block-diagonal matrix and a vector that has the entries `columns`, of whole modules."""
    place = {column: i for i, column in enumerate(columns)}
    product = jnp.zeros_like(x)
    for each, modules in zip(blocks, composite.partition, strict=True):
        met = [k for k, module in enumerate(modules) if module[0] in place]
        if met:
            at = np.array([[place[column] for column in modules[k]] for k in met])
            sum_over = "kji,kj->ki" if transpose else "kij,kj->ki"
            product = product.at[at].set(jnp.einsum(sum_over, each[np.array(met)], x[at]))
    return product
