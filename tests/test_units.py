"""No verdict and no motion changes with the unit of a row, a mass, a length or a time, nor with how heavy a body is."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax import RESULTS

from .helpers import assert_close, long
from .inside import after_impact
from .units import CASES, G, exact, table, units_of


FORMULATIONS = {
    "UdwadiaKalaba": ukjax.UdwadiaKalaba(),
    "Jacobi": ukjax.UdwadiaKalaba(ukjax.pseudoinverse.Jacobi()),
    "RowGramSchmidt": ukjax.UdwadiaKalaba(ukjax.pseudoinverse.RowGramSchmidt()),
    "scalar code": ukjax.UdwadiaKalaba(expand=True),
    "RangeSpace": ukjax.formulation.RangeSpace(),
    "Recursive": None,
    "PennestriDeFalco": ukjax.formulation.PennestriDeFalco(),
    "UdwadiaPhohomsiri": ukjax.formulation.UdwadiaPhohomsiri(),
    "LagrangeMultiplier": ukjax.formulation.LagrangeMultiplier(),
    "KernelProjection": ukjax.formulation.KernelProjection(),
}
# What the short run takes as a sample: masses that are not there, and lengths beside angles.
SHORT = {("pendulum", "UdwadiaKalaba", True)}


def of(case, name):
    m = case.count()
    return ukjax.formulation.Recursive((m - 1, 1), expand=False) if name == "Recursive" else FORMULATIONS[name]


def consistent(name):
    case = CASES[name]()
    state = ukjax.assemble(case.plain(), case.q, case.v)
    return case, state.q, state.v


def which(units, wrong):
    return [name for name, bad in zip(units, wrong, strict=True) if bad]


def stacked(trees):
    return jax.tree_util.tree_map(lambda *xs: jnp.stack(xs), *trees)


def off_by(case, q, v, acceleration, part):
    """What in SI is this part of the terms of the row that is missed."""
    terms = case.plain().terms(q, v, jnp.zeros(()))
    A, b = np.asarray(terms.A), np.asarray(terms.b)
    m = case.rows(q, v, 0.0)
    which = slice(0, m[0]) if m[0] else slice(m[0], None)
    R = np.asarray(case.redundant(0 if m[0] else 1, m[0] or m[1]))[1]
    row, value = R @ A[which], R @ b[which]
    return part * (abs(value) + np.abs(row) @ np.abs(acceleration))


@pytest.mark.parametrize(
    ("name", "formulation", "batched"),
    [
        (name, formulation, batched) if (name, formulation, batched) in SHORT else long(name, formulation, batched)
        for name in CASES
        for formulation in FORMULATIONS
        for batched in (False, True)
    ],
)
def test_the_acceleration_is_the_same_in_every_unit(name, formulation, batched):
    case, q, v = consistent(name)
    units = units_of(case)
    chosen = of(case, formulation)
    want = {h: exact(case, q, v, h) for h in {float(u.heavy) for u in units.values()}}
    missed = [off_by(case, q, v, want[float(u.heavy)], 1e-5) for u in units.values()]
    missing = [u._replace(off=jnp.array([0.0, x])) for u, x in zip(units.values(), missed, strict=True)]

    def motion(u):
        found = ukjax.equation_of_motion(case.mechanism(u), *case.state(u, q, v), formulation=chosen, throw=False)
        verdicts = [found.result == x for x in (RESULTS.successful, RESULTS.constraints_contradict)]
        return found.acceleration * case.scale(u) / u.time**2, found.rank, jnp.stack(verdicts)

    each = [*units.values(), *missing]
    if batched:
        acceleration, rank, verdicts = eqx.filter_jit(eqx.filter_vmap(motion))(stacked(each))
    else:
        acceleration, rank, verdicts = stacked(list(map(eqx.filter_jit(motion), each)))
    count = len(units)
    okay, refused = verdicts[:count, 0], verdicts[count:, 1]
    assert okay.all(), which(units, ~okay)
    assert refused.all(), which(units, ~refused)
    # Of rows that a light body alone keeps apart fewer may count, with the same motion.
    other = (rank[:count] != rank[0]) & jnp.array([float(u.heavy) == 1 for u in units.values()])
    assert not other.any(), which(units, other)
    for u, a in zip(units.values(), acceleration[:count], strict=True):
        right = want[float(u.heavy)]
        assert_close(a, jnp.asarray(right), atol=1e-7 * np.max(np.abs(right)))


def off_in_position(case, q, v):
    """By how much in SI a row is off, if it is by 1e-6 of the terms of its velocity in a unit of time."""
    rows = np.asarray(jax.jacfwd(case.phi)(q, 0.0))
    if not len(rows):
        return 0.0
    return 1e-6 * float(np.abs(np.asarray(case.redundant(0, len(rows)))[1] @ rows) @ np.abs(q))


def beside(q, v):
    """A state near by."""
    rng = np.random.default_rng(0)
    return q + 0.03 * rng.normal(size=q.shape), v + 0.1 * rng.normal(size=v.shape)


@pytest.mark.parametrize(
    ("name", "some"), [long("massless angle", ("SI", "all", "heavy, km, rows")), *(long(name, None) for name in CASES)]
)
def test_a_state_is_assembled_and_refused_alike_in_every_unit(name, some):
    case, q, v = consistent(name)
    units = {k: u for k, u in units_of(case).items() if some is None or k in some}
    near = beside(q, v)

    def assembled(mechanism_of):
        def one(u):
            found = ukjax.assemble(mechanism_of(u), *case.state(u, *near), throw=False)
            return found.q * case.scale(u), found.v * case.scale(u) / u.time

        return eqx.filter_jit(one)

    plain, written = assembled(lambda u: case.plain(u.heavy)), assembled(case.mechanism)
    off = jnp.array([off_in_position(case, q, v), 0.0])
    for k, u in units.items():
        got, right = written(u), plain(units["SI"]._replace(heavy=u.heavy))
        assert_close(got[0], right[0], atol=1e-9)
        assert_close(got[1], right[1], atol=1e-8)
        if off[0]:
            assert jnp.isnan(written(u._replace(off=off))[0]).all(), k


# Two iterations lead to their constraints from anywhere.
LINEAR = ("pulley",)


@pytest.mark.parametrize("name", [long(name) for name in CASES])
def test_a_projection_arrives_alike_in_every_unit(name):
    """From near by, from far away, and from where two iterations do not lead to the constraints; then in long steps."""
    case, q, v = consistent(name)
    if not len(case.phi(q, 0.0)):
        return
    units = {k: u for k, u in units_of(case).items() if not k.startswith(("heavy", "light"))}
    way = np.random.default_rng(0).normal(size=q.shape)

    def moved(u, far, step):
        q0, v0 = case.state(u, q + far * way, v)
        dt0 = step / u.time
        options = {"stepsize_controller": diffrax.ConstantStepSize(), "projection": ukjax.Projection(), "throw": False}
        ts = jnp.stack([0.0 * dt0, 3 * dt0])
        found = ukjax.simulate(case.mechanism(u), q0, v0, ts, dt0=dt0, keep=("q",), **options)
        verdicts = [RESULTS.successful, RESULTS.not_assembled, RESULTS.projection_off_constraints]
        return found.q * case.scale(u)[None], jnp.stack([found.result == x for x in verdicts])

    run = eqx.filter_jit(eqx.filter_vmap(eqx.filter_vmap(moved, in_axes=(None, 0, 0)), in_axes=(0, None, None)))
    far = jnp.array([0.003, 0.02, 1.0, 0.0, 0.0, 0.0])
    steps = jnp.array([1e-3, 1e-3, 1e-3, 0.03, 0.3, 1.0])
    states, verdicts = run(stacked(units.values()), far, steps)
    alike = (verdicts == verdicts[:1]).all(axis=2)
    assert alike.all(), [(k, which(units, ~alike[:, k])) for k in range(len(far))]
    okay = verdicts[0, :, 0]
    assert okay[:4].tolist() == [True, True, name in LINEAR, True]
    assert verdicts[0, 2, 1] or okay[2]
    for k in np.flatnonzero(okay):
        assert_close(states[:, k], jnp.broadcast_to(states[:1, k], states[:, k].shape), atol=1e-9)
        missed = jax.vmap(jax.vmap(lambda x: case.phi(x, 0.0)))(states[:, k, :1])
        assert jnp.max(jnp.abs(missed)) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_the_motion_is_the_same_in_every_unit(name):
    """With and without a projection, in a batch of units, in steps of one length; off the constraints it is refused."""
    case, q, v = consistent(name)
    units = {k: u for k, u in units_of(case).items() if not k.startswith(("heavy", "light"))}
    ts = jnp.linspace(0.0, 0.1, 3)
    steps = {"stepsize_controller": diffrax.ConstantStepSize(), "solver": diffrax.Dopri5(), "throw": False}

    def moved(u, projection):
        q0, v0 = case.state(u, q, v)
        options = {**steps, "dt0": 0.01 / u.time, "projection": projection, "keep": ("q", "v", "rank")}
        found = ukjax.simulate(case.mechanism(u), q0, v0, ts / u.time, **options)
        S = case.scale(u)[None]
        return found.q * S, found.v * S / u.time, found.rank, found.result == RESULTS.successful

    for projection in (None, ukjax.Projection()):
        run = eqx.filter_jit(eqx.filter_vmap(lambda u, p=projection: moved(u, p)))
        *states, rank, okay = run(stacked(units.values()))
        assert okay.all(), which(units, ~okay)
        assert (rank == rank[:1]).all()
        for x in states:
            assert_close(x, jnp.broadcast_to(x[:1], x.shape), rtol=1e-9, atol=1e-9)
        if projection is not None and len(case.phi(q, 0.0)):
            off = jnp.array([10 * off_in_position(case, q, v), 0.0])
            *_, okay = run(stacked([u._replace(off=off) for u in units.values()]))
            assert not okay.any(), which(units, okay)


# Those that come to rest; the other ones slide, roll, fall, or turn.
REST = ["pendulum", "slider-crank", "massless angle", "massless link", "rods", "parallelogram", "four-bar"]


def not_heavy(case):
    return {k: u for k, u in units_of(case).items() if float(u.heavy) == 1}


def found_in(units, case, equilibrium):
    """`equilibrium(units, mechanism, q)` from the case's state in each of the units, one after the other."""

    def one(u):
        q, _ = case.state(u, jnp.asarray(case.q, float), jnp.zeros(len(case.v)))
        return equilibrium(u, case.mechanism(u), q)

    return stacked(list(map(eqx.filter_jit(one), units.values())))


