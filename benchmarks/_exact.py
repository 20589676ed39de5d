"""Accelerations of robots with closed chains in forty digits, from `models.legged_chains` itself.

This is an implementation of its own: the bodies' Jacobians give M and the forces, the points and frames that coincide
give A and b, and rows that depend on others are left out. Nothing of ukjax is used.

J: derivatives of a body's place and turn by the speeds; a, alpha: accelerations of a body at constant speeds.
"""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import diffrax
import mpmath
import numpy as np

from models.legged_chains import BASE, Chain, Rod


DIGITS = 40
G = 9.81
# A row depends on others if they leave no more than this part of its square: the state is known to 1e-16.
DEPENDENT = mpmath.mpf(10) ** -18
SPEEDS = {"continuous": 1, "prismatic": 1, "universal": 2, "spherical": 3}


class Change(NamedTuple):
    """A direction in which a state and a robot change, all zero if left out.

    q (n_q,), v (n,); force (n,): generalised force; mass: body -> part of its mass, and of its moments of inertia;
    place: body -> way of its joint on the body that carries it (3,) [m].
    """

    q: np.ndarray | float = 0.0
    v: np.ndarray | float = 0.0
    force: np.ndarray | float = 0.0
    mass: Mapping[str, float] = {}
    place: Mapping[str, np.ndarray] = {}

    def times(self, s: Any) -> "Change":
        """The change by s of this one, in all digits."""
        scaled = lambda parts: {name: _exact(x) * s for name, x in parts.items()}
        q, v, force = (_exact(x) * s for x in self[:3])
        return Change(q, v, force, scaled(self.mass), scaled(self.place))


class Moving(NamedTuple):
    """A body's place and turn, its velocities, its accelerations at constant speeds, and its Jacobians (3, n)."""

    p: np.ndarray
    R: np.ndarray
    v: np.ndarray
    w: np.ndarray
    a: np.ndarray
    alpha: np.ndarray
    Jv: np.ndarray
    Jw: np.ndarray

    def at(self, offset: np.ndarray) -> "Moving":
        """The same body seen from another of its points, at an offset in the ground's axes."""
        v = self.v + _cross(self.w, offset)
        a = self.a + _cross(self.alpha, offset) + _cross(self.w, _cross(self.w, offset))
        Jv = self.Jv + np.array([_cross(column, offset) for column in self.Jw.T]).T
        return self._replace(p=self.p + offset, v=v, a=a, Jv=Jv)


def acceleration(chain: Chain, q: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, int]:
    """v' (n,), rounded to doubles, and the rank of the rows; `q`, `v` as ukjax orders them."""
    with mpmath.workdps(DIGITS):
        found, rank = _acceleration(chain, _exact(q), _exact(v))
        return found.astype(float), rank


def derivative(chain: Chain, q: np.ndarray, v: np.ndarray, change: Change) -> np.ndarray:
    """Derivative of v' (n,) along a change, rounded to doubles.

    It is a difference over steps of 1e-13, whose error is some 1e-26. Where rows depend on others, the change must keep
    the state on the constraints.
    """
    with mpmath.workdps(DIGITS):
        h = mpmath.mpf(10) ** -13
        ends = [_acceleration(chain, _exact(q), _exact(v), change.times(s))[0] for s in (h, -h)]
        return ((ends[0] - ends[1]) / (2 * h)).astype(float)


def slope_of_end(chain: Chain, q: np.ndarray, v: np.ndarray, change: Change, step: float, steps: int) -> np.ndarray:
    """Derivative along a change of q and v (n_q + n,) after some steps of Dormand and Prince's method of order 8.

    It is rounded to doubles. The error of the method is that of `diffrax.Dopri8`, from which the coefficients are.
    """
    with mpmath.workdps(DIGITS):
        h = mpmath.mpf(10) ** -13
        ends = [_end(chain, _exact(q), _exact(v), change.times(s), mpmath.mpf(step), steps) for s in (h, -h)]
        return ((ends[0] - ends[1]) / (2 * h)).astype(float)


