"""Start-up; and the SCARA robot with Baumgarte's terms: one trajectory, its gradient, batches of accelerations."""

import jax
import jax.numpy as jnp
import numpy as np

import ukjax
from models.scara import Scara, helix, scenario

from . import _measure, _start_up


TS = np.linspace(0.0, 5.0, 101)
BATCHES = (1, 1_000, 100_000)
BATCH = 256


def rows(say) -> list[tuple[str, str, str]]:
    """(what, figure, note) for the table; `say` is told what is being measured."""
    return [*_start_up.rows(say), *_trajectory(say), *_accelerations(say)]


def _trajectory(say) -> list[tuple[str, str, str]]:
    case = scenario("printed")

    def run(mechanism, q0, v0):
        return ukjax.simulate(mechanism, q0, v0, TS, rtol=1e-9, atol=1e-9, throw=False)

    def positions(mechanism, q0, v0):
        return ukjax.simulate(mechanism, q0, v0, TS, rtol=1e-9, atol=1e-9, keep=("q",), throw=False)

    def loss(mechanism, q0, v0):
        return jnp.mean(run(mechanism, q0, v0).q ** 2)

    state = (case.mechanism, case.q0, case.v0)
    say("one trajectory of the SCARA, 5 s at rtol 1e-9")
    forward = _measure.measure(run, *state)
    say("the same, of which only q is kept")
    lean = _measure.measure(positions, *state)
    say("the gradient of a trajectory, reverse mode")
    gradient = jax.value_and_grad(loss, argnums=(0, 1, 2))
    plain, backward = _measure.race((loss, *state), (gradient, *state), rounds=50)
    leaves = len(jax.tree_util.tree_leaves(state))
    steps = int(forward.output.stats["num_steps"])
    error = np.max(np.abs(forward.output.q - _exact(TS, case)))
    ms = lambda timing: f"{1e3 * timing.run_s:.1f} ms"
    return [
        ("trajectory, compile", f"{forward.compile_s:.1f} s", "5 s of motion, rtol 1e-9, 101 saved times"),
        (
            'trajectory, compile, keep=("q",)',
            f"{lean.compile_s:.1f} s",
            f"{forward.compile_s / lean.compile_s:.1f} times as fast as with everything; run {ms(lean)}",
        ),
        ("trajectory, run", ms(forward), f"{steps} Tsit5 steps; error against the exact motion {error:.0e} rad, m"),
        ("gradient, compile", f"{backward.compile_s:.1f} s", f"value and gradient with respect to {leaves} leaves"),
        ("gradient, run", ms(backward), f"{backward.run_s / plain.run_s:.1f} times the forward run"),
        *(_budget(case, seconds, say) for seconds in (0.2, 1.0, 5.0)),
    ]


def _budget(case, seconds: float, say) -> tuple[str, str, str]:
    """What a batch of gradients costs with the step budget by default, beside the one that just suffices."""
    say(f"a batch of gradients of {seconds} s of motion")
    q0, ts = jnp.stack([case.q0] * BATCH), np.array([0.0, seconds])

    def gradients(**budget):
        run = lambda q0: ukjax.simulate(case.mechanism, q0, case.v0, ts, rtol=1e-9, atol=1e-9, throw=False, **budget)

        def loss(q0):
            got = run(q0)
            return jnp.mean(got.q**2), got.stats["num_steps"]

        return jax.vmap(jax.grad(loss, has_aux=True))

    steps = int(jnp.max(jax.jit(gradients())(q0)[1]))
    default, tight = _measure.race((gradients(), q0), (gradients(max_steps=steps + 1), q0), rounds=5)
    return (
        f"{BATCH} gradients of {seconds} s of motion",
        f"{default.memory / tight.memory:.1f}, {default.run_s / tight.run_s:.1f}",
        f"memory and time by default / with a step budget of {steps + 1}: {default.memory / 1e6:.1f} MB",
    )


def _exact(ts, case):
    """Joints for the exact decay of Phi: A is invertible, so Phi'' + d Phi' + k Phi = 0 row by row."""
    stabilization = case.mechanism.constraints[0].stabilization
    d, k = float(stabilization.damping), float(stabilization.stiffness)
    p = case.mechanism.position_error(case.q0, jnp.asarray(0.0))
    r = case.mechanism.velocity_error(case.q0, case.v0, jnp.asarray(0.0))
    w = (k - d**2 / 4) ** 0.5

    def joints(t):
        phi = jnp.exp(-d * t / 2) * (p * jnp.cos(w * t) + (r + d * p / 2) / w * jnp.sin(w * t))
        q = Scara().joints(helix(t) + phi[jnp.array([0, 1, 3])])
        return q.at[2].add(phi[2])

    return jax.vmap(joints)(jnp.asarray(ts))


def _accelerations(say) -> list[tuple[str, str, str]]:
    case = scenario("printed")
    rng = np.random.default_rng(0)
    found = []
    for size in BATCHES:
        say(f"accelerations in a batch of {size}")
        q = case.q0 + jnp.array(rng.normal(scale=0.1, size=(size, 4)))
        v = case.v0 + jnp.array(rng.normal(scale=0.1, size=(size, 4)))
        ours = _measure.measure(_batch(_ukjax_acceleration), case.mechanism, q, v)
        literal = _measure.measure(_batch(_pinv_acceleration), case.mechanism, q, v)
        motion, reference = ours.output, literal.output
        same = np.max(np.abs(motion.acceleration - reference) / (1 + np.abs(reference)))
        found.append(
            (
                f"acceleration, batch of {size:,}",
                f"{1e9 * ours.run_s / size:,.0f} ns each",
                f"{literal.run_s / ours.run_s:.2f} times as fast as Cholesky + jnp.linalg.pinv; "
                f"residual {np.max(motion.residual):.0e}, difference {same:.0e}",
            )
        )
    return found


def _batch(acceleration):
    return lambda mechanism, q, v: jax.vmap(lambda q, v: acceleration(mechanism, q, v))(q, v)


def _ukjax_acceleration(mechanism, q, v):
    return ukjax.equation_of_motion(mechanism, q, v, throw=False)


def _pinv_acceleration(mechanism, q, v):
    """The same acceleration, written down straight.

    With both right-hand sides in one triangular solve: two batched LAPACK calls at a time can wait for each other
    forever on the CPU.
    """
    terms = mechanism.terms(q, v, jnp.asarray(0.0))
    L = jnp.linalg.cholesky(terms.M)
    solved = jax.scipy.linalg.solve_triangular(L, jnp.column_stack([terms.Q, terms.A.T]), lower=True)
    w, B = solved[:, 0], solved[:, 1:].T
    x = w + jnp.linalg.pinv(B) @ (terms.b - B @ w)
    return jax.scipy.linalg.solve_triangular(L, x, lower=True, trans=1)
