"""Projection: no drift, the integrator's order, singular configurations, gradients."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import coordinated_robots, n_four_bar, parallelogram, simple_pendulum, unicycle

from ..helpers import (
    STATES,
    STRATEGIES,
    assert_close,
    assert_gradients,
    assert_same_gradients,
    central_difference,
    falling,
    long,
    pendulum,
    random_mechanism,
    rod,
)
from ..inside import SureWay, replaced, scalars


PROJECTION = ukjax.Projection()


@eqx.filter_jit
def run(mechanism, q0, v0, ts, tolerance, formulation, projection, solver):
    return ukjax.simulate(
        mechanism,
        q0,
        v0,
        ts,
        rtol=tolerance,
        atol=tolerance,
        formulation=formulation,
        projection=projection,
        solver=solver,
        throw=False,
    )


def eighth_order(case, ts, tolerance, strategy=None):
    strategy = ukjax.SVD() if strategy is None else strategy
    formulation, projection = ukjax.UdwadiaKalaba(strategy), ukjax.Projection(pseudoinverse=strategy)
    # Not the scenario as a whole: the functions in it are new each time, and would compile each time.
    start = case.mechanism, case.q0, case.v0
    return run(*start, jnp.asarray(ts), jnp.asarray(tolerance), formulation, projection, diffrax.Dopri8())


def assert_on_manifold(trajectory, atol=1e-13):
    assert bool(trajectory.result == ukjax.RESULTS.successful), ukjax.RESULTS[trajectory.result]
    assert np.max(trajectory.position_residual) < atol
    assert np.max(trajectory.velocity_residual) < atol


def test_the_simple_pendulum_stays_on_its_circle_and_keeps_its_energy():
    # IFToMM A01: energy error below 5e-5 J; positions by mpmath.
    case = simple_pendulum.scenario()
    t = eighth_order(case, [0.0, 1.0, 5.0, 10.0], 1e-10)
    assert_on_manifold(t)
    want = [(0.9862917511318734, -0.16501085312555258), (-0.9423054350438044, -0.3347543384138681)]
    assert_close(t.q[1:3], jnp.array(want), atol=1e-8)
    assert_close(t.q[3], jnp.array([-0.2750874625764018, -0.9614192050990436]), atol=1e-8)
    assert_close(t.q, jnp.asarray(simple_pendulum.exact([0.0, 1.0, 5.0, 10.0])), atol=1e-8)
    energy = jax.vmap(case.mechanism.system.energy)(t.q, t.v)
    assert np.max(np.abs(energy - energy[0])) < 1e-8


@pytest.mark.parametrize(("solver", "order"), [
    (diffrax.Tsit5(), 5), *(long(*x) for x in ((diffrax.Bosh3(), 3), (diffrax.Dopri8(), 8))),
])  # fmt: skip
def test_the_integrator_keeps_its_order(solver, order):
    case = simple_pendulum.scenario()
    errors = []
    steps = np.array([50, 100]) * (1 if order < 8 else 0.4)
    for n in steps:
        ts = jnp.linspace(0.0, 2.0, 2)
        t = ukjax.simulate(case.mechanism, case.q0, case.v0, ts, solver=solver, projection=PROJECTION,
                           stepsize_controller=diffrax.ConstantStepSize(), dt0=2.0 / n, keep=STATES)  # fmt: skip
        assert_on_manifold(t)
        errors.append(np.max(np.abs(t.q[-1] - simple_pendulum.exact([2.0])[0])))
    assert np.log2(errors[0] / errors[1]) > order - 0.5


@pytest.mark.long
def test_an_inconsistent_start_is_projected_and_a_stiff_solver_serves_too():
    case = pendulum(copies=2)
    t = ukjax.simulate(case, [1.01, 0.0], [0.3, 0.0], [0.0, 1.0], projection=PROJECTION, solver=diffrax.Kvaerno5())
    assert_on_manifold(t)
    assert_close(t.q[0], jnp.array([1.0, 0.0]), atol=1e-12)
    assert_close(t.v[0], jnp.zeros(2), atol=1e-12)
    assert t.rank.tolist() == [1, 1]
    assert_close(t.q[1], jnp.asarray([1.0, -1.0] * simple_pendulum.exact([1.0])[0] * [-1, -1]), atol=1e-6)


def test_a_start_too_far_away_is_refused():
    with pytest.raises(RuntimeError, match="No state that satisfies the constraints was found near"):
        ukjax.simulate(pendulum(copies=2), [3.0, 0.0], [0.0, 0.0], [0.0, 1.0], projection=PROJECTION)


def test_time_dependent_and_nonholonomic_constraints():
    class Skate(eqx.Module):
        def __call__(self, q, v, t):
            return (v[0] * jnp.sin(q[2]) - v[1] * jnp.cos(q[2]))[None]

    system = ukjax.System(
        lambda q, t: jnp.diag(jnp.array([2.0, 2.0, 0.5])), lambda q, v, t: jnp.array([0.0, -3.0, 0.1])
    )
    moving = ukjax.Holonomic(lambda q, t: (q[2] - 0.4 * t**2)[None])
    mechanism = ukjax.Mechanism(system, [ukjax.Nonholonomic(Skate()), moving])
    t = ukjax.simulate(
        mechanism, [0.0, 0.0, 0.0], [1.0, 0.0, 0.0], jnp.linspace(0, 5, 11), projection=PROJECTION, keep=STATES
    )
    assert_on_manifold(t)
    assert_close(t.q[:, 2], 0.4 * t.t**2, atol=1e-12)


def test_acceleration_constraints_have_nothing_to_return_to():
    row = ukjax.AccelerationConstraint(lambda q, v, t: jnp.array([[0.0, 1.0]]), lambda q, v, t: jnp.ones(1))
    t = ukjax.simulate(
        ukjax.Mechanism(falling(), row), [0.0, 0.0], [1.0, 0.0], [0.0, 2.0], projection=PROJECTION, keep=STATES
    )
    assert_close(t.q[-1], jnp.array([2.0, 2.0]), atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("solver", [diffrax.Tsit5(), long(diffrax.Kvaerno5())], ids=["explicit", "implicit"])
def test_gradients_with_respect_to_start_and_parameters(solver):
    def end(x):
        mechanism = ukjax.Mechanism(falling(x["m"], x["g"]), [rod(x["L"])] * 2)
        q0 = x["L"] * jnp.array([jnp.cos(x["angle"]), jnp.sin(x["angle"])])
        v0 = x["rate"] * jnp.array([-q0[1], q0[0]])
        t = ukjax.simulate(mechanism, q0, v0, jnp.array([0.0, 0.35, 1.0]), rtol=1e-10, atol=1e-10, solver=solver,
                           projection=PROJECTION, throw=False, keep=STATES)  # fmt: skip
        return jnp.sum(jnp.sin(t.q) * jnp.array([[1.0, 2.0], [3.0, -1.0], [1.0, 1.0]])) + jnp.sum(t.v[-1])

    x = {k: jnp.asarray(v) for k, v in {"m": 1.3, "g": 9.81, "L": 1.2, "angle": -0.4, "rate": 0.7}.items()}
    assert_gradients(end, x, rtol=1e-6, atol=1e-7, h=1e-4 if isinstance(solver, diffrax.Kvaerno5) else 1e-5)


@pytest.mark.long
def test_second_derivatives_through_projection():
    def end(rate):
        q0, v0 = jnp.array([1.0, 0.0]), jnp.stack([jnp.zeros(()), rate])
        ts = jnp.array([0.0, 0.8])
        return ukjax.simulate(
            pendulum(), q0, v0, ts, rtol=1e-9, atol=1e-9, projection=PROJECTION, throw=False, keep=STATES
        ).q[-1, 0]

    second = jax.jit(jax.hessian(end))(jnp.asarray(0.5))
    first = jax.jit(jax.grad(end))
    assert_close(second, jnp.asarray(central_difference(first, jnp.asarray(0.5), 1e-4)[0, 0]), rtol=1e-5)


@pytest.mark.long
def test_diffrax_adjoints_with_projection():
    def end(rate, adjoint):
        q0, v0 = jnp.array([1.0, 0.0]), jnp.stack([jnp.zeros(()), rate])
        ts = jnp.array([0.0, 0.5])
        t = ukjax.simulate(pendulum(), q0, v0, ts, projection=PROJECTION, adjoint=adjoint, max_steps=64, throw=False)
        return t.q[-1, 0]

    ours = jax.grad(end)(jnp.asarray(0.5), None)
    theirs = jax.grad(end)(jnp.asarray(0.5), diffrax.RecursiveCheckpointAdjoint())
    assert_close(theirs, ours, rtol=1e-7)
    with pytest.raises(ValueError, match="BacksolveAdjoint"):
        end(jnp.asarray(0.5), diffrax.BacksolveAdjoint())


@pytest.mark.long
def test_a_batch_is_the_loop():
    mechanism = random_mechanism(3, n=4, m=2, copies=2)
    q, v = ukjax.assemble(mechanism, jnp.array([0.1, -0.2, 0.3, 0.1]), jnp.array([0.2, 0.1, -0.3, 0.5]))
    ts = jnp.array([0.0, 0.2, 0.4])
    one = lambda v: ukjax.simulate(mechanism, q, v, ts, projection=PROJECTION, throw=False, keep=STATES)
    batch = jax.jit(jax.vmap(one))(jnp.stack([v, 0.5 * v]))
    assert_close(batch.q[1], one(0.5 * v).q, atol=1e-9)
    assert np.max(batch.position_residual) < 1e-12


@pytest.mark.parametrize(("kwargs", "error", "match"), [
    ({"projection": True}, TypeError, "projection must be an instance of Projection"),
    ({"projection": ukjax.Projection}, TypeError, "the class Projection"),
])  # fmt: skip
def test_what_is_no_projection_is_named(kwargs, error, match):
    with pytest.raises(error, match=match):
        ukjax.simulate(pendulum(), [1.0, 0.0], [0.0, 0.0], [0.0, 1.0], **kwargs)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None])
def test_a_senseless_number_of_iterations_is_named(bad):
    with pytest.raises(ValueError, match="iterations must be a positive integer"):
        ukjax.Projection(iterations=bad)
    with pytest.raises(TypeError, match="pseudoinverse must be"):
        ukjax.Projection(pseudoinverse="SVD")


ALLOWED = {1e-6: 1e-5, 1e-8: 1e-6, 1e-10: 1e-7}  # tolerance -> error [rad]


def check_parallelogram(strategy, starts, tolerances):
    ts = np.linspace(0.0, 20.0, 201)
    for start in starts:
        exact, _ = parallelogram.exact(ts, start)
        for tolerance in tolerances:
            t = eighth_order(parallelogram.scenario(start), ts, tolerance, strategy)
            assert_on_manifold(t)
            assert np.max(np.abs(t.q[:, 2] - exact)) < ALLOWED[tolerance], (start, tolerance)
            assert 14 * int(t.stats["num_steps"]) < 20_000, (start, tolerance)
            assert set(t.rank.tolist()) <= {10, 11}


@pytest.mark.long
def test_the_parallelogram_through_its_singular_configurations():
    check_parallelogram(ukjax.SVD(), ["crossing"], [1e-8])


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_the_parallelogram_with_every_strategy_start_and_tolerance(strategy):
    check_parallelogram(strategy, parallelogram.STARTS, ALLOWED)


@pytest.mark.long
def test_four_bar_windows_through_their_singular_configurations():
    case = n_four_bar.scenario(2)
    t = eighth_order(case, [0.0, 5.0, 10.0], 1e-10)
    assert_on_manifold(t)
    corner = jax.vmap(case.mechanism.system.corner)
    assert_close(corner(t.q)[-1], jnp.array([0.32845811153380416, 0.9445185381810391]), atol=1e-7)
    place, velocity = n_four_bar.exact([0.0, 5.0, 10.0], 2)
    assert_close(corner(t.q), jnp.asarray(place), atol=1e-7)
    moving = jax.vmap(lambda q, v: jax.jvp(case.mechanism.system.corner, (q,), (v,))[1])(t.q, t.v)
    assert_close(moving[-1], jnp.array([1.4230514701915438, -0.4948688454698466]), atol=1e-6)
    assert_close(moving, jnp.asarray(velocity), atol=1e-6)


@pytest.mark.long
def test_forty_windows_through_a_singular_configuration():
    """A twentieth of a second of the benchmark's motion: its ten take hours; two windows, above, go all the way."""
    want, _ = n_four_bar.exact([10.0], 40)
    assert_close(want, np.array([[0.1805122266811059, 0.9835727405833434]]), atol=1e-7)  # IFToMM A02
    model, ts = n_four_bar.NFourBar(40), np.array([0.695, 0.745])
    place, velocity = n_four_bar.exact(ts, 40)
    assert place[0, 1] > 0.1 > -0.1 > place[1, 1]  # all rods lie in a line in between
    angle = np.arctan2(*place[0, ::-1])
    q, v = model.state(jnp.asarray(angle), jnp.asarray(velocity[0, 1] / np.cos(angle)))
    strategy = ukjax.pseudoinverse.RowGramSchmidt()
    t = ukjax.simulate(
        ukjax.Mechanism(model, ukjax.Holonomic(model.joints)), q, v, ts, rtol=1e-6, atol=1e-6, throw=False, keep=STATES,
        formulation=ukjax.UdwadiaKalaba(strategy), projection=ukjax.Projection(pseudoinverse=strategy),
    )  # fmt: skip
    assert_on_manifold(t, 1e-11)
    assert_close(model.corner(t.q[-1]), jnp.asarray(place[1]), atol=1e-5)


