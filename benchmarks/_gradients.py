"""Derivatives of robots with closed chains: which programs have them, and how far each is from forty digits.

The robots are those of `models.legged_chains`, in states that are assembled, and a leg whose knee is straight. Each
changes along its constraints in four directions: its state; the forces at its motors; the masses, with the moments of
inertia, of all bodies; and the places of all joints, with a state that keeps the loops closed. An error is a part of
the largest entry of a derivative.

The motion is two steps of order 8, 4 ms in all; its end is compared with that of such steps in forty digits.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

import ukjax
from models import legged_chains
from models.legged_chains import Chain
from ukjax import rigid

from . import _exact, _linkages, _mujoco_chains
from ._closed import RANK_TOLERANCE, Case, InPinocchio


KINDS = ("state", "motors", "masses", "places")
HEADER = ("robot", "by", "acceleration", *(f"its derivative by {kind}" for kind in KINDS), "of a motion", "seconds")
NONE = "none"
STEP, STEPS = 2e-3, 2  # of the motion [s]
# Robots with fewer speeds; of larger ones MJX compiles too long.
IN_MJX = 10
# Joints that are held, for a leg that leans and has a straight knee.
STRAIGHT = {"thigh_joint": 0.2, "shin_joint": 0.0}
# The robots, each with the joints that are held.
ROBOTS = ((legged_chains.knee_leg, STRAIGHT), *((make, {}) for make in legged_chains.ALL))


class Pushed(ukjax.AbstractKinematicSystem):
    """A robot under a further generalised force (n,)."""

    robot: rigid.Robot
    push: Array

    @property
    def kinematics(self):
        return self.robot.kinematics

    def mass(self, q, t):
        return self.robot.mass(q, t)

    def force(self, q, v, t):
        return self.robot.force(q, v, t) + self.push


class Point(NamedTuple):
    """A state and a robot, or a direction of both.

    q (n_q,), v (n,); force (n,): generalised force; share (k,): of the masses of all bodies, by which they are more;
    place (k, 3): ways of their joints [m].
    """

    q: Array
    v: Array
    force: Array
    share: Array
    place: Array


class Audited:
    """A robot in a state, and directions in which both change."""

    def __init__(self, chain: Chain, held: Mapping[str, float], seed: int = 0):
        self.case, self.chain = Case(chain, 1, seed, held), chain
        self.robot: rigid.Robot = self.case.robot
        self.q, self.v = jnp.asarray(self.case.q[0]), jnp.asarray(self.case.v[0])
        n, k = self.v.shape[0], len(chain.rods)
        self.at = Point(self.q, self.v, jnp.zeros(n), jnp.zeros(k), jnp.zeros((k, 3)))
        # The joints that are not at the origin of the body that carries them.
        self.placed = [i for i, rod in enumerate(chain.rods) if rod.name in _away(chain)]
        self.weights = jnp.asarray(np.random.default_rng(seed).normal(size=n))
        self.weights_of_end = jnp.concatenate([jnp.cos(jnp.arange(1.0, self.q.shape[0] + 1)), self.weights])

    def moved(self, point: Point) -> rigid.Robot:
        """The robot with other masses and places."""
        rods, at = self.chain.rods, self.placed
        leaves = lambda r: [
            *(r.bodies[rod.name].inertia.mass for rod in rods),
            *(r.bodies[rod.name].inertia.moments for rod in rods),
            *(r.bodies[rods[i].on].frames[f"to_{rods[i].name}_joint"].position for i in at),
        ]
        old, k = leaves(self.robot), len(rods)
        new = [x * (1 + point.share[i % k]) for i, x in enumerate(old[: 2 * k])]
        new += [x + point.place[i] for i, x in zip(at, old[2 * k :], strict=True)]
        return eqx.tree_at(leaves, self.robot, new)

    def mechanism(self, point: Point) -> ukjax.Mechanism:
        robot = self.moved(point)
        return ukjax.Mechanism(Pushed(robot, point.force), robot.own_constraints)

    def acceleration(self, point: Point) -> Array:
        return ukjax.equation_of_motion(self.mechanism(point), point.q, point.v, throw=False).acceleration

    def end(self, point: Point) -> Array:
        """q and v after a motion."""
        run = ukjax.simulate(
            self.mechanism(point), point.q, point.v, jnp.array([0.0, STEP * STEPS]), keep=("q", "v"), throw=False,
            solver=diffrax.Dopri8(), stepsize_controller=diffrax.ConstantStepSize(), dt0=STEP,
        )  # fmt: skip
        assert run.q is not None
        assert run.v is not None
        return jnp.concatenate([run.q[-1], run.v[-1]])

    def directions(self) -> dict[str, Point]:
        """Along the constraints: where rows depend on others, no derivative exists across."""
        rng, n = np.random.default_rng(1), self.v.shape[0]
        zero = jax.tree_util.tree_map(jnp.zeros_like, self.at)
        motors = np.zeros(n)
        for name in self.chain.motors:
            motors += np.asarray(self.robot.actuation(f"{name}_joint"))[:, 0] * rng.normal()
        places = np.zeros((len(self.chain.rods), 3))
        # Planes of loops stay planes.
        places[self.placed] = 0.1 * rng.normal(size=(len(self.placed), 3)) * [1.0, 0.0, 1.0]
        along = self._along(zero, rng.normal(size=n), rng.normal(size=n))
        return {
            "state": along,
            "motors": zero._replace(force=jnp.asarray(motors)),
            "masses": zero._replace(share=jnp.asarray(rng.normal(size=len(self.chain.rods)))),
            "places": self._along(zero._replace(place=jnp.asarray(places)), np.zeros(n), np.zeros(n)),
        }

    def _along(self, change: Point, dq: np.ndarray, dv: np.ndarray) -> Point:
        """The change with those changes of q (n,) and v (n,), nearest to the given ones, that keep to the constraints.

        The gaps g(q, p) and the rates A(q, p) v stay zero.
        """
        t = jnp.zeros(())
        A = np.asarray(self.mechanism(self.at).velocity_rows(self.q, self.v, t)[1])
        inverse = np.linalg.pinv(A, RANK_TOLERANCE)
        errors = lambda point: self.mechanism(point).position_error(point.q, t)
        rates = lambda point: self.mechanism(point).velocity_error(point.q, point.v, t)
        along = lambda f, change: np.asarray(jax.jvp(f, (self.at,), (change,))[1])
        move = jnp.asarray(dq - inverse @ (A @ dq + along(errors, change)))
        kinematics = self.robot.kinematics
        change = change._replace(q=move if kinematics is None else kinematics.rates(self.q, move, t))
        return change._replace(v=jnp.asarray(dv - inverse @ (A @ dv + along(rates, change))))

    def exactly(self, change: Point) -> _exact.Change:
        names = [rod.name for rod in self.chain.rods]
        by_name = lambda values: dict(zip(names, np.asarray(values), strict=True))
        q, v, force = (np.asarray(x) for x in change[:3])
        return _exact.Change(q, v, force, by_name(change.share), by_name(change.place))


def _away(chain: Chain) -> set[str]:
    origin = {legged_chains.BASE: (0.0, 0.0, 0.0)} | {rod.name: rod.at for rod in chain.rods}
    return {rod.name for rod in chain.rods if rod.at != origin[rod.on]}


class Found(NamedTuple):
    """What a program finds for a robot.

    Attributes:
        by: The program.
        acceleration: At the state (n,).
        slopes: Its derivatives by direction (n,), or their weighted sums by `Audited.weights`.
        motion: The derivative of the end of a motion (n_q + n,), or its weighted sum.
        seconds: For the first of all of it.
    """

    by: str
    acceleration: np.ndarray
    slopes: Mapping[str, Any]
    motion: Any = None
    seconds: float = 0.0


def forward(one: Audited, directions: Mapping[str, Point]) -> Found:
    begin = time.perf_counter()
    acceleration, slopes = _along(one.acceleration, one, directions)
    _, motion = _along(one.end, one, {"places": directions["places"]})
    return Found("ukjax, forward mode", acceleration, slopes, motion["places"], time.perf_counter() - begin)


def _along(
    f: Callable[[Point], Array], one: Audited, directions: Mapping[str, Point]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The value of a function, and its derivatives by forward mode."""
    slope = jax.jit(lambda at, change: jax.jvp(f, (at,), (change,)))
    found = {kind: slope(one.at, change) for kind, change in directions.items()}
    value = next(iter(found.values()))[0]
    return np.asarray(value), {kind: np.asarray(x) for kind, (_, x) in found.items()}


