"""Trajectories: closed forms, options, derivatives."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import ukjax

from .helpers import STATES, assert_close, assert_gradients, central_difference, falling, long, pendulum, rod
from .inside import LABELS, OF_EACH, OPTIONAL, STATS


TS = jnp.linspace(0.0, 2.0, 11)
TIGHT = {"rtol": 1e-11, "atol": 1e-12}


def test_iftomm_a01_simple_pendulum():
    ts = jnp.array([0.0, 1.0, 5.0, 10.0])
    got = ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], ts, solver=diffrax.Dopri8(), **TIGHT, keep=STATES)
    want = jnp.array(
        [
            [0.9862917511318734, -0.16501085312555258],
            [-0.9423054350438044, -0.3347543384138681],
            [-0.2750874625764018, -0.9614192050990436],
        ]
    )
    assert_close(got.q[1:], want, atol=1e-8)
    energy = 0.5 * jnp.sum(got.v**2, axis=1) + 9.81 * got.q[:, 1]
    assert np.max(np.abs(energy)) < 1e-8  # the benchmark accepts 5e-5 J
    assert np.max(got.position_residual) < 1e-8


def test_particle_on_a_surface_that_depends_on_time():
    # On the circle |q| = 1 + t / 5, no gravity: angular momentum stays, so the angle is 5 w (1 - 1 / (1 + t / 5)).
    radius = lambda t: 1 + t / 5
    growing = ukjax.Holonomic(lambda q, t: (q @ q - radius(t) ** 2)[None])
    w = 1.7
    got = ukjax.simulate(ukjax.Mechanism(falling(g=0.0), growing), [1.0, 0.0], [0.2, w], TS, **TIGHT)
    angle = 5 * w * (1 - 1 / radius(TS))
    want = radius(TS)[:, None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
    assert_close(got.q, want, atol=1e-9)
    # The surface does work, and along its normal only: N = m (r'' - r w^2).
    normal = jnp.sum(got.constraint_force * got.q, axis=1) / radius(TS)
    assert_close(normal, -(w**2) / radius(TS) ** 3, atol=1e-9)


def test_knife_edge_on_an_inclined_plane():
    # Neimark & Fufaev: turns at a constant rate and, never leaving a strip, drifts sideways.
    g, w = 3.0, 1.3  # g sin(slope)
    system = ukjax.System(
        lambda q, t: jnp.diag(jnp.array([2.0, 2.0, 0.7])), lambda q, v, t: jnp.array([2.0 * g, 0.0, 0.0])
    )
    edge = ukjax.Nonholonomic(lambda q, v, t: (v[0] * jnp.sin(q[2]) - v[1] * jnp.cos(q[2]))[None])
    got = ukjax.simulate(
        ukjax.Mechanism(system, edge), jnp.zeros(3), jnp.array([0.0, 0.0, w]), TS, **TIGHT, keep=STATES
    )
    x = g / (2 * w**2) * jnp.sin(w * TS) ** 2
    y = g / (2 * w**2) * (w * TS - jnp.sin(2 * w * TS) / 2)
    assert_close(got.q, jnp.stack([x, y, w * TS], axis=1), atol=1e-9)
    assert np.max(got.velocity_residual) < 1e-9
    assert_close(got.position_residual, jnp.zeros(11))  # there is none


def test_constraint_nonlinear_in_velocity():
    # A particle thrown horizontally and held to the speed c: its direction obeys c w' = -g cos w.
    g, c = 9.81, 3.0
    steady = ukjax.Nonholonomic(lambda q, v, t: (v @ v - c**2)[None], ukjax.Baumgarte(1.0))
    got = ukjax.simulate(
        ukjax.Mechanism(falling(g=g), steady), jnp.zeros(2), jnp.array([c, 0.0]), TS, **TIGHT, keep=STATES
    )
    s = g * TS / c
    want = c**2 / g * jnp.stack([2 * jnp.arctan(jnp.tanh(s / 2)), -jnp.log(jnp.cosh(s))], axis=1)
    assert_close(got.q, want, atol=1e-8)
    assert_close(got.v, c * jnp.stack([1 / jnp.cosh(s), -jnp.tanh(s)], axis=1), atol=1e-8)


def test_lagrangian_spherical_pendulum_against_scipy_in_reduced_coordinates():
    lagrangian = ukjax.LagrangianSystem(lambda q, v, t: v @ v / 2, lambda q, t: 9.81 * q[2])
    mechanism = ukjax.Mechanism(lagrangian, rod())
    q0, v0 = jnp.array([jnp.sin(1.0), 0.0, -jnp.cos(1.0)]), jnp.array([0.0, 1.5, 0.0])
    got = ukjax.simulate(mechanism, q0, v0, TS, **TIGHT, keep=STATES)
    h = np.sin(1.0) * 1.5  # angular momentum about the vertical

    def reduced(t, y):
        return [y[1], h**2 * np.cos(y[0]) / np.sin(y[0]) ** 3 - 9.81 * np.sin(y[0]), h / np.sin(y[0]) ** 2]

    y = solve_ivp(reduced, (0, 2), [1.0, 0.0, 0.0], method="DOP853", rtol=1e-12, atol=1e-12, t_eval=np.asarray(TS)).y
    want = np.stack([np.sin(y[0]) * np.cos(y[2]), np.sin(y[0]) * np.sin(y[2]), -np.cos(y[0])], axis=1)
    assert_close(got.q, want, atol=1e-8)
    energy = jax.vmap(lagrangian.energy)(got.q, got.v, got.t)
    assert np.max(np.abs(energy - energy[0])) < 1e-9


def test_redundant_rows_change_no_trajectory():
    once, thrice = (ukjax.simulate(pendulum(k), [-1.0, 0.0], [0.0, 0.0], TS, **TIGHT) for k in (1, 3))
    assert_close(thrice.q, once.q, atol=1e-10)
    assert int(thrice.rank.max()) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"solver": diffrax.Dopri8()},
        {"solver": diffrax.Kvaerno5()},
        long(
            {
                "solver": diffrax.Heun(),
                "stepsize_controller": diffrax.ConstantStepSize(),
                "dt0": 1e-4,
                "max_steps": 30_000,
            }
        ),
        {"stepsize_controller": diffrax.PIDController(rtol=1e-9, atol=1e-9, pcoeff=0.3, icoeff=0.4)},
        {"adjoint": diffrax.BacksolveAdjoint()},
        long({"adjoint": diffrax.RecursiveCheckpointAdjoint()}),
    ],
    ids=["explicit", "implicit", "constant step", "controller", "backsolve", "checkpoint"],
)
def test_any_solver_controller_and_adjoint(options):
    mechanism = pendulum(1, ukjax.Baumgarte(10.0, 25.0))
    want = ukjax.simulate(mechanism, [-1.0, 0.0], [0.0, 0.0], TS, **TIGHT, keep=STATES)
    got = ukjax.simulate(mechanism, [-1.0, 0.0], [0.0, 0.0], TS, **options, keep=STATES)
    assert_close(got.q, want.q, atol=2e-6)


def test_jit_vmap_and_the_loop_agree():
    starts = jnp.array([[-1.0, 0.0], [0.6, -0.8], [0.0, -1.0]])
    f = lambda q: ukjax.simulate(pendulum(), q, jnp.zeros(2), TS)
    batch = jax.jit(jax.vmap(f))(starts)
    assert batch.q.shape == (3, 11, 2)
    for k in range(3):
        assert_close(batch.q[k], f(starts[k]).q, atol=1e-12)
        assert_close(batch.constraint_force[k], f(starts[k]).constraint_force, atol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("copies", [pytest.param(1, id="one row"), pytest.param(2, id="redundant rows")])
def test_gradients_through_a_trajectory_at_awkward_points(copies):
    """M = m I, v = 0 at the start, redundant rows, and lengths and masses that a closure holds."""

    def loss(inputs):
        m, L, q0, v0, gains = inputs
        held = ukjax.Holonomic(lambda q, t: (q @ q - L**2)[None], gains)
        mechanism = ukjax.Mechanism(ukjax.System(lambda q, t: m * jnp.eye(2), falling(m).force), [held] * copies)
        trajectory = ukjax.simulate(mechanism, q0, v0, TS[:6], max_steps=250, **TIGHT)
        return jnp.sum(trajectory.q[1:] ** 3) + jnp.sum(jnp.sin(trajectory.v)) + trajectory.constraint_force[3, 1]

    inputs = (jnp.asarray(2.0), jnp.asarray(1.0), jnp.array([0.6, -0.8]), jnp.zeros(2), ukjax.Baumgarte(4.0, 9.0))
    assert_gradients(loss, inputs, atol=1e-7)


def final(q0, **options):
    """Something smooth of a pendulum's end state."""
    trajectory = ukjax.simulate(pendulum(), q0, jnp.zeros(2), TS[:6], **TIGHT, keep=STATES, **options)
    return jnp.sum(jnp.sin(trajectory.q[-1])) + trajectory.v[2, 0]


