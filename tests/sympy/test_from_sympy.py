"""Mechanisms from SymPy: models of its documentation and PyDy's, against SymPy's own solution; and what is refused."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy as sm
import sympy.physics.mechanics as me

import ukjax

from .. import sympy_models
from ..helpers import STATES, assert_close, assert_gradients, long


t = me.dynamicsymbols._t
KANE = ("pendulum_on_cart", "rolling_disc", "four_bar_linkage")
LAGRANGE = ("pendulum_in_cartesian", "bead_on_rotating_parabola")
PUSH = sm.Function("F")(t)


@pytest.fixture(scope="module")
def models():
    """name -> method, values, mechanism, q, u, time; the symbolic work is done once."""
    found = {}
    for name in (*KANE, *LAGRANGE):
        method, values, state, *time = getattr(sympy_models, name)()
        specifieds = {PUSH: 2.5} if name == "pendulum_on_cart" else {}
        mechanism = ukjax.from_sympy(method, values, specifieds)
        found[name] = (method, {**values, **specifieds}, mechanism, *state, *(time or [0.0]))
    return found


@eqx.filter_jit
def motion_of(mechanism, q, v, time, formulation=ukjax.UdwadiaKalaba()):
    return ukjax.equation_of_motion(mechanism, q, v, time, formulation=formulation, throw=False)


@eqx.filter_jit
def derivative_of_speeds(system, q, v, acceleration, time):
    return jax.jvp(system.speeds, (q, v, time), (v, acceleration, jnp.ones(())))[1]


@pytest.mark.parametrize(("name", "rank"), list(zip(KANE, (0, 0, 2))))
def test_kanes_method_against_its_own_solution(models, name, rank):
    method, values, mechanism, q, u, time = models[name]
    v, du, dv = sympy_models.kane_derivative(method, values, q, u, time)
    q, u, time = jnp.array(q), jnp.array(u), jnp.asarray(time)
    system = mechanism.system
    assert_close(system.rates(q, u, time), v, atol=1e-13)
    assert_close(system.speeds(q, jnp.array(v), time), u, atol=1e-13)
    motion = motion_of(mechanism, q, v, time)
    assert_close(motion.acceleration, dv, atol=1e-10)
    assert_close(derivative_of_speeds(system, q, jnp.array(v), motion.acceleration, time), du, atol=1e-10)
    assert int(motion.rank) == rank
    assert np.max(np.abs(mechanism.velocity_error(q, jnp.array(v), time)), initial=0.0) < 1e-12
    assert np.max(np.abs(mechanism.position_error(q, time)), initial=0.0) < 1e-12


@pytest.mark.parametrize(("name", "rank"), list(zip(LAGRANGE, (1, 2))))
def test_lagranges_method_against_its_own_solution(models, name, rank):
    method, values, mechanism, q, v, time = models[name]
    motion = motion_of(mechanism, q, v, time)
    assert_close(motion.acceleration, sympy_models.lagrange_acceleration(method, values, q, v, time), atol=1e-10)
    assert int(motion.rank) == rank
    assert np.max(np.abs(mechanism.velocity_error(jnp.array(q), jnp.array(v), jnp.asarray(time)))) < 1e-12
    assert np.max(np.abs(mechanism.position_error(jnp.array(q), jnp.asarray(time)))) < 1e-12


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[] if x == "rolling_disc" else [pytest.mark.long]) for x in (*KANE, *LAGRANGE)]
)
def test_gradients_with_respect_to_parameters(models, name):
    _, _, mechanism, q, u, time = models[name]
    v = mechanism.system.rates(jnp.array(q), jnp.array(u), jnp.asarray(time))

    def loss(parameters):
        changed = mechanism.system.mechanism(parameters)
        return jnp.sum(jnp.sin(ukjax.equation_of_motion(changed, q, v, time, throw=False).acceleration))

    assert_gradients(loss, mechanism.system.parameters, rtol=1e-6, atol=1e-7)


def linkage_energy(values, q, v):
    """Energy [J] of three uniform bars in a row, from absolute angles."""
    l, (rho, g) = list(values.values())[1:4], list(values.values())[4:6]
    joint, speed, energy = np.zeros(2), np.zeros(2), 0.0
    for length, angle, rate in zip(l, np.cumsum(q), np.cumsum(v)):
        along = length * np.array([np.cos(angle), np.sin(angle)])
        across = rate * np.array([-along[1], along[0]])
        centre, moving, mass = joint + along / 2, speed + across / 2, rho * length
        energy += mass * (moving @ moving / 2 + length**2 / 24 * rate**2 + g * centre[1])
        joint, speed = joint + along, speed + across
    return energy


@pytest.mark.long
def test_the_linkage_moves_on_its_constraints_and_keeps_its_energy(models):
    _, values, mechanism, q, u, _ = models["four_bar_linkage"]
    ts = jnp.linspace(0.0, 1.0, 3)
    run = ukjax.simulate(mechanism, q, u, ts, rtol=1e-9, atol=1e-9, projection=ukjax.Projection(), keep=STATES)
    assert np.max(run.position_residual) < 1e-10
    assert np.max(run.velocity_residual) < 1e-10
    energies = np.array([linkage_energy(values, *state) for state in zip(run.q, run.v)])
    assert_close(energies, np.full(3, energies[0]), atol=1e-6)  # the integrator's tolerance, and what is exchanged
    assert np.max(np.abs(run.q[-1] - run.q[0])) > 0.1


def test_what_is_specified_is_a_function_of_state_and_time(models):
    _, _, mechanism, q, u, _ = models["pendulum_on_cart"]
    method, values, _ = sympy_models.pendulum_on_cart()
    pushed = ukjax.from_sympy(method, values, {"F": lambda q, v, t: 2.0 * jnp.cos(t) - v[0]})
    at = jnp.asarray(0.7)
    want = 2.0 * np.cos(0.7) - u[0] - 2.5
    got = pushed.terms(jnp.array(q), jnp.array(u), at).Q - mechanism.terms(jnp.array(q), jnp.array(u), at).Q
    assert_close(got, jnp.array([want, 0.0, 0.0]), atol=1e-12)
    wrong = ukjax.from_sympy(method, values, {"F": lambda q, v, t: v})
    with pytest.raises(ValueError, match=r"specifieds\['F'\]\(q, v, t\) must return"):
        ukjax.equation_of_motion(wrong, q, u)


def sleigh(kinematics=True):
    """A plane sleigh on a skate, its place of no interest: one coordinate, the heading; three speeds, one of them 0."""
    (h,), (w, f, s) = me.dynamicsymbols("h:1"), me.dynamicsymbols("w f s")
    m, I, a = sm.symbols("m I a")
    N, B = me.ReferenceFrame("N"), me.ReferenceFrame("B")
    B.orient_axis(N, h, N.z)
    B.set_ang_vel(N, w * N.z)
    P = me.Point("P")
    P.set_vel(N, f * B.x + s * B.y)
    C = P.locatenew("C", a * B.x)
    C.v2pt_theory(P, N, B)
    body = me.RigidBody("sleigh", C, B, m, (me.inertia(B, 0, 0, I), C))
    rate = 2 * w + s if kinematics == "shared" else w
    kane = me.KanesMethod(N, [h], [w, f], [rate - h.diff(t)], u_dependent=[s], velocity_constraints=[s])
    kane.kanes_equations([body], [(C, me.Vector(0))])
    return kane, {m: 2.0, I: 0.4, a: 0.3}


def test_a_speed_without_a_coordinate_gets_one():
    kane, values = sleigh()
    mechanism = ukjax.from_sympy(kane, values)
    assert mechanism.system.coordinates == ("h0", "∫f", "∫s")
    assert mechanism.system.generalized_speeds == ("w", "f", "s")
    # Chaplygin's equations: f' = a w^2, (I + m a^2) w' = -m a f w, s' = 0.
    w, f, m, I, a = 1.3, 0.7, 2.0, 0.4, 0.3
    motion = motion_of(mechanism, jnp.zeros(3), jnp.array([w, f, 0.0]), 0.0)
    want = np.array([-m * a * f * w / (I + m * a**2), a * w**2, 0.0])
    assert_close(motion.acceleration, want, atol=1e-13)


def rigid_body(angles):
    """A free rigid body in angular velocities, by Euler angles (`angles`) or by a quaternion."""
    u = me.dynamicsymbols("u1:4")
    A, B, C = sm.symbols("A B C")
    N, F = me.ReferenceFrame("N"), me.ReferenceFrame("F")
    if angles:
        q = me.dynamicsymbols("q1:4")
        F.orient_body_fixed(N, q, "123")
        rates = sm.solve([F.ang_vel_in(N).dot(axis) - x for axis, x in zip(F, u)], [x.diff(t) for x in q])
        kinematics = [x.diff(t) - sm.simplify(rates[x.diff(t)]) for x in q]
    else:
        q = me.dynamicsymbols("q0:4")
        F.orient_quaternion(N, q)
        E = sm.Matrix([[-q[1], -q[2], -q[3]], [q[0], -q[3], q[2]], [q[3], q[0], -q[1]], [-q[2], q[1], q[0]]])
        kinematics = list(sm.Matrix(q).diff(t) - E * sm.Matrix(u) / 2)
    F.set_ang_vel(N, sum((x * axis for axis, x in zip(F, u)), me.Vector(0)))
    O = me.Point("O")
    O.set_vel(N, 0)
    kane = me.KanesMethod(N, q, u, kinematics)
    kane.kanes_equations([me.RigidBody("body", O, F, 1, (me.inertia(F, A, B, C), O))], None)
    return kane, {A: 0.3, B: 0.5, C: 0.7}


@pytest.mark.parametrize("angles", [True, False])
def test_generalised_speeds_that_are_no_rates(angles):
    mechanism = ukjax.from_sympy(*rigid_body(angles))
    system = mechanism.system
    q = jnp.array([0.4, 1.0, -0.6]) if angles else jnp.array([0.5, 0.1, -0.7, 0.5])
    q = q if angles else q / jnp.linalg.norm(q)
    u, time = jnp.array([0.3, -1.2, 0.8]), jnp.zeros(())
    v = eqx.filter_jit(system.rates)(q, u, time)
    assert_close(eqx.filter_jit(system.speeds)(q, v, time), u, atol=1e-13)
    # The mass matrix of a quaternion is singular.
    motion = motion_of(mechanism, q, v, time, ukjax.formulation.PennestriDeFalco())
    du = derivative_of_speeds(system, q, v, motion.acceleration, time)
    I = np.array([0.3, 0.5, 0.7])
    assert_close(du, -np.cross(u, I * u) / I, atol=1e-11)  # Euler's equations
    if not angles:
        assert_close(q @ motion.acceleration + v @ v, np.float64(0.0), atol=1e-12)


def newton_and_euler(l, u, pull, twist):
    """Rates of the speeds of `quaternion_flyer`, in the body's axes: m (V' + w x V) = F, J w' + w x J w = M."""
    velocity, w, J = u[:3], u[3:], np.array([[0.3, 0.0, -0.1], [0.0, 0.5, 0.0], [-0.1, 0.0, 0.7]])
    down = np.array([2 * (l[1] * l[3] - l[0] * l[2]), 2 * (l[2] * l[3] + l[0] * l[1]), 1 - 2 * (l[1] ** 2 + l[2] ** 2)])
    force = 2.0 * 9.81 * down + [0.0, 0.0, pull]
    turned = np.linalg.solve(J, np.array([0.0, 0.0, twist]) - np.cross(w, J @ w))
    return np.concatenate([force / 2.0 - np.cross(w, velocity), turned])


