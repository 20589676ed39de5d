"""How chaotic a double pendulum is: its Lyapunov exponents, by the derivative of the simulation.

Two uniform rods of 1 kg and 0.5 m, in absolute coordinates: 6 coordinates, 4 rows, so that 4 directions of the state
keep to the constraints. `jax.linearize` of a simulation over half a second takes a frame of them along; QR makes it
orthonormal again, and the logarithms of what is taken out add up to the exponents (Benettin et al. 1980). Compared with

- the angles' equations and their variational equations by SciPy, for as long as two programs can follow one chaotic
  motion: the same numbers; and over a long time, when each follows its own: the same rate within its scatter;
- theory: in a conservative system exponents come in pairs of sum zero, and along the motion and across the energy they
  are zero; a motion that is not chaotic has none but zero, approached like log(t) / t.

Shinbrot, Grebogi, Wisdom & Yorke (1992), Chaos in a double pendulum, report 7.5 +- 1.5 1/s from experiments and
7.9 +- 0.4 1/s from simulations of their apparatus, which is shorter, started near its highest point. In units of
(g / length)^(1/2) ours is of that order; their abstract gives no lengths, so it is not a comparison of digits.

    python -m experiments.chaos [--out DIR]
"""

import functools as ft
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp

import ukjax
from models.n_pendulum import Chain

from . import _report
from ._figures import captioned, legend, over_time, panels


STEP = 0.5  # s, from one QR to the next
# Both rods at this angle from the x axis [rad], at rest: level, and 0.2 rad away from hanging.
CHAOTIC, REGULAR = (0.0, 0.0), (-np.pi / 2 + 0.2, -np.pi / 2 + 0.2)
LONG, FOLLOWED = 200.0, 5.0  # s
GRID, GRID_TIME = 40, 20.0  # starts in either angle, and s
# Steps are controlled by the error of the motion, of which there is none where it nearly rests: the longest are for the
# derivative.
LONGEST = 0.05  # s


@ft.cache
def rods() -> Chain:
    """Made when it is asked for, in the precision that there is then; arrays, also where a function is traced."""
    with jax.ensure_compile_time_eval():
        return Chain([1.0, 1.0], [0.5, 0.5])


def flow(state: tuple[Array, Array], duration: float = STEP, tolerance: float = 1e-8) -> tuple[Array, Array]:
    """Coordinates and rates (6,) after `duration` [s]."""
    run = ukjax.simulate(
        rods().mechanism(), *state, jnp.array([0.0, duration]), projection=ukjax.Projection(), keep=("q", "v"),
        stepsize_controller=diffrax.PIDController(tolerance, tolerance, dtmax=LONGEST), throw=False,
    )  # fmt: skip
    return run.q[-1], run.v[-1]


def start(phi: Array) -> tuple[tuple[Array, Array], Array]:
    """The state of both rods at rest at the angles `phi` (2,) [rad], and the four directions (4, 12) from there."""
    state = lambda x: rods().state(x[:2], x[2:])
    at = jnp.concatenate([phi, jnp.zeros(2)])
    return state(at), jnp.concatenate(jax.jacfwd(state)(at)).T


def exponents(phi: Array, steps: int) -> tuple[Array, Array]:
    """Sums of logarithms (steps, 4), and by how much the energy drifted at most [J]."""
    state, frame = start(phi)
    energy = lambda state: rods().energy(state[0], state[1], 0.0)
    at_first = energy(state)

    def step(carry, _):
        state, frame, sums = carry
        following, push = jax.linearize(flow, state)
        pushed = jax.vmap(lambda x: jnp.concatenate(push((x[:6], x[6:]))))(frame)
        Q, R = jnp.linalg.qr(pushed.T)
        sums = sums + jnp.log(jnp.abs(jnp.diagonal(R)))
        return (following, Q.T, sums), (sums, jnp.abs(energy(following) - at_first))

    first = jnp.linalg.qr(frame.T)[0].T
    _, (sums, drifts) = jax.lax.scan(step, (state, first, jnp.zeros(4)), None, length=steps)
    return sums, jnp.max(drifts)