@pytest.mark.parametrize(
    "options",
    [
        long({"solver": diffrax.Dopri8()}),
        long({"solver": diffrax.Kvaerno5()}),
        long({"adjoint": diffrax.DirectAdjoint(), "max_steps": 512}),
    ],
    ids=["dopri8", "kvaerno5", "direct"],
)
def test_gradients_with_other_solvers_and_adjoints(options):
    loose = {} if "adjoint" in options else {"max_steps": 4096}
    assert_gradients(lambda q: final(q, **options, **loose), jnp.array([0.6, -0.8]), rtol=2e-6, atol=1e-6)


@pytest.mark.long
def test_derivatives_under_vmap_and_second_derivatives():
    q = jnp.array([0.6, -0.8])
    gradient = jax.jit(jax.grad(final))
    batch = jax.jit(jax.vmap(jax.grad(final)))(jnp.stack([q, 2 * q]))
    assert_close(batch[0], gradient(q), atol=1e-9)
    assert_close(batch[1], gradient(2 * q), atol=1e-9)
    numeric = central_difference(gradient, q)
    assert_close(jax.jit(jax.hessian(final))(q), numeric, rtol=1e-5, atol=1e-5)
    assert_close(jax.jit(jax.jacfwd(jax.jacfwd(final)))(q), numeric, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "controller",
    [
        pytest.param(None, id="adaptive"),
        pytest.param(diffrax.StepTo(ts=np.linspace(0.0, 0.4, 41)), id="fixed"),
    ],
)
def test_gradient_of_what_a_batch_shares(controller):
    """A parameter of the mechanism that has no batch axis, in steps that may not have one either."""

    def loss(g, v0):
        mechanism = ukjax.Mechanism(falling(g=g), rod())
        ts = jnp.linspace(0.0, 0.4, 3)
        got = ukjax.simulate(mechanism, jnp.array([1.0, 0.0]), v0, ts, stepsize_controller=controller, keep=STATES)
        return jnp.sum(jnp.sin(got.q))

    v0, g = jnp.array([[0.0, 0.0], [0.0, 1.0], [0.0, -2.0]]), jnp.asarray(9.81)
    together = jax.jit(jax.grad(lambda g: jnp.sum(jax.vmap(loss, (None, 0))(g, v0))))(g)
    one = jax.jit(jax.grad(loss))
    assert_close(together, sum(one(g, v) for v in v0), atol=1e-10)