@pytest.mark.long
def test_the_gradient_through_singular_configurations():
    model = n_four_bar.NFourBar(2)
    mechanism = ukjax.Mechanism(model, ukjax.Holonomic(model.joints))

    def end(speed):
        q0, v0 = model.state(jnp.asarray(np.pi / 2), -speed)
        t = ukjax.simulate(mechanism, q0, v0, jnp.array([0.0, 3.0]), rtol=1e-10, atol=1e-10, solver=diffrax.Dopri8(),
                           projection=PROJECTION, throw=False, keep=STATES)  # fmt: skip
        return model.corner(t.q[-1])[0]

    # It goes over the horizontal four times; the closed form knows the derivative too.
    compiled = jax.jit(end)
    numeric = (compiled(jnp.asarray(1 + 1e-5)) - compiled(jnp.asarray(1 - 1e-5))) / 2e-5
    reverse, forward = jax.jit(jax.grad(end))(jnp.asarray(1.0)), jax.jit(jax.jacfwd(end))(jnp.asarray(1.0))
    assert_close(forward, reverse, rtol=1e-8)
    assert_close(reverse, numeric, rtol=1e-5)


@pytest.mark.long
def test_a_thousand_seconds():
    # About 900 turns; the phase error grows with the energy error, and linearly with time.
    case = parallelogram.scenario("rotation")
    ts = np.linspace(0.0, 1000.0, 501)
    formulation, projection = ukjax.UdwadiaKalaba(), ukjax.Projection()
    t = ukjax.simulate(case.mechanism, case.q0, case.v0, jnp.asarray(ts), rtol=1e-9, atol=1e-9, solver=diffrax.Dopri8(),
                       formulation=formulation, projection=projection, max_steps=200_000, keep=STATES)  # fmt: skip
    assert_on_manifold(t, 1e-12)  # an angle of 6 000 rad is rounded to 1e-12
    energy = np.asarray(jax.vmap(case.mechanism.system.energy)(t.q, t.v))
    exact, rate = parallelogram.exact(ts, "rotation")
    drift, error = np.abs(energy - energy[0]), np.abs(np.asarray(t.q[:, 2]) - exact)
    early = drift[ts <= 20.0].max()
    assert drift[-1] < 50 * 1.5 * early + 1e-9  # linear, at most
    assert drift[-1] < 1e-4
    # d(rate)/dE at the lowest point bounds how the error of the angle grows with that of the energy.
    assert error[-1] < 3 * drift.max() / (3.05 * rate.min()) * 1000.0 + 1e-5


