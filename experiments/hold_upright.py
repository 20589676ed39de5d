"""Linear-quadratic regulators on the constraint manifold, and from where they bring a mechanism home.

Two mechanisms that fall if nothing holds them: a cart-pole upright, its cart pushed by at most 20 N; and a closed chain
of four rods that stands as an arch, with motors on its two pivots, in absolute coordinates: 12 of them and 10 rows, of
which two freedoms are left. For each: equilibrium, linearisation in independent states, regulator; then runs from a
grid of starts by `simulate_batch`. Home is where every state is within 1e-3 of the equilibrium at the end. Drawn is
from where it comes home, for a controller that acts all the time, and for one that looks only so often.

    python -m experiments.hold_upright [--out DIR]
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

import ukjax
from models import cart_pole, n_pendulum

from . import _report
from ._figures import captioned, legend, panels


COUNT = 41  # starts along each axis
HOME = 1e-3  # [rad, m and their rates]
END = 12.0  # [s]


class Case(NamedTuple):
    """A mechanism, what acts on it, the equilibrium that is to be held, and starts near it.

    `start`: two numbers -> q and v; `axes`: what they are, and how far they go.
    """

    name: str
    mechanism: ukjax.Mechanism
    actuation: np.ndarray
    limit: float
    q: Any
    costs: tuple[Any, Any]
    periods: tuple[float | None, ...]
    start: Callable
    axes: tuple[tuple[str, float], tuple[str, float]]


def pole() -> Case:
    start = lambda x: (jnp.stack([jnp.zeros(()), jnp.pi + x[0]]), jnp.stack([jnp.zeros(()), x[1]]))
    return Case(
        "Cart-pole, force up to 20 N",
        ukjax.Mechanism(cart_pole.CartPole()),
        np.array(cart_pole.ON_CART),
        20.0,
        jnp.array([0.0, np.pi]),
        (jnp.array([1.0, 10.0, 0.1, 0.1]), 0.05),
        (None, 0.1),
        start,
        (("lean [rad]", 1.6), ("rate of the lean [rad/s]", 10.0)),
    )


def arch(N: int = 4) -> Case:
    """The closed chain; its two end rods are turned by motors on the ground."""
    model = n_pendulum.Chain([1.0] * N, [0.5] * N, end=(1.0, 0.0))
    angles = -n_pendulum.arc(N, 0.5, (1.0, 0.0))  # upside down
    mechanism = model.mechanism()
    q, _ = model.state(jnp.asarray(angles), jnp.zeros(N))
    rest = ukjax.analysis.equilibrium(mechanism, q)
    actuation = np.zeros((3 * N, 2))
    actuation[2, 0] = actuation[3 * N - 1, 1] = 1.0

    def start(x):
        moved = rest.q.at[jnp.array([2, 3 * N - 1])].add(x)
        found = ukjax.assemble(mechanism, moved, jnp.zeros(3 * N), keep={"q": [2, 3 * N - 1]}, throw=False)
        return found.q, found.v

    return Case(
        f"Arch of {N} rods, torques up to 10 N m",
        mechanism,
        actuation,
        10.0,
        rest.q,
        (jnp.ones(4), jnp.full(2, 0.01)),
        (None, 0.05),
        start,
        (("first rod turned by [rad]", 0.8), ("last rod turned by [rad]", 0.8)),
    )


class Region(NamedTuple):
    """What came of the starts of a case under one controller: whether they came home (COUNT, COUNT), and how it is."""

    period: float | None
    regulator: ukjax.analysis.Regulator
    home: np.ndarray


def starts(case: Case, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Along both axes."""
    (_, a), (_, b) = case.axes
    return np.linspace(-a, a, count), np.linspace(-b, b, count)


def open_loop(case: Case) -> ukjax.analysis.Linearization:
    return ukjax.analysis.linearize(case.mechanism, case.q, actuation=case.actuation)