@pytest.mark.long
@pytest.mark.parametrize("form", ["implicit", long("free", id="free"), long("textbook", id="textbook")])
def test_a_quaternion_by_implicit_kinematics(form):
    method, values = sympy_models.quaternion_flyer(form)
    mechanism = ukjax.from_sympy(method, values, {"pull": 1.3, "twist": 0.4})
    system, rng, now = mechanism.system, np.random.default_rng(5), jnp.zeros(())
    l = np.concatenate([np.eye(4), rng.normal(size=(26, 4))])  # some with zeros
    l /= np.linalg.norm(l, axis=1)[:, None]
    u = rng.normal(size=(30, 6))
    q = jnp.asarray(np.concatenate([l[:, 1:], rng.normal(size=(30, 3)), l[:, :1]], axis=1))
    want = np.array([newton_and_euler(*row, 1.3, 0.4) for row in zip(l, u)])

    @eqx.filter_jit
    def each(mechanism, q, u):
        system = mechanism.system
        v = system.rates(q, u, now)
        motion = ukjax.equation_of_motion(
            mechanism, q, v, formulation=ukjax.formulation.PennestriDeFalco(), throw=False
        )
        off = system.speeds(q, v, now) - u
        return motion, v, derivative_of_speeds(system, q, v, motion.acceleration, now), off

    motion, v, du, off = jax.vmap(lambda q, u: each(mechanism, q, u))(q, jnp.asarray(u))
    assert np.all(motion.result == ukjax.RESULTS.successful)
    assert np.all(motion.rank == 1)
    assert_close(du, want, atol=1e-10)
    assert np.max(np.abs(off)) < 1e-13
    # The quaternion keeps its length.
    at = np.array([6, 0, 1, 2])
    kept = jnp.sum(q[:, at] * motion.acceleration[:, at], axis=1) + jnp.sum(v[:, at] ** 2, axis=1)
    assert np.max(np.abs(kept)) < 1e-11
    rows = mechanism.terms(q[7], v[7], now).A
    assert rows.shape == (2 - (form == "free"), 7)
    if form == "textbook":
        alone = lambda values: each(system.mechanism(values), q[7], jnp.asarray(u[7]))[2][4]
        assert_gradients(alone, system.parameters, atol=1e-7)


