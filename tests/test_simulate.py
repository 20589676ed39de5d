"""Trajectories: closed forms, options, derivatives, failures."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import ukjax

from .helpers import STATES, assert_close, assert_gradients, central_difference, falling, long, pendulum, rod


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


FREE = {"mass": lambda q, t: jnp.eye(2), "force": lambda q, v, t: jnp.array([0.0, -9.81])}
START = ([0.0, -1.0], [1.0, 0.0])


def contradiction(t0):
    """Two rows that agree until t0 and contradict each other after."""
    late = lambda q, t: q[:1] - jnp.where(t > t0, (t - t0) ** 3, 0.0)
    return ukjax.Mechanism(ukjax.System(**FREE), [ukjax.Holonomic(late), ukjax.Holonomic(lambda q, t: q[:1])])


def system(**functions):
    return ukjax.Mechanism(ukjax.System(**{**FREE, **functions}))


FIXED = {"stepsize_controller": diffrax.StepTo(ts=np.linspace(0.0, 2.0, 5))}
CONSTANT = {"stepsize_controller": diffrax.ConstantStepSize(), "dt0": 0.01}
NAN = system(force=lambda q, v, t: jnp.array([0.0, 1.0]) * jnp.sqrt(1.0 - t))
INDEFINITE = system(mass=lambda q, t: jnp.eye(2) * (1.0 - t))


@pytest.mark.parametrize(
    ("mechanism", "options", "name", "match"),
    [
        (NAN, {}, "not_finite", r"NaN or infinity.*\(at t = 1 s\)"),
        long(NAN, CONSTANT, "not_finite", "NaN or infinity"),
        (INDEFINITE, {}, "mass_not_positive_definite", r"not symmetric positive definite.*\(at t = 1 s\)"),
        long(INDEFINITE, CONSTANT, "mass_not_positive_definite", "not symmetric positive definite"),
        (system(mass=lambda q, t: -jnp.eye(2)), {}, "mass_not_positive_definite", r"positive definite.*\(at t = 0 s\)"),
        long(contradiction(-1.0), {}, "constraints_contradict", r"contradict each other.*\(at t = 0 s\)"),
        (contradiction(1.0), {}, "constraints_contradict", r"contradict each other.*\(at t = 1 s\)"),
        (contradiction(-1.0), CONSTANT, "constraints_contradict", "contradict each other"),
        (pendulum(), {"max_steps": 10}, "max_steps_reached", r"maximum number of solver steps.*\(at t = 0\.\d+ s\)"),
    ],
)
def test_every_failure_has_its_own_result_and_message(mechanism, options, name, match):
    with pytest.raises(RuntimeError, match=match):
        ukjax.simulate(mechanism, *START, TS, **options)
    got = ukjax.simulate(mechanism, *START, TS, throw=False, **options)
    assert bool(got.result == getattr(ukjax.RESULTS, name))
    assert_close(got.q[0], jnp.array(START[0]))
    assert np.isnan(got.q[-1]).all()
    assert np.isnan(got.acceleration[-1]).all()
    assert int(got.stats["num_steps"]) < 500


@pytest.mark.parametrize("options", [{}, long({"projection": ukjax.Projection()})])
def test_a_start_that_is_no_number_ends_at_once(options):
    """And not when all steps are spent, for which the others in a batch would wait."""
    q0 = jnp.array([jnp.nan, 0.0])
    run = jax.jit(lambda q0: ukjax.simulate(pendulum(), q0, jnp.zeros(2), TS, throw=False, keep=("q",), **options))
    got = run(q0)
    assert bool(got.result == ukjax.RESULTS.not_finite)
    assert int(got.stats["num_steps"]) == 1
    batch = jnp.stack([jnp.array([1.0, 0.0]), q0])
    with pytest.warns(ukjax.FailedTrajectories, match="1 of 2 trajectories failed"):
        both = ukjax.simulate_batch(pendulum(), batch, jnp.zeros(2), TS, keep=("q",), progress=False, **options)
    assert int(both.stats["num_steps"][1]) == 1
    assert np.isfinite(both.q[0]).all()


def test_rows_that_contradict_each_other_by_a_small_part_stop_no_run_and_are_told():
    # Within a step redundant rows do so too; the saved states tell what was no drift.
    A = lambda q, v, t: jnp.array([[0.0, 1.0]])
    row = lambda b: ukjax.AccelerationConstraint(A, lambda q, v, t: jnp.array([b]))
    mechanism = ukjax.Mechanism(ukjax.System(**FREE), [row(-1.0), row(-1.001)])
    motion = ukjax.equation_of_motion(mechanism, *map(jnp.array, START), throw=False)
    assert bool(motion.result == ukjax.RESULTS.constraints_contradict)
    assert bool(motion.drifted)
    with pytest.raises(RuntimeError, match="contradict each other"):
        ukjax.simulate(mechanism, *START, TS)
    got = ukjax.simulate(mechanism, *START, TS, throw=False)
    assert bool(got.result == ukjax.RESULTS.constraints_contradict)
    assert_close(got.q[:, 1], -1.0 - 1.0005 * got.t**2 / 2, atol=1e-8)
    far = ukjax.Mechanism(ukjax.System(**FREE), [row(-1.0), row(-1.1)])
    assert not bool(ukjax.equation_of_motion(far, *map(jnp.array, START), throw=False).drifted)


def test_failures_in_a_batch_leave_the_others_alone():
    f = lambda a: ukjax.simulate(system(mass=lambda q, t: jnp.eye(2) * (1.0 - a * t)), *START, TS, throw=False)
    got = jax.vmap(f)(jnp.array([0.0, 1.0]))
    alone = f(jnp.asarray(0.0))
    assert_close(got.q[0], alone.q, atol=1e-12)
    assert np.isnan(got.q[1, -1]).all()
    assert [bool(x) for x in got.result == ukjax.RESULTS.successful] == [True, False]


def test_errors_inside_jit_are_raised_too():
    with pytest.raises(RuntimeError, match="not symmetric positive definite"):
        jax.jit(lambda q: ukjax.simulate(system(mass=lambda q, t: -jnp.eye(2)), q, jnp.zeros(2), TS).q)(jnp.zeros(2))


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"q0": [0.0, jnp.nan]}, ValueError, r"q0 must be finite, but q0\[1\] is nan"),
        ({"v0": [jnp.inf, 0.0]}, ValueError, r"v0 must be finite, but v0\[0\] is inf"),
        ({"v0": [0.0]}, ValueError, r"q0 and v0 must have the same shape"),
        ({"q0": [[0.0, 1.0]], "v0": [[0.0, 1.0]]}, ValueError, r"q0 must have shape \(n,\)"),
        ({"ts": [0.0, 1.0, 1.0]}, ValueError, r"ts must increase strictly, but ts\[1\] = 1.0 is followed by"),
        ({"ts": [1.0, 0.0]}, ValueError, "ts must increase strictly"),
        ({"ts": [0.0]}, ValueError, r"ts must have shape \(T,\) with T >= 2"),
        ({"ts": [0.0, jnp.nan]}, ValueError, "ts must be finite"),
        ({"rtol": 1e-17, "atol": 1e-17}, ValueError, r"rtol = 1e-17 and atol = 1e-17 are out of reach of float64"),
        ({"rtol": -1.0}, ValueError, "must not be negative"),
        ({"rtol": jnp.nan}, ValueError, "rtol must be finite, but is nan"),
        ({"atol": "small"}, ValueError, "atol must be a number, but is 'small'"),
        ({"rtol": [1e-8, 1e-8]}, ValueError, r"rtol must be a scalar, but has shape \(2,\)"),
        ({"dt0": -1.0}, ValueError, "dt0 must be a positive step size"),
        ({**FIXED, "rtol": 1e-6}, ValueError, "rtol has no effect beside stepsize_controller"),
        ({**FIXED, "atol": -5}, ValueError, "atol has no effect beside stepsize_controller"),
        ({**FIXED, "dt0": 0.1}, ValueError, "dt0 has no effect with diffrax.StepTo"),
        ({**FIXED, "ts": [0.0, 1.0]}, ValueError, r"StepTo\(ts=...\) must go.*to ts\[-1\] = 1.0, but goes.*to 2.0"),
        ({"keep": ("q", "speed")}, ValueError, "keep must name fields of q, v, acceleration.*but has 'speed'"),
        ({"keep": ("control",)}, ValueError, "has 'control'. It needs a servo"),
        ({"progress": 3}, TypeError, "progress must be an instance of AbstractProgressMeter"),
        ({"max_steps": np.bool_(True)}, ValueError, "max_steps must be a positive integer"),
        ({"max_steps": 1e3}, ValueError, "max_steps must be a positive integer"),
        ({"q0": np.float16([0, -1]), "v0": np.float16([1, 0])}, ValueError, "q0 must be of dtype float32 or float64"),
        ({"solver": diffrax.Tsit5}, TypeError, "solver must be an instance of AbstractSolver.*is the class Tsit5"),
        ({"stepsize_controller": 1e-3}, TypeError, "stepsize_controller must be an instance"),
        ({"stepsize_controller": diffrax.ConstantStepSize()}, ValueError, "dt0 must be given"),
        ({"adjoint": "direct"}, TypeError, "adjoint must be an instance of AbstractAdjoint"),
        ({"formulation": ukjax.SVD()}, TypeError, "formulation must be an instance of AbstractFormulation"),
        ({"max_steps": 0}, ValueError, "max_steps must be a positive integer"),
        ({"mechanism": falling()}, TypeError, "mechanism must be an instance of Mechanism"),
    ],
)
def test_bad_arguments(changes, error, match):
    arguments = {"mechanism": pendulum(), "q0": [0.0, -1.0], "v0": [1.0, 0.0], "ts": TS, **changes}
    with pytest.raises(error, match=match):
        ukjax.simulate(**arguments)


def test_only_what_is_to_be_kept():
    whole = ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], TS)
    names = ("position_residual", "q")
    got = ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], TS, keep=names, max_steps=np.int64(16_384))
    assert_close(got.q, whole.q)
    assert_close(got.position_residual, whole.position_residual)
    fields = [name for name in whole.__dict__ if name not in ("constraint_forces", "multipliers")]
    left_out = {name for name in fields if getattr(got, name) is None}
    assert left_out == {name for name in fields if getattr(whole, name) is not None} - {
        *names, "t", "result", "stats"
    } | {"control", "servo_residual", "servo_position_residual", "servo_velocity_residual", "memory"}  # fmt: skip
    assert set(got.to_dataset(["x", "y"])) == set(names)
    # A run that fails is looked at again, so that it has its reason; inside of jit it only says that it failed.
    f = lambda q: ukjax.simulate(NAN, q, jnp.array(START[1]), TS, keep="q", throw=False)
    failed = f(jnp.array(START[0]))
    assert bool(failed.result == ukjax.RESULTS.not_finite)
    assert failed.v is None
    assert bool(jax.jit(f)(jnp.array(START[0])).result != ukjax.RESULTS.successful)
    with pytest.raises(RuntimeError, match=r"NaN or infinity.*\(at t = 1 s\)"):
        ukjax.simulate(NAN, *START, TS, keep="q")


def test_times_that_are_known_at_run_time_only():
    f = jax.jit(lambda ts: ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], ts, keep="q", throw=False))
    assert bool(f(TS[:3]).result == ukjax.RESULTS.successful)
    assert bool(f(TS[2::-1]).result == ukjax.RESULTS.times_do_not_fit)


def test_a_start_off_the_constraints_is_named():
    off = ([1.5, 0.0], [0.0, 0.1], TS)
    with pytest.warns(ukjax.InconsistentStart, match=r"up to 1.25 in position.*ukjax.assemble.*Baumgarte.*Projection"):
        ukjax.simulate(pendulum(), *off)
    with pytest.warns(ukjax.InconsistentStart, match="up to 0 in position and 3 in velocity"):
        ukjax.simulate(pendulum(), [1.0, 0.0], [1.5, 0.0], TS)
    # Stabilised, or within a trace: nothing to say, and a warning would be an error here.
    ukjax.simulate(pendulum(1, ukjax.Baumgarte(10.0, 25.0)), *off)
    jax.jit(lambda q: ukjax.simulate(pendulum(), q, jnp.zeros(2), TS, keep="q", throw=False).q)(jnp.array(off[0]))
    with pytest.raises(RuntimeError, match=r"\(at t = 0 s, the start: q0, v0 .*ukjax.assemble\(mechanism, q0, v0, ts"):
        ukjax.simulate(pendulum(), [9.0, 0.0], [0.0, 0.0], TS, projection=ukjax.Projection())


@pytest.mark.long
def test_a_servo_that_fails_says_by_which_rows_and_since_when():
    # q1'' = u1 alone can be had; the row that wants q2'' = 1 has no actuator.
    wanted = ukjax.AccelerationConstraint(lambda q, v, t: jnp.eye(2), lambda q, v, t: jnp.array([3.0, 1.0]))
    still = ukjax.Mechanism(falling(g=0.0))
    with pytest.raises(RuntimeError, match=r"\(at t = 0 s; missed of each row: 0, 1\)"):
        ukjax.simulate(still, *START, TS, servo=ukjax.Servo(wanted, [[1.0], [0.0]]))
    # A plant that runs away in finite time, q'' = 6 q^2, q = 1 / (1 - t)^2, with a control that is too weak.
    runaway = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(1), lambda q, v, t: 6 * q**2))
    weak = ukjax.Servo(ukjax.Holonomic(lambda q, t: q), [[1.0]], limits=(0.0, 0.0), exact=False)
    with pytest.raises(RuntimeError, match=r"\(at t = (0\.99\d*|1) s; the servo first missed its rows at t = 0 s\)"):
        ukjax.simulate(runaway, [1.0], [2.0], TS, servo=weak)
    got = ukjax.simulate(runaway, [1.0], [2.0], jnp.array([0.0, 0.5]), servo=weak)
    assert_close(got.q, jnp.array([[1.0], [4.0]]), atol=1e-6)
    assert float(got.stats["servo_missed_from"]) == 0.0


def test_implicit_solver_with_a_constant_step_needs_tolerances_of_its_own():
    with pytest.raises(ValueError, match=r"diffrax.Kvaerno5\(root_finder=diffrax.VeryChord\(rtol"):
        ukjax.simulate(pendulum(), *START, TS, solver=diffrax.Kvaerno5(), **CONSTANT)


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
