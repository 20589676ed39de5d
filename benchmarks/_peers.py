"""ukjax beside MuJoCo in C, MJX and Pinocchio: closed chains of five and twenty rods, the parallelogram, and trees.

They are first checked to be the same systems. Times are the least of some rounds, per evaluation of the accelerations:
of ukjax with everything in `Motion`, in a batch; of MuJoCo in C by a step of its rollout on two threads; of Pinocchio,
which takes one state at a time, half of that, as if two threads did it without loss. Jacobians are with respect to all
coordinates and rates; MuJoCo's, by differences, are of a step. MJX is left out of the chain of twenty, whose `forward`
it had not compiled after five minutes.

Needs `pip install "ukjax[bench]"`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from . import _linkages, _measure, _peer, _trees
from ._linkages import Linkage
from ._mujoco import InC, InJax, two_threads
from ._peer import Peer
from ._pinocchio import InPinocchio


HEADER = (
    "system", "by", "acceleration", "with Jacobian", "one state from Python", "rows missed by", "off by", "compile",
)  # fmt: skip
SIZE, ROUNDS = 20_480, 10
STEPS = 20


def rows(report: Callable[[str], None], size: int = SIZE, rounds: int = ROUNDS) -> list[tuple[str, ...]]:
    systems = _linkages.chain(5), _linkages.chain(20), _linkages.overconstrained()
    closed = [row for linkage in systems for row in _of(linkage, report, size, rounds)]
    return [*closed, *_trees.rows(report, size, rounds)]


def _of(linkage: Linkage, report: Callable[[str], None], size: int, rounds: int) -> Iterator[tuple[str, ...]]:
    some = _linkages.states(linkage, 64)
    q, v = (jnp.tile(x, (-(-size // 64), 1))[:size] for x in some)
    peers, large = [], len(linkage.bars) > 10
    for name, measured in (
        ("ukjax, angles", _in_angles), (f"ukjax, angles, {jax.device_count()} devices", _on_all_devices),
        ("ukjax, absolute coordinates", _in_absolute), ("ukjax.compile, one thread", _by_handle),
        ("MuJoCo", _in_c), *([] if large else [("MJX", _in_mjx)]), ("Pinocchio", _in_pinocchio),
    ):  # fmt: skip
        report(f"{linkage.name}: {name}")
        peers.append(measured(linkage, q, v, rounds)._replace(name=name))
    truth, fastest = peers[0].found, peers[0].each
    for peer in peers:
        time = f"{1e9 * peer.each:,.0f} ns, {peer.each / fastest:.1f} times"
        missed, off = _missed(linkage, *some, peer.found), np.max(np.abs(peer.found - truth)) / np.max(np.abs(truth))
        yield (
            linkage.name, peer.name, time, "" if peer.jacobian is None else f"{1e9 * peer.jacobian:,.0f} ns",
            "" if peer.one is None else f"{1e6 * peer.one:,.1f} µs", f"{missed:.0e} m/s²", f"{off:.0e}",
            "" if peer.compile_s is None else f"{peer.compile_s:.1f} s",
        )  # fmt: skip


def _in_angles(linkage: Linkage, q: Array, v: Array, rounds: int) -> Peer:
    found = _peer.of_ukjax(linkage.mechanism(), q, v, rounds)
    return found._replace(found=found.found[:64])


def _on_all_devices(linkage: Linkage, q: Array, v: Array, rounds: int) -> Peer:
    found = _peer.on_all_devices(linkage.mechanism(), q, v, rounds)
    return found._replace(found=found.found[:64])


def _in_absolute(linkage: Linkage, q: Array, v: Array, rounds: int) -> Peer:
    found = _peer.of_ukjax(linkage.absolute, *jax.vmap(linkage.place)(q, v), rounds)
    return found._replace(found=found.found[:64, linkage.angles])


def _by_handle(linkage: Linkage, q: Array, v: Array, rounds: int) -> Peer:
    return _peer.by_handle(linkage.mechanism(), q, v, rounds)


def _in_mjx(linkage: Linkage, q: Array, v: Array, rounds: int) -> Peer:
    # MJX calls LAPACK, which over more states at a time may never return on some CPUs.
    back, few = jnp.asarray(np.linalg.inv(linkage.from_joints())), min(256, len(q))
    peer = InJax(linkage)
    _check_same(linkage, peer, np.asarray(q), np.asarray(v))
    found = _peer.in_a_batch(peer, q[:few] @ back.T, v[:few] @ back.T, rounds)
    return found._replace(found=found.found[:64] @ linkage.from_joints().T)


def _in_c(linkage: Linkage, q: Array, v: Array, rounds: int) -> Peer:
    peer, batch = InC(linkage), max(64, len(q) // STEPS)
    found, one, jacobian = _one_by_one(linkage, peer, q, v, rounds)
    theta, rate = (np.asarray(x[:batch]) @ np.linalg.inv(linkage.from_joints()).T for x in (q, v))
    with two_threads() as pool:
        each = _measure.least(lambda: peer.run(pool, theta, rate, STEPS), rounds) / (batch * STEPS)
    return Peer("", each, jacobian, one, found, None)


def _in_pinocchio(linkage: Linkage, q: Array, v: Array, rounds: int) -> Peer:
    found, one, jacobian = _one_by_one(linkage, InPinocchio(linkage), q, v, rounds)
    return Peer("", one / 2, jacobian / 2, one, found, None)


def _one_by_one(linkage: Linkage, peer: Any, q: Array, v: Array, rounds: int) -> tuple[np.ndarray, float, float]:
    """phi'' (64, n), and the seconds for an acceleration and for one with its Jacobian; ValueError if it is another."""
    turn = linkage.from_joints()
    theta, rate = (np.asarray(x[:64]) @ np.linalg.inv(turn).T for x in (q, v))
    _check_same(linkage, peer, np.asarray(q), np.asarray(v))
    found = []
    for state in zip(theta, rate, strict=True):
        peer.put(*state)
        found.append(np.array(peer.acceleration()))
    one, jacobian = (_measure.least(f, rounds, 1000) for f in (peer.acceleration, peer.derivative))
    return np.array(found) @ turn.T, one, jacobian


def _check_same(linkage: Linkage, peer: Any, q: np.ndarray, v: np.ndarray) -> None:
    turn, system = linkage.from_joints(), _linkages.Bars(linkage)
    torque = np.random.default_rng(1).normal(size=len(linkage.bars))
    back, t = np.linalg.inv(turn), jnp.zeros(())
    for at, rate in zip(q[:3], v[:3], strict=True):
        M, Q = np.asarray(system.mass(at, t)), np.asarray(system.force(at, rate, t))
        want = back @ np.linalg.solve(M, Q + back.T @ torque)
        peer.put(back @ at, back @ rate)
        if not np.allclose(peer.free(torque), want, rtol=1e-9, atol=1e-9 * np.max(np.abs(want))):
            raise ValueError(f"{linkage.name}: {type(peer).__name__} does not have the same masses or forces.")


def _missed(linkage: Linkage, q: Array, v: Array, acceleration: np.ndarray) -> float:
    """The greatest acceleration of a gap [m/s^2], which is none if the loops stay closed."""
    system = _linkages.Bars(linkage)
    gaps = lambda q: system.gaps(q, jnp.zeros(()))

    def of(q, v, a):
        speed = lambda q, v: jax.jvp(gaps, (q,), (v,))[1]
        return jax.jvp(speed, (q, v), (v, a))[1]

    return float(jnp.max(jnp.abs(jax.vmap(of)(q, v, jnp.asarray(acceleration)))))
