"""Where Baumgarte's gains keep the SCARA within a millimetre of its helix, as it is run in practice: in steps of 10 ms.

The robot of Xu & Liu (2017) starts at the printed, rounded angles, 6 mm off. 40 000 runs of 5 s, one for each pair of
200 x 200 gains, by `ukjax.sweep`; drawn is how far the tool is from its place after the first second, at the most.

Two things go wrong. Gains that are too small, or a damping that is too small or too large for its stiffness, leave the
error for long. And gains that are too large are too fast for the step. Both can be told beforehand: the matrix A of
this robot is invertible, so that each row of its constraint obeys

    Phi'' + alpha Phi' + beta Phi = 0

exactly, whatever the motion, and a Runge-Kutta method of step h multiplies (Phi, Phi') in every step by its stability
function R of h times the matrix of that equation. What this foretells is compared with what the runs do.

The same command goes on where it was interrupted.

    python -m experiments.study_baumgarte [--out DIR]
"""

import warnings
from pathlib import Path
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import ukjax
from models.scara import Scara, helix, scenario

from . import _report
from ._figures import captioned, legend, panels


DAMPING, STIFFNESS = (0.1, 1000.0), (1.0, 1e5)  # alpha [1/s], beta [1/s²]
COUNT = 200
STEP, END = 0.01, 5.0  # [s]
SETTLED = 1.0  # from when on the tool is to be where it belongs [s]
WITHIN = 1e-3  # [m]
PAPER = (0.5, 200.0)
FIGURE = "tool error after a second [m]"
TS = np.linspace(0.0, END, round(END / STEP) + 1)


def tool_error(trajectory: ukjax.Trajectory) -> Any:
    """The largest distance of the tool from its place once a second has passed [m]."""
    off = jax.vmap(lambda q, t: jnp.linalg.norm(Scara().tool(q) - helix(t)))(trajectory.q, trajectory.t)
    return jnp.max(jnp.where(trajectory.t >= SETTLED, off, 0.0))


def study(out: Path, count: int = COUNT) -> Any:
    """The runs, as an `xarray.Dataset`."""
    vary = {"damping": (*DAMPING, count, "log"), "stiffness": (*STIFFNESS, count, "log")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ukjax.FailedTrajectories)  # which is part of the answer
        return ukjax.sweep(
            scenario, vary, out / "study", settings={"start": "printed"}, ts=TS, keep=(), figures={FIGURE: tool_error},
            stepsize_controller=diffrax.StepTo(ts=TS), name="Baumgarte's gains of the SCARA",
        )  # fmt: skip


def foretold(damping: np.ndarray, stiffness: np.ndarray) -> np.ndarray:
    """The same figure by the recursion of the rows, for gains of any one shape [m]; infinite where that overflows."""
    case, start = scenario("printed"), jnp.zeros(())
    rows = case.mechanism.position_error(case.q0, start), case.mechanism.velocity_error(case.q0, case.v0, start)
    state = np.stack([np.asarray(x)[np.array([0, 1, 3])] for x in rows])  # of the tool
    zero, one = np.zeros_like(damping), np.ones_like(damping)
    matrix = np.stack([np.stack([zero, one], -1), np.stack([-stiffness, -damping], -1)], -2)
    advance = amplification(STEP * matrix)
    y, largest = np.broadcast_to(state, (*damping.shape, 2, 3)), np.zeros_like(damping)
    with np.errstate(over="ignore", invalid="ignore"):
        for t in TS[1:]:
            y = advance @ y
            if t >= SETTLED:
                largest = np.fmax(largest, np.linalg.norm(y[..., 0, :], axis=-1))
    return np.where(np.isfinite(y).all((-1, -2)), largest, np.inf)


def amplification(z: np.ndarray) -> np.ndarray:
    """The stability function of the method, R(z) = 1 + z b (1 - z A)^-1 1, of matrices z (..., 2, 2)."""
    tableau = diffrax.Tsit5.tableau
    a, b = [np.zeros(0), *map(np.asarray, tableau.a_lower)], np.asarray(tableau.b_sol)
    stages: list[np.ndarray] = []
    for row in a:
        stages.append(z @ (np.eye(2) + sum((w * k for w, k in zip(row, stages)), np.zeros_like(z))))
    return np.eye(2) + sum((w * k for w, k in zip(b, stages)), np.zeros_like(z))