def _end(chain: Chain, q: np.ndarray, v: np.ndarray, change: Change, step: Any, steps: int) -> np.ndarray:
    y, robot = np.concatenate([q + change.q, v + change.v]), change._replace(q=0.0, v=0.0)
    tableau, split = diffrax.Dopri8().tableau, len(q)

    def rate(y: np.ndarray) -> np.ndarray:
        q, v = y[:split], y[split:]
        return np.concatenate([_rates(chain, q, v), _acceleration(chain, q, v, robot)[0]])

    for _ in range(steps):
        k: list[np.ndarray] = []
        for row in ((), *tableau.a_lower):
            k.append(rate(y + step * sum((_exact(a) * x for a, x in zip(row, k, strict=True)), _exact(0 * y))))
        y = y + step * sum((_exact(b) * x for b, x in zip(tableau.b_sol, k, strict=True)), _exact(0 * y))
    return y


def _rates(chain: Chain, q: np.ndarray, v: np.ndarray) -> np.ndarray:
    """q': of a quaternion half its product with the angular velocity, seen from the body."""
    found, places, speeds = [], iter(q), iter(v)
    for rod in chain.rods:
        u = np.array([next(speeds) for _ in range(SPEEDS[rod.kind])])
        if rod.kind == "spherical":
            w, x = next(places), np.array([next(places) for _ in range(3)])
            found += [-(x @ u) / 2, *((w * u + _cross(x, u)) / 2)]
        else:
            found += [*u]
            for _ in u:
                next(places)
    return np.array(found)


def _acceleration(chain: Chain, q: np.ndarray, v: np.ndarray, change: Change = Change()) -> tuple[np.ndarray, int]:
    q, v = q + change.q, v + change.v
    bodies, M, Q = _dynamics(chain, q, v, change)
    Q = Q + change.force
    origin = {BASE: np.zeros(3)} | {rod.name: _exact(rod.at) for rod in chain.rods}
    A, b = [], []
    for loop in chain.closed:
        one, other = (
            bodies[name].at(bodies[name].R @ (_exact(at) - origin[name]))
            for name, at in ((loop.one, loop.at), (loop.other, loop.to))
        )
        # The gap is seen from the other body: within a step it is open, but a planar loop stays in its plane.
        d, rate, w = one.p - other.p, one.v - other.v, other.w
        seen = one.a - other.a - _cross(other.alpha, d) - 2 * _cross(w, rate) + _cross(w, _cross(w, d))
        A += list(other.R.T @ (one.Jv - other.Jv + _skew(d) @ other.Jw))
        b += list(-other.R.T @ seen)
        if loop.kind == "6D":
            A += list(one.Jw - other.Jw)
            b += list(other.alpha - one.alpha)
    A, b = np.array(A), np.array(b)
    L = _cholesky(M)
    free, W = _solve(L, Q), _forward(L, A.T).T
    # The rows in the metric of M, made orthogonal one after the other.
    kept: list[tuple[np.ndarray, Any]] = []
    least = DEPENDENT * max((row @ row for row in W), default=0)  # of a row that is no rounding error
    for row, value in zip(W, b - A @ free, strict=True):
        rest, size = row, row @ row
        for _ in range(2):
            for unit, target in kept:
                part = rest @ unit
                rest, value = rest - part * unit, value - part * target
        length = rest @ rest
        if size > least and length > DEPENDENT * size:
            root = mpmath.sqrt(length)
            kept.append((rest / root, value / root))
    push = sum((unit * target for unit, target in kept), _exact(np.zeros(len(v))))
    return free + _backward(L, push), len(kept)


def _dynamics(
    chain: Chain, q: np.ndarray, v: np.ndarray, change: Change
) -> tuple[dict[str, Moving], np.ndarray, np.ndarray]:
    """All bodies, M (n, n), and the forces of gravity and of velocities (n,)."""
    n, zero = len(v), _exact(np.zeros(3))
    none = _exact(np.zeros((3, n)))
    bodies = {BASE: Moving(zero, _exact(np.eye(3)), zero, zero, zero, zero, none, none)}
    origin = {BASE: zero} | {rod.name: _exact(rod.at) for rod in chain.rods}
    M, Q = _exact(np.zeros((n, n))), _exact(np.zeros(n))
    places, speeds = iter(q), itertools.count()
    for rod in chain.rods:
        parent = bodies[rod.on]
        way = origin[rod.name] - origin[rod.on] + change.place.get(rod.name, 0)
        body = parent.at(parent.R @ way)
        body = bodies[rod.name] = _moved(rod, body, places, speeds, v)
        at = body.at(body.R @ (_exact(rod.to) - _exact(rod.at)) / 2)
        share, weight = 1 + change.mass.get(rod.name, 0), np.array([0, 0, mpmath.mpf(-G)])
        mass, inertia = share * mpmath.mpf(rod.mass), body.R @ (share * _exact(rod.inertia())) @ body.R.T
        M = M + mass * at.Jv.T @ at.Jv + at.Jw.T @ inertia @ at.Jw
        Q = Q + mass * at.Jv.T @ (weight - at.a) - at.Jw.T @ (inertia @ at.alpha + _cross(at.w, inertia @ at.w))
    return bodies, M, Q


