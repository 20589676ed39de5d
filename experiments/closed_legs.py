"""Legs with closed chains: what their rods carry in a squat, a step over a straight knee, an ankle that is found again.

The legs are those of `models.legged_chains`, from URDF texts with loops beside them.

- A leg in the shape of Digit's squats, by a servo on its six motors: torques, tension of its three rods, force of the
  ground. The energy is compared with the work of the motors, and the mean force of the ground with the weight.
- A pelvis moves over a foot that turns on the ground, while the motor of the knee takes the knee through the straight
  leg. The derivatives of where the pelvis is in the end, in forward and in reverse mode, are compared with differences
  between robots that are built anew. Who takes the knee's angle from the place of the hip has no derivative there.
- An ankle in the shape of Kangaroo's, on two struts, moves under known forces; the lengths of its struts are measured,
  with noise. `ukjax.tune` fits mass and centre of mass of the foot, and where a ball is, from the numbers of the text.

    python -m experiments.closed_legs [--out DIR]

Sources: Hubicki et al. (2016), ATRIAS; Roig et al. (2022), Kangaroo, for the shapes. The numbers are made up.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from matplotlib.figure import Figure
from scipy.integrate import simpson

import ukjax
from models import legged_chains
from models.legged_chains import BASE
from ukjax import rigid

from . import _identification, _report
from ._figures import captioned, legend, over_time, panels
from ._identification import Control, Sample, matrix


G = 9.81

# The squat.

RODS = ("achilles", "toe_left", "toe_right")
POSES = 3


class Squat(NamedTuple):
    """A squat at its saved times: tension of each rod (T,) and force of the ground (T,) [N]."""

    case: ukjax.Scenario
    run: ukjax.Trajectory
    tension: Mapping[str, np.ndarray]
    ground: np.ndarray
    weight: float  # [N]
    missed_work: float  # largest difference between energy and work [J]

    @property
    def mean_ground(self) -> float:
        """The mean over the squat; points that are evenly spread integrate what is periodic exactly."""
        return float(np.mean(self.ground[:-1]))


def squat(points: int = 161) -> Squat:
    """One squat of 1 s."""
    chain, case = legged_chains.standing_leg(), legged_chains.squat(t1=1.0)
    robot: Any = case.mechanism.system
    run = case.simulate(jnp.linspace(0.0, case.t1, points), keep="all")
    forces = robot.reactions_along(run, motors=robot.motor_names, axes="ground")
    tension = {}
    for rod in chain.rods:
        if rod.name in RODS:
            turned = jax.vmap(lambda q, name=rod.name: robot.pose(q, name).R)(run.q)
            along = np.asarray(turned) @ (np.subtract(rod.to, rod.at) / np.linalg.norm(np.subtract(rod.to, rod.at)))
            # At its upper end, a rod under tension is pulled away from its lower one.
            tension[rod.name] = -np.sum(np.asarray(forces[f"{rod.name}_joint"].force) * along, axis=1)
    (ground,) = (f"loop{i}" for i, loop in enumerate(chain.closed) if loop.other == BASE)
    # The child of that joint is the ground.
    upwards = -np.asarray(forces[ground].force)[:, 2]
    return Squat(case, run, tension, upwards, G * sum(rod.mass for rod in chain.rods), missed_work(robot, run))


def missed_work(robot: rigid.Robot, run: ukjax.Trajectory) -> float:
    """The largest difference between what the energy grew by and the work of the motors [J]."""
    power = np.sum(np.asarray(run.v) @ matrix(robot) * run.control, axis=1)
    energy = np.asarray(jax.vmap(robot.energy)(run.q, run.v, run.t))
    # Simpson's rule, over every even number of intervals.
    work = [simpson(power[: k + 1], x=run.t[: k + 1]) for k in range(2, len(power), 2)]
    return float(np.max(np.abs(energy[2::2] - energy[0] - work)))


def squat_rows(found: Squat) -> list[tuple[str, str]]:
    range_of = lambda x: f"{np.min(x):.1f} to {np.max(x):.1f}"
    torque = np.asarray(found.run.control)
    rows = [(f"torque of {name}", range_of(x)) for name, x in zip(found.case.controls or (), torque.T, strict=True)]
    rows += [(f"tension of {name} [N]", range_of(x)) for name, x in found.tension.items()]
    return [
        *rows,
        ("force of the ground [N]", range_of(found.ground)),
        ("its mean less the weight [N]", f"{found.mean_ground - found.weight:.1e} of {found.weight:.2f}"),
        ("energy less the work of the motors [J]", f"{found.missed_work:.1e} at most"),
    ]


def squat_figure(found: Squat) -> Figure:
    t = np.asarray(found.run.t)
    labels = "height of the pelvis [m]", "torque [N m]", "tension [N]", "force of the ground [N]"
    figure, axes = over_time(*labels, height=8.0)
    axes[0].plot(t, found.run.q[:, 0], color="k")
    for name, torque in zip(found.case.controls or (), np.asarray(found.run.control).T, strict=True):
        if np.max(np.abs(torque)) > 1e-6:
            axes[1].plot(t, torque, "--" if "right" in name else "-", label=f"motor of {name.removesuffix(' [N m]')}")
    for i, (name, tension) in enumerate(found.tension.items()):
        axes[2].plot(t, tension, "--" if "right" in name else "-", color=f"C{i + 4}", label=f"rod {name}")
    axes[3].plot(t, found.ground, color="k")
    axes[3].axhline(found.weight, color="0.6", ls=":", label="weight")
    legend(figure)
    return captioned(figure, "A squat: height, torques, what the rods carry (less than zero: pushed), and the ground.")


def poses_figure(found: Squat) -> Figure:
    """The leg from the side, standing, half way down, and down."""
    figure, axes = panels(1, POSES, (7.4, 4.6), sharex=True, sharey=True)
    links = found.case.drawing.links  # pyright: ignore[reportOptionalMemberAccess]
    for axis, t in zip(axes, np.linspace(0.0, 0.5, POSES), strict=True):
        k = int(np.argmin(np.abs(np.asarray(found.run.t) - t)))
        for name, link in links.items():
            x = np.asarray(link(found.run.q[k], found.run.t[k]))
            carries = next((rod for rod in RODS if name == rod), None)
            axis.plot(x[:, 0], x[:, 2], "-o", ms=3, lw=2.5 if carries else 1.5, color="C3" if carries else "0.45")
        axis.set_title(f"t = {t:g} s", fontsize="medium")
        axis.set_xlabel("x [m]")
        axis.set_aspect("equal")
    axes[0].set_ylabel("z [m]")
    return captioned(figure, "The leg from the side; its rods are red. The line from top to foot is the ground.")


# The step over a straight knee.

T1 = 0.6  # [s]
KNEE = 0.3  # at the start, and its opposite at the end [rad]
LEAN, RATE = -0.45, 1.4  # of the thigh at the start [rad], [rad/s]
NUMBERS = ("mass of the pelvis [kg]", "height of the knee [m]", "knee at the start [rad]", "rate of the thigh [rad/s]")
AT = (20.0, 0.45, KNEE, RATE)
PLACES = ("x", "z")


def with_numbers(robot: rigid.Robot, pelvis: Any, knee: Any) -> rigid.Robot:
    """The robot of `legged_chains.knee_leg`, with another mass, and with the knee at another height."""
    body: Any = lambda r: (r.bodies["pelvis"].inertia.mass, r.bodies["pelvis"].inertia.moments)
    mass, moments = body(robot)
    robot = eqx.tree_at(body, robot, (pelvis, pelvis / mass * moments))
    places = lambda r: (
        r.bodies["thigh"].frames["to_shin_joint"].position, r.bodies["shin"].frames["to_loop0_A"].position,
    )  # fmt: skip
    below = [jnp.stack([jnp.zeros_like(z), jnp.zeros_like(z), z]) for z in (knee - 0.9, -knee)]
    return eqx.tree_at(places, robot, below)


def step(numbers: Any, robot: rigid.Robot | None = None, points: int = 2) -> ukjax.Trajectory:
    """The motion of a pelvis over its foot, with `NUMBERS` (4,), of which a robot that is given has the first two."""
    mass, height, knee, rate = numbers
    if robot is None:
        robot = with_numbers(legged_chains.knee_leg().robot(), mass, height)
    way = lambda t: knee * jnp.cos(jnp.pi * t / T1)
    off = ukjax.Holonomic(lambda q, t: (robot.coordinate(q, "shin_joint") - way(t))[None])
    q0, v0 = _over_the_foot(robot, jnp.stack([jnp.asarray(LEAN), knee]), jnp.stack([rate, jnp.zeros_like(rate)]))
    return ukjax.simulate(
        robot.mechanism(), q0, v0, jnp.linspace(0.0, T1, points), servo=ukjax.Servo(off, robot.actuation()),
        keep=("q", "control"), rtol=1e-11, atol=1e-11, throw=False,
    )  # fmt: skip


def _over_the_foot(robot: rigid.Robot, angles: Any, rates: Any) -> tuple[Any, Any]:
    """q and v (4,) of thigh and shin at these angles and rates (2,), the foot where the ground holds it."""

    def whole(angles):
        foot = robot.position(jnp.concatenate([jnp.zeros(2), angles]), "shin.to_loop0_A")
        return jnp.concatenate([-foot[jnp.array([0, 2])], angles])

    return jax.jvp(whole, (angles,), (rates,))


def end(numbers: Any, robot: rigid.Robot | None = None) -> Any:
    """Where the pelvis is in the end, x and z (2,) [m]."""
    q = step(numbers, robot).q
    assert q is not None
    return q[-1, :2]


class Straight(NamedTuple):
    """Derivatives of where the pelvis is in the end (2, 4), three ways; and those at the straight knee."""

    forward: np.ndarray
    reverse: np.ndarray
    differences: np.ndarray
    at_straight: np.ndarray  # accelerations by angles and rates at the straight knee (4, 4)
    at_straight_differences: np.ndarray
    by_inverse_kinematics: float  # derivative of the knee's angle by the height of the hip, at the straight knee


def straight(h: float = 1e-5) -> Straight:
    at = jnp.array(AT)
    forward, reverse = (np.asarray(jax.jit(way(end))(at)) for way in (jax.jacfwd, jax.jacrev))
    anew = jax.jit(lambda robot, x: end(x, robot))
    columns = []
    for i in range(len(AT)):
        ends = []
        for sign in (1, -1):
            x = np.array(AT)
            x[i] += sign * h
            # A robot of a text of its own.
            ends.append(np.asarray(anew(legged_chains.knee_leg(*map(float, x[:2])).robot(), jnp.asarray(x))))
        columns.append((ends[0] - ends[1]) / (2 * h))
    robot = legged_chains.knee_leg().robot()

    def acceleration(x):
        q, v = _over_the_foot(robot, x[:2], x[2:])
        return ukjax.equation_of_motion(robot.mechanism(), q, v, throw=False).acceleration

    x = jnp.array([0.1, 0.0, RATE, -1.5])
    found = jax.jit(acceleration)
    differences = [(found(x.at[i].add(h)) - found(x.at[i].add(-h))) / (2 * h) for i in range(4)]
    return Straight(
        forward, reverse, np.stack(columns, axis=1), np.asarray(jax.jacrev(found)(x)), np.stack(differences, axis=1),
        float(jax.grad(knee_of_height)(0.9)),
    )  # fmt: skip


def knee_of_height(z: Any) -> Any:
    """The angle of a knee between two links of 0.45 m whose hip is at the distance z [m] from the foot."""
    return jnp.pi - jnp.arccos(1 - z**2 / (2 * 0.45**2))


def straight_rows(found: Straight) -> list[tuple[str, ...]]:
    rows = []
    for i, place in enumerate(PLACES):
        for j, number in enumerate(NUMBERS):
            values = (way[i, j] for way in (found.forward, found.reverse, found.differences))
            rows.append((f"{place} by {number}", *(f"{value:.9f}" for value in values)))
    return rows


def knee_figure(points: int = 121) -> Figure:
    """The leg on its way, and the angle of its knee."""
    robot, run = legged_chains.knee_leg().robot(), step(jnp.array(AT), points=points)
    assert run.q is not None
    assert run.control is not None
    t = run.t
    figure, (left, right) = panels(1, 2, (7.4, 4.0))
    joint = jax.vmap(lambda q: jnp.stack([robot.position(q, x) for x in ("thigh", "shin", "shin.to_loop0_A")]))(run.q)
    for k in np.linspace(0, points - 1, 9).astype(int):
        left.plot(joint[k, :, 0], joint[k, :, 2], "-o", ms=3, color=str(0.75 * (1 - k / points)))
    left.set(xlabel="x [m]", ylabel="z [m]", aspect="equal")
    right.plot(t, run.q[:, 3], label="angle of the knee [rad]")
    right.plot(t, run.control[:, 0] / 100, "--", label="torque of its motor [100 N m]")
    right.axhline(0.0, color="0.6", lw=0.8)
    right.set(xlabel="time t [s]", ylabel="angle [rad], torque [100 N m]")
    right.margins(x=0.0)
    legend(figure, [right])
    return captioned(figure, "A pelvis over its foot, later ones darker: the knee passes the straight leg.")


# The ankle.

END, POINTS, STEPS = 1.5, 61, 150
SIGMA = 2e-5  # standard deviation of a measured length [m]
STIFFNESS, DAMPING = (4000.0, 4000.0), (120.0, 120.0)  # of the struts' control [N/m, N s/m]


class Number(NamedTuple):
    """A number of the robot: its leaf, the entry if that is a vector, and what it truly is, less what the text says."""

    name: str
    leaf: Callable[[rigid.Robot], Any]
    entry: int | None
    off: float


FITTED = (
    Number("mass of the foot [kg]", lambda r: r.bodies["foot"].inertia.mass, None, 0.25),
    Number("its centre of mass, x [m]", lambda r: r.bodies["foot"].inertia.center, 0, 0.015),
    Number("its centre of mass, y [m]", lambda r: r.bodies["foot"].inertia.center, 1, -0.008),
    Number("place of the left ball, x [m]", lambda r: r.bodies["foot"].frames["to_loop0_B"].position, 0, 0.003),
)


def changed(robot: rigid.Robot, offs: Any) -> rigid.Robot:
    """The robot with the numbers that are fitted larger by `offs` (p,)."""
    for number, off in zip(FITTED, offs, strict=True):
        leaf = number.leaf(robot)
        robot = eqx.tree_at(number.leaf, robot, leaf + off if number.entry is None else leaf.at[number.entry].add(off))
    return robot


def rest(robot: rigid.Robot) -> Any:
    """q (8,) with the struts at zero, the others as the loops want them: differentiable, as `assemble` is not."""
    held = matrix(robot).T

    def open_by(q, _):
        gaps = [robot.position(q, f"piston_{side}.to_loop{i}_A") - robot.position(q, f"foot.to_loop{i}_B")
                for i, side in enumerate(("left", "right"))]  # fmt: skip
        return jnp.concatenate([*gaps, held @ q])

    return optx.root_find(open_by, optx.Newton(1e-12, 1e-12), jnp.zeros(8)).value


def lengths(robot: rigid.Robot, sample: Sample, steps: int = STEPS) -> Any:
    """By how much the struts are longer (POINTS, 2) [m]."""
    control = Control(robot, sample, STIFFNESS, DAMPING)
    return _identification.motion(control, rest(robot), END, POINTS, steps) @ matrix(robot)


def fitted_motion(offs: Any, sample: Sample) -> Any:
    return lengths(changed(legged_chains.kangaroo_ankle().robot(), offs), sample)


def measurements(count: int = 6, seed: int = 0) -> Sample:
    """Motions of the robot as it truly is, in steps a quarter as long, with noise."""
    rng = np.random.default_rng(seed)
    told = Sample(jnp.asarray(rng.uniform(0.01, 0.02, (count, 2))), jnp.asarray(rng.uniform(6.0, 20.0, (count, 2))))
    robot = changed(legged_chains.kangaroo_ankle().robot(), jnp.array([number.off for number in FITTED]))
    exact = jax.jit(jax.vmap(lambda s: lengths(robot, s, 4 * STEPS)))(told)
    return Sample(told.amplitude, told.frequency, exact + jnp.asarray(rng.normal(0.0, SIGMA, exact.shape)))


def problem(steps: int = 20, seed: int = 0) -> ukjax.tuning.TuningProblem:
    """Fits the four numbers, from those of the text."""

    def residuals(offs, sample):
        return jnp.ravel((fitted_motion(offs, sample) - sample.measured) / SIGMA)

    return ukjax.tuning.TuningProblem(
        residuals, jnp.zeros(len(FITTED)), ukjax.tuning.LevenbergMarquardt(), steps, name="An ankle from its motion",
        samples=measurements(seed=seed), rtol=1e-7,
    )  # fmt: skip


def fitted_rows(task: ukjax.tuning.TuningProblem, found: Any) -> list[tuple[str, ...]]:
    precision = _identification.information(fitted_motion, found, task.samples, SIGMA)
    spread, robot, rows = np.sqrt(np.diag(np.linalg.inv(precision))), legged_chains.kangaroo_ankle().robot(), []
    for number, off, deviation in zip(FITTED, np.asarray(found), spread, strict=True):
        leaf = np.asarray(number.leaf(robot))
        text = float(leaf if number.entry is None else leaf[number.entry])
        sizes = f"{text + number.off:.5f}", f"{text:.5f}", f"{text + off:.5f}", f"{deviation:.5f}"
        rows.append((number.name, *sizes, f"{(off - number.off) / deviation:+.1f}"))
    return rows


def ankle_figure(task: ukjax.tuning.TuningProblem, found: Any) -> Figure:
    sample = jax.tree_util.tree_map(lambda x: x[0], task.samples)
    t, motion = np.linspace(0.0, END, POINTS), jax.jit(fitted_motion)
    figure, axes = over_time(*(f"{side} strut longer by [mm]" for side in ("left", "right")), "measured - fit [mm]")
    runs = {name: np.asarray(motion(x, sample)) for name, x in (("text", jnp.zeros(len(FITTED))), ("fit", found))}
    for i, axis in enumerate(axes[:2]):
        axis.plot(t, 1e3 * sample.measured[:, i], "o", ms=4, color="0.75", label="measured")
        for (name, run), style in zip(runs.items(), ("--", "-"), strict=True):
            axis.plot(t, 1e3 * run[:, i], style, label=name)
    axes[2].plot(t, 1e3 * (np.asarray(sample.measured) - runs["fit"]), ".-", lw=0.6)
    axes[2].axhspan(-2e3 * SIGMA, 2e3 * SIGMA, color="0.85", zorder=0, label="2 standard deviations of the noise")
    legend(figure)
    return captioned(figure, "First of the motions that were measured: the ankle's struts before and after the fit.")


def main(down: Squat | None = None, found: Straight | None = None) -> None:
    """Runs everything, but for results that are given."""
    out = _report.start(__doc__ or "", "closed_legs")
    with _report.console.status("A squat; its first run compiles for about a minute"):
        down = down or squat()
    _report.table("A squat of a leg with three rods", ("", "found"), squat_rows(down))
    with _report.console.status("A step over a straight knee, and its derivatives"):
        found = found or straight()
    columns = ("where the pelvis is in the end", "forward mode", "reverse mode", "robots built anew")
    _report.table("Derivatives of a step over a straight knee", columns, straight_rows(found))
    off = np.max(np.abs(found.at_straight - found.at_straight_differences))
    _report.console.print(
        f"At the straight knee: Jacobian of the accelerations, off differences by {off:.1e} of "
        f"{np.max(np.abs(found.at_straight)):.1f}; derivative of the knee's angle by the height of the hip: "
        f"{found.by_inverse_kinematics}.",
        highlight=False,
    )
    with _report.console.status("Measuring the ankle"):
        task = problem()
    _report.console.print("Fitting; the first step compiles the Jacobian.")
    tuning = task.tune()
    columns = ("", "true", "start: the text", "found", "standard deviation", "off by, in these")
    _report.table("An ankle found again from the lengths of its struts", columns, fitted_rows(task, tuning.params))
    with _report.console.status("Pictures"):
        drawn = {"squat": squat_figure(down), "poses": poses_figure(down), "knee": knee_figure(),
                 "ankle": ankle_figure(task, tuning.params)}  # fmt: skip
    _report.save(drawn, out)


if __name__ == "__main__":
    main()
