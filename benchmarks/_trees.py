"""Forward dynamics of open trees of hinges, from one MJCF text: ukjax beside Pinocchio, MuJoCo in C, and MJX.

They are first checked to be the same systems. Pinocchio's is `aba`, on one thread from Python and on two in its own
`abaInParallel`; MuJoCo's a step of its rollout on two threads, and `mj_forward`. Derivatives are with respect to all
coordinates and speeds; Pinocchio's by `computeABADerivatives`, which has no threads of its own: in one process and in
two at once; MuJoCo's, by differences, are of a step.
"""

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ukjax import rigid

from . import _measure, _peer
from ._linkages import library
from ._mujoco import two_threads
from ._peer import Peer
from ._pinocchio import open_tree, seconds_of_derivatives


STEPS = 20


class Tree(NamedTuple):
    """Its name, the parent of each body (-1: the ground), and its MJCF text."""

    name: str
    parents: tuple[int, ...]
    text: str


def trees() -> tuple[Tree, Tree]:
    """An arm of seven joints, and thirty that branch."""
    rng = np.random.default_rng(3)
    branching = [-1]
    for i in range(1, 30):
        # From one of the last bodies on the way to the one before: so all number them alike.
        way = [i - 1]
        while branching[way[-1]] >= 0 and len(way) < 4:
            way.append(branching[way[-1]])
        branching.append(int(rng.choice(way)))
    return _tree("arm of 7 joints", tuple(range(-1, 6)), 1), _tree("tree of 30 joints", tuple(branching), 2)


def _tree(name: str, parents: tuple[int, ...], seed: int) -> Tree:
    """Bodies with frames, axes and inertias in any direction."""
    rng = np.random.default_rng(seed)
    numbers = lambda x: " ".join(repr(float(y)) for y in x)
    root = ET.Element("mujoco")
    # Trees fall: contacts, joint limits and the like there are none.
    ET.SubElement(root, "option", timestep="1e-4", integrator="Euler")
    elements: list[ET.Element] = []
    ground = ET.SubElement(root, "worldbody")
    for i, parent in enumerate(parents):
        turn, axis, spread = rng.normal(size=4), rng.normal(size=3), rng.normal(size=(3, 3))
        place = {"pos": numbers(0.3 * rng.normal(size=3)), "quat": numbers(turn / np.linalg.norm(turn))}
        body = ET.SubElement(ground if parent < 0 else elements[parent], "body", {"name": f"b{i}", **place})
        ET.SubElement(body, "joint", name=f"j{i}", axis=numbers(axis / np.linalg.norm(axis)))
        square = 0.05 * spread @ spread.T
        J = np.trace(square) * np.eye(3) - square
        moments = numbers((J[0, 0], J[1, 1], J[2, 2], J[0, 1], J[0, 2], J[1, 2]))
        mass = {"mass": repr(float(rng.uniform(0.5, 2.0))), "pos": numbers(0.1 * rng.normal(size=3))}
        ET.SubElement(body, "inertial", {"fullinertia": moments, **mass})
        elements.append(body)
    return Tree(name, parents, ET.tostring(root, encoding="unicode"))


def rows(report: Callable[[str], None], size: int, rounds: int) -> Iterator[tuple[str, ...]]:
    """In the columns of the table of peers."""
    for tree in trees():
        n = len(tree.parents)
        rng = np.random.default_rng(0)
        q, v = rng.normal(size=(size, n)), rng.normal(size=(size, n))
        peers: list[Peer] = []
        for name, of in (("ukjax", _ukjax), ("Pinocchio", _pinocchio), ("MuJoCo", _mujoco), ("MJX", _mjx)):
            report(f"{tree.name}: {name}")
            peers += of(tree, q, v, rounds)
        truth, fastest = peers[0].found, peers[0].each
        for peer in peers:
            off = np.max(np.abs(peer.found - truth)) / np.max(np.abs(truth))
            if off > 1e-9:
                raise ValueError(f"{tree.name}: {peer.name} is off by {off:.0e}: it is not the same system.")
            ns = lambda s: "" if s is None else f"{1e9 * s:,.0f} ns"
            time = f"{ns(peer.each)}, {peer.each / fastest:.1f} times"
            one = "" if peer.one is None else f"{1e6 * peer.one:,.1f} µs"
            compiled = "" if peer.compile_s is None else f"{peer.compile_s:.1f} s"
            yield tree.name, peer.name, time, ns(peer.jacobian), one, "", f"{off:.0e}", compiled


