"""Closed loops from MJCF in MuJoCo, which holds them softly, and in ukjax, which holds them exactly.

A planar four-bar linkage and Bricard's overconstrained one, from rest under gravity, nothing damped. Both programs read
the same text; M, the bias force, the energy and the gap of the loop are first compared at random states. MuJoCo runs
with its default softness and as stiff as its step lets it be (`solref` 2 h, `solimp` 0.9999), by each of three
integrators and a ladder of steps; ukjax by Dopri8 at a ladder of tolerances, with a projection after every step. Then:

- how far the loop is open, and how much energy is lost or gained, over 10 s;
- how far a point is from where it belongs, against the time that it takes.

The reference is ukjax at a tolerance of 1e-12. A second formulation, by another solver, tells how good it is: absolute
coordinates for the four-bar linkage; for Bricard's the model of `models.bricard`, built of parts and closed by a hinge.

    python -m experiments.loops_beside_mujoco [--out DIR]

On 2 shared, busy cores, Python 3.11.7, JAX 0.10.2, MuJoCo 4.0: default softness is another mechanism, 0.4 m and 2 cm
away within 10 s however short the step; as stiff as may be, with RK4, MuJoCo converges. Compared with that, ukjax was 9
to 280 times as fast for the four-bar linkage. For Bricard's MuJoCo was up to 6 times as fast for errors down to 1e-5 m,
ukjax 1.4 to 4 times for smaller ones. MuJoCo compiles nothing; ukjax did for one to two minutes beside other work.

Needs MuJoCo: `pip install "ukjax[robots]"`. Source: MuJoCo's documentation, "Computation" and "Modeling" (solver
parameters); IFToMM's library of benchmark problems, A04.
"""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from . import _loops, _report
from ._figures import captioned, legend, panels, visible
from ._loops import INTEGRATORS, SAVED, Linkage, Measures, Run


END = 10.0  # [s]
STEPS = (5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4)  # [s]
TOLERANCES = tuple(10.0**-k for k in range(3, 12))
REFERENCE = 1e-12
SHOWN_STEPS, SHOWN_TOLERANCES = (2e-3, 1e-4), (1e-4, 1e-7, 1e-10)
GOALS = tuple(10.0**-k for k in range(1, 10))  # [m]
LOOSE, STIFF = "default softness", "as stiff as may be"


class Entry(NamedTuple):
    """A run and what it is worth, each a largest value: violation [m], drift [J], and error of the point [m]."""

    who: str
    setting: str
    size: float
    run: Run
    violation: float
    drift: float
    error: float


class Comparison(NamedTuple):
    linkage: Linkage
    measures: Measures
    entries: list[Entry]
    difference: dict[str, float]
    reference: float  # how far its two formulations are apart [m]
    end: float


def compare(
    linkage: Linkage, end: float = END, steps: tuple[float, ...] = STEPS, tolerances: tuple[float, ...] = TOLERANCES
) -> Comparison:
    measures, entries = Measures(linkage), []
    with _report.console.status(f"{linkage.name}: the same system?") as status:
        difference = _loops.differences(linkage)
        status.update(f"{linkage.name}: ukjax, compiling")
        *runs, best = _loops.by_ukjax(linkage, (*tolerances, REFERENCE), end)
        status.update(f"{linkage.name}: the reference by a second formulation, compiling")
        true = measures.path(best.q)
        apart = _farthest(true, _loops.second_path(linkage, REFERENCE, end))

        def add(who, setting, size, run):
            violation, drift = np.max(measures.violation(run.q)), np.max(np.abs(measures.drift(run)))
            error = _farthest(measures.path(run.q), true)
            entries.append(Entry(who, setting, size, run, float(violation), float(drift), error))

        for rtol, run in zip(tolerances, runs, strict=True):
            add("ukjax", f"tolerance {rtol:.0e}", rtol, run)
        for stiff in (False, True):
            for integrator in INTEGRATORS:
                who = f"MuJoCo, {integrator}, {STIFF if stiff else LOOSE}"
                for h in steps:
                    status.update(f"{linkage.name}: {who}, steps of {1e3 * h:g} ms")
                    add(who, f"step {1e3 * h:g} ms", h, _loops.by_mujoco(linkage, h, integrator, stiff, end))
    return Comparison(linkage, measures, entries, difference, apart, end)


def _farthest(path: np.ndarray, other: np.ndarray) -> float:
    return float(np.max(np.linalg.norm(path - other, axis=1)))


def quickest(got: Comparison, who: str, goal: float) -> Entry | None:
    """The run of those whose name begins so that takes the least time for an error of `goal` [m] or less."""
    good = [entry for entry in got.entries if entry.who.startswith(who) and entry.error <= goal]
    return min(good, key=lambda entry: entry.run.seconds, default=None)


