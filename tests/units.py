"""Mechanisms with redundant rows, written in any units: of each row, of masses, of lengths, and of time.

q = S q', t = T t'; so v = S v' / T, and of what does virtual work M' = k S M S and Q' = k T^2 S Q.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import mpmath
import numpy as np
from jaxtyping import Array
from scipy.linalg import qr

import ukjax
from models.chaplygin_sleigh import ChaplyginSleigh
from models.n_four_bar import NFourBar
from models.parallelogram import Parallelogram
from models.rolling_disc import RollingDisc


class Units(NamedTuple):
    """What one unit is in SI: of length, time, mass; a factor of each row (m,); how many times as heavy one body is.

    `off`: by what one row is missed, in SI, in position and in acceleration (2,).
    """

    length: Array
    time: Array
    mass: Array
    rows: Array
    heavy: Array
    off: Array


class Case(NamedTuple):
    """A mechanism in SI, at a state near its constraints.

    mass(q, t, heavy); force(q, v, t, heavy); phi(q, t) and psi(q, v, t): rows without those that `more` adds.
    """

    mass: Callable[..., Array]
    force: Callable[..., Array]
    q: Any
    v: Any
    lengths: Any  # which coordinates are lengths, (n,)
    phi: Callable[..., Array] = lambda q, t: jnp.zeros(0)
    psi: Callable[..., Array] = lambda q, v, t: jnp.zeros(0)

    def rows(self, q, v, t) -> tuple[int, int]:
        q, v = jnp.asarray(q, float), jnp.asarray(v, float)
        return len(self.phi(q, t)), len(self.psi(q, v, t))

    def redundant(self, k: int, m: int) -> Array:
        """Sums of rows (m + 1, m) that follow from them, a copy of the first among them."""
        return jnp.asarray(np.vstack([np.eye(m)[:1], np.random.default_rng(k).normal(size=(min(m, 2), m))]))

    def count(self) -> int:
        return sum(m + 1 + min(m, 2) for m in self.rows(self.q, self.v, 0.0) if m)

    def plain(self, heavy=1.0) -> ukjax.Mechanism:
        """In SI, without redundant rows."""
        system = ukjax.System(lambda q, t: self.mass(q, t, heavy), lambda q, v, t: self.force(q, v, t, heavy))
        return ukjax.Mechanism(system, [ukjax.Holonomic(self.phi), ukjax.Nonholonomic(self.psi)])

    def scale(self, units: Units) -> Array:
        return jnp.where(jnp.asarray(self.lengths), units.length, 1.0)

    def mechanism(self, units: Units) -> ukjax.Mechanism:
        S, T, k = self.scale(units), units.time, units.mass
        m = self.rows(self.q, self.v, 0.0)
        both = [self.redundant(i, n) if n else jnp.zeros((0, 0)) for i, n in enumerate(m)]
        ends = m[0] + len(both[0])

        def mass(q, t):
            return k * S[:, None] * self.mass(S * q, T * t, units.heavy) * S[None]

        def force(q, v, t):
            return k * T**2 * S * self.force(S * q, S * v / T, T * t, units.heavy)

        def phi(q, t):
            x = self.phi(S * q, T * t)
            more = both[0] @ x
            place = jnp.zeros(len(more)).at[1:2].set(units.off[0] + units.off[1] * (T * t) ** 2 / 2)
            return units.rows[:ends] * jnp.concatenate([x, more + place])

        def psi(q, v, t):
            x = self.psi(S * q, S * v / T, T * t)
            more = both[1] @ x
            place = jnp.zeros(len(more)).at[1:2].set((0.0 if m[0] else 1.0) * units.off[1] * T * t)
            return units.rows[ends:] * jnp.concatenate([x, more + place])

        constraints = []
        constraints += [ukjax.Holonomic(phi)] if m[0] else []
        constraints += [ukjax.Nonholonomic(psi)] if m[1] else []
        return ukjax.Mechanism(ukjax.System(mass, force), constraints)

    def state(self, units: Units, q, v) -> tuple[Array, Array]:
        S = self.scale(units)
        return q / S, v * units.time / S


def exact(case: Case, q, v, heavy: float) -> np.ndarray:
    """The acceleration in SI from independent rows, with fifty digits."""
    terms = case.plain(heavy).terms(jnp.asarray(q), jnp.asarray(v), jnp.zeros(()))
    M, Q, A, b = (np.asarray(x, float) for x in (terms.M, terms.Q, terms.A, terms.b))
    A, b = A / np.linalg.norm(A, axis=1)[:, None], b / np.linalg.norm(A, axis=1)
    R, order = qr(A.T, mode="r", pivoting=True)  # pyright: ignore
    kept = order[: np.sum(np.abs(np.diag(R)) > 1e-9)]
    A, b, n, m = A[kept], b[kept], len(Q), len(kept)
    with mpmath.workdps(60):
        K = mpmath.zeros(n + m)
        K[:n, :n] = mpmath.matrix(M.tolist())
        if m:
            K[n:, :n], K[:n, n:] = mpmath.matrix(A.tolist()), mpmath.matrix(A.T.tolist())
        x = mpmath.lu_solve(K, mpmath.matrix([*Q, *b]))
        return np.array([float(x[i]) for i in range(n)])


G = 9.81


def _pendulum() -> Case:
    return Case(
        lambda q, t, heavy: heavy * jnp.eye(2),
        lambda q, v, t, heavy: jnp.array([0.0, -G]) * heavy,
        [0.6, -0.8], [0.8, 0.6], [True, True],
        phi=lambda q, t: (q @ q - 1.0)[None],
    )  # fmt: skip


def _crank() -> Case:
    """Crank's angle, rod's angle [rad], piston [m]; the rod's mass is in its middle and it has a moment."""
    r, l = 0.3, 1.0

    def kinetic(q, v, t, heavy):
        x = -r * jnp.sin(q[0]) * v[0] - l / 2 * jnp.sin(q[1]) * v[1]
        y = r * jnp.cos(q[0]) * v[0] + l / 2 * jnp.cos(q[1]) * v[1]
        return 0.01 * v[0] ** 2 + (x**2 + y**2) / 2 + 0.04 * v[1] ** 2 + heavy * 0.8 * v[2] ** 2 / 2

    potential = lambda q, t: G * (r * jnp.sin(q[0]) + l / 2 * jnp.sin(q[1]))
    of = lambda heavy: ukjax.LagrangianSystem(lambda q, v, t: kinetic(q, v, t, heavy), potential)
    return Case(
        lambda q, t, heavy: of(heavy).mass(q, t),
        lambda q, v, t, heavy: of(heavy).force(q, v, t),
        [0.8, -0.2, 1.2], [2.0, -0.5, 0.0], [False, False, True],
        phi=lambda q, t: jnp.stack([
            r * jnp.cos(q[0]) + l * jnp.cos(q[1]) - q[2],
            r * jnp.sin(q[0]) + l * jnp.sin(q[1]),
        ]),
    )  # fmt: skip


