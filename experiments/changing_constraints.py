"""Constraints that come and go: a bead that bounces on a wire, a rope that gets slack, a block that sticks and slips.

Each by `ukjax.simulate_hybrid`, in Cartesian coordinates, beside its exact motion: parabolas; elliptic functions,
quadrature and a parabola; straight lines and sines. Printed is by how much positions and times of events differ.

    python -m experiments.changing_constraints [--out DIR]
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.optimize
from matplotlib.figure import Figure

import ukjax
from models import closed_form

from . import _report
from ._figures import THEORY, captioned, legend_above, panels


G = 9.81  # [m/s^2]
EXACT: Any = {"rtol": 1e-11, "atol": 1e-11}


def _root(function: Callable[[float], Any], low: float, high: float) -> float:
    return float(scipy.optimize.root_scalar(function, bracket=(low, high), xtol=1e-15).root)


def _falling(m: Any) -> ukjax.System:
    return ukjax.System(lambda q, t: m * jnp.eye(2), lambda q, v, t: m * jnp.array([0.0, -G]))


def bead(restitution, slope=0.0):
    """A bead on a wire through the origin, level if `slope` is infinite; it bounces off the floor y = 0."""
    wire = ukjax.Holonomic(lambda q, t: (q[0] - slope * q[1])[None])
    floor = ukjax.Holonomic(lambda q, t: q[1:])
    bounce = ukjax.Event(lambda q, v, t: q[1], "flight", impact=ukjax.Impact(floor, restitution))
    return {"flight": ukjax.Mode(ukjax.Mechanism(_falling(2.0), [wire]), {"bounce": bounce})}


def bounces(height, g, e, ts):
    """Heights at ts, and times of the bounces, of a body released at rest; in closed form."""
    first = np.sqrt(2 * height / g)
    times, speeds = [first], [e * g * first]
    while times[-1] < ts[-1]:
        times.append(times[-1] + 2 * speeds[-1] / g)
        speeds.append(e * speeds[-1])
    heights = []
    for t in ts:
        k = np.searchsorted(times, t) - 1
        since = t - times[k] if k >= 0 else t
        heights.append(speeds[k] * since - g / 2 * since**2 if k >= 0 else height - g / 2 * t**2)
    return np.array(heights), np.array([x for x in times if x < ts[-1]])


def rope(length=1.0):
    taut = ukjax.Mechanism(_falling(1.0), {"rope": ukjax.Holonomic(lambda q, t: (q @ q - length**2)[None])})
    # A rope only pulls, inwards; the multiplier of |q|^2 - L^2 is negative then.
    slack = ukjax.Event(lambda q, v, t, carried: -carried["rope"][0], "slack", multipliers=True)
    tight = ukjax.Event(lambda q, v, t: q @ q - length**2, "taut", direction="rising")
    return {
        "taut": ukjax.Mode(taut, {"slack": slack}),
        "slack": ukjax.Mode(ukjax.Mechanism(_falling(1.0)), {"tight": tight}),
    }


def roped(speed, ts, L=1.0):
    """Positions at ts of a mass on a rope, started from its lowest point with a speed [m/s]; in closed form."""
    w = np.sqrt(G / L)
    rate = lambda psi: (speed / L) ** 2 - 2 * w**2 * (1 - np.cos(psi))
    # Slack where the tension m (L psi'^2 + g cos psi) vanishes.
    psi1 = _root(lambda p: L * rate(p) + G * np.cos(p), np.pi / 2, np.pi)
    t1, _ = scipy.integrate.quad(lambda p: 1 / np.sqrt(rate(p)), 0.0, psi1, epsabs=1e-13, epsrel=1e-13)
    at, along = L * np.array([np.sin(psi1), -np.cos(psi1)]), np.array([np.cos(psi1), np.sin(psi1)])
    v = L * np.sqrt(rate(psi1)) * along
    flown = lambda s: at + v * s + np.array([0.0, -G / 2 * s**2])
    s2 = _root(lambda s: (flown(s) @ flown(s) - L**2) / s**3, 1e-2, 5.0)
    t2, hit = t1 + s2, flown(s2)
    psi2 = np.arctan2(hit[0], -hit[1])
    kept = (v + np.array([0.0, -G * s2])) @ np.array([np.cos(psi2), np.sin(psi2)])
    found = []
    for t in ts:
        if t <= t1:
            psi = closed_form.pendulum([t], 0.0, speed / L, w)[0][0]
        elif t <= t2:
            found.append(flown(t - t1))
            continue
        else:
            psi = closed_form.pendulum([t - t2], psi2, kept / L, w)[0][0]
        found.append(L * np.array([np.sin(psi), -np.cos(psi)]))
    return np.array(found), (t1, t2)


def block(belt, static, kinetic, k=20.0, m=1.0):
    """A block on a moving belt, held by a spring: it sticks until the spring is stronger than friction, and slips."""
    normal = m * G
    mass, spring = lambda q, t: m * jnp.eye(1), lambda q: -k * q
    carried_along = ukjax.Nonholonomic(lambda q, v, t: v - belt)
    stuck = ukjax.Mechanism(ukjax.System(mass, lambda q, v, t: spring(q)), {"grip": carried_along})
    sliding = ukjax.Mechanism(ukjax.System(mass, lambda q, v, t: spring(q) + kinetic * normal))
    slips = ukjax.Event(lambda q, v, t, x: static * normal - jnp.abs(x["grip"][0]), "slip", multipliers=True)
    sticks = ukjax.Event(lambda q, v, t: v[0] - belt, "stick", direction="rising")
    return {"stick": ukjax.Mode(stuck, {"slips": slips}), "slip": ukjax.Mode(sliding, {"sticks": sticks})}


def stick_and_slip(belt, static, kinetic, ts, k=20.0, m=1.0):
    """In closed form: positions, and times of events, from x = 0 on the belt."""
    w, x1, middle = np.sqrt(k / m), static * m * G / k, kinetic * m * G / k
    # x = middle + A cos(w s - p) leaves (x1, belt), and is back at the belt's speed at the mirror image of x1.
    A, p = np.hypot(x1 - middle, belt / w), np.arctan2(belt / w, x1 - middle)
    slip, back = (np.pi + 2 * p) / w, 2 * middle - x1
    start, x0, times, found = 0.0, 0.0, [], np.full(len(ts), np.nan)
    while start < ts[-1]:
        t1 = start + (x1 - x0) / belt
        t2 = t1 + slip
        held, sliding = (ts >= start) & (ts <= t1), (ts > t1) & (ts <= t2)
        found[held] = x0 + belt * (ts[held] - start)
        found[sliding] = middle + A * np.cos(w * (ts[sliding] - t1) - p)
        times += [t1, t2]
        start, x0 = t2, back
    return found, np.array([t for t in times if t < ts[-1]])


SPEED = 5.8  # of the mass on the rope at its lowest point [m/s]
BELT, STATIC, KINETIC = 0.4, 0.5, 0.3  # [m/s], coefficients of friction


def runs(points: int = 801) -> dict[str, tuple[Any, np.ndarray, np.ndarray]]:
    """Name -> the motion, and the exact positions and times of events."""
    ts = np.linspace(0.0, 2.0, points)
    bouncing = ukjax.simulate_hybrid(bead(0.8), jnp.array([0.0, 1.0]), jnp.zeros(2), ts, **EXACT)
    swung = ukjax.simulate_hybrid(
        rope(), jnp.array([0.0, -1.0]), jnp.array([SPEED, 0.0]), ts, projection=ukjax.Projection(), **EXACT
    )
    slower = 2 * ts
    slipping = ukjax.simulate_hybrid(block(BELT, STATIC, KINETIC), jnp.zeros(1), jnp.array([BELT]), slower, **EXACT)
    heights, hits = bounces(1.0, G, 0.8, ts)
    places, changes = roped(SPEED, ts)
    held, grips = stick_and_slip(BELT, STATIC, KINETIC, slower)
    return {
        "bead that bounces on a wire": (bouncing, np.stack([0 * heights, heights], axis=1), hits),
        "mass on a rope": (swung, places, np.array(changes)),
        "block on a belt": (slipping, held[:, None], grips),
    }


def rows(found: dict[str, tuple[Any, np.ndarray, np.ndarray]]) -> list[tuple[str, ...]]:
    said = []
    for name, (run, places, times) in found.items():
        happened = [t for t, *_ in run.happened()]
        off = np.max(np.abs(np.asarray(run.q) - places))
        late = np.max(np.abs(np.array(happened)[: len(times)] - times))
        said.append((name, f"{len(happened)}", f"{off:.1e}", f"{late:.1e}", f"{int(run.stats['num_steps'])}"))
    return said


def figure_of(found: dict[str, tuple[Any, np.ndarray, np.ndarray]]) -> Figure:
    figure, (first, second, third) = panels(1, 3, (10.0, 3.8))
    bouncing, swung, slipping = (run for run, *_ in found.values())
    first.plot(bouncing.t, bouncing.q[:, 1], color="C0", label="bead")
    first.plot(bouncing.event_times, 0 * bouncing.event_times, "k|", ms=12, label="bounce")
    first.set(xlabel="time t [s]", ylabel="height [m]")
    for i, (name, color) in enumerate(zip(swung.modes, ("C0", "C1"), strict=True)):
        there = np.where((np.asarray(swung.mode) == i)[:, None], np.asarray(swung.q), np.nan)
        second.plot(*there.T, color=color, label=name)
    events = np.asarray(swung.event_q)[np.asarray(swung.event) >= 0]
    second.plot(*events.T, "ko", ms=4, label="event")
    second.set(xlabel="x [m]", ylabel="y [m]", aspect="equal")
    third.axhline(BELT, label="speed of the belt", **THEORY)
    third.plot(slipping.q[:, 0], slipping.v[:, 0], "C0", lw=1.2, label="block")
    third.set(xlabel="position [m]", ylabel="velocity [m/s]")
    for axis in figure.axes:
        legend_above(axis)
    return captioned(
        figure,
        "A bead that bounces on a wire, restitution 0.8; a mass on a rope; and a block on a belt, held by a spring.",
    )


def main() -> None:
    out = _report.start(__doc__ or "", "changing_constraints")
    with _report.console.status("Simulating"):
        found = runs()
    columns = ("motion", "events", "positions differ by [m]", "times of events by [s]", "steps")
    _report.table("Beside the exact motion", columns, rows(found))
    _report.save({"changing_constraints": figure_of(found)}, out)


if __name__ == "__main__":
    main()
