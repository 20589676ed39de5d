"""Ten thousand pairs of robots under one controller: what tuned gains are worth where nothing is as it was assumed.

The two coordinated robots of Liu et al. (2015), whose controller knows only their nominal masses (`tune_servo`). Chains
with masses and moments of inertia off by up to 20 %, started some centimetres off the path, under

- the paper's gains;
- gains tuned on 8 such chains;
- gains tuned on 200 others, a tile of them at a time on every core, so that memory is that of a tile.

None of the 10 000 was seen in tuning. Drawn is how far the object is from its place, over time and at the worst after
the first second, and which chains are the bad ones.

    python -m experiments.study_robots [--out DIR]
"""

import dataclasses
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ukjax

from . import _report
from ._figures import captioned, legend, panels
from ._tuned_robots import PAPER, ROWS, STEPS, T1, Sample, controlled, errors, problem, samples


UNSEEN, MANY, FEW = 10_000, 200, 8
SETTLED = 1.0  # [s]
TS = np.linspace(0.0, T1, STEPS // 2 + 1)
BANDS = ((0.5, 99.5, 0.15), (5.0, 95.0, 0.3), (25.0, 75.0, 0.5))  # percent, and how dark
WAYS = ("paper's gains", f"tuned on {FEW}", f"tuned on {MANY}")


def mechanism(sample: dict[str, Any]) -> ukjax.Mechanism:
    return controlled(sample["gains"], sample["chain"])[0]


def start(sample: dict[str, Any]) -> Any:
    return sample["chain"].q0


@dataclasses.dataclass
class Outcome:
    """Of each chain: how far its object is from its place over time (B, T) [m], and whether its run succeeded (B,)."""

    distance: np.ndarray
    okay: np.ndarray

    @property
    def worst(self) -> np.ndarray:
        """The largest distance after the first second, of the runs that succeeded [m]."""
        return self.distance[self.okay][:, TS >= SETTLED].max(axis=1)


def distance(trajectory: ukjax.Trajectory) -> Any:
    """Of the object from its place (T,) [m]."""
    return jnp.linalg.norm(errors(trajectory)[:, :2], axis=1)


def outcome(gains: dict[str, Any], chains: Sample) -> Outcome:
    """All chains under one controller."""
    count = chains.q0.shape[0]
    alike = jax.tree_util.tree_map(lambda x: jnp.broadcast_to(jnp.asarray(x), (count, len(x))), gains, is_leaf=_is_row)
    got = ukjax.simulate_batch(
        mechanism, start, jnp.zeros(5), TS, samples={"gains": alike, "chain": chains}, reduce=distance, keep=("q",),
        formulation=ukjax.UdwadiaKalaba(ukjax.pseudoinverse.RowGramSchmidt()),
        stepsize_controller=diffrax.StepTo(ts=np.linspace(0.0, T1, STEPS + 1)),
    )  # fmt: skip
    return Outcome(np.asarray(got.value), np.asarray(got.result == ukjax.RESULTS.successful))


def _is_row(x: Any) -> bool:
    return not isinstance(x, dict)


def tuned(count: int, seed: int, steps: int = 10) -> tuple[dict[str, Any], ukjax.tuning.Tuning]:
    """Gains for `count` chains, by gradient from the paper's."""
    _report.console.print(f"Tuning on {count} chains; the first step compiles.")
    found = problem(steps, count, seed).tune()
    return {k: np.exp(np.asarray(x)) for k, x in found.params.items()}, found


def rows(gains: dict[str, Any], found: dict[str, Outcome]) -> list[tuple[str, ...]]:
    table = []
    for way, one in found.items():
        text = "; ".join(f"{k} {', '.join(f'{x:.3g}' for x in values)}" for k, values in gains[way].items())
        middle, most, largest = (1e3 * x for x in (*np.percentile(one.worst, (50, 99)), one.worst.max()))
        failed = int(np.sum(~one.okay))
        table.append((way, text, f"{middle:.2f} mm", f"{most:.2f} mm", f"{largest:.2f} mm", str(failed)))
    return table


def distance_figure(found: dict[str, Outcome]) -> Figure:
    """Distances over time, with bands, a panel for each way; and how they are distributed at the worst."""
    figure, axes = panels(1, len(found) + 1, (11.0, 3.8), width_ratios=[1.0] * len(found) + [1.2])
    for i, (way, one) in enumerate(found.items()):
        values = 1e3 * one.distance[one.okay]
        for low, high, alpha in BANDS:
            edges = np.percentile(values, (low, high), axis=0)
            axes[i].fill_between(TS, *edges, color=f"C{i}", alpha=alpha, lw=0)
        axes[i].plot(TS, np.median(values, axis=0), color=f"C{i}", label=way)
        axes[i].set(yscale="log", ylim=(0.02, 200.0), xlabel="time t [s]")
        axes[i].margins(x=0.0)
        worst = np.sort(1e3 * one.worst)
        axes[-1].plot(worst, np.arange(1, worst.size + 1) / worst.size, color=f"C{i}")
    for low, high, alpha in BANDS:
        axes[-1].fill_between([], [], color="k", alpha=alpha, lw=0, label=f"{low:g} to {high:g} %")
    axes[0].set_ylabel("distance of the object from its place [mm]")
    axes[-1].set(xscale="log", xlabel=f"largest distance after {SETTLED:.0f} s [mm]", ylabel="share of the chains")
    axes[-1].grid(alpha=0.3, which="both")
    legend(figure)
    return captioned(
        figure,
        f"Coordinated robots: {one.okay.size:,} chains with unknown masses, not seen in tuning. Lines are medians; "
        "bands hold shares of them.",
    )


def mass_figure(found: dict[str, Outcome], chains: Sample) -> Figure:
    """What makes a chain a bad one: its worst distance over how much heavier than assumed its links are."""
    figure, axes = panels(1, 5, (11.0, 3.6), sharey=True)
    for j, axis in enumerate(axes):
        for i, (way, one) in enumerate(found.items()):
            mass = np.asarray(chains.robots.m)[one.okay, j]
            axis.plot(mass, 1e3 * one.worst, ".", ms=1, alpha=0.3, color=f"C{i}", rasterized=True)
            groups = np.array_split(np.argsort(mass), 20)
            medians = [[np.median(x[group]) for group in groups] for x in (mass, 1e3 * one.worst)]
            axis.plot(*medians, color=f"C{i}", lw=2, label=way)
        axis.set(yscale="log", xlabel=f"mass $m_{j + 1}$ [kg]")
    axes[0].set_ylabel(f"largest distance after {SETTLED:.0f} s [mm]")
    legend(figure)
    return captioned(figure, "Which chains are the bad ones: each run, and the median over the mass of a link.")


def main(unseen: int = UNSEEN, many: int = MANY) -> None:
    out = _report.start(__doc__ or "", "study_robots", every_core=True)
    with _report.console.status(f"Closing {unseen} chains"):
        chains = jax.block_until_ready(samples(unseen, 1))
    gains = {WAYS[0]: {k: np.array(x) for k, x in PAPER.items()}}
    for way, count, seed in ((WAYS[1], FEW, 0), (WAYS[2], many, 2)):
        gains[way], _ = tuned(count, seed)
    found = {way: outcome(x, chains) for way, x in gains.items()}
    columns = ("", f"gains of {', '.join(ROWS)}", "median of the worst", "99 %", "of all", "failed")
    _report.table(f"{unseen} chains, distance of the object after {SETTLED:.0f} s", columns, rows(gains, found))
    _report.save({"distance": distance_figure(found), "masses": mass_figure(found, chains)}, out)


if __name__ == "__main__":
    main()