def regions(case: Case, count: int = COUNT) -> list[Region]:
    """From where each controller of a case brings it home."""
    x, y = starts(case, count)
    grid = jnp.stack(jnp.meshgrid(jnp.asarray(x), jnp.asarray(y), indexing="ij"), axis=-1).reshape(-1, 2)
    linear = open_loop(case)
    q0, v0 = jax.jit(jax.vmap(case.start))(grid)
    found = []
    for period in case.periods:
        regulator = ukjax.analysis.lqr(linear, *case.costs, period=period)
        controller = ukjax.Feedback(regulator, case.actuation, limits=(-case.limit, case.limit), period=period)
        # Starts that cannot be assembled are none.
        fits = np.asarray(jnp.all(jnp.isfinite(q0), axis=1))
        with warnings.catch_warnings():
            # From far away a motion under limits may take more steps than there are: it does not come home.
            warnings.simplefilter("ignore", ukjax.FailedTrajectories)
            runs = ukjax.simulate_batch(
                case.mechanism, jnp.where(fits[:, None], q0, case.q[None]), jnp.where(fits[:, None], v0, 0.0),
                jnp.array([0.0, END]), servo=controller, projection=ukjax.Projection(), keep=("q", "v"), rtol=1e-6,
                atol=1e-6,
            )  # fmt: skip
        states = jax.vmap(linear.states, (0, 0, None))(runs.q[:, -1], runs.v[:, -1], END)
        near = np.max(np.abs(np.asarray(states - linear.x[None])), axis=1) < HOME
        near &= np.asarray(runs.result == ukjax.RESULTS.successful) & fits
        found.append(Region(period, regulator, near.reshape(count, count)))
    return found


def figure_of(case: Case, found: list[Region]) -> Figure:
    count = found[0].home.shape[0]
    (first, _), (second, _) = case.axes
    x, y = starts(case, count)
    figure, axes = panels(1, len(found), (4.0 * len(found), 4.4), sharey=True)
    for axis, region in zip(axes, found, strict=True):
        axis.pcolormesh(x, y, region.home.T.astype(float), cmap=ListedColormap(["0.85", "#1a9f6c"]), vmin=0, vmax=1)
        axis.plot(0.0, 0.0, "k+", ms=10)
        axis.set_xlabel(first)
        axis.set_title(_when(region.period), fontsize="medium")
    axes[0].set_ylabel(second)
    for color, label in (("#1a9f6c", "comes home"), ("0.85", "does not")):
        axes[0].plot([], [], "s", color=color, label=label)
    legend(figure)
    return captioned(figure, f"{case.name}: from where its regulator brings it home to the cross.")


def _when(period: float | None) -> str:
    return "acts all the time" if period is None else f"looks every {1e3 * period:g} ms"


def rows(case: Case, found: list[Region]) -> list[tuple[str, ...]]:
    fastest = float(np.max(np.real(open_loop(case).eigenvalues)))
    said = []
    for region in found:
        slowest = float(np.max(np.real(region.regulator.eigenvalues)))
        share = f"{100 * np.mean(region.home):.1f} %"
        along = region.home[:, region.home.shape[0] // 2]
        x = starts(case, region.home.shape[0])[0][along]
        reach = f"{np.min(x):.2f} to {np.max(x):.2f} rad" if along.any() else "none"
        said.append((case.name, _when(region.period), f"{fastest:.2f}", f"{slowest:.2f}", share, reach))
    return said


def main() -> None:
    out = _report.start(__doc__ or "", "hold_upright", every_core=True)
    columns = ("mechanism", "controller", "falls with [1/s]", "slowest of the loop [1/s]", "starts that come home",
               "along the first axis")  # fmt: skip
    table, figures = [], {}
    for name, make in (("pole", pole), ("arch", arch)):
        case = make()
        found = regions(case)
        table += rows(case, found)
        figures[name] = figure_of(case, found)
    _report.table("From where regulators bring mechanisms home", columns, table)
    _report.save(figures, out)


if __name__ == "__main__":
    main()