def growth(phi: Array, steps: int) -> Array:
    """The largest exponent [1/s] so far, of one direction from `phi` (2,) [rad]; many at a time by `jax.vmap`."""
    state, frame = start(phi)
    first = frame[0] / jnp.linalg.norm(frame[0])

    def step(carry, _):
        state, x, total = carry
        following, pushed = jax.jvp(flow, (state,), ((x[:6], x[6:]),))
        x = jnp.concatenate(pushed)
        size = jnp.linalg.norm(x)
        return (following, x / size, total + jnp.log(size)), None

    (_, _, total), _ = jax.lax.scan(step, (state, first, jnp.zeros(())), None, length=steps)
    return total / (steps * STEP)


def angles_right(y: np.ndarray) -> np.ndarray:
    """y' of y = (phi1, phi2, phi1', phi2') (4, k), by Lagrange's equations of the angles; complex numbers too."""
    (m1, m2), (l1, l2), g = np.asarray(rods().m), np.asarray(rods().L), float(rods().g)
    a, b, u, w = y
    A, B, C = (m1 / 3 + m2) * l1**2, m2 * l1 * l2 / 2 * np.cos(a - b), m2 * l2**2 / 3
    swing = m2 * l1 * l2 / 2 * np.sin(a - b)
    first = -swing * w**2 - (m1 / 2 + m2) * g * l1 * np.cos(a)
    second = swing * u**2 - m2 * g * l2 / 2 * np.cos(b)
    det = A * C - B**2
    return np.stack([u, w, (C * first - B * second) / det, (A * second - B * first) / det])


def variational(t: float, y: np.ndarray) -> np.ndarray:
    """The same with one direction, (8,); its derivative by a complex step, which is exact."""
    return np.concatenate([angles_right(y[:4]), np.imag(angles_right(y[:4] + 1e-30j * y[4:])) / 1e-30])


