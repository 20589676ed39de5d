"""Figures of a trajectory, of a tuning, of modes and eigenvalues; many pictures in one figure.

lambda: eigenvalue [1/s]; d: change of the coordinates (n_q,), complex; q: coordinates (n_q,).
"""

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
from jaxtyping import Array, ArrayLike
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import _check
from .._analysis import Modes
from .._coordinate import Coordinate, by_unit, named
from .._dataset import Labels
from .._manifold import Projection
from .._result import RESULTS
from .._scenario import Drawing, Scenario
from .._trajectory import Trajectory
from .._tune import Tuning
from . import _stage
from ._frame import Canvas, Picture, framed, listed, placed
from ._stage import Scene, check, scene


TIME = "time t [s]"


def overview(
    trajectory: Trajectory,
    coordinates: Sequence[str] | None = None,
    title: str = "",
    speeds: Sequence[str] | None = None,
    **canvas: Unpack[Canvas],
) -> Figure:
    """A figure of coordinates, their rates, constraint forces and constraint errors over time.

    There is a panel for each unit; none for forces and errors of a mechanism without constraints, nor for a field that
    `simulate(keep=...)` left out.

    Args:
        trajectory: One trajectory, not a batch.
        coordinates: Names with units, `Coordinate("q1", "rad")` or "q1 [rad]"; those of the trajectory if omitted.
        title: Title above the figure.
        speeds: Likewise for each speed, if speeds are not the rates of the coordinates.
        **canvas: `ax`, `figsize` and `style`: see `Canvas`.

    Raises:
        TypeError: If `trajectory` has another type.
        ValueError: If it is a batch, names do not fit, or there is nothing to draw; and what `Canvas` raises.
    """
    _check_one(trajectory)
    labels, fields = Labels.of(trajectory, coordinates, None, speeds), vars(trajectory)
    constrained = _is_constrained(trajectory)
    about = {"q": ("", "coordinates"), "v": ("rate of ", "rates") if labels.speeds is None else ("", "speeds")}
    about |= {"constraint_force": ("constraint force of ", "constraint forces")} if constrained else {}
    kept = {field: by_unit(labels.of_field(field)) for field in about if fields[field] is not None}
    errors = {name: fields[f"{name}_residual"] for name in ("position", "velocity")} if constrained else {}
    errors = {name: x for name, x in errors.items() if x is not None and np.any(np.asarray(x) > 0)}
    rows = [*map(len, kept.values()), *[1] * bool(errors)]
    if not rows:
        raise ValueError("There is nothing to draw of the trajectory: simulate with keep=('q', 'v').")
    with framed(rows, (4.2 * max(rows) + 0.8, 2.3 * len(rows) + 0.3), title, canvas) as frame:
        panels = iter(range(sum(rows)))
        for field, units in kept.items():
            before, many = about[field]
            for unit, members in units.items():
                names = labels.of_field(field)
                curves = {names[i].name: fields[field][:, i] for i in members}
                what = listed(list(curves), before, many)
                frame.curves(next(panels), trajectory.t, curves, what, unit, from_zero=field != "q")
        if errors:
            frame.errors(next(panels), trajectory.t, errors, "constraint error (norm, SI)")
        return frame.finished(TIME)


def _check_one(trajectory: Trajectory) -> None:
    _check.instance(trajectory, Trajectory, "trajectory", "ukjax.simulate(...)")
    if np.ndim(trajectory.t) != 1:
        raise ValueError(f"A picture takes one trajectory, not a batch of {len(trajectory.t)}: index the batch first.")


def _is_constrained(trajectory: Trajectory) -> bool:
    """Whether there are constraints, as far as the fields tell that were kept."""
    fields = vars(trajectory)
    if fields["rank"] is not None:
        return bool(np.any(np.asarray(fields["rank"]) > 0))
    others = (fields[name] for name in ("constraint_force", "position_residual", "velocity_residual"))
    return any(bool(np.any(np.nan_to_num(x))) for x in others if x is not None)


def components(
    t: ArrayLike | Sequence[float],
    values: ArrayLike | Sequence[ArrayLike],
    name: str,
    title: str = "",
    **canvas: Unpack[Canvas],
) -> Figure:
    """A figure of a quantity over time, one curve per component.

    Args:
        t: Times (T,) [s].
        values: (T,) or (T, k).
        name: `Coordinate` or text: name of the quantity, its components if there are more than one, and its unit, as in
            "tool x, y, z [m]". Components that are not listed are numbered.
        title: Title above the figure.
        **canvas: `ax`, `figsize` and `style`: see `Canvas`.

    Raises:
        ValueError: If the shapes do not fit.
    """
    try:
        t, values = np.asarray(t, float), np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"t and values must be numbers: {error}.") from error
    if t.ndim != 1 or not len(t) or values.ndim not in (1, 2) or len(values) != len(t):
        raise ValueError(f"values must have shape (T,) or (T, k) for t (T,), but have {values.shape} for {t.shape}.")
    values = values.reshape(len(t), -1)
    quantity = Coordinate(name)
    labels = quantity.parts
    if len(labels) != values.shape[1]:
        labels = [f"component {i + 1}" for i in range(values.shape[1])]
    with framed([1], (7.0, 3.8), title, canvas) as frame:
        frame.curves(0, t, dict(zip(labels, values.T)), quantity.name, quantity.unit, from_zero=True)
        return frame.finished(TIME)


