"""The other formalisms on the systems of `_formalism_cases`: derivation, size, and time of an acceleration."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ukjax

from . import _measure


BATCH = 1_000
HEADER = (
    "system",
    "n, rows",
    "Kane derived [s]",
    "Lagrange derived [s]",
    "UK each",
    "UK by rows each",
    "multipliers each",
    "Kane each",
    "UK by rows / multipliers",
    "UK by rows / Kane",
    "difference",
)


def rows(say: Callable[[str], None]) -> list[tuple[str, ...]]:
    """Cells in the order of `HEADER`; `say` is told what is being measured."""
    from . import _formalism_cases  # SymPy is an optional extra

    return [_row(case, say) for case in _formalism_cases.cases()]


def _row(case: Any, say: Callable[[str], None]) -> tuple[str, ...]:
    say(f"{case.name}: SymPy")
    kane, kane_s = _timed(case.kane)
    lagrange, lagrange_s = _timed(case.lagrange)
    # The same expressions for M, Q, A and b in all three: what is compared is what is done with them.
    mechanism = ukjax.from_sympy(lagrange)
    q, v = _states(case)
    say(f"{case.name}: batches of {BATCH}")
    motion = lambda formulation: (
        lambda q, v: ukjax.equation_of_motion(mechanism, q, v, case.t, formulation=formulation, throw=False)
    )
    to_speeds: Any = ukjax.from_sympy(kane).system
    speeds = jax.vmap(lambda q, v: to_speeds.speeds(q, v, jnp.asarray(case.t)))(q, v)
    uk, by_rows, multipliers, reduced = _measure.race(
        (jax.vmap(motion(ukjax.UdwadiaKalaba())), q, v),
        (jax.vmap(motion(ukjax.UdwadiaKalaba(ukjax.pseudoinverse.RowGramSchmidt()))), q, v),
        (jax.vmap(lambda q, v: _augmented(mechanism, q, v, case.t)), q, v),
        (jax.vmap(kane_equations(kane, case.t)), q, speeds),
    )
    difference = np.max(np.abs(uk.output.acceleration - multipliers.output) / (1 + np.abs(multipliers.output)))
    each = lambda timing: f"{1e9 * timing.run_s / BATCH:,.0f} ns"
    ratio = lambda theirs: f"{by_rows.run_s / theirs.run_s:.2g}"
    size = f"{len(case.q)}, {len(lagrange.coneqs)}"
    times = (f"{kane_s:.2f}", f"{lagrange_s:.2f}", each(uk), each(by_rows), each(multipliers), each(reduced))
    return (case.name, size, *times, ratio(multipliers), ratio(reduced), f"{difference:.0e}")


def _timed(make: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return make(), time.perf_counter() - start


def _states(case: Any) -> tuple[jax.Array, jax.Array]:
    """States near the case's own; the constraints need not hold for a comparison of times."""
    rng = np.random.default_rng(0)
    near = lambda x: jnp.asarray(x + rng.normal(scale=0.05, size=(BATCH, len(x))))
    return near(case.q), near(case.v)


def _augmented(mechanism: ukjax.Mechanism, q: jax.Array, v: jax.Array, t: float) -> jax.Array:
    """Lagrange's multipliers in the usual way, by one solve of n + m equations."""
    terms = mechanism.terms(q, v, jnp.asarray(t))
    n, m = q.shape[0], terms.b.shape[0]
    lower = jnp.concatenate([terms.A, jnp.zeros((m, m))], axis=1)
    augmented = jnp.concatenate([jnp.concatenate([terms.M, -terms.A.T], axis=1), lower])
    return jnp.linalg.solve(augmented, jnp.concatenate([terms.Q, terms.b]))[:n]


def kane_equations(kane: Any, t: float) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """u' as a function of q and u, by the equations that SymPy's Kane's method ends with."""
    import sympy as sm
    import sympy.physics.mechanics as me

    plain = {x: sm.Dummy() for x in [*kane.q, *kane.u]} | {me.dynamicsymbols._t: sm.Float(t)}
    written = [x.xreplace(kane.kindiffdict()).xreplace(plain) for x in [*kane.mass_matrix, *kane.forcing]]
    groups = [[plain[x] for x in kane.q], [plain[x] for x in kane.u]]
    function = sm.lambdify(groups, written, modules="jax", cse=True)
    k = len(kane.u)

    def derivative(q, u):
        entries = jnp.stack([jnp.asarray(x, q.dtype) for x in function(q, u)])
        return jnp.linalg.solve(entries[: k * k].reshape(k, k), entries[k * k :])

    return derivative
