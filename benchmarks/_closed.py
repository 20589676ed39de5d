"""Robots with closed chains beside Pinocchio's `constraintDynamics` and `lcaba`: time, and error against forty digits.

The robots are those of `models.legged_chains`, in states that are assembled, at random speeds that the loops allow.
Errors are parts of the largest acceleration of a state, the largest of some states. Pinocchio takes one state at a
time. On two threads it takes half of that, as if two threads did it without loss.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ukjax
from models import legged_chains
from models.legged_chains import BASE, Chain

from . import _exact, _measure, _peer
from ._linkages import G, library


HEADER = (
    "robot", "speeds, rows, rank", "by", "acceleration", "with Jacobian", "one state from Python", "off by", "compile",
)  # fmt: skip
SIZE, ROUNDS = 1024, 10
CHECKED = 4
# Of the singular values of A that belong to rows, against rounding.
RANK_TOLERANCE = 1e-9


class Case:
    """A robot, and states of it (k, n_q), (k, n), on its constraints.

    Motors are a little off, or some joints are `held` at coordinates; the rest goes where the loops take it.
    """

    def __init__(self, chain: Chain, count: int, seed: int = 0, held: Mapping[str, float] | None = None):
        self.chain, self.robot = chain, chain.robot()
        self.mechanism = self.robot.mechanism()
        n = self.robot.layout.n
        rng = np.random.default_rng(seed)
        rows = jax.jit(lambda q, v: self.mechanism.velocity_rows(q, v, jnp.zeros(()))[1])
        q, _ = self.robot.assemble()
        self.rows = rows(q, jnp.zeros(n)).shape[0]
        states = []
        for _ in range(count):
            off = held or {f"{name}_joint": 0.02 * rng.normal() for name in chain.motors}
            q, _ = self.robot.assemble(off, keep=tuple(held or ()))
            v, A = rng.normal(size=n), np.asarray(rows(q, jnp.zeros(n)))
            states.append((np.asarray(q), v - np.linalg.pinv(A, RANK_TOLERANCE) @ (A @ v)))
        self.q, self.v = map(np.array, zip(*states, strict=True))
        found = [_exact.acceleration(chain, q, v) for q, v in states[:CHECKED]]
        self.exact, self.rank = np.array([a for a, _ in found]), found[0][1]

    def off(self, found: np.ndarray) -> float:
        """The error of accelerations (k, n), as a part of the largest of each state."""
        largest = np.max(np.abs(self.exact), axis=1, keepdims=True)
        return float(np.max(np.abs(found[:CHECKED] - self.exact) / largest))


class InPinocchio:
    """A chain in Pinocchio, whose joints are in the same order."""

    def __init__(self, case: Case):
        self.pin = pin = library("pinocchio")
        self.model, self.case = pin.Model(), case
        self.model.gravity.linear = np.array([0.0, 0.0, -G])
        origin = {BASE: np.zeros(3)} | {rod.name: np.array(rod.at) for rod in case.chain.rods}
        self.joints = {BASE: 0}
        for rod in case.chain.rods:
            axis = np.array(rod.axis)
            kind = {
                "continuous": lambda axis=axis: pin.JointModelRevoluteUnaligned(axis),
                "prismatic": lambda axis=axis: pin.JointModelPrismaticUnaligned(axis),
                "universal": lambda: pin.JointModelUniversal(np.eye(3)[0], np.eye(3)[1]),
                "spherical": pin.JointModelSpherical,
            }[rod.kind]()
            place = pin.SE3(np.eye(3), origin[rod.name] - origin[rod.on])
            joint = self.joints[rod.name] = self.model.addJoint(self.joints[rod.on], kind, place, rod.name)
            body = pin.Inertia(rod.mass, np.subtract(rod.to, rod.at) / 2, rod.inertia())
            self.model.appendBodyToJoint(joint, body, pin.SE3.Identity())
        self.loops, self.memory = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
        for loop in case.chain.closed:
            sides: list[Any] = []
            for name, at in ((loop.one, loop.at), (loop.other, loop.to)):
                sides += [self.joints[name], pin.SE3(np.eye(3), np.array(at) - origin[name])]
            kind = pin.ContactType.CONTACT_6D if loop.kind == "6D" else pin.ContactType.CONTACT_3D
            contact = pin.RigidConstraintModel(kind, self.model, *sides, pin.ReferenceFrame.LOCAL)
            self.loops.append(contact)
            self.memory.append(contact.createData())
        self.data, self.tau = self.model.createData(), np.zeros(self.model.nv)
        self.states = []
        for q, v in list(zip(case.q, case.v, strict=True))[:CHECKED]:
            self.states.append((self._quaternions(q), np.ascontiguousarray(v)))

    def _quaternions(self, q: np.ndarray) -> np.ndarray:
        """Coordinates with the real part of each quaternion last."""
        q, begin = q.copy(), 0
        for rod in self.case.chain.rods:
            count = {"spherical": 4, "universal": 2}.get(rod.kind, 1)
            if count == 4:
                q[begin : begin + 4] = np.roll(q[begin : begin + 4], -1)
            begin += count
        return np.ascontiguousarray(q)

    def of_constraints(self) -> Callable[..., np.ndarray]:
        pin = self.pin
        pin.initConstraintDynamics(self.model, self.data, self.loops, self.memory)
        settings = pin.ProximalSettings(1e-12, 1e-10, 10)
        fixed = self.model, self.data
        return lambda q, v: pin.constraintDynamics(*fixed, q, v, self.tau, self.loops, self.memory, settings)

    def of_lcaba(self) -> Callable[..., np.ndarray]:
        pin = self.pin
        pin.computeJointMinimalOrdering(self.model, self.data, self.loops)
        # Of 1e-3 to 1e-10 the second number that leaves the least errors.
        settings = pin.ProximalSettings(1e-12, 1e-3, 1000)
        fixed = self.model, self.data
        return lambda q, v: pin.lcaba(*fixed, q, v, self.tau, self.loops, self.memory, settings)

    def derivatives(self) -> Callable[..., Any]:
        dynamics, pin = self.of_constraints(), self.pin

        def both(q: np.ndarray, v: np.ndarray) -> Any:
            dynamics(q, v)
            return pin.computeConstraintDynamicsDerivatives(self.model, self.data, self.loops, self.memory)

        return both


def rows(report: Callable[[str], None], size: int = SIZE, rounds: int = ROUNDS) -> list[tuple[str, ...]]:
    return [row for make in legged_chains.ALL for row in _of(make(), report, size, rounds)]


def _of(chain: Chain, report: Callable[[str], None], size: int, rounds: int) -> Iterator[tuple[str, ...]]:
    report(f"{chain.name}: states and forty digits")
    case = Case(chain, 16)
    q, v = (jnp.tile(x, (-(-size // 16), 1))[:size] for x in (jnp.asarray(case.q), jnp.asarray(case.v)))
    peers = []
    for name, measured in (("ukjax", _in_a_batch), ("ukjax.compile, one thread", _by_handle)):
        report(f"{chain.name}: {name}")
        peers.append(measured(case, q, v, rounds)._replace(name=name))
    report(f"{chain.name}: Pinocchio")
    peers += _in_pinocchio(InPinocchio(case), rounds)
    fastest = peers[0].each
    for peer in peers:
        yield (
            chain.name, f"{case.v.shape[1]}, {case.rows}, {case.rank}", peer.name,
            f"{1e6 * peer.each:,.2f} µs, {peer.each / fastest:.1f} times",
            "" if peer.jacobian is None else f"{1e6 * peer.jacobian:,.1f} µs",
            "" if peer.one is None else f"{1e6 * peer.one:,.1f} µs",
            f"{case.off(peer.found):.0e}", "" if peer.compile_s is None else f"{peer.compile_s:.1f} s",
        )  # fmt: skip


def _in_a_batch(case: Case, q: Any, v: Any, rounds: int) -> _peer.Peer:
    return _peer.of_ukjax(case.mechanism, q, v, rounds, len(q))


def _by_handle(case: Case, q: Any, v: Any, rounds: int) -> _peer.Peer:
    acceleration = ukjax.compile(case.mechanism)
    found = np.array([acceleration(*state) for state in zip(case.q, case.v, strict=True)])
    one = _measure.least(lambda: acceleration(case.q[0], case.v[0]), rounds, 1000)
    return _peer.Peer("", one, None, one, found, None)


def _in_pinocchio(peer: InPinocchio, rounds: int) -> Iterator[_peer.Peer]:
    at = peer.states[0]
    jacobian = _measure.least(lambda f=peer.derivatives(): f(*at), rounds, 200)
    for name, make, slopes in (("constraintDynamics", peer.of_constraints, jacobian), ("lcaba", peer.of_lcaba, None)):
        call = make()
        found = np.array([np.array(call(*state)) for state in peer.states])
        one = _measure.least(lambda call=call: call(*at), rounds, 1000)
        half = None if slopes is None else slopes / 2
        yield _peer.Peer(f"Pinocchio, {name}", one / 2, half, one, found, None)