def reverse(one: Audited, directions: Mapping[str, Point]) -> Found:
    begin = time.perf_counter()

    def gradient(f: Callable[[Point], Array], weights: Array) -> tuple[Array, Point]:
        value, back = jax.jit(lambda at: jax.vjp(f, at))(one.at)
        return value, back(weights)[0]

    acceleration, slope = gradient(one.acceleration, one.weights)
    _, of_motion = gradient(one.end, one.weights_of_end)
    values = {kind: _product(slope, change) for kind, change in directions.items()}
    motion = _product(of_motion, directions["places"])
    return Found("ukjax, reverse mode", np.asarray(acceleration), values, motion, time.perf_counter() - begin)


def _product(gradient: PyTree, change: PyTree) -> float:
    pairs = zip(jax.tree_util.tree_leaves(gradient), jax.tree_util.tree_leaves(change), strict=True)
    return float(sum(jnp.vdot(x, y) for x, y in pairs))


def in_pinocchio(one: Audited, directions: Mapping[str, Point]) -> Found:
    begin = time.perf_counter()
    peer = InPinocchio(one.case)
    acceleration = np.array(peer.of_constraints()(*peer.states[0]))
    peer.derivatives()(*peer.states[0])
    data, slopes = peer.data, {}
    for kind in ("state", "motors"):
        change = directions[kind]
        slopes[kind] = data.ddq_dq @ speeds(one, change) + data.ddq_dv @ change.v + data.ddq_dtau @ change.force
    return Found("Pinocchio", acceleration, slopes, None, time.perf_counter() - begin)


