"""Orsino (2017): a hierarchy of models, level by level, on the 3RRR mechanism of its figures 2 to 4.

- every level's freedoms, forces and motion; recursion against one shot; the order of the levels does not matter;
- the recursion is a Kalman filter: the same rows fed to the one of filterpy, with and without noise;
- clearance as noise: how motion and bearing forces change with the covariance R of a joint's rows;
- what modularity buys: the mechanisms of figure 1 from one module, and the cost of one more joint in a chain.

    python -m pip install filterpy
    python -m experiments.orsino2017_recursive [--out DIR]

The paper's parameters are in a supplement that we do not have; those here are ours, so numbers of the paper are counts.

Source: Recursive modular modelling methodology for lumped-parameter dynamic systems, Proc. R. Soc. A 473.
"""

import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ukjax
from models import planar_mechanisms, rr_leg, three_rrr

from . import _chain, _report
from ._figures import THEORY, captioned, legend, legend_above, over_time, panels, visible


NOISES = np.logspace(-8, 4, 25)
WRIST = slice(9, 11)  # the rows that join leg A to the platform, first of level 3
T1 = 0.25


def hierarchy() -> tuple[ukjax.modular.Composite, Any, Any]:
    """The 3RRR mechanism with its loop once more as level 4, and a start."""
    mechanism = three_rrr.three_rrr().add(three_rrr.loop_again())
    return mechanism, *three_rrr.state(*three_rrr.STARTS["vertical"])


def parts(mechanism: ukjax.modular.Composite) -> list[np.ndarray]:
    """The rows of each level."""
    return np.split(np.arange(sum(mechanism.levels)), np.cumsum(mechanism.levels)[:-1])


def climb(terms: ukjax.Terms, rows: list[np.ndarray], noise: Any = None) -> list[ukjax.formulation.Level]:
    """Every level's motion; `noise` is that of all rows of every level."""
    levels = [ukjax.formulation.Level.start(terms.M, terms.Q)]
    for part in rows:
        levels.append(levels[-1].enforce(terms.A[part], terms.b[part], noise))
    return levels


def level_rows(
    mechanism: ukjax.modular.Composite, levels: list[ukjax.formulation.Level], M: Any
) -> list[tuple[str, ...]]:
    table, free = [], levels[0].acceleration
    names = ("modules on their own", "legs", "mechanism", "a loop once more")
    counts = (0, *mechanism.levels)
    for number, (name, level) in enumerate(zip(names, levels, strict=True)):
        change = level.acceleration - free
        P = level.projector
        table.append((
            f"{number + 1}: {name}", f"{counts[number]}", f"{int(level.rank)}", f"{float(jnp.trace(P)):.10g}",
            f"{float(jnp.linalg.norm(level.force)):.4g}", f"{float(change @ M @ change):.6g}",
            ", ".join(f"{x:.4g}" for x in level.acceleration[-3:]), f"{float(jnp.max(jnp.abs(P @ P - P))):.0e}",
        ))  # fmt: skip
    return table


def kalman(terms: ukjax.Terms, rows: list[np.ndarray], noise: float | None) -> tuple[float, float]:
    """How far filterpy's filter is from the recursion, in state and covariance, relative to the largest entry."""
    try:
        from filterpy.kalman import KalmanFilter
    except ImportError as error:
        raise SystemExit("This experiment compares with filterpy: python -m pip install filterpy") from error
    L = np.linalg.cholesky(np.asarray(terms.M))
    n = len(L)
    kalman = KalmanFilter(dim_x=n, dim_z=1)
    kalman.x, kalman.P = np.linalg.solve(L, np.asarray(terms.Q))[:, None], np.eye(n)
    H, b = np.linalg.solve(L, np.asarray(terms.A).T).T, np.asarray(terms.b)
    state, covariance = 0.0, 0.0
    for part, level in zip(rows, climb(terms, rows, noise)[1:], strict=True):
        kalman.update(b[part, None], R=(0.0 if noise is None else noise) * np.eye(len(part)), H=H[part])
        x = L.T @ np.asarray(level.acceleration)
        state = max(state, np.max(np.abs(kalman.x[:, 0] - x)) / np.max(np.abs(x)))
        covariance = max(covariance, np.max(np.abs(kalman.P - np.asarray(level.P))))
    return float(state), float(covariance)