def test_what_is_specified_as_an_input():
    """The actuation of a force that SymPy left open, and its column of B; the others stay as specified."""
    method, values, (q, u) = sympy_models.pendulum_on_cart()
    mechanism = ukjax.from_sympy(method, values, {PUSH: 2.5})
    G = mechanism.system.actuation(PUSH)
    assert_close(G(jnp.array(q), jnp.zeros(())), jnp.array([[1.0], [0.0], [0.0]]), atol=1e-14)
    states = ukjax.analysis.Independent((0, 1, 2), (0, 1, 2))
    found = ukjax.analysis.linearize(mechanism, q, u, actuation=G, states=states)
    f = lambda force: motion_of(ukjax.from_sympy(method, values, {PUSH: force}), jnp.array(q), jnp.array(u), 0.0)
    assert_close(found.B[3:, 0], f(3.5).acceleration - f(2.5).acceleration, atol=1e-12)

    # The column has the slope by the parameters, too.
    def column(p):
        changed = mechanism.system.mechanism(p)
        return ukjax.analysis.linearize(changed, q, u, actuation=changed.system.actuation("F"), states=states).B[4, 0]

    assert_gradients(column, {"l0": jnp.asarray(0.5), "m1": jnp.asarray(0.4)}, rtol=1e-6, atol=1e-8)
    with pytest.raises(ValueError, match="names has 'G', which is not specified; specified are F"):
        mechanism.system.actuation("G")
    with pytest.raises(ValueError, match="contain no specified function"):
        ukjax.from_sympy(*sleigh()).system.actuation()