def by_differences(one: Audited, directions: Mapping[str, Point], h: float = 1e-5) -> Found:
    """Central differences between accelerations of Pinocchio."""
    begin = time.perf_counter()
    peer, change = InPinocchio(one.case), directions["state"]
    dynamics, (q, v), dq = peer.of_constraints(), peer.states[0], speeds(one, change)
    acceleration = np.array(dynamics(q, v))
    at = lambda s: np.array(dynamics(peer.pin.integrate(peer.model, q, s * dq), v + s * np.asarray(change.v)))
    slopes = {"state": (at(h) - at(-h)) / (2 * h)}
    return Found("Pinocchio, differences", acceleration, slopes, None, time.perf_counter() - begin)


def speeds(one: Audited, change: Point) -> np.ndarray:
    """The change of q as a displacement (n,)."""
    if one.robot.kinematics is None:
        return np.asarray(change.q)
    t, zero = jnp.zeros(()), jnp.zeros_like(one.v)
    N = jax.jacfwd(lambda v: one.robot.kinematics.rates(one.q, v, t))(zero)  # pyright: ignore
    return np.linalg.lstsq(np.asarray(N), np.asarray(change.q), rcond=None)[0]


def in_mujoco(one: Audited, directions: Mapping[str, Point]) -> Found:
    """By its own differences of a step."""
    begin = time.perf_counter()
    peer = _mujoco_chains.InC(one.chain)
    acceleration, by_q, by_v = peer.derivatives(np.asarray(one.q), np.asarray(one.v))
    change = directions["state"]
    slopes = {"state": by_q @ speeds(one, change) + by_v @ np.asarray(change.v)}
    return Found("MuJoCo, differences", acceleration, slopes, None, time.perf_counter() - begin)


def in_mjx(one: Audited, directions: Mapping[str, Point]) -> Found:
    begin = time.perf_counter()
    peer = _mujoco_chains.InJax(one.chain)
    acceleration, slopes = _along(lambda point: peer(*point), one, directions)
    return Found("MJX, forward mode", acceleration, slopes, None, time.perf_counter() - begin)


def rows(
    report: Callable[[str], None], robots: Sequence[tuple[Callable[[], Chain], Mapping[str, float]]] = ROBOTS
) -> list[tuple[str, ...]]:
    """Rows of robots, each with joints that are held at coordinates."""
    for name in ("pinocchio", "mujoco.mjx"):
        _linkages.library(name)
    found = []
    for i, (make, held) in enumerate(robots):
        if i:
            jax.clear_caches()  # a robot takes up to a gigabyte
        found += _of(make(), held, report)
    return found


def _of(chain: Chain, held: Mapping[str, float], report: Callable[[str], None]) -> Iterator[tuple[str, ...]]:
    report(f"{chain.name}: forty digits")
    one = Audited(chain, held)
    directions = one.directions()
    q, v = np.asarray(one.q), np.asarray(one.v)
    exact = {kind: _exact.derivative(chain, q, v, one.exactly(change)) for kind, change in directions.items()}
    end = _exact.slope_of_end(chain, q, v, one.exactly(directions["places"]), STEP, STEPS)
    ways = [forward, reverse, in_pinocchio, by_differences, in_mujoco, *([in_mjx] if len(v) < IN_MJX else [])]
    for way in ways:
        report(f"{chain.name}: {way.__name__.replace('_', ' ')}")
        found = way(one, directions)
        yield (
            chain.name, found.by, _off(found.acceleration, one.case.exact[0], one.weights),
            *(_off(found.slopes.get(kind), exact[kind], one.weights) for kind in KINDS),
            _off(found.motion, end, one.weights_of_end), f"{found.seconds:.1f}",
        )  # fmt: skip


def _off(found: Any, exact: np.ndarray, weights: Array) -> str:
    """The error of an array, or of a number, which is a weighted sum."""
    if found is None:
        return NONE
    want = exact if np.ndim(found) else np.asarray(weights) @ exact
    return f"{np.max(np.abs(np.asarray(found) - want)) / np.max(np.abs(want)):.0e}"