def both_ways(mechanism, ys, of=lambda y: y, t=0.0):
    """By scalar code, and by matrices."""
    back = lambda y, expand: of(PROJECTION(mechanism, jnp.asarray(t), y, expand))
    return [jax.jit(jax.vmap(lambda y, expand=expand: back(y, expand)))(ys) for expand in (True, False)]


def near(case, size, drift=1e-5):
    y = PROJECTION(case.mechanism, jnp.asarray(0.0), jnp.concatenate([case.q0, case.v0]))
    return y[None] + drift * jnp.asarray(np.random.default_rng(0).normal(size=(size, len(y))))


@pytest.mark.parametrize("model", [long(coordinated_robots), long(parallelogram), unicycle])
def test_scalar_code_and_matrices_project_alike(model):
    """The parallelogram has a row that depends on the others."""
    case = model.scenario()
    ys = near(case, 5)
    got, want = both_ways(case.mechanism, ys)
    assert_close(got, want, atol=1e-10)  # redundant rows are curved: by the square of the drift
    errors = jax.vmap(lambda y: case.mechanism.position_error(y[: len(case.q0)], jnp.asarray(0.0)))
    assert float(jnp.max(jnp.abs(errors(got)), initial=0.0)) < 1e-14
    with replaced(projected_by_matrices=lambda solver, at: jnp.full_like(at.size, jnp.nan)):
        again, lost = both_ways(case.mechanism, ys)
    assert_close(again, got, atol=1e-14)
    assert bool(jnp.all(jnp.isnan(lost).any(axis=1)))


