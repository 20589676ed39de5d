"""Zhao et al. (2018), examples 1 to 4: the projectile, and three constraints and their classification.

Prints "paper says | we measure" and draws what the paper has no figures of. The projectile in polar coordinates: the
paper's diag(m, m) gives the right unconstrained motion and is no generalised inertia all the same, as a bead on a
straight wire shows.

    python -m experiments.zhao2018_examples [--out DIR]

Source: Chinese Journal of Mechanical Engineering 31, sections 2 and 3, eq. 2 to 20.
"""

from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ukjax
from models import constraint_examples, projectile

from . import _report
from ._figures import captioned, legend, legend_above, over_time, panels, visible


EXAMPLES = tuple(constraint_examples.STARTS)
LABELS = {"cartesian": "Cartesian", "polar": "polar, diag(m, m r^2)", "printed": "polar, diag(m, m) as printed"}
STYLES = ({"ls": "-", "lw": 4.0, "color": "0.75"}, {"lw": 1.2, "color": "C0"}, {"lw": 1.2, "color": "C1"})


class Run(NamedTuple):
    case: ukjax.Scenario
    trajectory: ukjax.Trajectory


def run(case: ukjax.Scenario) -> Run:
    ts = jnp.linspace(case.t0, case.t1, 201)
    options = {"solver": diffrax.Dopri8(), "rtol": 1e-14, "atol": 1e-14}
    return Run(case, ukjax.simulate(case.mechanism, case.q0, case.v0, ts, **options))


class Runs(NamedTuple):
    """By coordinates, by coordinates, by example."""

    free: dict[str, Run]
    wire: dict[str, Run]
    examples: dict[str, Run]


def simulated() -> Runs:
    return Runs(
        {name: run(projectile.scenario(name)) for name in LABELS},
        {name: run(projectile.on_wire(name)) for name in LABELS},
        {name: run(constraint_examples.scenario(name)) for name in EXAMPLES},
    )


def place(got: Run) -> np.ndarray:
    """(x, y) (T, 2) [m]"""
    system = got.case.mechanism.system
    assert isinstance(system, (projectile.Cartesian, projectile.Polar, projectile.PrintedPolar))
    return np.asarray(jax.vmap(system.place)(got.trajectory.q))


def along(got: Run) -> dict[str, np.ndarray]:
    """Each invariant over time."""
    q, v, t = got.trajectory.q, got.trajectory.v, got.trajectory.t
    return {name: np.asarray(jax.vmap(f)(q, v, t)) for name, f in got.case.invariants.items()}


def projectile_rows(runs: Runs) -> list[tuple[str, str, str]]:
    off = lambda got, exact: np.max(np.abs(place(got) - np.asarray(exact(got.trajectory.t))))
    varies = lambda got: np.ptp(along(got)["energy [J]"])
    free = {name: f"{off(got, projectile.exact):.0e}" for name, got in runs.free.items()}
    wire = {name: f"{off(got, projectile.exact_on_wire):.1e}" for name, got in runs.wire.items()}
    energy = {name: f"{varies(got):.0e}" for name, got in runs.wire.items()}
    q, v = projectile.to_polar(*(jnp.array(x) for x in projectile.START))
    kinetic = lambda model: float(v @ model.mass(q, jnp.zeros(())) @ v / 2)
    listed = lambda texts: "; ".join(f"{name} {text}" for name, text in texts.items())
    return [
        ("free, 1 s: largest distance from x0 + v t + g t^2 / 2 [m]", "eq. 2 and 9 agree", listed(free)),
        ("on the wire, 1.5 s: the same from s0 + g cos(normal) t^2 / 2 [m]", "not discussed", listed(wire)),
        ("   its energy varies by [J]", "", listed(energy)),
        ("kinetic energy of the start, m v^2 / 2 = 4.5 J, as v^T M v / 2 [J]", "M = diag(m, m)",
         f"diag(m, m) {kinetic(projectile.PrintedPolar()):.3f}; diag(m, m r^2) {kinetic(projectile.Polar()):.3f}"),
    ]  # fmt: skip


def lemma_1(name: str) -> float:
    """Eq. 11 of the row as the paper prints it, at the start."""
    psi, (q0, v0) = constraint_examples.row(constraint_examples.Particle(), name).psi, constraint_examples.STARTS[name]
    form = lambda q: jax.jacfwd(psi, argnums=1)(q, jnp.array(v0), jnp.zeros(()))[0]
    return float(constraint_examples.lemma_1(form, jnp.array(q0))) + 0.0


