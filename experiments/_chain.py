"""What one more joint of a chain costs, with what was enforced before and from scratch."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.figure import Figure

import ukjax
from models.rr_leg import FreeBar, along

from . import _report
from ._figures import captioned, legend, panels


SIZES = (10, 20, 50, 100, 200)


class Pin(eqx.Module):
    """Joins the far end of one bar to the near end of the next."""

    length: Float[Array, ""]  # [m]

    def closed(self, q, t):
        before, after = q
        return before[:2] + self.length * along(before.phi) - after[:2]


@dataclasses.dataclass
class Cost:
    """Seconds to add the last joint of a chain of `bars`, and how far the ways are apart."""

    bars: int
    modular: float
    dense: float
    scratch: float
    blocks: float  # to factorise M by its blocks,
    whole: float  # and as one matrix
    apart: float


def measure(bars: int, repeats: int = 9) -> Cost:
    pin = Pin(jnp.asarray(0.35))
    joint = lambda i: ukjax.modular.Coupling((f"bar{i}", f"bar{i + 1}"), ukjax.Holonomic(pin.closed))
    modules = {f"bar{i}": ukjax.modular.Module(FreeBar(), ("x", "y", "phi")) for i in range(bars)}
    chain = ukjax.modular.Composite(modules, [joint(i) for i in range(bars - 2)])
    rng = np.random.default_rng(bars)
    q, v = jnp.asarray(rng.normal(size=chain.size)), jnp.asarray(rng.normal(size=chain.size))
    last = chain.bind(joint(bars - 2))

    modular = ukjax.modular.ModularLevel.start(chain, q, v).enforce(chain.constraints[0])
    terms = eqx.filter_jit(ukjax.Mechanism(chain).terms)(q, v, jnp.zeros(()))
    dense = eqx.filter_jit(lambda terms: ukjax.formulation.Level.start(terms.M, terms.Q).enforce(terms.A, terms.b))(
        terms
    )
    A, b = eqx.filter_jit(last.rows)(q, v, jnp.zeros(()))
    whole = ukjax.Mechanism(chain, last)

    # What each makes that is new: the acceleration, and what a further level would need.
    ways: list[tuple[Any, tuple[Any, ...]]] = [
        (eqx.filter_jit(lambda level: _new(level.enforce(last))), (modular,)),
        (eqx.filter_jit(lambda level, A, b: _new(level.enforce(A, b))), (dense, A, b)),
        (eqx.filter_jit(lambda q, v: ukjax.equation_of_motion(whole, q, v, throw=False).acceleration), (q, v)),
        (eqx.filter_jit(lambda q: [jnp.linalg.cholesky(block) for block in chain.blocks(q)]), (q,)),
        (eqx.filter_jit(lambda q: jnp.linalg.cholesky(chain.mass(q, jnp.zeros(())))), (q,)),
    ]
    found = [way(*arguments) for way, arguments in ways]
    size = float(jnp.max(jnp.abs(found[2])))
    apart = max(float(jnp.max(jnp.abs(other - found[2]))) for other, _ in found[:2]) / size
    modular_s, dense_s, scratch, blocks, one = (
        _report.median_seconds(way, *arguments, repeats=repeats) for way, arguments in ways
    )
    return Cost(bars, modular_s, dense_s, scratch, blocks, one, apart)


def _new(level: Any) -> tuple[Any, Any]:
    return level.acceleration, level.P if isinstance(level, ukjax.formulation.Level) else level.enforced[-1]


def figure(costs: list[Cost]) -> Figure:
    """Time over the number of modules, beside lines of slope 1, 2 and 3."""
    n = np.array([cost.bars for cost in costs], float)
    figure, (axis,) = panels(size=(7.0, 4.6))
    times = {name: np.array([1e3 * getattr(cost, name) for cost in costs]) for name in ("scratch", "dense", "modular")}
    labels = ("all joints from scratch", "one more joint, dense P", "one more joint, by modules")
    for label, values in zip(labels, times.values(), strict=True):
        axis.loglog(n, values, "o-", label=label)
    low, high = (f([f(values) for values in times.values()]) for f in (np.min, np.max))
    for power in (1, 2, 3):
        # From the slowest down, until it leaves the times or the sizes that there are.
        start = max(n[0], n[-1] * (low / high) ** (1 / power))
        ends = np.array([start, n[-1]])
        axis.loglog(ends, high * (ends / n[-1]) ** power, ":", color="0.4", lw=1.0, zorder=1)
        axis.annotate(f"$N^{power}$", (start, high * (start / n[-1]) ** power), textcoords="offset points",
                      xytext=(-20, -4), fontsize="small")  # fmt: skip
    axis.set(xlabel="modules N of the chain (3 N coordinates)", ylabel="time [ms]")
    axis.set_xticks(n, [f"{x:.0f}" for x in n])
    axis.minorticks_off()
    axis.margins(x=0.12)
    legend(figure)
    return captioned(figure, "Time to add the last joint of a chain of N modules, beside powers of N (dotted).")
