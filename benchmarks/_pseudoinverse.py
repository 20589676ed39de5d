"""Every pseudoinverse strategy: sizes, batches, the application of B^+ and its gradient, against `jnp.linalg.pinv`."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np

import ukjax

from . import _measure


SIZES = ((2, 5), (4, 4), (12, 12), (30, 40))
BATCHES = (1, 1_000, 100_000)
STRATEGIES = (
    ukjax.SVD(),
    ukjax.pseudoinverse.Varga(),
    ukjax.pseudoinverse.Greville(),
    ukjax.pseudoinverse.HouseholderLS(),
    ukjax.pseudoinverse.GramSchmidtLS(),
    ukjax.pseudoinverse.RowGramSchmidt(),
    ukjax.pseudoinverse.Jacobi(),
)
# 100 000 matrices of 30 x 40 would take many minutes by the slowest; the table says how large the batch was.
ENTRIES = 16 * 100_000
HEADER = ("size", "batch", "strategy", "compile [s]", "each", "times pinv", "gradient each", "times pinv's", "error")


def rows(say) -> list[tuple[str, ...]]:
    """Cells in the order of `HEADER`; `say` is told what is being measured."""
    found = []
    for m, n in SIZES:
        # Large matrices come in smaller batches, each size once.
        for batch in sorted({min(wanted, max(1_000, ENTRIES // (m * n) // 1_000 * 1_000)) for wanted in BATCHES}):
            found += _at(m, n, batch, say)
    return found


def _at(m: int, n: int, batch: int, say) -> list[tuple[str, ...]]:
    rng = np.random.default_rng(0)
    B, y = jnp.array(rng.normal(size=(batch, m, n))), jnp.array(rng.normal(size=(batch, m)))
    label = (f"{m} x {n}", f"{batch:,}")
    say(f"{label[0]}, batch of {label[1]}: jnp.linalg.pinv")
    forward = _measure.measure(jax.vmap(_pinv), B, y)
    backward = _measure.measure(_gradient(_pinv), B, y)
    each = lambda timing: _time(timing.run_s / batch)
    out = [(*label, "jnp.linalg.pinv", f"{forward.compile_s:.2f}", each(forward), "1", each(backward), "1", "")]
    for strategy in STRATEGIES:
        name = type(strategy).__name__
        say(f"{label[0]}, batch of {label[1]}: {name}")
        apply = _solve(strategy)
        ours = _measure.measure(jax.vmap(apply), B, y)
        slope = _measure.measure(_gradient(apply), B, y)
        # A nearly singular matrix in a large batch has another rank to each test; the median does not mind.
        scale = jnp.linalg.norm(forward.output, axis=1)
        error = jnp.median(jnp.linalg.norm(ours.output - forward.output, axis=1) / scale)
        times = (each(ours), _ratio(forward, ours), each(slope), _ratio(backward, slope))
        out.append((*label, name, f"{ours.compile_s:.2f}", *times, f"{error:.0e}"))
    return out


def _solve(strategy):
    return lambda B, y: lx.linear_solve(lx.MatrixLinearOperator(B), y, strategy, throw=False).value


def _ratio(theirs, ours) -> str:
    return f"{theirs.run_s / ours.run_s:.2g}"


def _pinv(B, y):
    return jnp.linalg.pinv(B) @ y


def _gradient(apply):
    return jax.vmap(jax.grad(lambda B, y: jnp.sum(jnp.sin(apply(B, y)))))


def _time(seconds: float) -> str:
    return f"{1e9 * seconds:,.0f} ns" if seconds < 1e-4 else f"{1e6 * seconds:,.0f} µs"
