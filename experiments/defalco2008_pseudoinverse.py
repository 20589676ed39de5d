"""de Falco, Pennestri & Vita (2008): which pseudoinverse for the Udwadia-Kalaba equation?

Prints the counterparts of tables 1 to 12, what the paper says beside what we measure, and draws figure 2. It takes some
twenty minutes, most of them for the paper's gains, which are stiff.

    python -m experiments.defalco2008_pseudoinverse [--out DIR]

The paper integrates an overconstrained parallelogram for 20 s with IMSL's Adams-Moulton method, and cuts off singular
values at the tolerance of the integrator. Its start is not printed; ours is 45 degrees from the vertical, at rest, and
the exact motion is known in closed form. A run counts as correct as long as it is within 0.01 rad of that.
"""

import time
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.progress import Progress

import ukjax
from models import parallelogram
from models.scara import scenario as scara

from . import _report
from ._defalco2008 import FLOPS, OPERATIONS, RUNS, SIZES, TABLE_6
from ._figures import captioned, legend, over_time, visible


T_END = 20.0
TOLERANCES = (1e-6, 1e-8, 1e-10)
CORRECT = 0.01  # [rad]
PAPER = (
    ukjax.SVD(),
    ukjax.pseudoinverse.Varga(),
    ukjax.pseudoinverse.Greville(),
    ukjax.pseudoinverse.HouseholderLS(),
    ukjax.pseudoinverse.GramSchmidtLS(),
)
STRATEGIES = (*PAPER, ukjax.pseudoinverse.RowGramSchmidt(), ukjax.pseudoinverse.Jacobi())
FORMULATIONS = {
    "UdwadiaKalaba (31)": ukjax.UdwadiaKalaba,
    "UdwadiaPhohomsiri (43)": ukjax.formulation.UdwadiaPhohomsiri,
    "RangeSpace (35)": ukjax.formulation.RangeSpace,
    "PennestriDeFalco (41)": ukjax.formulation.PennestriDeFalco,
}
# 2 alpha and beta^2 with the paper's alpha = 1000 and beta = 100: poles at -5 and -1995 1/s.
GAINS = (2000.0, 1e4)
SOLVER = diffrax.Dopri8()
# A run that drifts apart stalls: that is seen soon. Stiff gains take an explicit method many steps.
MAX_STEPS = {False: 5_000, True: 40_000}


class Run(NamedTuple):
    """A simulation beside the exact motion."""

    trajectory: ukjax.Trajectory
    error: np.ndarray  # of theta (T,) [rad]
    correct_to: float  # [s]
    evaluations: int
    seconds: float


class Runner:
    """Simulates the parallelogram; one compiled function for each strategy, with and without projection."""

    def __init__(self):
        self._compiled = {}

    def __call__(self, strategy, tolerance, gains=(0.0, 0.0), projected=False, start="swing", t1=T_END) -> Run:
        case = parallelogram.scenario(start, *gains)
        ts = jnp.linspace(0.0, t1, 401)
        arguments = (case.mechanism, case.q0, case.v0, ts, jnp.asarray(tolerance))
        stiff = gains[0] > 0
        key = (strategy, stiff, projected)
        if key not in self._compiled:
            self._compiled[key] = eqx.filter_jit(_simulation(strategy, stiff, projected)).lower(*arguments).compile()
        begin = time.perf_counter()
        trajectory = jax.block_until_ready(self._compiled[key](*arguments))
        seconds = time.perf_counter() - begin
        exact, _ = parallelogram.exact(np.asarray(ts), start)
        error = np.abs(np.asarray(trajectory.q[:, 2]) - exact)
        wrong = ~(error < CORRECT)
        correct_to = float(ts[np.argmax(wrong) - 1]) if wrong.any() else t1
        steps = int(trajectory.stats["num_steps"])
        # The last stage of a step is the first of the next, unless the state was projected in between.
        stages = SOLVER.tableau.num_stages
        evaluations = steps * stages if projected else steps * (stages - 1) + 1
        return Run(trajectory, error, correct_to, evaluations, seconds)


def _simulation(strategy, stiff, projected):
    options = {"solver": SOLVER, "max_steps": MAX_STEPS[stiff], "throw": False}
    options["formulation"] = ukjax.UdwadiaKalaba(strategy)
    options["projection"] = ukjax.Projection(pseudoinverse=strategy) if projected else None

    def simulation(mechanism, q0, v0, ts, tolerance):
        return ukjax.simulate(mechanism, q0, v0, ts, rtol=tolerance, atol=tolerance, **options)

    return simulation