def test_inputs_by_generalised_speeds():
    """Pull and twist in the body's axes act on rates of a quaternion: J^T takes them there."""
    method, values = sympy_models.quaternion_flyer("textbook")
    system = ukjax.from_sympy(method, values, {"pull": 0.0, "twist": 0.0}).system
    q, now = jnp.array([0.1, -0.3, 0.2, 0.4, 0.5, 0.6, 0.9]), jnp.zeros(())
    G = system.actuation()(q, now)
    J = jax.jacfwd(lambda v: system.speeds(q, v, now))(jnp.zeros(7))
    assert system.functions.specifieds == ("pull", "twist")
    assert_close(G, J[np.array([2, 5])].T, atol=1e-13)


def test_an_input_that_is_no_column():
    x, u = me.dynamicsymbols("x u")
    valve, brake, push = (sm.Function(name)(t) for name in ("valve", "brake", "push"))
    frame, point = me.ReferenceFrame("frame"), me.Point("point")
    point.set_vel(frame, u * frame.x)
    kane = me.KanesMethod(frame, [x], [u], [u - x.diff(t)])
    force = valve**2 - brake * u + push * sm.cos(x)
    kane.kanes_equations([me.Particle("cart", point, 2)], [(point, force * frame.x)])
    system = ukjax.from_sympy(kane, {}, {"valve": 1.0, "brake": 0.1, "push": 0.0}).system
    assert_close(system.actuation(push)(jnp.array([0.3]), jnp.zeros(())), jnp.array([[np.cos(0.3)]]), atol=1e-15)
    for name in ("valve", "brake"):
        with pytest.raises(ValueError, match=f"names has '{name}', which is multiplied by rates or by specified"):
            system.actuation(name)


