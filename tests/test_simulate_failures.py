"""Simulations that fail, and arguments that are refused: each with its own words."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from .helpers import assert_close, falling, long, pendulum


TS = jnp.linspace(0.0, 2.0, 11)


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


@pytest.mark.parametrize("options", [long({}), long({"projection": ukjax.Projection()})])
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
        ({"keep": lambda trajectory: trajectory.q}, TypeError, 'keep must be "all", or names.*`reduce` of'),
        ({"keep": 3}, TypeError, 'keep must be "all", or names of fields of q, v.*but is 3'),
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


def test_a_run_that_fails_is_looked_at_again_for_its_reason():
    """Whatever is kept; inside of jit it only says that it failed."""
    f = lambda q: ukjax.simulate(NAN, q, jnp.array(START[1]), TS, keep="q", throw=False)
    failed = f(jnp.array(START[0]))
    assert bool(failed.result == ukjax.RESULTS.not_finite)
    assert failed.v is None
    assert bool(jax.jit(f)(jnp.array(START[0])).result != ukjax.RESULTS.successful)
    with pytest.raises(RuntimeError, match=r"NaN or infinity.*\(at t = 1 s\)"):
        ukjax.simulate(NAN, *START, TS, keep="q")