def at_rest(u, mechanism, q):
    return ukjax.analysis.equilibrium(mechanism, q, throw=False)


# Of bodies more than a million times as heavy as others not every equilibrium is found, and that is an error.
MOST_AT_REST = {"pendulum": 1e12}


@pytest.mark.parametrize("name", [long(name) for name in REST])
def test_an_equilibrium_is_found_alike_in_every_unit(name):
    case, most = CASES[name](), MOST_AT_REST.get(name, 1e6)
    units = {k: u for k, u in units_of(case).items() if 1 / most <= float(u.heavy) <= most}
    found = found_in(units, case, at_rest)
    okay = found.result == RESULTS.successful
    assert okay.all(), which(units, ~okay)
    assert (found.freedom == 0).all(), which(units, found.freedom != 0)
    for u, q in zip(units.values(), found.q, strict=True):
        q = q * case.scale(u)
        if float(u.heavy) == 1:
            assert_close(q, found.q[0], atol=1e-9)
        still = exact(case, q, jnp.zeros(len(case.v)), float(u.heavy))
        assert np.max(np.abs(still)) < 1e-7 * G


@pytest.mark.long
def test_what_a_small_force_moves_never_rests_in_any_unit():
    case = table()
    units = units_of(case)
    found = found_in(units, case, at_rest)
    none = found.result == RESULTS.no_equilibrium
    assert none.all(), which(units, ~none)