def _ukjax(tree: Tree, q: np.ndarray, v: np.ndarray, rounds: int) -> list[Peer]:
    mechanism, state = rigid.from_mjcf(tree.text).mechanism(), (jnp.asarray(q), jnp.asarray(v))
    found = [of(mechanism, *state, rounds, len(q)) for of in (_peer.of_ukjax, _peer.on_all_devices)]
    handle = _peer.by_handle(mechanism, *state, rounds)
    return [*(peer._replace(found=peer.found[:64]) for peer in found), handle]


def _pinocchio(tree: Tree, q: np.ndarray, v: np.ndarray, rounds: int) -> list[Peer]:
    pin = library("pinocchio")
    model = open_tree(tree.text)
    data = model.createData()
    # Each joint where Pinocchio puts it, by its name.
    order = [model.joints[model.getJointId(f"j{i}")].idx_q for i in range(q.shape[1])]
    theirs = lambda x: np.ascontiguousarray(x[:, np.argsort(order)])
    tau = np.zeros(q.shape[1])
    qs, vs = theirs(q), theirs(v)
    found = np.array([np.array(pin.aba(model, data, qs[k], vs[k], tau))[order] for k in range(64)])
    one = _measure.least(lambda: pin.aba(model, data, qs[0], vs[0], tau), rounds, 1000)
    slope, slope_of_two = (seconds_of_derivatives(tree.text, qs[0], vs[0], rounds, k) for k in (1, 2))
    single = Peer("Pinocchio, one thread", one, slope, one, found, None)
    pool = pin.ModelPool(model, 2)
    all_q, all_v = np.asfortranarray(qs.T), np.asfortranarray(vs.T)
    both = _measure.least(lambda: pin.abaInParallel(2, pool, all_q, all_v, np.zeros_like(all_q)), rounds) / len(q)
    return [single, Peer("Pinocchio, two threads", both, slope_of_two, None, found, None)]


def _mujoco(tree: Tree, q: np.ndarray, v: np.ndarray, rounds: int) -> list[Peer]:
    mujoco = library("mujoco")
    model = mujoco.MjModel.from_xml_string(tree.text)
    data, order = mujoco.MjData(model), _order(model, q.shape[1])
    found = []
    for k in range(64):
        data.qpos[order], data.qvel[order] = q[k], v[k]
        mujoco.mj_forward(model, data)
        found.append(np.array(data.qacc[order]))
    one = _measure.least(lambda: mujoco.mj_forward(model, data), rounds, 200)
    n = 2 * model.nv
    slope = np.zeros((n, n))
    by_differences = lambda: mujoco.mjd_transitionFD(model, data, 1e-6, False, slope, None, None, None)
    jacobian = _measure.least(by_differences, rounds, 20)
    batch = max(64, len(q) // STEPS)
    start = np.concatenate([np.zeros((batch, 1)), q[:batch][:, np.argsort(order)], v[:batch][:, np.argsort(order)]], 1)
    threads = [mujoco.MjData(model) for _ in range(2)]
    with two_threads() as pool:
        run = lambda: pool.rollout(model, threads, start, nstep=STEPS)
        each = _measure.least(run, rounds) / (batch * STEPS)
    return [Peer("MuJoCo, rollout on two threads", each, jacobian, one, np.array(found), None)]


def _mjx(tree: Tree, q: np.ndarray, v: np.ndarray, rounds: int) -> list[Peer]:
    mjx = library("mujoco.mjx")
    model = library("mujoco").MjModel.from_xml_string(tree.text)
    order = np.array(_order(model, q.shape[1]))
    inside, start = mjx.put_model(model), mjx.make_data(model)

    def acceleration(q, v):
        return mjx.forward(inside, start.replace(qpos=q, qvel=v)).qacc

    # It calls LAPACK, which over more states at a time may never return on some CPUs.
    few = min(256, len(q))
    back = np.argsort(order)
    states = jnp.asarray(q[:few][:, back]), jnp.asarray(v[:few][:, back])
    # Of thirty joints its Jacobian had not compiled after five minutes.
    found = _peer.in_a_batch(acceleration, *states, min(10, rounds), 16 if q.shape[1] < 10 else 0)
    return [found._replace(name="MJX", found=found.found[:64, order])]


def _order(model: Any, n: int) -> list[int]:
    """Where MuJoCo puts each joint."""
    return [int(model.jnt_qposadr[model.joint(f"j{i}").id]) for i in range(n)]