def test_gradient_ignores_what_was_rejected():
    # Beyond the wall the force is NaN; trial steps look there, accepted ones do not.
    wall = lambda q, v, t: -(40.0 * q) / jnp.sqrt(1.0 - q**2)
    mechanism = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(1), wall))
    options = {"rtol": 1e-8, "atol": 1e-10, "dt0": 1.0, "keep": STATES}
    f = lambda q: ukjax.simulate(mechanism, q, jnp.zeros(1), TS, **options).q[-1, 0]
    trajectory = ukjax.simulate(mechanism, jnp.array([0.999]), jnp.zeros(1), TS, **options)
    assert int(trajectory.stats["num_rejected_steps"]) > 0
    assert np.isfinite(jax.grad(f)(jnp.array([0.999]))).all()


def test_progress_bar_on_request(capfd):
    ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], TS, progress=True, keep=STATES)
    assert "100.00%" in capfd.readouterr().err
    ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], TS, keep=STATES)
    assert capfd.readouterr().err == ""


def test_only_what_is_to_be_kept():
    whole = ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], TS)
    names = ("position_residual", "q")
    got = ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], TS, keep=names, max_steps=np.int64(16_384))
    assert_close(got.q, whole.q)
    assert_close(got.position_residual, whole.position_residual)
    without = {"control", "servo_residual", "servo_position_residual", "servo_velocity_residual", "memory"}
    assert {name for name in OPTIONAL if getattr(got, name) is not None} == {*names}
    assert {name for name in OPTIONAL if getattr(whole, name) is None} == without | {*OF_EACH}
    assert set(got.to_dataset(["x", "y"])) == set(names)