def verdicts(data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Whether each pair of gains keeps the tool within a millimetre: by its run, and as foretold."""
    okay = np.asarray(data.result) == 0
    error = np.asarray(data.tool_error_after_a_second)
    theory = foretold(np.asarray(data.damping), np.asarray(data.stiffness))
    return okay & (error < WITHIN), theory < WITHIN


def figure_of(data: Any) -> Figure:
    """The map of the error, what was foretold, critical damping, and the paper's gains."""
    count = len(np.unique(data.damping))
    grid = lambda x: np.asarray(x).reshape(count, count).T
    alpha, beta = grid(data.damping), grid(data.stiffness)
    error = grid(np.where(np.asarray(data.result) == 0, data.tool_error_after_a_second, np.nan))
    figure, (axis,) = panels(size=(7.4, 6.0))
    axis.grid(visible=False)
    shown = axis.pcolormesh(alpha, beta, 1e3 * error, norm=LogNorm(1e-3, 1e1), cmap="viridis_r", rasterized=True)
    figure.colorbar(shown, ax=axis, label="largest distance of the tool after 1 s [mm]", extend="both")
    axis.set_facecolor("0.85")
    kept, theory = (grid(x).astype(float) for x in verdicts(data))
    axis.contour(alpha, beta, kept, [0.5], colors="k", linewidths=1.6)
    axis.contour(alpha, beta, theory, [0.5], colors="C3", linewidths=1.2, linestyles="--")
    axis.plot([], [], "k", lw=1.6, label="within 1 mm, by 40 000 runs" if count == COUNT else "within 1 mm, by runs")
    axis.plot([], [], "C3--", lw=1.2, label="within 1 mm, foretold")
    critical = np.geomspace(*DAMPING, 50)
    axis.plot(critical, critical**2 / 4, "--", color="0.4", lw=1.5, label="critical damping, α = 2 β$^{1/2}$")
    axis.plot(*PAPER, "r*", ms=13, mec="w", label="the paper's gains")
    axis.fill_between([], [], [], color="0.85", label="fails, or no number")
    axis.set(xscale="log", yscale="log", xlim=DAMPING, ylim=STIFFNESS)
    axis.set(xlabel="damping α [1/s]", ylabel="stiffness β [1/s²]")
    legend(figure)
    return captioned(
        figure, f"The SCARA robot from 6 mm off its helix, in steps of {1e3 * STEP:.0f} ms, over Baumgarte's gains."
    )


def rows(data: Any) -> list[tuple[str, str]]:
    kept, theory = verdicts(data)
    best = int(np.nanargmin(np.where(kept, data.tool_error_after_a_second, np.nan)))
    gains = f"alpha = {float(data.damping[best]):.3g} 1/s, beta = {float(data.stiffness[best]):.3g} 1/s²"
    at_paper = float(foretold(*(np.array([x]) for x in PAPER))[0])
    return [
        ("pairs of gains", f"{kept.size}"),
        ("within a millimetre, by the runs", f"{100 * np.mean(kept):.1f} %"),
        ("of which foretold, and the other way round", f"{100 * np.mean(kept == theory):.2f} % agree"),
        ("runs that failed", f"{int(np.sum(np.asarray(data.result) != 0))}"),
        ("smallest error", f"{1e3 * float(data.tool_error_after_a_second[best]):.2g} mm at {gains}"),
        ("the paper's gains", f"{1e3 * at_paper:.2f} mm"),
    ]


def main() -> None:
    out = _report.start(__doc__ or "", "study_baumgarte", every_core=True)
    data = study(out)
    _report.table("Baumgarte's gains of the SCARA", ("", "we measure"), rows(data))
    _report.save({"gains": figure_of(data)}, out)


if __name__ == "__main__":
    main()