def test_other_values_of_the_parameters(models):
    mechanism, q = models["pendulum_in_cartesian"][2:4]
    again = mechanism.system.mechanism({sm.Symbol("g"): 1.62})
    assert {name: float(x) for name, x in again.system.parameters.items()} == {"L": 1.5, "m": 0.7, "g": 1.62}
    free = motion_of(again, q, jnp.zeros(2), 0.0).unconstrained_acceleration
    assert_close(free, jnp.array([1.62, 0.0]), atol=1e-15)
    with pytest.raises(ValueError, match="parameters has 'G', which the system does not; it has"):
        mechanism.system.mechanism({"G": 1.0})
    lengths = jnp.array([1.0, 1.5, 2.0])
    error = lambda L: mechanism.system.mechanism({"L": L}).position_error(jnp.array(q), jnp.zeros(()))
    assert_close(jax.vmap(error)(lengths)[:, 0], 1.5**2 - lengths**2, atol=1e-12)


def test_from_sympy_under_a_trace():
    method, values, (q, _) = sympy_models.pendulum_in_cartesian()
    L, m, g = values

    def loss(length):
        return ukjax.from_sympy(method, {L: length, m: 0.7, g: 9.81}).position_error(jnp.array(q), jnp.zeros(()))[0]

    assert_close(jax.grad(loss)(1.5), np.float64(-3.0), atol=1e-12)


def test_an_object_that_has_a_method():
    class System:
        eom_method = sympy_models.pendulum_in_cartesian()[0]

    mechanism = ukjax.from_sympy(System(), {"L": 1.0, "m": 1.0, "g": 1.0})
    assert mechanism.system.coordinates == ("q1", "q2")
    System.eom_method = None
    with pytest.raises(ValueError, match=r"Call its form_eoms\(\) first"):
        ukjax.from_sympy(System(), {})


def test_values_that_are_wrong(models):
    method, values, *_ = models["pendulum_in_cartesian"]
    with pytest.raises(ValueError, match="parameters lacks L, g, which the equations of motion contain"):
        ukjax.from_sympy(method, {"m": 1.0})
    with pytest.raises(ValueError, match="parameters has 'length', which the equations of motion do not contain"):
        ukjax.from_sympy(method, {**values, "length": 1.0})
    ukjax.from_sympy(method, {**values, sm.Symbol("length"): 1.0})  # may have cancelled
    with pytest.raises(ValueError, match="parameters has two entries for 'm'"):
        ukjax.from_sympy(method, {**values, "m": 1.0})
    with pytest.raises(TypeError, match="parameters must be a dict of SymPy symbols"):
        ukjax.from_sympy(method, [1.0, 2.0])
    with pytest.raises(ValueError, match=r"parameters\['m'\] must be a scalar, but has shape \(2,\)"):
        ukjax.from_sympy(method, {**values, sm.Symbol("m"): jnp.ones(2)})
    with pytest.raises(ValueError, match=r"parameters\['m'\] must be an array of real numbers"):
        ukjax.from_sympy(method, {**values, sm.Symbol("m"): "heavy"})
    with pytest.raises(TypeError, match="method must be a KanesMethod or LagrangesMethod"):
        ukjax.from_sympy(sm.Symbol("x"), {})
    cart, values, _ = sympy_models.pendulum_on_cart(1)
    with pytest.raises(ValueError, match="specifieds lacks F, which the equations of motion contain"):
        ukjax.from_sympy(cart, values)
    with pytest.raises(ValueError, match="specifieds has 'G', which the equations of motion do not contain"):
        ukjax.from_sympy(cart, values, {"F": 0.0, "G": 0.0})
    with pytest.raises(ValueError, match=r"specifieds\['F'\] must be a scalar"):
        ukjax.from_sympy(cart, values, {PUSH: jnp.ones(3)})