def table() -> Case:
    """A body (x, y, z) [m] on a table, which a millionth of its weight pushes along; there it never rests."""
    return Case(
        lambda q, t, heavy: 2.0 * heavy * jnp.eye(3),
        lambda q, v, t, heavy: 2.0 * heavy * G * jnp.array([1e-6, 0.0, -1.0]),
        [0.3, -0.2, 0.1], [0.0, 0.0, 0.0], [True] * 3,
        phi=lambda q, t: (q[2] - 0.1)[None],
    )  # fmt: skip


def _massless() -> Case:
    """A bob (x, y) [m], and the angle [rad] of its rod, which has no mass."""
    return Case(
        lambda q, t, heavy: jnp.diag(jnp.array([0.7, 0.7, 0.0])) * heavy,
        lambda q, v, t, heavy: jnp.array([0.0, -0.7 * G, 0.0]) * heavy,
        [1.09, 0.5, 2.0], [-0.5, 1.09, 1.0], [True, True, False],
        phi=lambda q, t: jnp.stack([q[0] - 1.2 * jnp.sin(q[2]), q[1] + 1.2 * jnp.cos(q[2])]),
    )  # fmt: skip


def _links() -> Case:
    """Two links (x, y [m], angle [rad] of the middle) in a row, the first of which has neither mass nor moment."""
    down = lambda a: 0.5 * jnp.stack([jnp.sin(a), -jnp.cos(a)])

    def phi(q, t):
        (p1, a1), (p2, a2) = (q[:2], q[2]), (q[3:5], q[5])
        return jnp.concatenate([p1 - down(a1), p2 - down(a2) - p1 - down(a1)])

    return Case(
        lambda q, t, heavy: jnp.diag(jnp.array([0.0, 0.0, 0.0, 1.5, 1.5, 0.2])) * heavy,
        lambda q, v, t, heavy: jnp.array([0.0, 0.0, 0.0, 0.0, -1.5 * G, 0.0]) * heavy,
        [0.25, -0.43, 0.5, 0.9, -1.1, 0.9], [0.4, 0.2, 1.0, 0.5, 0.1, -0.5], [True, True, False] * 2,
        phi=phi,
    )  # fmt: skip


