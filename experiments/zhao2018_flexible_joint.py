"""Zhao et al. (2018), section 8.3: the flexible-joint manipulator that is to keep q2' + q4' = 0.

Draws the counterparts of figures 10 and 11 and prints "paper says | we measure". Eq. 72 leaves open where its u acts:

- on the links, with K (q1 - q2) where the paper prints q1: beta decays as exp(-t / P), as the paper shows;
- the same decay written into b and enforced by an ideal force: the same beta, another motion;
- as a virtual control K q2 of the links, from which the motors' torque follows by inverse dynamics: the same beta;
- as the motors' torque u of eq. 66, literally: beta is not controlled at all.

    python -m experiments.zhao2018_flexible_joint [--out DIR]

Source: Chinese Journal of Mechanical Engineering 31, section 8.3, eq. 66 to 72.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ukjax
from models.flexible_joint import ON_MOTORS, FlexibleJoint, following, scenario, virtual_control

from . import _report
from ._figures import captioned, legend, over_time


P = 0.25  # [s]; not printed, but "no more than 2 s" agrees with it
T_END = 5.0


def run(mechanism: ukjax.Mechanism, servo: Any = None, n: int = 4) -> ukjax.Trajectory:
    """From the paper's start, off the constraint by 0.9 rad/s."""
    v0 = jnp.zeros(n).at[:2].set(jnp.array([1.0, -0.1]))
    ts = jnp.linspace(0.0, T_END, 501)
    return ukjax.simulate(mechanism, jnp.zeros(n), v0, ts, servo=servo, rtol=1e-10, atol=1e-10)


def ideal(model: FlexibleJoint) -> ukjax.Mechanism:
    """beta' = -beta / P in b, enforced by an ideal constraint force."""
    return ukjax.Mechanism(model, ukjax.Nonholonomic(model.turning, ukjax.Baumgarte(1 / P)))


def motor_torque(model: FlexibleJoint) -> ukjax.Mechanism:
    """Eq. 72 as the torque of the motors."""
    plain, law = ukjax.Mechanism(model), following(model, P)
    torque = lambda q, v, t: jnp.array(ON_MOTORS) @ ukjax.servo_control(plain, law, q, v, t, throw=False).u
    return ukjax.Mechanism(ukjax.System(model.mass, lambda q, v, t: model.force(q, v, t) + torque(q, v, t)))


def links(model: FlexibleJoint) -> tuple[ukjax.Mechanism, ukjax.ConstraintFollowing]:
    """The links alone, with K q2 as their control."""
    turning = ukjax.Nonholonomic(lambda q, v, t: (v[0] + v[1])[None])
    return model.links(), ukjax.ConstraintFollowing(turning, jnp.eye(2), P)


def virtual_motor(model: FlexibleJoint, trajectory: ukjax.Trajectory) -> np.ndarray:
    """Torque of the motors (T, 2) [N m] that makes K q2 the control: J q2'' - K (q1 - q2)."""
    mechanism, _ = links(model)
    wanted = virtual_control(model, P)

    def motor(y):
        return wanted(y[:2], y[2:])

    def flow(y):
        push = model.K * motor(y)
        motion = ukjax.equation_of_motion(mechanism, y[:2], y[2:], applied=push, throw=False)
        return jnp.concatenate([y[2:], motion.acceleration])

    def torque(y):
        rate = lambda y: jax.jvp(motor, (y,), (flow(y),))[1]
        acceleration = jax.jvp(rate, (y,), (flow(y),))[1]
        return model.J * acceleration - model.K * (y[:2] - motor(y))

    return np.asarray(jax.jit(jax.vmap(torque))(jnp.concatenate([trajectory.q, trajectory.v], axis=1)))


def beta(trajectory: ukjax.Trajectory) -> np.ndarray:
    """[rad/s]"""
    return np.asarray(trajectory.v[:, 0] + trajectory.v[:, 1])


