"""Planar linkages of bars with loops, as ukjax, MuJoCo and Pinocchio take them.

A tree of bars, each turning about a point of another or of the ground, and loops that hold a point of a bar on another
bar or on the ground. All points lie on the axes of the bars, so far from their joint. Gravity along -y, SI units.

phi: angles of the bars from the x axis; theta: angles of the joints, phi less that of the bar which carries the joint.
"""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax
from models import n_pendulum, parallelogram


G = 9.81
GROUND = -1


def library(name: str) -> Any:
    """A peer; ModuleNotFoundError tells how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'{error}. The peers are installed by: pip install -e ".[bench]"') from error


class Bar(NamedTuple):
    """Turns about the point `at` of bar `on`, or of the ground (x, 0); `middle` is how far its centre of mass is."""

    on: int
    at: float
    mass: float
    inertia: float
    middle: float


class Loop(NamedTuple):
    """The point `at` of bar `on` stays on the point `to_at` of bar `to`, or of the ground (x, 0)."""

    on: int
    at: float
    to: int
    to_at: float


@dataclasses.dataclass(frozen=True)
class Linkage:
    """Bars, each after the one that carries it, loops, angles near which it closes; and it in absolute coordinates.

    `place` makes a state in those of phi and phi'; `angles` tells which of them are phi.
    """

    name: str
    bars: tuple[Bar, ...]
    loops: tuple[Loop, ...]
    near: np.ndarray
    absolute: ukjax.Mechanism
    place: Callable[[Array, Array], tuple[Array, Array]]
    angles: tuple[int, ...]

    def path(self, body: int) -> list[tuple[int, float]]:
        """The bars between the ground and the joint of a bar, and how far along each of them the next one is."""
        found = []
        while self.bars[body].on != GROUND:
            found.append((self.bars[body].on, self.bars[body].at))
            body = self.bars[body].on
        return found[::-1]

    def from_joints(self) -> np.ndarray:
        """phi = this (n, n) @ theta."""
        turn = np.eye(len(self.bars))
        for i, bar in enumerate(self.bars):
            if bar.on != GROUND:
                turn[i] += turn[bar.on]
        return turn

    def mechanism(self) -> ukjax.Mechanism:
        """In the angles phi, with two rows for each loop."""
        system = Bars(self)
        return ukjax.Mechanism(system, ukjax.Holonomic(system.gaps))


class Bars(ukjax.AbstractSystem):
    """M_ij = a_ij cos(phi_i - phi_j); Q_i = -a_ij sin(phi_i - phi_j) phi_j'^2 - b_i cos(phi_i).

    The centre of mass of bar k is the sum over the bars i on the way to it of s_ki (cos phi_i, sin phi_i), and so
    a = sum over k of m_k s_k s_k^T, with the moments of inertia on the diagonal, and b_i = g sum over k of m_k s_ki.
    """

    a: Float[Array, "n n"]
    b: Float[Array, " n"]
    reach: Float[Array, "loops n"]  # of the points of a loop, one less the other
    offset: Float[Array, " loops"]  # along x

    def __init__(self, linkage: Linkage):
        bars, n = linkage.bars, len(linkage.bars)
        way = lambda body, at: np.bincount(*zip(*[*linkage.path(body), (body, at)], strict=True), minlength=n)
        root = lambda body: bars[body].at if bars[body].on == GROUND else root(bars[body].on)
        s = np.array([way(k, bar.middle) for k, bar in enumerate(bars)])
        mass = np.array([bar.mass for bar in bars])
        self.a = jnp.asarray(s.T @ np.diag(mass) @ s + np.diag([bar.inertia for bar in bars]))
        self.b = jnp.asarray(G * mass @ s)
        ends = lambda body, at: (np.zeros(n), at) if body == GROUND else (way(body, at), root(body))
        pairs = [(ends(loop.on, loop.at), ends(loop.to, loop.to_at)) for loop in linkage.loops]
        self.reach = jnp.asarray(np.array([one[0] - other[0] for one, other in pairs]))
        self.offset = jnp.asarray(np.array([one[1] - other[1] for one, other in pairs], float))

    def mass(self, q, t):
        c, s = jnp.cos(q), jnp.sin(q)
        return self.a * (c[:, None] * c[None] + s[:, None] * s[None])

    def force(self, q, v, t):
        c, s = jnp.cos(q), jnp.sin(q)
        # sin(phi_i - phi_j), summed over j.
        return -s * (self.a @ (c * v**2)) + c * (self.a @ (s * v**2)) - self.b * c

    def gaps(self, q, t):
        x, y = self.reach @ jnp.cos(q) + self.offset, self.reach @ jnp.sin(q)
        return jnp.stack([x, y], axis=1).ravel()


def chain(N: int, end: float = 0.6) -> Linkage:
    """N rods of 1 m and 1 kg in all, whose last one ends on a second pivot, `end` m beside the first."""
    L = m = 1.0 / N
    bars = tuple(Bar(i - 1, 0.0 if i == 0 else L, m, m * L**2 / 12, L / 2) for i in range(N))
    model = n_pendulum.Chain(m=np.full(N, m), L=np.full(N, L), end=(end, 0.0))
    whole = model.mechanism() if N < 10 else n_pendulum.modular(model).mechanism()
    near = n_pendulum.arc(N, L, (end, 0.0))
    return Linkage(
        f"closed chain of {N} rods",
        bars,
        (Loop(N - 1, L, GROUND, end),),
        near,
        whole,
        model.state,
        tuple(range(2, 3 * N, 3)),
    )


def overconstrained() -> Linkage:
    """That of `models.parallelogram`: a coupler on three bars, of which it needs two."""
    model = parallelogram.Parallelogram()
    L = float(model.L)
    bar = lambda x: Bar(GROUND, x, float(model.m), float(model.I), L / 2)
    bars = bar(0.0), Bar(0, L, float(model.mc), float(model.Ic), 1.0), bar(1.0), bar(2.0)
    loops = Loop(2, L, 1, 1.0), Loop(3, L, 1, 2.0)
    whole = ukjax.Mechanism(model, ukjax.Holonomic(model.joints))
    place = lambda phi, rate: model.state(phi[0], rate[0])
    return Linkage("parallelogram", bars, loops, np.array([-0.8, 0.0, -0.8, -0.8]), whole, place, (2, 11, 5, 8))


def states(linkage: Linkage, count: int, seed: int = 0) -> tuple[Array, Array]:
    """phi and phi' (count, n) [rad, rad/s] on the constraints, to rounding."""
    noise = np.random.default_rng(seed).normal(size=(2, count, len(linkage.bars)))
    mechanism = linkage.mechanism()
    nearest = lambda q, v: tuple(ukjax.assemble(mechanism, q, v, throw=False))
    return jax.jit(jax.vmap(nearest))(linkage.near + 0.03 * noise[0], noise[1])