def _pulley() -> Case:
    """Two weights on a rope (x1, x2 [m]) over a pulley [rad], which one of them makes heavy."""
    return Case(
        lambda q, t, heavy: jnp.diag(jnp.stack([1.2 * heavy, jnp.ones(()), 0.01 * jnp.ones(())])),
        lambda q, v, t, heavy: G * jnp.stack([1.2 * heavy, jnp.ones(()), jnp.zeros(())]),
        [1.0, 1.2, 0.3], [0.5, -0.5, 5.0], [True, True, False],
        phi=lambda q, t: jnp.stack([q[0] - 0.1 * q[2] - 0.97, q[1] + 0.1 * q[2] - 1.23, q[0] + q[1] - 2.2]),
    )  # fmt: skip


def _hoop() -> Case:
    """A bead on a hoop that turns about the vertical at 3 rad/s."""
    return Case(
        lambda q, t, heavy: 0.5 * heavy * jnp.eye(3),
        lambda q, v, t, heavy: jnp.array([0.0, 0.0, -0.5 * G]) * heavy,
        [0.6, 0.0, -0.8], [0.4, 1.8, 0.3], [True, True, True],
        phi=lambda q, t: jnp.stack([q @ q - 1.0, -q[0] * jnp.sin(3 * t) + q[1] * jnp.cos(3 * t)]),
    )  # fmt: skip


def _rods() -> Case:
    """Four particles (x, y) [m] in a row from a pivot, the second of which may be heavy, and a strut."""
    masses = lambda heavy: jnp.repeat(jnp.stack([jnp.ones(()), heavy, 0.5 * jnp.ones(()), jnp.ones(())]), 2)

    def phi(q, t):
        p = jnp.concatenate([jnp.zeros(2), q]).reshape(-1, 2)
        d = p[1:] - p[:-1]
        strut = p[3] - p[1]
        return jnp.concatenate([jnp.sum(d**2, axis=1) - 1.0, (strut @ strut - 2.0)[None]])

    return Case(
        lambda q, t, heavy: jnp.diag(masses(heavy)),
        lambda q, v, t, heavy: masses(heavy) * jnp.tile(jnp.array([0.0, -G]), 4),
        [0.8, -0.6, 0.9, -1.6, 1.9, -1.5, 2.6, -2.2], [0.6, 0.8, 0.5, 0.9, 0.4, 1.0, 0.9, 1.5], [True] * 8,
        phi=phi,
    )  # fmt: skip