class Stopped(ukjax.AbstractConstraint):
    """One row for positions, x + y = 1, and two for speeds, which are to be zero."""

    def rows(self, q, v, t, kinematics=None):
        return jnp.eye(2), jnp.zeros(2)

    def position_error(self, q, t):
        return (q[0] + q[1] - 1.0)[None]

    def velocity_error(self, q, v, t, kinematics=None):
        return v


@pytest.mark.parametrize("expand", [True, False])
def test_positions_may_have_other_rows_than_speeds(expand):
    """The nearest state in closed form: x moves twice as far as y, whose mass is twice that of x."""
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([1.0, 2.0])), lambda q, v, t: -q)
    y = PROJECTION(ukjax.Mechanism(system, Stopped()), jnp.zeros(()), jnp.array([1.1, 0.2, 0.3, 0.4]), expand)
    assert_close(y, jnp.array([0.9, 0.1, 0.0, 0.0]), atol=1e-15)


def test_derivatives_of_projections_onto_rows_of_both_kinds_are_by_factors():
    """Rows of speeds are zero while positions are projected; by matrices results would be NaN here."""
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([1.0, 2.0, 0.5])), lambda q, v, t: -q)
    psi = ukjax.Nonholonomic(lambda q, v, t: (-v[0] * jnp.sin(q[2]) + v[1] * jnp.cos(q[2]))[None])
    mechanism = ukjax.Mechanism(system, [psi, ukjax.Holonomic(lambda q, t: q[:1] ** 2 + q[1:2] - 1.0)])
    y = jnp.array([0.9, 0.2, 0.4, 1.0, -0.5, 0.3])
    loss = lambda y: jnp.sum(jnp.sin(PROJECTION(mechanism, jnp.asarray(0.0), y, True)))
    with replaced(projected_by_matrices=lambda solver, at: jnp.full_like(at.size, jnp.nan)):
        assert_gradients(loss, y)