def controls(
    trajectory: Trajectory,
    names: Sequence[str],
    title: str = "",
    **canvas: Unpack[Canvas],
) -> Figure:
    """A figure of the control of every actuator over time, and of the errors of the servo constraints if there are any.

    Args:
        trajectory: One trajectory, with a servo or a controller.
        names: A name with unit for each actuator, as text or `Coordinate`; actuators of one unit share an axis.
        title: Title above the figure.
        **canvas: `ax`, `figsize` and `style`: see `Canvas`.

    Raises:
        TypeError: If `trajectory` has another type.
        ValueError: If it is a batch or has no control, or names do not fit.
    """
    _check_one(trajectory)
    if trajectory.control is None:
        raise ValueError("trajectory must have a control: simulate with servo=.")
    control = np.asarray(trajectory.control)
    actuators = named(names, control.shape[1], "u", "names, actuator")
    errors = {
        "position": trajectory.servo_position_residual,
        "velocity": trajectory.servo_velocity_residual,
        "acceleration": trajectory.servo_residual,
    }
    errors = {name: x for name, x in errors.items() if x is not None and np.any(np.asarray(x) > 0)}
    groups = by_unit(actuators)
    rows = [1] * (len(groups) + bool(errors))
    with framed(rows, (7.4, 2.8 * len(rows)), title, canvas) as frame:
        for i, (unit, members) in enumerate(groups.items()):
            curves = {actuators[k].name: control[:, k] for k in members}
            frame.curves(i, trajectory.t, curves, listed(list(curves), "", "controls"), unit, from_zero=True)
        if errors:
            frame.errors(len(groups), trajectory.t, errors, "servo error (norm, SI)")
        return frame.finished(TIME)


def energy(
    scenario: Scenario,
    trajectory: Trajectory,
    title: str = "",
    **canvas: Unpack[Canvas],
) -> Figure:
    """A figure of kinetic energy v M v / 2, and of the power of the ideal constraint forces, over time.

    The power is zero where no constraint moves with time, so it shows the work of drives. Where it is zero there is no
    panel for it.

    Args:
        scenario: The scenario with the mass matrix.
        trajectory: One trajectory, not a batch.
        title: Title above the figure.
        **canvas: `ax`, `figsize` and `style`: see `Canvas`.

    Raises:
        TypeError: If `scenario` or `trajectory` has another type.
        ValueError: If the trajectory is a batch.
    """
    _check.instance(scenario, Scenario, "scenario", "ukjax.Scenario(mechanism, q0, v0, t1)")
    _check_one(trajectory)
    q, v, t = trajectory.q, trajectory.v, trajectory.t
    kinetic = jax.jit(jax.vmap(lambda q, v, t: v @ scenario.mechanism.system.mass(q, t) @ v / 2))(q, v, t)
    powers = np.asarray(trajectory.constraint_force) * np.asarray(v)
    power = np.sum(powers, axis=1)
    drives = np.max(np.abs(power)) > 1e-9 * np.max(np.abs(powers), initial=0.0)
    with framed([1] * (1 + bool(drives)), (7.0, 5.6 if drives else 3.8), title, canvas) as frame:
        frame.curves(0, t, {"": kinetic}, "kinetic energy", "J", from_zero=True)
        if drives:
            frame.curves(1, t, {"": power}, "power of constraint forces", "W", from_zero=True)
        return frame.finished(TIME)


def path(
    scenario: Scenario,
    trajectory: Trajectory,
    positions: int = 6,
    title: str = "",
    **canvas: Unpack[Canvas],
) -> Figure:
    """The mechanism in a few positions, later ones darker, with trails, constraint forces and scenery; axes are equal.

    Args:
        scenario: A scenario with a `ukjax.study.Drawing`.
        trajectory: Its motion, one trajectory, not a batch.
        positions: Number of positions, evenly spaced in time, from start to end.
        title: Title above the figure.
        **canvas: `ax`, `figsize` and `style`: see `Canvas`.

    Raises:
        TypeError: If `scenario` or `trajectory` has another type.
        ValueError: If there is no drawing, the trajectory is a batch, `positions` is no positive integer, or a function
            of the drawing returns a wrong shape.
    """
    _check.count(positions, "positions")
    seen = scene(scenario, trajectory)
    with placed(canvas) as (ax, figsize):
        figure, axis = _stage.stage(seen, title, ax, figsize)
        _draw_path(axis, seen, positions)
        return figure