def run_rows(got: Comparison) -> list[tuple[str, ...]]:
    shown = (*SHOWN_STEPS, *SHOWN_TOLERANCES)
    return [
        (e.who, e.setting, f"{e.violation:.0e}", f"{e.drift:.0e}", f"{e.error:.0e}", f"{1e3 * e.run.seconds:.2f}")
        for e in got.entries
        if np.any(np.isclose(e.size, shown, rtol=1e-6, atol=0.0))
    ]


def goal_rows(got: Comparison) -> list[tuple[str, str, str]]:
    def cell(who, goal):
        entry = quickest(got, who, goal)
        if entry is None:
            return "not reached"
        how = entry.who.removeprefix("MuJoCo, ") + ", " if who == "MuJoCo" else ""
        return f"{1e3 * entry.run.seconds:.2f} ms ({how}{entry.setting})"

    return [(f"{goal:.0e}", cell("MuJoCo", goal), cell("ukjax", goal)) for goal in GOALS]


def violation_figure(gots: list[Comparison]) -> Figure:
    """How far the loop is open over time."""
    figure, axes = panels(1, len(gots), (9.0, 4.8), sharey=True)
    for axis, got in zip(axes, gots, strict=True):
        t = np.linspace(0.0, got.end, SAVED)
        for who, size in (
            (f"MuJoCo, Euler, {LOOSE}", 2e-3), (f"MuJoCo, RK4, {LOOSE}", 2e-3), (f"MuJoCo, Euler, {STIFF}", 2e-3),
            (f"MuJoCo, RK4, {STIFF}", 2e-3), (f"MuJoCo, RK4, {STIFF}", 1e-4), ("ukjax", 1e-7),
        ):  # fmt: skip
            for entry in got.entries:
                if entry.who == who and np.isclose(entry.size, size, rtol=1e-6, atol=0.0):
                    open_by = visible(got.measures.violation(entry.run.q))
                    axis.semilogy(t[1:], open_by[1:], lw=1.0, label=f"{entry.who}, {entry.setting}")
        axis.set(xlabel="time t [s]", title=got.linkage.name)
        axis.margins(x=0.0)
    axes[0].set_ylabel("violation of the loop [m]")
    legend(figure)
    return captioned(figure, "How far the loops of two linkages are open over time; zero is drawn as 1e-18.")


def work_figure(gots: list[Comparison]) -> Figure:
    """Time over error, of everything that ran."""
    figure, axes = panels(1, len(gots), (9.0, 5.0), sharey=True)
    for axis, got in zip(axes, gots, strict=True):
        names = list(dict.fromkeys(entry.who for entry in got.entries))
        for who, marker in zip(names, "o^s*v<>", strict=True):
            runs = [entry for entry in got.entries if entry.who == who]
            style = "-" if who == "ukjax" else "--" if STIFF in who else ":"
            errors, times = [e.error for e in runs], [1e3 * e.run.seconds for e in runs]
            axis.loglog(errors, times, style, marker=marker, ms=5, lw=1.2, label=who)
        axis.set(xlabel=f"largest error of a point in {got.end:g} s [m]", title=got.linkage.name)
    axes[0].set_ylabel("time for a second of motion [ms]")
    legend(figure)
    return captioned(figure, "Time over error of two linkages, of everything that ran.")


def report(gots: list[Comparison]) -> None:
    """Prints the tables."""
    names = [got.linkage.name for got in gots]
    same = [(what, *(f"{got.difference[what]:.0e}" for got in gots)) for what in gots[0].difference]
    _report.table("MuJoCo against ukjax at random states, largest relative difference", ("", *names), same)
    for got in gots:
        columns = ("", "", "violation [m]", "energy off by [J]", "point off by [m]", "ms for 1 s of motion")
        _report.table(f"{got.linkage.name}, {got.end:g} s, largest values", columns, run_rows(got))
        columns = ("point off by at most [m]", "MuJoCo's quickest", "ukjax's quickest")
        _report.table(f"{got.linkage.name}: time for a second of motion", columns, goal_rows(got))
        _report.console.print(
            f"{got.linkage.name}: the two references are {got.reference:.0e} m apart; "
            f"ukjax compiles once, {got.entries[0].run.compile_s:.1f} s, for all tolerances.",
            highlight=False,
        )


def linkages() -> tuple[Linkage, Linkage]:
    return _loops.four_bar(), _loops.bricard_linkage()


def main(gots: list[Comparison] | None = None) -> None:
    """Compares, unless given what was found, prints and draws."""
    out = _report.start(__doc__ or "", "loops_beside_mujoco")
    gots = [compare(linkage) for linkage in linkages()] if gots is None else gots
    report(gots)
    _report.save({"violation": violation_figure(gots), "work": work_figure(gots)}, out)


if __name__ == "__main__":
    main()