def outcome(run: Run) -> str:
    """In the paper's words."""
    t_end = float(run.trajectory.t[-1])
    if run.correct_to == t_end:
        return "correct"
    reached = float(run.trajectory.stats["t_reached"])
    return f"fails at {reached:.1f} s" if reached < t_end else f"correct to {run.correct_to:.1f} s"


def violation(run: Run) -> np.ndarray:
    """Sum of psi^2 over the rows (T,) [m^2]."""
    return np.asarray(run.trajectory.position_residual) ** 2


def flop_rows() -> list[tuple[str, ...]]:
    """Table 6, and what XLA counts in our code at the same sizes."""
    rows = []
    for name, count in FLOPS.items():
        cells = [name]
        for (m, n), printed in zip(SIZES, TABLE_6[name]):
            assert count(m, n) == printed
            ours = [_counted(FORMULATIONS[name](s), m, n) for s in (ukjax.SVD(), ukjax.pseudoinverse.RowGramSchmidt())]
            cells.append(f"{printed:,} | " + " | ".join(f"{x:,.0f}" for x in ours))
        rows.append(tuple(cells))
    return rows


def _counted(formulation, m: int, n: int) -> float:
    """XLA's count for one acceleration."""
    shapes = [jax.ShapeDtypeStruct(s, float) for s in ((n, n), (n,), (m, n), (m,))]
    solve = lambda M, Q, A, b: formulation.solve(ukjax.Terms(M, Q, A, b)).acceleration
    return (jax.jit(solve).lower(*shapes).compile().cost_analysis() or {})["flops"]


def operation_rows() -> list[tuple[str, ...]]:
    """Tables 2 to 5 at the smallest and the largest size, their sums, and what table 1 makes of them."""
    rows = []
    (m0, n0), (m1, n1) = SIZES[0], SIZES[-1]
    for name, operations in OPERATIONS.items():
        rows += [(name, what, f"{f(m0, n0):,}", f"{f(m1, n1):,}") for what, f in operations]
        sums = [sum(f(m, n) for _, f in operations) for m, n in (SIZES[0], SIZES[-1])]
        table_1 = [FLOPS[name](m, n) for m, n in (SIZES[0], SIZES[-1])]
        rows.append((name, "together", *(f"{x:,}" for x in sums)))
        off = "" if sums == table_1 else f" (off by {(table_1[0] - sums[0]) // n0**3} n^3)"
        rows.append((name, "table 1" + off, *(f"{x:,}" for x in table_1)))
    return rows


def run_rows(run: Runner, tolerance: float, stabilised: bool, tick) -> list[tuple[str, ...]]:
    """One of the tables 7 to 12: paper | with the paper's cut-off | with our default."""
    gains = GAINS if stabilised else (0.0, 0.0)
    rows = []
    for strategy in STRATEGIES:
        name = type(strategy).__name__
        printed = RUNS[stabilised, tolerance].get(name, ("not there", "", ""))
        cells = [name, ", ".join(cell for cell in printed if cell)]
        for cut_off in (tolerance, None):
            tick(f"{name} at {tolerance:g}")
            # The paper's cut-off is another compiled function for every tolerance: for its own five methods only.
            if cut_off is not None and not isinstance(strategy, tuple(map(type, PAPER))):
                cells.append("")
                continue
            cells.append(described(run(type(strategy)(cut_off), tolerance, gains)))
        rows.append(tuple(cells))
    return rows


def described(run: Run) -> str:
    v = violation(run)
    last = v[np.isfinite(v)][-1]
    steps = int(run.trajectory.stats["num_steps"])
    return f"{outcome(run)}, {last:.1e}, {run.evaluations:,} in {steps:,} steps, {run.seconds:.2f} s"


def projection_rows(run: Runner, tick) -> list[tuple[str, ...]]:
    """Error of theta and evaluations with projection, every strategy, start and tolerance."""
    rows = []
    for strategy in STRATEGIES:
        for start in parallelogram.STARTS:
            cells = [type(strategy).__name__, start]
            for tolerance in TOLERANCES:
                tick(f"{cells[0]}, {start}, at {tolerance:g}, with projection")
                done = run(strategy, tolerance, projected=True, start=start)
                cells.append(
                    f"{outcome(done)}, {np.max(done.error):.0e} rad, {np.nanmax(violation(done)):.0e}, "
                    f"{done.evaluations:,}, {done.seconds:.2f} s"
                )
            rows.append(tuple(cells))
    return rows