def test_all_variables_of_a_data_set():
    """Fields and labels, which a study must not give to anything else."""
    vectors, scalars, t = jnp.zeros((2, 3)), jnp.zeros(2), jnp.arange(2.0)
    fields = {name: scalars if name.endswith("residual") else vectors for name in OPTIONAL}
    fields |= {name: {"a": vectors} for name in OF_EACH} | {"rank": jnp.arange(2)}
    stats = {name: jnp.zeros(()) for name, *_ in STATS}
    one = ukjax.Trajectory(t=t, result=ukjax.RESULTS.successful, stats=stats, **fields)
    batch = jax.tree_util.tree_map(lambda x: jnp.asarray(x)[None], one)
    data = batch.to_dataset("xyz", ["u1 [N]", "u2 [N]", "u3 [N]"], "pqr")
    assert {*data.variables, *data.dims} - {"trajectory"} == {*OPTIONAL, *LABELS}


def test_times_that_are_known_at_run_time_only():
    f = jax.jit(lambda ts: ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], ts, keep="q", throw=False))
    assert bool(f(TS[:3]).result == ukjax.RESULTS.successful)
    assert bool(f(TS[2::-1]).result == ukjax.RESULTS.times_do_not_fit)


@pytest.mark.long
def test_single_precision_needs_looser_tolerances_and_stays_single():
    single = lambda x: jnp.asarray(x, jnp.float32)
    system = ukjax.System(lambda q, t: single(jnp.eye(2)), lambda q, v, t: single([0.0, -9.81]))
    held = ukjax.Holonomic(lambda q, t: (q @ q - 1)[None])
    arguments = (ukjax.Mechanism(system, held), single([-1.0, 0.0]), single([0.0, 0.0]), single([0.0, 0.5]))
    with pytest.raises(ValueError, match="out of reach of float32: one of them must be at least 1.2e-06.*float64"):
        ukjax.simulate(*arguments)
    got = ukjax.simulate(*arguments, rtol=1e-5, atol=1e-5)
    assert got.q.dtype == jnp.float32
    want = ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], [0.0, 0.5])
    assert np.max(np.abs(got.q - want.q.astype(jnp.float32))) < 1e-4


def test_labelled_data_set():
    got = ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], TS)
    data = got.to_dataset(["x [m]", "y [m]"])
    assert data.q.dims == ("time", "coordinate")
    assert_close(data.q.sel(coordinate="y [m]").values, got.q[:, 1])
    assert data.time.attrs["units"] == "s"
    assert list(got.to_dataset().coordinate.values) == ["q1", "q2"]
    with pytest.raises(ValueError, match="coordinates must be 2 names"):
        got.to_dataset(["x"])
    batch = eqx.filter_vmap(lambda q: ukjax.simulate(pendulum(), q, jnp.zeros(2), TS))(jnp.array([[-1.0, 0.0]]))
    data = batch.to_dataset(["x [m]", "y [m]"])
    assert data.q.dims == ("trajectory", "time", "coordinate")
    assert_close(data.q.sel(coordinate="y [m]").values, batch.q[..., 1])
    assert data.result.values.tolist() == [0]
    assert data.result.attrs["flag_meanings"].split()[0] == "successful"
    assert data.num_steps.values == batch.stats["num_steps"]
    late = eqx.tree_at(lambda b: b.t, batch, jnp.concatenate([batch.t, batch.t + 1.0]))
    with pytest.raises(ValueError, match="saved at the same times"):
        late.to_dataset()