def example_rows(runs: Runs) -> list[tuple[str, str, str]]:
    rows = []
    for number, (name, got) in enumerate(runs.examples.items(), 2):
        model = constraint_examples.Particle()
        as_printed = ukjax.Mechanism(model, constraint_examples.row(model, name))
        kind = constraint_examples.kind(as_printed, got.case.q0, got.case.v0)
        rows += [
            (f"example {number}: kind", name, kind),
            (
                "   alpha (beta_z - gamma_y) + ..., eq. 11",
                "1" if name == "nonholonomic" else "not given",
                f"{lemma_1(name):g}",
            ),
            *((f"   {constant} varies by", "not given", f"{np.ptp(x):.0e}") for constant, x in along(got).items()),
        ]
    first, second = (runs.examples[name] for name in EXAMPLES[:2])
    terms = [r.case.mechanism.terms(first.case.q0, first.case.v0, jnp.zeros(())) for r in (first, second)]
    apart = max(float(jnp.max(jnp.abs(getattr(terms[0], x) - getattr(terms[1], x)))) for x in "Ab")
    shift = np.asarray(second.trajectory.q - first.trajectory.q)
    carried = np.asarray(first.trajectory.t)[:, None] * np.array([[0.0, 0.0, 1.0]])
    return [
        *rows,
        ("A and b of examples 2 and 3 differ by", "0", f"{apart:g}"),
        ("   the motion of 3 less that of 2, less 1 m/s upward [m]", "", f"{np.max(np.abs(shift - carried)):.0e}"),
    ]


def projectile_figure(runs: Runs) -> Figure:
    """Paths of example 1, free and on a wire, and where they end."""
    figure, axes = panels(1, 2, (9.6, 4.8))
    groups = {"free, 1 s": runs.free, "on a straight wire, 1.5 s": runs.wire}
    for axis, (title, group) in zip(axes, groups.items(), strict=True):
        for style, (name, got) in zip(STYLES, group.items(), strict=True):
            at = place(got)
            (line,) = axis.plot(*at.T, label=LABELS[name], **style)
            axis.plot(*at[-1], "o", color=line.get_color())
        axis.set(xlabel="x [m]", ylabel="y [m]", aspect="equal", title=title)
    legend(figure)
    return captioned(figure, "Example 1, the projectile: paths by inertia, and where they end (dots).")


def wire_figure(runs: Runs) -> Figure:
    """Place and energy of the bead on a wire over time."""
    figure, (upper, lower) = over_time("s along the wire [m]", "energy [J]")
    _, downward = projectile.Wire().axes()
    for style, (name, got) in zip(STYLES, runs.wire.items(), strict=True):
        upper.plot(got.trajectory.t, place(got) @ np.asarray(downward), label=LABELS[name], **style)
        lower.plot(got.trajectory.t, along(got)["energy [J]"], label=LABELS[name], **style)
    legend(figure)
    return captioned(figure, "Bead on a straight wire: what the inertia changes.")


def space_figure(runs: Runs) -> Figure:
    """Paths of examples 2 to 4, from two sides."""
    figure, axes = panels(1, 2, (7.0, 4.6), sharey=True)
    for (name, got), style in zip(runs.examples.items(), ("-", "--", "-"), strict=True):
        x, y, z = np.asarray(got.trajectory.q).T
        for axis, across in zip(axes, (x, y), strict=True):
            axis.plot(across, z, style, label=name)
            axis.plot(across[0], z[0], "ko", ms=4)
    for axis, name in zip(axes, "xy", strict=True):
        axis.set_xlabel(f"{name} [m]")
    axes[0].set_ylabel("z [m]")
    legend(figure)
    return captioned(figure, "Examples 2 to 4: paths in 3 s, from the dots down, seen along y and along x.")


def invariant_figure(runs: Runs) -> Figure:
    """Changes of what examples 2 to 4 keep constant, over time."""
    figure, axes = over_time(*(f"{name}: change (SI)" for name in runs.examples), height=7.6)
    for axis, got in zip(axes, runs.examples.values(), strict=True):
        for constant, x in along(got).items():
            axis.semilogy(got.trajectory.t[1:], visible(x - x[0], 1e-16)[1:], lw=1.2, label=constant)
        legend_above(axis)
    return captioned(figure, "Examples 2 to 4: how far what theory keeps constant changes.")


def figures(runs: Runs) -> dict[str, Figure]:
    return {
        "example1_paths": projectile_figure(runs),
        "example1_wire": wire_figure(runs),
        "examples2_to_4_paths": space_figure(runs),
        "examples2_to_4_invariants": invariant_figure(runs),
    }


def main() -> None:
    out = _report.start(__doc__ or "", "zhao2018_examples")
    with _report.console.status("Simulating the projectile and the three examples"):
        runs = simulated()
        compared = [*projectile_rows(runs), *example_rows(runs)]
    _report.table("Zhao et al. (2018), examples 1 to 4", ("", "paper says", "we measure"), compared)
    _report.save(figures(runs), out)


if __name__ == "__main__":
    main()