def violation_figure(runs: dict[str, Run]) -> Figure:
    """Figure 2: violation of the position constraints, without and with stabilisation; and with projection."""
    figure, (axis,) = over_time("$\\sum \\psi^2$ [m²]", height=4.4)
    for label, run in runs.items():
        # A logarithm needs something to show: zero is drawn at the square of the smallest rounding error.
        axis.semilogy(run.trajectory.t[1:], visible(violation(run)[1:], 1e-34), lw=1.2, label=label)
    legend(figure)
    return captioned(
        figure, "Counterpart of figure 2: violation of the position constraints, by SVD and at tolerance 1e-8."
    )


def error_figure(runs: dict[str, Run]) -> Figure:
    """The error of the angle, for the same runs."""
    figure, (axis,) = over_time("error of θ [rad]", height=4.0)
    for label, run in runs.items():
        axis.semilogy(run.trajectory.t[1:], visible(run.error[1:], 1e-13), lw=1.2, label=label)
    legend(figure)
    return captioned(figure, "Error of the angle against the exact motion, by SVD and at tolerance 1e-8.")


def misprint_rows() -> list[tuple[str, str, str]]:
    """What the paper prints and what holds."""
    case = scara("consistent", 0.0, 0.0)
    terms = eqx.filter_jit(case.mechanism.terms)(case.q0, case.v0, jnp.asarray(0.0))
    M, Q, A, b = (np.asarray(x) for x in (terms.M, terms.Q, terms.A, terms.b))
    K = np.block([[M, A.T], [A, np.zeros((4, 4))]])
    multiplier = np.linalg.solve(K, np.concatenate([Q, b]))[4:]
    G = A @ np.linalg.solve(M, A.T)
    printed = np.linalg.solve(G, b - A @ np.linalg.solve(M, Q))
    sign = lambda x: np.max(np.abs(x - multiplier)) / np.max(np.abs(multiplier))
    return [
        ("(27), the sign of lambda", "+", f"off by {sign(printed):.1f} as printed, by {sign(-printed):.0e} with -"),
        ("table 5 against table 1", "the same", "table 1 has 11 n^3 where table 5 adds up to 20 n^3"),
        ("(41), (43): what they need", "not said", "rank [M; A] = n; otherwise (41) is a least-norm acceleration"),
    ]


def main() -> None:
    out = _report.start(__doc__ or "", "defalco2008_pseudoinverse")
    run = Runner()
    with _report.console.status("Counting operations"):
        counted = flop_rows()
    sizes = tuple(f"m = {m}, n = {n}" for m, n in SIZES)
    _report.table("Tables 2 to 5: operations", ("", "operation", sizes[0], sizes[-1]), operation_rows())
    _report.table("Table 6: paper | XLA's count with SVD() | with RowGramSchmidt()", ("", *sizes), counted)
    _report.console.print(
        "XLA counts neither what LAPACK does nor more than one pass of a loop: its numbers are a lower bound, and near "
        "the truth for RowGramSchmidt at m = 2 only.\n"
    )
    columns = ("method", "paper: result, sum of psi^2, evaluations", "ours, the paper's cut-off", "ours, cut-off 1e-4")
    with Progress(console=_report.console, transient=True) as progress:
        total = 2 * 3 * 2 * len(STRATEGIES) + len(STRATEGIES) * 9 + 3
        task = progress.add_task("Simulating", total=total)
        tick = lambda what: progress.update(task, advance=1, description=what)
        for stabilised in (False, True):
            for i, tolerance in enumerate(TOLERANCES[::-1]):
                number = 7 + i + 3 * stabilised
                how = "Baumgarte, alpha = 1000, beta = 100" if stabilised else "not stabilised"
                _report.table(
                    f"Table {number}: tolerance {tolerance:g}, {how}",
                    columns,
                    run_rows(run, tolerance, stabilised, tick),
                )
        _report.table(
            "With projection: result, largest error, largest sum of psi^2, evaluations, time",
            ("method", "start", *(f"tolerance {t:g}" for t in TOLERANCES)),
            projection_rows(run, tick),
        )
        shown = {
            "not stabilised": run(ukjax.SVD(), 1e-8),
            "Baumgarte, α = 1000, β = 100": run(ukjax.SVD(), 1e-8, GAINS),
            "projection": run(ukjax.SVD(), 1e-8, projected=True),
        }
    _report.table("What the paper prints", ("", "printed", "we find"), misprint_rows())
    _report.save({"figure02_violation": violation_figure(shown), "error": error_figure(shown)}, out)


if __name__ == "__main__":
    main()