def test_where_scalar_code_is_not_certain_projection_is_by_matrices():
    """Contradicting rows, a singular configuration, a coordinate without mass, and one that is none."""
    rows = ukjax.Holonomic(lambda q, t: jnp.stack([q[0] ** 2 - 1.0, q[0] + q[1] - 1.0, q[0] + q[1] - 1.0 - q[2]]))
    system = ukjax.System(lambda q, t: jnp.diag(jnp.stack([q[3], *jnp.ones(3)])), lambda q, v, t: -q)
    good = jnp.concatenate([jnp.array([1.1, 0.1, 1e-9, 2.0]), jnp.ones(4)])
    ys = jnp.stack([good, good.at[2].set(0.5), good.at[0].set(0.0), good.at[3].set(0.0), good.at[1].set(jnp.nan), good])
    mechanism = ukjax.Mechanism(system, [rows, ukjax.Holonomic(lambda q, t: q[2:3] - 0.3)])
    got, want = both_ways(mechanism, ys)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)
    assert np.isfinite(want).all(axis=1).tolist() == [True] * 4 + [False, True]


def test_a_projection_as_one_program_goes_the_sure_way_where_a_step_of_it_is_not_certain():
    """A row that vanishes is in doubt: there the whole projection is computed the sure way, and its derivatives are."""
    rows = ukjax.Holonomic(lambda q, t: jnp.stack([q[0] ** 2 + q[1] - 1.0, q[2] * (q[2] - 1.0)]))
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([1.0, 2.0, 3.0])), lambda q, v, t: -q)
    mechanism = ukjax.Mechanism(system, rows)
    certain = jnp.array([0.6, 0.6, 0.99, 0.3, 0.1, 0.2])
    ys, made, compiled = jnp.stack([certain, certain.at[2].set(0.5), 1.01 * certain]), [], SureWay._of
    back = lambda t, y: PROJECTION(mechanism, t, y, True)
    plain = lambda t, y: PROJECTION(mechanism, t, y, False)
    joined = scalars(back, jnp.asarray(0.0), certain, joins=True)

    def all_of(function):
        of = lambda y: function(jnp.asarray(0.0), y)
        values, slopes = jax.jit(lambda ys: (jax.vmap(of)(ys), jax.vmap(jax.jacrev(of))(ys)))(ys)
        return values, slopes, jax.jit(jax.vmap(jax.jacfwd(of)))(ys)

    want = all_of(plain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SureWay, "_of", lambda self, *args: (made.append(self.plain), compiled(self, *args))[1])
        got = all_of(joined)
    assert made
    assert all(made)
    for one, other in zip(got, want, strict=True):
        assert np.isfinite(other).all()
        assert_close(one, other, atol=1e-12)
    assert_close(got[1], got[2], atol=1e-12)
    text = jax.jit(jax.vmap(jax.jacrev(lambda y: joined(jnp.asarray(0.0), y)))).lower(ys).as_text()
    assert "while" not in text