def _draw_path(axis: Axes, seen: Scene, positions: int) -> None:
    """Draws positions from the first to the last one, with trails, and names their times."""
    shown = np.unique(np.linspace(0, len(seen.t) - 1, positions).round().astype(int))[::-1]
    for name, points in seen.trails.items():
        _stage.trail(axis, seen, name, points)
    vectors = seen.vectors
    # Opacity is 0.2 for the first position and 1 for the last, which is drawn first so that it hides no other.
    for i, alpha in zip(shown, np.linspace(1.0, 0.2, len(shown))):
        for name, points in seen.links.items():
            _stage.link(axis, seen, name, points[i], alpha)
        for name, (at, along) in vectors.items():
            _stage.arrow(axis, seen, name, _stage.outline(seen, at[i], along[i]), alpha)
    times = ", ".join(f"{seen.t[i]:.3g}" for i in shown[::-1])
    _stage.caption(axis, f"t = {times} s, later ones darker", "small")


PNG = b"\x89PNG"
COLUMNS = 6
CELL = (2.6, 2.8)  # size of a picture with its caption [in]
LETTERS = 46  # most letters in a line of a caption


def contact_sheet(pictures: Sequence[bytes], captions: Sequence[str], columns: int = COLUMNS) -> Figure:
    """PNG pictures side by side in rows, each with a caption above.

    Args:
        pictures: PNG files, as bytes.
        captions: A text for each picture.
        columns: Pictures in a row.

    Raises:
        ValueError: If there are no pictures, a picture is no PNG file, captions and pictures differ in number, or
            `columns` is no positive integer.
    """
    _check.count(columns, "columns")
    if not pictures or not all(isinstance(one, bytes) and one.startswith(PNG) for one in pictures):
        raise ValueError("pictures must be at least one PNG file, as bytes: pass path.read_bytes() of each.")
    if len(captions) != len(pictures):
        raise ValueError(f"captions must be as many as pictures, {len(pictures)}, but are {len(captions)}.")
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    figure = Picture(figsize=(CELL[0] * columns, CELL[1] * rows), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for axis in axes:
        axis.axis("off")
    for axis, picture, caption in zip(axes, pictures, captions, strict=False):
        axis.imshow(matplotlib.image.imread(BytesIO(picture), format="png"), interpolation="antialiased")
        lines = (textwrap.fill(line, LETTERS) for line in caption.splitlines())
        axis.set_title("\n".join(lines), fontsize=7, pad=2)
    figure.set_dpi(160)
    return figure


def convergence(
    tuning: Tuning,
    quantities: Mapping[str, np.ndarray],
    title: str = "",
    **canvas: Unpack[Canvas],
) -> Figure:
    """A figure of loss, norm of the gradient, and tuned quantities over the steps; the best step is marked.

    Args:
        tuning: The result of `ukjax.tune`.
        quantities: "name [unit]" or `Coordinate` -> value at every step; quantities of one unit share an axis.
        title: Title above the figure.
        **canvas: `ax`, `figsize` and `style`: see `Canvas`.

    Raises:
        TypeError: If `tuning` has another type.
    """
    _check.instance(tuning, Tuning, "tuning", "ukjax.tune(...)")
    given = {Coordinate(name): values for name, values in quantities.items()}
    names = list(given)
    over_all = np.isfinite(tuning.full_losses)
    losses = {"over all samples": np.where(over_all, tuning.full_losses, np.nan)}
    if not np.array_equal(tuning.full_losses, tuning.losses, equal_nan=True):
        losses = {"of the minibatch": tuning.losses} | losses
    groups, steps = by_unit(names), np.arange(len(tuning.losses))
    rows = [1] * (len(groups) + 2)
    with framed(rows, (7.0, 2.1 * len(rows) + 0.6), title, canvas) as frame:
        frame.curves(0, steps, losses, "loss", "")
        frame.curves(1, steps, {"": tuning.gradient_norms}, "norm of gradient", "")
        for axis, values in zip(frame.axes, (tuning.losses, tuning.gradient_norms)):
            _scale(axis, values)
        for i, (unit, members) in enumerate(groups.items(), 2):
            curves = {names[k].name: given[names[k]] for k in members}
            frame.curves(i, steps, curves, listed(list(curves), "", "tuned quantities"), unit)
        for axis in frame.axes:
            axis.axvline(tuning.step, color="k", ls=":", lw=0.8)
        return frame.finished(f"step of the optimiser (best: {tuning.step})")


def _scale(axis: Axes, values: np.ndarray) -> None:
    """Makes an axis logarithmic if all values are positive and span more than a power of ten."""
    finite = values[np.isfinite(values)]
    if finite.size and finite.min() > 0 and finite.max() > 10 * finite.min():
        axis.set_yscale("log")


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
