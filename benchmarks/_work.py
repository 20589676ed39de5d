"""Work against error: one trajectory of the closed chain of five rods, by ukjax, heyoka, MuJoCo and Pinocchio.

The error is the largest of all angles at the end, against ukjax at a tolerance of 1e-13, and the work the time of one
trajectory, compiled before; Pinocchio's integrator is Runge and Kutta's of fourth order, stepped from Python. heyoka's
Taylor method is compiled for the equations of the chain in angles, written out for it.
"""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import diffrax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array

import ukjax

from . import _linkages, _measure
from ._heyoka import InHeyoka
from ._linkages import Linkage
from ._mujoco import InC, two_threads
from ._pinocchio import InPinocchio


END = 0.5  # [s]
TOLERANCES = tuple(10.0**-k for k in (3, 5, 7, 9, 11))
STEPS = (20, 80, 320, 1280, 5120, 20_480)


class Curve(NamedTuple):
    """Errors [rad] and seconds of one way to integrate."""

    name: str
    errors: list[float]
    seconds: list[float]


def curves(
    report: Callable[[str], None],
    end: float = END,
    tolerances: tuple[float, ...] = TOLERANCES,
    steps: tuple[int, ...] = STEPS,
    rounds: int = 20,
) -> list[Curve]:
    linkage = _linkages.chain(5)
    q, v = (x[0] for x in _linkages.states(linkage, 1))
    truth = np.asarray(_by_ukjax(linkage.mechanism(), q, v, end, diffrax.Dopri8(), 1e-13, 1).output)
    ways: dict[str, Callable[[], Iterator[tuple[np.ndarray, float]]]] = {
        "ukjax, angles, Tsit5": lambda: _ukjax(linkage, q, v, end, diffrax.Tsit5(), tolerances, rounds),
        "ukjax, angles, Dopri8": lambda: _ukjax(linkage, q, v, end, diffrax.Dopri8(), tolerances, rounds),
        "ukjax, absolute coordinates, Dopri8": lambda: _absolute(linkage, q, v, end, tolerances, rounds),
        "heyoka, angles, Taylor": lambda: _heyoka(linkage, q, v, end, tolerances, rounds),
        "MuJoCo, Euler": lambda: _mujoco(linkage, q, v, end, "Euler", False, steps, rounds),
        "MuJoCo, RK4": lambda: _mujoco(linkage, q, v, end, "RK4", False, steps, rounds),
        "MuJoCo, RK4, as stiff as may be": lambda: _mujoco(linkage, q, v, end, "RK4", True, steps, rounds),
        "Pinocchio, RK4 from Python": lambda: _pinocchio(linkage, q, v, end, steps[:-1], rounds),
    }
    if importlib.util.find_spec("heyoka") is None:
        report("work against error: heyoka is not installed")
        del ways["heyoka, angles, Taylor"]
    found = []
    for name, way in ways.items():
        report(f"work against error: {name}")
        errors, seconds = zip(*((float(np.max(np.abs(phi - truth))), time) for phi, time in way()), strict=True)
        found.append(Curve(name, list(errors), list(seconds)))
    return found


def draw(found: list[Curve], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 5.5), layout="constrained")
    for curve, marker in zip(found, "osDP^v<*", strict=False):
        axes.loglog(curve.errors, [1e3 * s for s in curve.seconds], marker=marker, label=curve.name)
    axes.set_xlabel("largest error of an angle at the end [rad]")
    axes.set_ylabel("time of one trajectory [ms]")
    axes.set_title(f"Closed chain of five rods, {END:g} s of motion")
    axes.grid(True, which="major", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _by_ukjax(
    mechanism: ukjax.Mechanism, q: Array, v: Array, end: float, solver: diffrax.AbstractSolver, rtol: float, rounds: int
) -> _measure.Timing:
    ts = np.array([0.0, end])

    def last(q, v):
        run = ukjax.simulate(
            mechanism, q, v, ts, solver=solver, rtol=rtol, atol=rtol, keep=("q",), throw=False, max_steps=100_000
        )
        return run.q[-1]

    (timing,) = _measure.race((last, q, v), rounds=rounds)
    return timing


def _ukjax(linkage: Linkage, q, v, end, solver, tolerances, rounds) -> Iterator[tuple[np.ndarray, float]]:
    for rtol in tolerances:
        timing = _by_ukjax(linkage.mechanism(), q, v, end, solver, rtol, rounds)
        yield np.asarray(timing.output), timing.run_s


def _absolute(linkage: Linkage, q, v, end, tolerances, rounds) -> Iterator[tuple[np.ndarray, float]]:
    for rtol in tolerances:
        timing = _by_ukjax(linkage.absolute, *linkage.place(q, v), end, diffrax.Dopri8(), rtol, rounds)
        yield np.asarray(timing.output)[jnp.array(linkage.angles)], timing.run_s


def _heyoka(linkage: Linkage, q, v, end, tolerances, rounds) -> Iterator[tuple[np.ndarray, float]]:
    start = np.asarray(q), np.asarray(v)
    for tolerance in tolerances:
        peer = InHeyoka(linkage, tolerance)
        run = lambda peer=peer: peer.run(*start, end)
        yield run(), _measure.least(run, rounds)


def _in_joints(linkage: Linkage, *x: Array) -> list[np.ndarray]:
    back = np.linalg.inv(linkage.from_joints())
    return [back @ np.asarray(y) for y in x]


def _mujoco(linkage: Linkage, q, v, end, integrator, stiff, steps, rounds) -> Iterator[tuple[np.ndarray, float]]:
    theta, rate = _in_joints(linkage, q, v)
    for count in steps:
        peer = InC(linkage, dt=end / count, integrator=integrator, stiff=stiff)
        with two_threads() as pool:
            run = lambda peer=peer, pool=pool, count=count: peer.run(pool, theta[None], rate[None], count)[0]
            seconds = _measure.least(run, rounds)
            yield linkage.from_joints() @ run(), seconds


def _pinocchio(linkage: Linkage, q, v, end, steps, rounds) -> Iterator[tuple[np.ndarray, float]]:
    peer, start = InPinocchio(linkage), np.concatenate(_in_joints(linkage, q, v))
    n = len(start) // 2

    def slope(y: np.ndarray) -> np.ndarray:
        peer.put(y[:n], y[n:])
        return np.concatenate([y[n:], peer.acceleration()])

    def run(count: int) -> np.ndarray:
        y, h = start, end / count
        for _ in range(count):
            k1 = slope(y)
            k2 = slope(y + h / 2 * k1)
            k3 = slope(y + h / 2 * k2)
            k4 = slope(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return linkage.from_joints() @ y[:n]

    for count in steps:
        yield run(count), _measure.least(lambda count=count: run(count), min(2, rounds))