@pytest.mark.long
@pytest.mark.parametrize("model", [long(coordinated_robots), long(parallelogram), simple_pendulum])
def test_derivatives_of_both_ways_agree(model):
    """Forward and reverse, with respect to the state and to all parameters."""
    case = model.scenario()
    # Far off, where rows change on the way; those of the parallelogram depend on each other near the constraints only.
    ys = near(case, 3, 1e-5 if model is parallelogram else 1e-2)
    weights = jnp.cos(jnp.arange(2.0 * len(case.q0)))
    moving, rest = eqx.partition((case.mechanism, ys), eqx.is_inexact_array)

    def loss(moving, expand):
        mechanism, ys = eqx.combine(moving, rest)
        back = lambda y: jnp.sin(PROJECTION(mechanism, jnp.asarray(0.0), y, expand)) @ weights
        return jnp.sum(jax.vmap(back)(ys))

    got, want = (jax.jit(jax.grad(lambda x, way=way: loss(x, way)))(moving) for way in (True, False))
    along = jax.tree_util.tree_map(jnp.cos, moving)
    forward = jax.jit(lambda x, along: jax.jvp(lambda x: loss(x, True), (x,), (along,))[1])(moving, along)
    assert_same_gradients(got, want, forward, along, 1e-7)
    if model is not parallelogram:  # no redundant rows
        of = lambda y: loss((moving[0], y[None]), True)
        slope = jax.jit(jax.grad(of))(ys[0])
        assert_close(slope, central_difference(jax.jit(of), ys[0])[0], atol=1e-6)


def test_projections_are_lowered_for_a_gpu():
    mechanism = pendulum()
    of = lambda ys: jnp.sum(jax.vmap(lambda y: PROJECTION(mechanism, jnp.asarray(0.0), y, True))(ys) ** 2)
    for function in (of, jax.grad(of)):
        text = jax.jit(function).trace(jnp.ones((9, 4))).lower(lowering_platforms=("cuda",)).as_text()
        assert "custom_call" not in text or "lapack" not in text.lower()