def _moved(rod: Rod, body: Moving, places: Any, speeds: Any, v: np.ndarray) -> Moving:
    """The body after its joint, from where the joint begins."""
    axis = _exact(rod.axis)
    if rod.kind == "spherical":
        w, x, y, z = (next(places) for _ in range(4))
        size = mpmath.sqrt(w * w + x * x + y * y + z * z)
        w, u = w / size, np.array([x, y, z]) / size
        K = _skew(u)
        body = body._replace(R=body.R @ (_exact(np.eye(3)) + 2 * w * K + 2 * K @ K))
        return _turned(body, list(body.R.T), [next(speeds) for _ in range(3)], v)
    if rod.kind == "prismatic":
        along, i, way = body.R @ axis, next(speeds), next(places)
        body = body.at(way * along)
        coriolis = 2 * v[i] * _cross(body.w, along)
        Jv = body.Jv.copy()
        Jv[:, i] = Jv[:, i] + along
        return body._replace(v=body.v + v[i] * along, a=body.a + coriolis, Jv=Jv)
    for unit in (axis, _exact((0.0, 1.0, 0.0)))[: SPEEDS[rod.kind]]:
        body = _turned(body, [body.R @ unit], [next(speeds)], v)
        body = body._replace(R=body.R @ _rotation(unit, next(places)))
    return body


def _turned(body: Moving, axes: list[np.ndarray], which: list[int], v: np.ndarray) -> Moving:
    """The body with a spin about axes that move with it."""
    Jw = body.Jw.copy()
    for i, axis in zip(which, axes, strict=True):
        Jw[:, i] = Jw[:, i] + axis
    spin = sum((v[i] * axis for i, axis in zip(which, axes, strict=True)), _exact(np.zeros(3)))
    return body._replace(w=body.w + spin, alpha=body.alpha + _cross(body.w, spin), Jw=Jw)


def _exact(x: Any) -> np.ndarray:
    return np.vectorize(mpmath.mpf, otypes=[object])(np.asarray(x))


def _skew(u: np.ndarray) -> np.ndarray:
    return np.array([[0, -u[2], u[1]], [u[2], 0, -u[0]], [-u[1], u[0], 0]])


def _cross(u: np.ndarray, w: np.ndarray) -> np.ndarray:
    return _skew(u) @ w


def _rotation(axis: np.ndarray, angle: Any) -> np.ndarray:
    K = _skew(axis / mpmath.sqrt(axis @ axis))
    return _exact(np.eye(3)) + mpmath.sin(angle) * K + (1 - mpmath.cos(angle)) * (K @ K)


def _cholesky(M: np.ndarray) -> np.ndarray:
    L = _exact(np.zeros(M.shape))
    for j in range(len(M)):
        L[j, j] = mpmath.sqrt(M[j, j] - L[j, :j] @ L[j, :j])
        for i in range(j + 1, len(M)):
            L[i, j] = (M[i, j] - L[i, :j] @ L[j, :j]) / L[j, j]
    return L


def _forward(L: np.ndarray, y: np.ndarray) -> np.ndarray:
    x = y.copy()
    for i in range(len(L)):
        x[i] = (x[i] - L[i, :i] @ x[:i]) / L[i, i]
    return x


def _backward(L: np.ndarray, y: np.ndarray) -> np.ndarray:
    x = y.copy()
    for i in reversed(range(len(L))):
        x[i] = (x[i] - L[i + 1 :, i] @ x[i + 1 :]) / L[i, i]
    return x


def _solve(L: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _backward(L, _forward(L, y))