def rows(runs: dict[str, ukjax.Trajectory], motor: np.ndarray) -> list[tuple[str, str, str]]:
    """The table: quantity, what the paper says, what we measure."""
    on_links = runs["on the links"]
    t = np.asarray(on_links.t)
    theory = 0.9 * np.exp(-t / P)
    late = np.abs(beta(on_links)) < 0.009
    names = ("on the links", "ideal force", "virtual control")
    errors = "; ".join(f"{name} {np.max(np.abs(beta(runs[name]) - theory)):.0e}" for name in names)
    apart = np.max(np.abs(np.asarray(on_links.q - runs["ideal force"].q)))
    model = FlexibleJoint()
    # Virtual displacements keep q2 + q4: an ideal force does no work in (1, -1).
    work = np.max(np.abs(np.asarray(on_links.control) @ np.array([1.0, -1.0])))
    literal = beta(runs["torque of the motors"])
    spring = float(np.max(np.abs(np.asarray(on_links.q[:, :2] - on_links.q[:, 2:]))))
    return [
        ("beta(0) [rad/s]", "0.9 (printed in m/s)", f"{beta(on_links)[0]:.1f}"),
        ("beta below 1 % from [s]", "no more than 2", f"{t[np.argmax(late)]:.2f}; P ln 100 = {P * np.log(100):.2f}"),
        ("beta(2) [rad/s]", "meets the constraint", f"{beta(on_links)[200]:.1e}"),
        ("beta against 0.9 exp(-t / P), largest difference [rad/s]", "", errors),
        ("angles, control on the links against an ideal force: largest difference [rad]", "", f"{apart:.3f}"),
        ("work of the control in a virtual displacement [N m]", "", f"up to {work:.3f}: no ideal force"),
        ("torque of the motors, literally: beta at 5 s; largest [rad/s]", "0",
         f"{literal[-1]:.2f}; {np.max(np.abs(literal)):.2f}"),
        ("virtual control: torque of the motors [N m]", "not given",
         "; ".join(f"{motor[:, i].min():.1f} to {motor[:, i].max():.1f}" for i in range(2))),
        ("largest twist of a joint, control on the links [rad]", "not given",
         f"{spring:.2f}, with K = {float(model.K[0]):.0f} N m/rad"),
    ]  # fmt: skip


def error_figure(runs: dict[str, ukjax.Trajectory]) -> Figure:
    """The error of the constraint (figure 10)."""
    figure, (axis,) = over_time("$\\beta = \\dot q_2 + \\dot q_4$ [rad/s]", height=4.0)
    styles = ({"color": "0.75", "lw": 5.0}, {"color": "C0", "lw": 2.0}, {"color": "k", "ls": ":"}, {"color": "C1"})
    for style, (name, run) in zip(styles, runs.items(), strict=True):
        axis.plot(run.t, beta(run), label=name, **style)
    legend(figure)
    return captioned(figure, "Counterpart of figure 10: error of the constraint, by where the control acts.")


def velocity_figure(runs: dict[str, ukjax.Trajectory]) -> Figure:
    """The velocities of the links (figure 11)."""
    names = ("on the links", "ideal force")
    figure, axes = over_time(*(f"rate, {name} [rad/s]" for name in names), height=5.6)
    for axis, name in zip(axes, names, strict=True):
        for i in range(2):
            axis.plot(runs[name].t, runs[name].v[:, i], lw=1.4, label=f"$\\dot q_{2 * i + 2}$")
    legend(figure)
    return captioned(
        figure, "Counterpart of figure 11: velocities of the links, with control on the links and by an ideal force."
    )


def main() -> None:
    out = _report.start(__doc__ or "", "zhao2018_flexible_joint")
    model = scenario(P).mechanism.system
    assert isinstance(model, FlexibleJoint)
    with _report.console.status("Simulating: control on the links") as status:
        runs = {"on the links": run(ukjax.Mechanism(model), following(model, P))}
        status.update("Simulating: ideal force")
        runs["ideal force"] = run(ideal(model))
        status.update("Simulating: virtual control")
        runs["virtual control"] = run(*links(model), n=2)
        motor = virtual_motor(model, runs["virtual control"])
        status.update("Simulating: torque of the motors")
        runs["torque of the motors"] = run(motor_torque(model))
        compared = rows(runs, motor)
    _report.table("Zhao et al. (2018), section 8.3", ("", "paper says", "we measure"), compared)
    _report.save({"figure10_error": error_figure(runs), "figure11_velocities": velocity_figure(runs)}, out)


if __name__ == "__main__":
    main()