def loose_wrist(terms: ukjax.Terms, R: Any) -> tuple[Any, Any, Any]:
    """Acceleration of the mechanism with covariance R at the wrist of leg A; its rows' error, and its bearing force."""
    others = np.delete(np.arange(15), np.arange(15)[WRIST])
    level = ukjax.formulation.Level.start(terms.M, terms.Q).enforce(terms.A[others], terms.b[others])
    loose = level.enforce(terms.A[WRIST], terms.b[WRIST], R)
    error = terms.A[WRIST] @ loose.acceleration - terms.b[WRIST]
    # What the wrist's rows add to the force on the platform (X, Y) is the force in the bearing.
    return loose.acceleration, jnp.linalg.norm(error), jnp.linalg.norm(loose.force[-3:-1])


def gap(R: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Distance (T,) [m] at the wrist of leg A over time, if its rows are held with covariance R (None: exactly)."""
    mechanism = three_rrr.three_rrr()
    q, v = three_rrr.state(*three_rrr.STARTS["vertical"])
    levels, noise = (9, 2, 4), (None, R, None)
    t = jnp.linspace(0.0, T1, 51)
    path = ukjax.simulate(
        mechanism.mechanism(), q, v, t, formulation=ukjax.formulation.Recursive(levels, noise), rtol=1e-10, atol=1e-12
    )
    off = jax.vmap(lambda q: mechanism.mechanism().position_error(q, jnp.zeros(()))[WRIST])(path.q)
    return np.asarray(t), np.linalg.norm(np.asarray(off), axis=1)


def motions(mechanism: ukjax.modular.Composite, q: Any, v: Any) -> list[ukjax.Trajectory]:
    """From one start, with the constraints of the first, the first two, and all levels."""
    t = jnp.linspace(0.0, T1, 26)
    return [ukjax.simulate(mechanism.upto(level).mechanism(), q, v, t, rtol=1e-10, atol=1e-10) for level in (1, 2, 3)]


def motion_figure(paths: list[ukjax.Trajectory]) -> Figure:
    """Where bars and platform are after T1 at every level, with the way that they took."""
    figure, axes = panels(1, 3, (9.6, 4.4), sharex=True, sharey=True)
    legs = [rr_leg.Leg(angle) for angle in three_rrr.ANGLES]
    drawing = three_rrr.drawing()
    titles = ("level 1: modules", "level 2: legs", "level 3: mechanism")
    for axis, path, title in zip(axes, paths, titles, strict=True):
        for i in (0, -1):
            q, alpha = path.q[i], 0.35 if i == 0 else 1.0
            for k, leg in enumerate(legs):
                base, start = leg.Rb * rr_leg.along(leg.angle), 5 * k
                pivoted = np.stack([base, leg.elbow(q[start + 1])])
                distal = np.stack([q[start + 2 : start + 4], leg.tip(q[start + 2 : start + 5])])
                axis.plot(*pivoted.T, "C0o-", ms=3, alpha=alpha)
                axis.plot(*distal.T, "C1o-", ms=3, alpha=alpha)
            axis.plot(*np.asarray(drawing.links["platform"](q, 0.0)).T, "C2-", alpha=alpha)
        axis.plot(path.q[:, -3], path.q[:, -2], "C2:", lw=1)
        axis.set(title=title, xlabel="x [m]", aspect="equal")
    axes[0].set_ylabel("y [m]")
    return captioned(
        figure,
        f"From one start (faint), bars and platform {T1} s later, with the constraints up to each level.",
    )


def force_figure(mechanism: ukjax.modular.Composite, path: ukjax.Trajectory) -> Figure:
    """What each level adds to the force, along the motion of the mechanism."""
    whole, rows = mechanism.mechanism(), parts(mechanism)

    def forces(q, v, t):
        return jnp.stack([level.force for level in climb(whole.terms(q, v, t), rows)[1:]])

    found = np.asarray(jax.jit(jax.vmap(forces))(path.q, path.v, path.t))
    shown = {"elbow of leg A, y [N]": 3, "platform, y [N]": 16, "platform [N m]": 17}
    figure, axes = over_time(*shown)
    for axis, i in zip(axes, shown.values(), strict=True):
        for level, label in enumerate(("level 2", "level 3", "level 4")):
            axis.plot(path.t, found[:, level, i], label=label, ls="--" if level == 2 else "-")
    legend(figure)
    return captioned(figure, "What each level adds to the force, along the motion of the mechanism.")


def clearance_figure(errors: Any, forces: Any, gaps: dict[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Error and bearing force over R; and the gap that opens."""
    figure, (left, middle, right) = panels(1, 3, (10.0, 3.8))
    left.loglog(NOISES, errors[0] * NOISES / NOISES[0], label="proportional to R", **THEORY)
    left.loglog(NOISES, errors, lw=1.2, label="error")
    left.set(ylabel="error of the rows [m/s²]", ylim=(errors[0] / 2, 4 * errors[-1]))
    middle.loglog(NOISES, forces[-1] * NOISES[-1] / NOISES, label="proportional to 1/R", **THEORY)
    middle.loglog(NOISES, forces, lw=1.2, label="force")
    middle.set(ylabel="force in the bearing [N]", ylim=(forces[-1] / 2, 4 * forces[0]))
    for axis in (left, middle):
        axis.set_xlabel("covariance R [1/kg]")
    for (name, (t, off)), color in zip(gaps.items(), ("C2", "C3", "C4"), strict=True):
        right.semilogy(t[1:], visible(1e3 * off[1:], 1e-12), color, label=name)
    right.set(xlabel="time t [s]", ylabel="gap at the wrist [mm]")
    for axis in (left, middle, right):
        legend_above(axis)
    return captioned(
        figure, "Clearance as noise of covariance R in the wrist's rows: their error, the bearing's force, and the gap."
    )


def modularity() -> list[tuple[str, ...]]:
    """The mechanisms of figure 1, and what each took beyond the module."""
    table = []
    scenarios = (rr_leg.scenario(), planar_mechanisms.slider_crank(), planar_mechanisms.five_bar(),
                 planar_mechanisms.three_on_a_point(), three_rrr.scenario())  # fmt: skip
    for scenario in scenarios:
        mechanism: Any = scenario.mechanism.system
        found = ukjax.diagnose(scenario.mechanism, scenario.q0, scenario.v0)
        modules = sum(len(alike.columns) for alike in mechanism.systems)
        couplings = sum(len(c.alike.columns) for c in mechanism.constraints if c.level > 2)
        n = scenario.q0.shape[0]
        table.append((
            scenario.name, f"{modules} of {len(mechanism.systems)} kinds", f"{n}", f"{sum(mechanism.levels)}",
            f"{n - int(found.rank)}", f"{couplings}",
        ))  # fmt: skip
    return table


def worst_order(terms: ukjax.Terms, rows: list[np.ndarray]) -> tuple[float, float]:
    """How far the recursion is from one shot, relative, over all orders of the levels; and P from I - B^+ B."""
    want = ukjax.UdwadiaKalaba().solve(terms).acceleration
    L = np.linalg.cholesky(np.asarray(terms.M))
    B = np.linalg.solve(L, np.asarray(terms.A).T).T
    idle = np.eye(len(L)) - np.linalg.pinv(B, rcond=1e-10) @ B
    apart, projector = 0.0, 0.0
    last_of = jax.jit(lambda order: climb(terms, [rows[i] for i in order])[-1], static_argnums=0)
    for order in itertools.permutations(range(len(rows))):
        last = last_of(order)
        apart = max(apart, float(jnp.max(jnp.abs(last.acceleration - want)) / jnp.max(jnp.abs(want))))
        projector = max(projector, float(np.max(np.abs(np.asarray(last.P) - idle))))
    return apart, projector


def main(sizes: tuple[int, ...] = _chain.SIZES) -> None:
    out = _report.start(__doc__ or "", "orsino2017_recursive")
    mechanism, q, v = hierarchy()
    rows = parts(mechanism)
    with _report.console.status("Levels") as status:
        terms = eqx.filter_jit(mechanism.mechanism().terms)(q, v, jnp.zeros(()))
        levels = climb(terms, rows)
        status.update("All orders of the levels")
        apart, projector = worst_order(terms, rows)
        status.update("Kalman filter")
        exact, noisy = kalman(terms, rows[:2], None), kalman(terms, rows, 0.1)
        status.update("Motion at every level")
        paths = motions(mechanism, q, v)
        energy = jax.jit(jax.vmap(lambda q, v: three_rrr.energy(mechanism, q, v)))
        drifts = [float(np.ptp(energy(path.q, path.v))) for path in paths]
        status.update("Clearance")
        _, errors, forces = jax.jit(jax.vmap(lambda R: loose_wrist(terms, R)))(jnp.asarray(NOISES))
        gaps = {f"R = $10^{{{power}}}$/kg": gap(10.0**power) for power in (-6, -4, -2)}
        status.update("Mechanisms of figure 1")
        mechanisms = modularity()
    errors, forces = np.asarray(errors), np.asarray(forces)

    columns = ("level", "rows", "new", "trace P", "|its force|", "compulsion", "platform's acceleration", "P² - P")
    _report.table("3RRR, level by level", columns, level_rows(mechanism, levels, terms.M))
    trace = lambda level: f"{float(jnp.trace(level.projector)):.6g}"
    slopes = np.diff(np.log(errors))[:3].mean(), np.diff(np.log(forces))[-3:].mean()
    step, orders = np.log(NOISES[1] / NOISES[0]), math.factorial(len(rows))
    _report.table("Orsino (2017)", ("", "paper says", "we measure"), [
        ("freedoms of levels 1 to 3", "18, 9, 3 (fig. 4)", ", ".join(trace(level) for level in levels[:3])),
        ("a dependent level", "handled by a {1,4}-inverse", f"rank {int(levels[3].rank)}, trace P {trace(levels[3])}"),
        (f"recursion against one shot, {orders} orders", "the same (4.9, 4.14)", f"{apart:.1e} relative"),
        ("P against I - B^+ B", "the same (4.15)", f"{projector:.1e}"),
        ("against filterpy, no noise: state, covariance", "identical", f"{exact[0]:.1e}, {exact[1]:.1e}"),
        ("against filterpy, R = 0.1: state, covariance", "identical", f"{noisy[0]:.1e}, {noisy[1]:.1e}"),
        ("energy along levels 1, 2, 3", "constraints do no work", ", ".join(f"{x:.0e} J" for x in drifts)),
        ("R small: error of the rows", "clearance as noise", f"proportional to R^{slopes[0] / step:.3f}"),
        ("R large: force in the bearing", "clearance as noise", f"proportional to R^{slopes[1] / step:.3f}"),
    ])  # fmt: skip
    columns = ("mechanism", "modules", "n", "rows", "freedoms", "couplings beyond the module")
    _report.table("Figure 1: mechanisms from one module", columns, mechanisms)

    costs = []
    for bars in sizes:
        with _report.console.status(f"Chain of {bars} modules: every joint is compiled"):
            costs.append(_chain.measure(bars))
    ms = lambda seconds: f"{1e3 * seconds:.3g}"
    _report.table(
        "One more joint in a chain of N modules [ms]",
        ("N", "by modules", "dense P", "from scratch", "Cholesky of M: blocks", "whole", "apart"),
        [(f"{c.bars}", *map(ms, (c.modular, c.dense, c.scratch, c.blocks, c.whole)), f"{c.apart:.0e}") for c in costs],
    )
    n = np.log([c.bars for c in costs[-3:]])
    slope = lambda name: np.polyfit(n, np.log([getattr(c, name) for c in costs[-3:]]), 1)[0]
    _report.console.print(
        f"Powers of N for the last three: by modules {slope('modular'):.2f}, dense P {slope('dense'):.2f}, "
        f"from scratch {slope('scratch'):.2f}.", highlight=False,
    )  # fmt: skip
    _report.save({
        "levels": motion_figure(paths), "forces": force_figure(mechanism, paths[2]),
        "clearance": clearance_figure(errors, forces, gaps), "cost": _chain.figure(costs),
    }, out)  # fmt: skip


if __name__ == "__main__":
    main()