def _sleigh() -> Case:
    model = ChaplyginSleigh()
    q, v = model.state(jnp.asarray(0.3), -1.0, 0.4)
    return Case(
        lambda q, t, heavy: heavy * model.mass(q, t),
        lambda q, v, t, heavy: heavy * jnp.array([0.3, -0.2, 0.1]),
        q, v, [True, True, False],
        psi=model.slip,
    )  # fmt: skip


def _disc() -> Case:
    model = RollingDisc()
    q, v = model.state(jnp.asarray(0.3), jnp.array([-1.0, 0.2, 3.0]))
    return Case(
        lambda q, t, heavy: heavy * model.mass(q, t),
        lambda q, v, t, heavy: heavy * model.force(q, v, t),
        q, v, [True] * 3 + [False] * 3,
        phi=model.touching, psi=model.slip,
    )  # fmt: skip


def _parallelogram() -> Case:
    """With a coupler that may be heavy; eleven of its twelve rows are independent."""
    of = lambda heavy: Parallelogram(mc=2.0 * heavy, Ic=0.2 * heavy)
    q, v = of(1.0).state(jnp.asarray(-0.6), 1.0)
    return Case(
        lambda q, t, heavy: of(heavy).mass(q, t),
        lambda q, v, t, heavy: of(heavy).force(q, v, t),
        q, v, [True, True, False] * 4,
        phi=of(1.0).joints,
    )  # fmt: skip


def _windows() -> Case:
    model = NFourBar(1)
    q, v = model.state(jnp.asarray(1.1), 1.0)
    return Case(
        lambda q, t, heavy: heavy * model.mass(q, t),
        lambda q, v, t, heavy: heavy * model.force(q, v, t),
        q, v, [True, True, False] * 3,
        phi=model.joints,
    )  # fmt: skip


CASES = {
    "pendulum": _pendulum,
    "slider-crank": _crank,
    "massless angle": _massless,
    "massless link": _links,
    "pulley": _pulley,
    "hoop": _hoop,
    "rods": _rods,
    "sleigh": _sleigh,
    "rolling disc": _disc,
    "parallelogram": _parallelogram,
    "four-bar": _windows,
}


def units_of(case: Case) -> dict[str, Units]:
    """By name; rows by factors from 1e-12 to 1e12."""
    m = case.count()
    mixed = 10.0 ** np.random.default_rng(m).uniform(-12, 12, m)
    one, same = 1.0, np.ones(m)
    of = lambda length=one, time=one, mass=one, rows=same, heavy=one, off=(0.0, 0.0): Units(
        *(jnp.asarray(x, float) for x in (length, time, mass, rows, heavy, off))
    )
    return {
        "SI": of(),
        "rows": of(rows=mixed),
        "rows 1e12": of(rows=1e12 * same),
        "rows 1e-12": of(rows=1e-12 * same),
        "one row 1e12": of(rows=np.where(np.arange(m) == 0, 1e12, 1.0)),
        "one row 1e-12": of(rows=np.where(np.arange(m) == m - 1, 1e-12, 1.0)),
        "mass 1e12": of(mass=1e12),
        "mass 1e-12": of(mass=1e-12),
        "um": of(length=1e-6),
        "km": of(length=1e3),
        "ms": of(time=1e-3),
        "days": of(time=1e5),
        "all": of(1e-6, 1e-3, 1e9, mixed),
        "all back": of(1e3, 1e5, 1e-9, mixed[::-1]),
        **{f"heavy {k:.0e}": of(heavy=k) for k in (1e-12, 1e-9, 1e-6, 1e6, 1e9, 1e12)},
        "heavy, rows": of(rows=mixed, heavy=1e6),
        "light, um, rows": of(1e-6, rows=mixed, heavy=1e-6),
        "heavy, km, rows": of(1e3, rows=mixed, heavy=1e12),
    }