@pytest.mark.long
def test_what_holds_a_pulley_is_the_same_in_every_unit():
    """With a moment in a unit of its own; the weights may hang at any height."""
    case = CASES["pulley"]()
    units = not_heavy(case)

    def held(u, mechanism, q):
        moment = u.rows[0] * u.mass * u.time**2 * jnp.array([[0.0], [0.0], [1.0]])
        found = ukjax.analysis.equilibrium(mechanism, q, actuation=moment, throw=False)
        return found.u * u.rows[0], found.freedom, found.result == RESULTS.successful

    moment, freedom, okay = found_in(units, case, held)
    assert okay.all(), which(units, ~okay)
    assert (freedom == 1).all(), which(units, freedom != 1)
    assert_close(moment, jnp.full_like(moment, -0.1 * 0.2 * G), rtol=1e-9)


@pytest.mark.long
def test_a_steady_motion_is_the_same_in_every_unit():
    """A bead at the bottom of a hoop that turns; its angle is to stay, in a unit of its own."""
    case = CASES["hoop"]()
    units = not_heavy(case)

    def steady(u, mechanism, q):
        S, T = case.scale(u), u.time

        def angle(q, t):
            along = q[0] * jnp.cos(3 * T * t) + q[1] * jnp.sin(3 * T * t)
            return u.rows[1] * jnp.arctan2(along, -q[2])

        constant = lambda q, v, t: jnp.stack(jax.jvp(angle, (q, t), (v, jnp.ones_like(t))))
        found = ukjax.analysis.equilibrium(mechanism, q, constant=constant, throw=False)
        return found.q * S, found.v * S / T, found.result == RESULTS.successful

    q, v, okay = found_in(units, case, steady)
    assert okay.all(), which(units, ~okay)
    assert_close(q, jnp.broadcast_to(jnp.array([0.0, 0.0, -1.0]), q.shape), atol=1e-9)
    assert_close(v, jnp.zeros_like(v), atol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize("name", ["rods", "slider-crank", "four-bar"])
def test_what_makes_a_motion_is_the_same_in_every_unit(name):
    """A force on one coordinate, of a motion at rest; what leaves the constraints, and what it can't make, is named."""
    case, q, v = consistent(name)
    v, units, G1 = 0.0 * v, not_heavy(case), np.eye(len(v))[0]
    terms = case.plain().terms(q, v, jnp.zeros(()))
    force = float(np.max(np.abs(np.asarray(terms.Q))))
    pushed = case._replace(force=lambda q, v, t, heavy: case.force(q, v, t, heavy) + force * G1)
    off = case._replace(force=lambda q, v, t, heavy: case.force(q, v, t, heavy) + force * np.eye(len(v))[-1])
    of = {"made": exact(pushed, q, v, 1.0), "unmade": exact(off, q, v, 1.0)}
    row = np.asarray(terms.A)[0]
    of["broken"] = of["made"] + 1e-4 * np.max(np.abs(of["made"])) * row / np.linalg.norm(row)

    def inverse(u, acceleration):
        S, T = case.scale(u), u.time
        actuation = (u.mass * T**2 * S * G1)[:, None]
        found = ukjax.analysis.inverse_dynamics(
            case.mechanism(u), actuation, *case.state(u, q, v), acceleration * T**2 / S, throw=False
        )
        kinds = RESULTS.successful, RESULTS.motion_unreachable, RESULTS.motion_off_constraints
        return found.u[0], jnp.stack([found.result == kind for kind in kinds])

    compiled = eqx.filter_jit(inverse)
    for which_one, want in (("made", 0), ("unmade", 1), ("broken", 2)):
        one_free = which_one == "unmade" and len(v) - np.linalg.matrix_rank(np.asarray(terms.A)) == 1
        got, kinds = stacked([compiled(u, jnp.asarray(of[which_one])) for u in units.values()])
        right = kinds[:, 0 if one_free else want]
        assert right.all(), (which_one, which(units, ~right))
        if which_one == "made":
            assert_close(got, jnp.full_like(got, force), rtol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("name", ["pendulum", "rods", "slider-crank", "four-bar", "sleigh"])
def test_an_impact_is_the_same_in_every_unit(name):
    """From speeds that the next mode does not allow, against a wall in a unit of its own; off the constraints never."""
    case, q, v = consistent(name)
    units, (near, fast) = not_heavy(case), beside(q, v)

    def hit(u, q):
        wall = ukjax.Holonomic(lambda q, t: u.rows[-1] * case.scale(u)[:1] * q[:1])
        x, w = case.state(u, q, fast)
        _, w, met = after_impact(ukjax.Impact(wall, 0.5), case.mechanism(u), x, w, jnp.zeros(()), False)
        return w * case.scale(u) / u.time, met

    compiled = eqx.filter_jit(hit)
    after, met = stacked([compiled(u, q) for u in units.values()])
    assert met.all(), which(units, ~met)
    assert_close(after, jnp.broadcast_to(after[:1], after.shape), atol=1e-9 * float(jnp.max(jnp.abs(fast))))
    if len(case.phi(q, 0.0)):
        _, met = stacked([compiled(u, q + 1e-3 * (near - q)) for u in units.values()])
        assert not met.any(), which(units, met)


@pytest.mark.long
def test_rattle_holds_constraints_in_every_unit():
    """In long steps, for which its first way is not enough."""
    case, q, v = consistent("rods")
    units = not_heavy(case)

    def moved(u):
        options = {"solver": ukjax.Rattle(), "stepsize_controller": diffrax.ConstantStepSize(), "throw": False}
        ts = jnp.array([0.0, 0.25, 0.5]) / u.time
        found = ukjax.simulate(case.mechanism(u), *case.state(u, q, v), ts, dt0=0.25 / u.time, **options)
        x = found.q * case.scale(u)[None]
        return x, jax.vmap(lambda q: case.phi(q, 0.0))(x), found.result == RESULTS.successful

    x, gap, okay = stacked(list(map(eqx.filter_jit(moved), units.values())))
    assert okay.all(), which(units, ~okay)
    assert_close(gap, jnp.zeros_like(gap), atol=1e-11)
    assert_close(x, jnp.broadcast_to(x[:1], x.shape), atol=1e-10)