def followed(phi: tuple[float, float], duration: float) -> tuple[float, float]:
    """By how much (log) the first direction has grown after `duration` [s], by us and by SciPy, in one norm."""
    (q, v), frame = start(jnp.asarray(phi))
    exactly = lambda state: flow(state, duration, 1e-12)
    _, pushed = jax.jit(lambda state, x: jax.jvp(exactly, (state,), ((x[:6], x[6:]),)))((q, v), frame[0])
    begin = np.array([*phi, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    end = solve_ivp(variational, (0.0, duration), begin, "DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
    state = lambda x: jnp.concatenate(rods().state(x[:2], x[2:]))
    theirs = jax.jvp(state, (jnp.asarray(end[:4]),), (jnp.asarray(end[4:]),))[1]
    size = lambda x: float(jnp.log(jnp.linalg.norm(x) / jnp.linalg.norm(frame[0])))
    return size(jnp.concatenate(pushed)), size(theirs)


def by_scipy(phi: tuple[float, float], steps: int) -> float:
    """The largest exponent [1/s] over `steps` of STEP."""
    y, total = np.array([*phi, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]), 0.0
    for _ in range(steps):
        y = solve_ivp(variational, (0.0, STEP), y, "DOP853", rtol=1e-10, atol=1e-10).y[:, -1]
        size = np.linalg.norm(y[4:])
        total += np.log(size)
        y[4:] /= size
    return total / (steps * STEP)


class Spectrum(NamedTuple):
    """Exponents so far (steps, 4) [1/s], largest first, at times t (steps,) [s], and what the energy drifted [J]."""

    t: np.ndarray
    values: np.ndarray
    drift: float


def spectrum(phi: tuple[float, float], steps: int) -> Spectrum:
    """Of the motion from `phi` [rad] at rest."""
    sums, drift = jax.jit(exponents, static_argnums=1)(jnp.asarray(phi), steps)
    t = STEP * np.arange(1, steps + 1)
    return Spectrum(t, np.asarray(sums) / t[:, None], float(drift))


def chart(count: int, duration: float) -> tuple[np.ndarray, np.ndarray]:
    """Angles from hanging (count,) [rad], and the largest exponents (count, count) [1/s], lower rod by upper rod.

    With an even count it passes by the equilibria. The mirror image of a start moves as its mirror image.
    """
    angles = (np.arange(count) + 0.5) * 2 * np.pi / count - np.pi
    upper, lower = np.meshgrid(angles, angles[count // 2 :])
    starts = jnp.asarray(np.stack([upper.ravel(), lower.ravel()], axis=1) - np.pi / 2)
    found = jax.jit(jax.vmap(lambda phi: growth(phi, round(duration / STEP))))(starts)
    half = np.asarray(found).reshape(count // 2, count)
    return angles, np.concatenate([half[::-1, ::-1], half])


def figure_of(runs: dict[str, Spectrum], angles: np.ndarray, found: np.ndarray) -> dict[str, Figure]:
    """Exponents as they settle, and the largest one over both angles of the start."""
    settling, axes = over_time(*["exponent so far [1/s]"] * len(runs), height=5.6)
    for axis, (name, run) in zip(axes, runs.items(), strict=True):
        for i, values in enumerate(run.values.T):
            axis.plot(run.t, values, lw=1.2, label=f"exponent {i + 1}")
        axis.set_xscale("log")
        axis.set_title(name, fontsize="medium", loc="left")
    legend(settling)
    map_, (axis,) = panels(size=(6.4, 5.2))
    axis.grid(visible=False)
    shown = axis.pcolormesh(angles, angles, found, cmap="magma", shading="nearest", vmin=0.0)
    axis.set_xlabel("upper rod, from hanging [rad]")
    axis.set_ylabel("lower rod, from hanging [rad]")
    axis.set_aspect("equal")
    map_.colorbar(shown, ax=axis, label="largest exponent [1/s]")
    return {
        "settling": captioned(settling, "Double pendulum: Lyapunov exponents as they settle."),
        "map": captioned(map_, "Double pendulum, released at rest: the largest exponent over both angles."),
    }


def rows(runs: dict[str, Spectrum], ours: float, theirs: float, scipy_rate: float) -> list[tuple[str, str, str]]:
    wild, calm = runs.values()
    listed = lambda run: ", ".join(f"{x:+.3f}" for x in run.values[-1])
    return [
        (f"log of the growth in {FOLLOWED:g} s", f"{theirs:.9f} (SciPy)", f"{ours:.9f}"),
        (f"largest exponent over {wild.t[-1]:g} s [1/s]", f"{scipy_rate:.3f} (SciPy)", f"{wild.values[-1, 0]:.3f}"),
        ("all four [1/s]", "a, 0, 0, -a", listed(wild)),
        ("their sum [1/s]", "0", f"{np.sum(wild.values[-1]):.1e}"),
        ("from 0.2 rad, not chaotic [1/s]", "0, 0, 0, 0", listed(calm)),
        ("energy drifted, chaotic [J]", "0", f"{wild.drift:.1e}"),
    ]


def main() -> None:
    out = _report.start(__doc__ or "", "chaos")
    names = ("released level: chaotic", "released at 0.2 rad: regular")
    with _report.console.status("Following one motion, by SciPy too"):
        ours, theirs = followed(CHAOTIC, FOLLOWED)
        rate = by_scipy(CHAOTIC, round(LONG / STEP))
    with _report.console.status("Pushing frames along"):
        runs = {n: spectrum(phi, round(LONG / STEP)) for n, phi in zip(names, (CHAOTIC, REGULAR), strict=True)}
    with _report.console.status(f"From {GRID**2 // 2} starts"):
        angles, found = chart(GRID, GRID_TIME)
    _report.table("Double pendulum", ("", "theory, or another program", "we measure"), rows(runs, ours, theirs, rate))
    _report.save(figure_of(runs, angles, found), out)


if __name__ == "__main__":
    main()