def jumping(jumps):
    """Two wheels, q0 + 3 q1 = 0, which turn; the gear between them jumps at half a turn if written by arctan2."""
    angle = (lambda x: jnp.arctan2(jnp.sin(x), jnp.cos(x))) if jumps else lambda x: x
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([0.1, 0.3])), lambda q, v, t: jnp.array([0.6, 0.0]))
    gear = ukjax.Holonomic(lambda q, t: (angle(q[0]) + 3.0 * angle(q[1]))[None])
    return ukjax.Mechanism(system, gear), jnp.zeros(2), jnp.array([3.0, -1.0])


@pytest.mark.long
@pytest.mark.parametrize("constant", [long(False), True])
def test_a_projection_that_does_not_get_to_the_constraints_is_a_failure(constant):
    steps = {"stepsize_controller": diffrax.ConstantStepSize(), "dt0": 0.01} if constant else {}
    ts = jnp.linspace(0.0, 2.0, 5)
    options = {"projection": ukjax.Projection(), "throw": False, **steps}
    found = ukjax.simulate(*jumping(True), ts, **options)
    assert found.result == ukjax.RESULTS.projection_off_constraints
    assert 0.4 < float(found.stats["t_reached"]) < 1.0
    smooth = ukjax.simulate(*jumping(False), ts, **options)
    assert smooth.result == ukjax.RESULTS.successful
    assert_close(smooth.q[:, 0], 3.0 * ts + 0.6 / (0.1 + 0.3 / 9) * ts**2 / 2, atol=1e-8)


@pytest.mark.long
def test_a_projection_that_does_not_get_there_is_a_failure_of_its_trajectory_in_a_batch():
    mechanism, q, v = jumping(True)
    start = jnp.stack([v, 0.1 * v])
    ts, options = jnp.linspace(0.0, 0.8, 3), {"projection": ukjax.Projection(), "throw": False}
    with pytest.warns(ukjax.FailedTrajectories, match="number 0 at t = 0.69"):
        found = ukjax.simulate_batch(mechanism, jnp.stack([q, q]), start, ts, **options)
    lost = found.result == ukjax.RESULTS.projection_off_constraints
    assert np.asarray(lost).tolist() == [True, False]


@pytest.mark.long
def test_velocities_that_do_not_get_to_a_constraint_that_is_not_linear_in_them_are_a_failure():
    """A particle whose speed is one, which falls: v_x = 1 / cosh(g t), v_y = -tanh(g t)."""
    falling = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.array([0.0, -9.81]))
    speed = ukjax.Mechanism(falling, ukjax.Nonholonomic(lambda q, v, t: (v @ v - 1.0)[None]))
    ts = jnp.linspace(0.0, 0.5, 3)
    run = lambda v0, **options: ukjax.simulate(speed, [0.0, 0.0], [v0, 0.0], ts, projection=PROJECTION, **options)
    with pytest.raises(RuntimeError, match="No state that satisfies"):
        run(4.0)
    got = run(1.001)
    assert_close(jnp.linalg.norm(got.v, axis=1), jnp.ones(3), atol=1e-12)
    assert_close(got.v, jnp.stack([1 / jnp.cosh(9.81 * ts), -jnp.tanh(9.81 * ts)], axis=1), atol=1e-5)


def test_a_body_that_rests_at_the_origin_while_its_constraint_moves():
    """The other end of its rod goes round it: projections move it by rounding errors, and nothing else does."""
    system = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.zeros(2))
    rod = ukjax.Holonomic(lambda q, t: jnp.sum((q - jnp.stack([jnp.cos(t), jnp.sin(t)])) ** 2, keepdims=True) - 1.0)
    rest = jnp.zeros(2)
    found = ukjax.simulate(ukjax.Mechanism(system, rod), rest, rest, jnp.linspace(0.0, 10.0, 3), projection=PROJECTION)
    assert_close(found.q, jnp.zeros((3, 2)), atol=1e-11)