def test_equations_that_were_not_formed():
    x, u = me.dynamicsymbols("x u")
    with pytest.raises(ValueError, match=r"form_lagranges_equations\(\) first"):
        ukjax.from_sympy(me.LagrangesMethod(x.diff(t) ** 2, [x]))
    with pytest.raises(ValueError, match=r"kanes_equations\(bodies, loads\) first"):
        ukjax.from_sympy(me.KanesMethod(me.ReferenceFrame("N"), [x], [u], [u - x.diff(t)]))


def lagrange_of(energy, coordinates, **constraints):
    method = me.LagrangesMethod(energy, coordinates, **constraints)
    method.form_lagranges_equations()
    return method


def test_equations_of_another_form():
    x, f = me.dynamicsymbols("x f")
    m, positive = sm.Symbol("m"), sm.Symbol("m", positive=True)
    with pytest.raises(ValueError, match=r"method has Derivative\(x\(t\), t\) in the mass matrix"):
        ukjax.from_sympy(lagrange_of(x.diff(t) ** 4, [x]))
    with pytest.raises(ValueError, match="method has f in a constraint on positions"):
        ukjax.from_sympy(lagrange_of(x.diff(t) ** 2, [x], hol_coneqs=[x - f]), {}, {"f": 1.0})
    with pytest.raises(ValueError, match="two symbols named m, with different assumptions"):
        ukjax.from_sympy(lagrange_of(m * x.diff(t) ** 2 - positive * x, [x]), {m: 1.0})
    with pytest.raises(ValueError, match=r"method has Derivative\(a\(t\), t\) in its terms"):
        ukjax.from_sympy(particle(force=lambda x, y, a, b: a.diff(t)))
    with pytest.raises(ValueError, match="3 speeds for 1 coordinates, and 1 of the speeds occur in no"):
        ukjax.from_sympy(*sleigh("shared"))


def particle(force=lambda *_: 0, **constraints):
    """A particle in the plane, pulled down by 1 N; `constraints` by name, in x, y and their rates a, b."""
    x, y, a, b = me.dynamicsymbols("x y a b")
    N, P = me.ReferenceFrame("N"), me.Point("P")
    P.set_vel(N, a * N.x + b * N.y)
    made = {name: [make(x, y, a, b)] for name, make in constraints.items()}
    dependent = {"q_dependent": [y]} if "configuration_constraints" in made else {}
    dependent |= {"u_dependent": [b]} if "velocity_constraints" in made else {}
    q = [x] if "q_dependent" in dependent else [x, y]
    u = [a] if "u_dependent" in dependent else [a, b]
    kane = me.KanesMethod(N, q, u, [a - x.diff(t), b - y.diff(t)], **dependent, **made)
    kane.kanes_equations([me.Particle("P", P, 1)], [(P, force(x, y, a, b) * N.x - N.y)])
    return kane


def test_constraints_of_kane_that_are_incomplete():
    on_line, rates = (lambda x, y, a, b: x - y), (lambda x, y, a, b: a - b)
    held = ukjax.from_sympy(particle(configuration_constraints=on_line, velocity_constraints=rates))
    motion = motion_of(held, jnp.zeros(2), jnp.ones(2), 0.0)
    assert_close(motion.acceleration, jnp.array([-0.5, -0.5]), atol=1e-14)
    with pytest.raises(ValueError, match="1 configuration_constraints but 0 velocity_constraints"):
        ukjax.from_sympy(particle(configuration_constraints=on_line))
    doubled = particle(velocity_constraints=rates, acceleration_constraints=lambda x, y, a, b: a.diff(t) - b.diff(t))
    with pytest.raises(ValueError, match="has acceleration_constraints. Leave them out"):
        ukjax.from_sympy(doubled)


def test_without_sympy(monkeypatch):
    monkeypatch.setitem(sys.modules, "sympy", None)
    with pytest.raises(ImportError, match=r"pip install \"ukjax\[sympy\]\""):
        ukjax.from_sympy(None)


def test_importing_ukjax_does_not_import_sympy():
    subprocess.run([sys.executable, "-c", "import ukjax, sys; assert 'sympy' not in sys.modules"], check=True)
