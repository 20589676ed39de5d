"""Pictures of linearized dynamics: a mode as a motion, and eigenvalues over a parameter.

lambda: eigenvalue [1/s]; d: change of the coordinates (n_q,), complex; q: coordinates (n_q,).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike
from matplotlib.figure import Figure

from .. import _check
from .._analysis import Modes
from .._manifold import Projection
from .._result import RESULTS
from .._scenario import Drawing, Scenario
from .._trajectory import Trajectory
from ._frame import Canvas, framed
from ._scene import check


# Largest displacement of a mode, as a part of the size of the drawing; time for which a mode that does not swing is
# shown, as a multiple of its time constant.
MOVED, SHOWN = 0.12, 3.0


def mode(
    scenario: Scenario, q: ArrayLike | Sequence[float], modes: Modes, index: int = 0, frames: int = 60
) -> tuple[Scenario, Trajectory]:
    """A mode as a scenario and a motion, the arguments of `animation` and `page`.

    The motion is large enough to be seen, and every frame is projected to the constraints. A mode that swings is shown
    for one period and without damping.

    Args:
        scenario: A scenario with a `ukjax.study.Drawing`; `t0` is the time of the linearisation.
        q: Coordinates about which it was linearised (n_q,).
        modes: `ukjax.analysis.linearize(...).modes()`.
        index: Index of the mode.
        frames: Number of positions.

    Returns:
        The scenario with links and scenery only, and the motion.

    Raises:
        TypeError: If `scenario` or `modes` has another type.
        ValueError: If there is no drawing, or no such mode, or the mode does not move the coordinates.
    """
    _check.instance(scenario, Scenario, "scenario", "ukjax.Scenario(mechanism, q0, v0, t1)")
    _check.instance(modes, Modes, "modes", "ukjax.analysis.linearize(...).modes()")
    drawing, frames = check(scenario), _check.count(frames, "frames")
    if not 0 <= index < len(modes.eigenvalues):
        raise ValueError(f"index must be one of {len(modes.eigenvalues)} modes, from 0, but is {index}.")
    value, d = complex(modes.eigenvalues[index]), modes.shapes[: modes.coordinates, index]
    if not np.any(np.abs(d) > 0):
        raise ValueError(f"index: mode {index} moves no coordinate, so that there is nothing to see.")
    q, t0 = jnp.asarray(q), jnp.asarray(scenario.t0, jnp.asarray(q).dtype)
    times, course = _course(value, frames)
    reach = _reach(drawing, q, t0, d)
    changes = jnp.asarray(MOVED * reach * np.real(course[:, None] * d[None]), q.dtype)
    placed = jax.jit(jax.vmap(lambda d: _on_constraints(scenario, q + d, t0)))(changes)
    moved: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Trajectory) if field.init)
    moved |= {"t": jnp.asarray(times), "q": placed, "stats": {}, "result": RESULTS.successful}
    plain = dataclasses.replace(drawing, forces={}, trails=())
    swings = f"{abs(value.imag) / (2 * np.pi):.4g} Hz" if value.imag else f"{value.real:.4g} 1/s"
    names = (f"{scenario.name}, mode {index + 1}: {swings}", plain)
    return eqx.tree_at(lambda s: (s.name, s.drawing), scenario, names), Trajectory(**moved)


def eigenvalues(
    parameters: ArrayLike | Sequence[float],
    values: ArrayLike | Sequence[ArrayLike],
    name: str,
    title: str = "",
    **canvas: Unpack[Canvas],
) -> Figure:
    """A figure of the real and imaginary parts of a steady motion's eigenvalues over a parameter.

    The ground is green where all real parts are negative, so that the motion is stable.

    Args:
        parameters: (N,), increasing.
        values: Eigenvalues (N, k) [1/s], in any order.
        name: Name of the parameter, with its unit: "speed [m/s]".
        title: Title above the figure.
        **canvas: `ax`, `figsize` and `style`: see `Canvas`.

    Raises:
        ValueError: If the shapes do not fit.
    """
    x, roots = np.asarray(parameters, float), np.asarray(values)
    if x.ndim != 1 or roots.ndim != 2 or roots.shape[0] != x.shape[0]:
        raise ValueError(f"values must have shape (N, k) for parameters (N,), but have {roots.shape} and {x.shape}.")
    stable = np.all(np.real(roots) < 0, axis=1)
    swinging = np.abs(np.imag(roots)) > 1e-9 * np.max(np.abs(roots))
    with framed([1, 1], (7.0, 6.4), title, canvas) as frame:
        for axis, part, label in zip(frame.axes, (np.real(roots), np.imag(roots)), ("real part", "imaginary part")):
            for which, color, kind in ((~swinging, "C0", "real"), (swinging, "C1", "in complex pairs")):
                rows, columns = np.nonzero(which)
                axis.plot(x[rows], part[rows, columns], ".", ms=3, color=color, label=kind)
            where = {"where": stable, "transform": axis.get_xaxis_transform()}
            axis.fill_between(x, 0, 1, color="#1a9f6c", alpha=0.15, lw=0, label="stable", **where)
            axis.axhline(0.0, color="k", lw=0.7)
            axis.set_ylabel(f"{label} [1/s]")
            axis.grid(visible=True, alpha=0.3)
        frame.legend(frame.axes[0], ["real", "in complex pairs", "stable"])
        return frame.finished(name)


def _course(value: complex, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Times, and the factor of the shape at each: over a period, or `SHOWN` time constants of a mode without swing."""
    if value.imag:
        times = np.arange(frames) * (2 * np.pi / abs(value.imag) / frames)
        return times, np.exp(1j * value.imag * times)
    if value.real:
        times = np.linspace(0.0, SHOWN / abs(value.real), frames)
        course = np.exp(value.real * times)
        return times, course / np.max(course)
    times = np.linspace(0.0, 1.0, frames)
    return times, times + 0j


def _reach(drawing: Drawing, q: Array, t: Array, d: np.ndarray) -> float:
    """The factor of a mode's shape at which the drawing moves by its own size."""

    def drawn(q: Array) -> list[Array]:
        return [jnp.asarray(link(q, t), q.dtype) for link in drawing.links.values()]

    points, real = jax.jvp(drawn, (q,), (jnp.asarray(np.real(d), q.dtype),))
    _, imaginary = jax.jvp(drawn, (q,), (jnp.asarray(np.imag(d), q.dtype),))
    size = max(float(jnp.max(jnp.ptp(jnp.concatenate(points), axis=0))), 1e-12)
    moved = [np.hypot(np.asarray(a), np.asarray(b)) for a, b in zip(real, imaginary, strict=True)]
    largest = max(float(np.max(x, initial=0.0)) for x in moved)
    return size / largest if largest > 0 else 1.0


def _on_constraints(scenario: Scenario, q: Array, t: Array) -> Array:
    rest = jnp.zeros_like(scenario.v0)
    state = jnp.concatenate([q, rest])
    return Projection(iterations=4)(scenario.mechanism, t, state, coordinates=q.shape[0])[: q.shape[0]]
