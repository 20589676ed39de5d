"""Models of the documentation of SymPy and PyDy, built by the same calls; and SymPy's own accelerations, by NumPy.

Each function returns the method, values of its parameters by symbol, and a state (q, u) that its constraints allow.
"""

import numpy as np
import sympy as sm
import sympy.physics.mechanics as me
from sympy.physics.mechanics.models import n_link_pendulum_on_cart


t = me.dynamicsymbols._t


def pendulum_on_cart(links=2):
    """PyDy's chain of links on a cart, pushed by a force F(t) that is left open."""
    kane = n_link_pendulum_on_cart(links, cart_force=True)
    symbols = [*sm.symbols(f"m:{links + 1}"), *sm.symbols(f"l:{links}"), sm.Symbol("g")]
    values = dict(zip(symbols, [1.2, 0.4, 0.7, 0.5, 0.8, 9.81]))
    return kane, values, (np.array([0.1, 0.4, -0.7]), np.array([0.3, -1.1, 2.0]))


def rolling_disc():
    """A rolling disc in angular velocities, with the auxiliary speeds that bring the contact force into evidence."""
    q, u = me.dynamicsymbols("q1:4"), me.dynamicsymbols("u1:7")
    f = me.dynamicsymbols("f1:4")
    r, m, g = sm.symbols("r m g")
    N = me.ReferenceFrame("N")
    Y = N.orientnew("Y", "Axis", [q[0], N.z])
    L = Y.orientnew("L", "Axis", [q[1], Y.x])
    R = L.orientnew("R", "Axis", [q[2], L.y])
    by_rates = R.ang_vel_in(N)
    R.set_ang_vel(N, u[0] * L.x + u[1] * L.y + u[2] * L.z)
    C = me.Point("C")
    along = me.cross(Y.z, L.x)
    C.set_vel(N, u[3] * L.x + u[4] * along + u[5] * Y.z)
    centre = C.locatenew("Dmc", r * L.z)
    centre.v2pt_theory(C, N, R)
    kinematics = [me.dot(R.ang_vel_in(N) - by_rates, axis) for axis in L]
    loads = [(centre, -m * g * Y.z), (C, f[0] * L.x + f[1] * along + f[2] * Y.z)]
    disc = me.RigidBody("disc", centre, R, m, (me.inertia(L, m / 4 * r**2, m / 2 * r**2, m / 4 * r**2), centre))
    kane = me.KanesMethod(N, q_ind=q, u_ind=u[:3], kd_eqs=kinematics, u_auxiliary=u[3:])
    kane.kanes_equations([disc], loads)
    return kane, {r: 0.3, m: 2.0, g: 9.81}, (np.array([0.4, 0.3, -0.2]), np.array([0.5, 3.0, -0.8]))


def four_bar_linkage():
    """A four-bar linkage by joints: two loop equations on positions, and their rates."""
    q, u = me.dynamicsymbols("q1:4"), me.dynamicsymbols("u1:4")
    lengths, rho = sm.symbols("l1:5"), sm.Symbol("rho")
    N = me.ReferenceFrame("N")
    bars = []
    for i, length in enumerate(lengths):
        frame, point = N if i == 0 else me.ReferenceFrame(f"L{i}"), me.Point(f"mc{i}")
        inertia = me.inertia(frame, 0, 0, rho * length**3 / 12)
        bars.append(me.RigidBody(f"bar{i}", point, frame, rho * length, (inertia, point)))
    for i in range(3):
        a, b = bars[i], bars[i + 1]
        me.PinJoint(
            f"J{i}", a, b, coordinates=q[i], speeds=u[i], joint_axis=a.frame.z,
            parent_point=lengths[i] / 2 * a.frame.x, child_point=-lengths[i + 1] / 2 * b.frame.x,
        )  # fmt: skip
    bars[0].masscenter.set_vel(N, 0)
    loop = bars[3].masscenter.pos_from(bars[0].masscenter) + lengths[3] / 2 * bars[3].frame.x
    loop += lengths[0] / 2 * bars[0].frame.x
    closed = sm.Matrix([loop.dot(N.x), loop.dot(N.y)])
    kinematics = [a - b.diff(t) for a, b in zip(u, q)]
    rates = closed.diff(t).xreplace({b.diff(t): a for a, b in zip(u, q)})
    kane = me.KanesMethod(
        N, [q[0]], [u[0]], kinematics, q_dependent=q[1:], configuration_constraints=closed, u_dependent=u[1:],
        velocity_constraints=rates,
    )  # fmt: skip
    g = sm.Symbol("g")
    loads = [(bar.masscenter, -bar.mass * g * N.y) for bar in bars[1:]]
    kane.kanes_equations(bars[1:], loads)
    values = {**dict(zip(lengths, [2.0, 1.0, 2.5, 1.8])), rho: 1.3, g: 9.81}
    start = np.array([1.0, -1.0, -1.5])
    return kane, values, on_constraints(kane, values, start, np.array([0.7, 0.0, 0.0]), free=1)


def quaternion_flyer(form="implicit"):
    """SymPy's own example of implicit kinematics: a body in a quaternion and its place in the body's axes.

    In the `form` "free" without its constraint on positions; "textbook" has the rates of the quaternion written out.
    """
    l, (x, y, z) = me.dynamicsymbols("l0:4"), me.dynamicsymbols("x y z")
    (U, V, W), (P, Q, R) = me.dynamicsymbols("U V W"), me.dynamicsymbols("P Q R")
    m, g, A, B, C, D = sm.symbols("m g A B C D")
    N = me.ReferenceFrame("N")
    F = N.orientnew("F", "Quaternion", l)
    by_rates = F.ang_vel_in(N)
    F.set_ang_vel(N, P * F.x + Q * F.y + R * F.z)
    origin = me.Point("origin")
    origin.set_vel(N, 0)
    centre = origin.locatenew("centre", x * F.x + y * F.y + z * F.z)
    moved = centre.vel(N)
    centre.set_vel(N, U * F.x + V * F.y + W * F.z)
    vector = sm.Matrix(l)
    if form == "textbook":
        E = sm.Matrix([[-l[1], -l[2], -l[3]], [l[0], -l[3], l[2]], [l[3], l[0], -l[1]], [-l[2], l[1], l[0]]])
        kinematics = list(vector.diff(t) - E * sm.Matrix([P, Q, R]) / 2)
    else:
        turned = (F.ang_vel_in(N) - by_rates).simplify()
        kinematics = [*(turned & axis for axis in F), (vector.T * vector.diff(t))[0]]
    kinematics += [(centre.vel(N) - moved) & axis for axis in F]
    held = {} if form == "free" else {"q_dependent": [l[0]], "configuration_constraints": [(vector.T * vector)[0] - 1]}
    q = [*l[1:], x, y, z] if held else [*l[1:], x, y, z, l[0]]
    kane = me.KanesMethod(N, q, [U, V, W, P, Q, R], kd_eqs=kinematics, explicit_kinematics=form == "textbook", **held)
    body = me.RigidBody("body", centre, F, m, (me.inertia(F, A, B, C, 0, 0, -D), centre))
    pull, twist = sm.Function("pull")(t), sm.Function("twist")(t)
    kane.kanes_equations([body], [(centre, m * g * N.z + pull * F.z), (F, twist * F.z)])
    return kane, {m: 2.0, g: 9.81, A: 0.3, B: 0.5, C: 0.7, D: 0.1}


def pendulum_in_cartesian():
    """The pendulum in coordinates that are not minimal, by Lagrange's method with a multiplier."""
    q = me.dynamicsymbols("q1:3")
    L, m, g = sm.symbols("L m g")
    N = me.ReferenceFrame("N")
    origin = me.Point("origin")
    origin.set_vel(N, 0)
    P = origin.locatenew("P", q[0] * N.x + q[1] * N.y)
    P.set_vel(N, P.pos_from(origin).dt(N))
    bob = me.Particle("bob", P, m)
    lagrange = me.LagrangesMethod(
        me.Lagrangian(N, bob), q, hol_coneqs=[q[0] ** 2 + q[1] ** 2 - L**2], forcelist=[(P, m * g * N.x)], frame=N
    )
    lagrange.form_lagranges_equations()
    angle, rate = 0.6, 1.3
    place = 1.5 * np.array([np.cos(angle), np.sin(angle)])
    return lagrange, {L: 1.5, m: 0.7, g: 9.81}, (place, rate * np.array([-place[1], place[0]]))


def bead_on_rotating_parabola():
    """A bead on a parabolic wire that turns at a given rate: its Lagrangian depends on time, and its velocity."""
    x, y, z = q = me.dynamicsymbols("x y z")
    m, g, c, w = sm.symbols("m g c w")
    v = [a.diff(t) for a in q]
    energy = m / 2 * sum(a**2 for a in v) - m * g * z
    on_wire = [-x * sm.sin(w * t) + y * sm.cos(w * t), z - c * (x**2 + y**2)]
    lagrange = me.LagrangesMethod(energy, q, hol_coneqs=on_wire)
    lagrange.form_lagranges_equations()
    r, s, rate, turn = 0.8, 0.5, 1.7, 2.0
    phase = turn * s
    place = np.array([r * np.cos(phase), r * np.sin(phase), 0.9 * r**2])
    across = r * turn * np.array([-np.sin(phase), np.cos(phase), 0.0])
    velocity = rate * np.array([np.cos(phase), np.sin(phase), 1.8 * r]) + across
    return lagrange, {m: 0.5, g: 9.81, c: 0.9, w: turn}, (place, velocity), s


def numbers(expressions, values):
    """A matrix of expressions at the values of all its symbols, as float64."""
    # Derivatives are put in first: a function that is replaced by a number cannot be differentiated any more.
    ordered = dict(sorted(values.items(), key=lambda item: -sm.count_ops(item[0])))
    derivatives = {a: b for a, b in ordered.items() if isinstance(a, sm.Derivative)}
    return np.array(sm.Matrix(expressions).xreplace(derivatives).xreplace(ordered).evalf(30), float)


def on_constraints(kane, values, q, u, free):
    """The nearest state that satisfies the constraints, with the first `free` coordinates and speeds as given."""
    phi = sm.Matrix(kane._f_h).xreplace(values)
    slope = phi.jacobian(kane.q[free:])
    for _ in range(30):
        at = dict(zip(kane.q, q))
        q[free:] -= np.linalg.solve(numbers(slope, at), numbers(phi, at)[:, 0])
    at = {**values, **dict(zip(kane.q, q))}
    K, rest = numbers(kane._k_nh, at), numbers(kane._f_nh, at)[:, 0]
    u[free:] = np.linalg.solve(K[:, free:], -rest - K[:, :free] @ u[:free])
    return q, u


def kane_derivative(kane, values, q, u, time=0.0):
    """v, u' and v' as SymPy's own equations have them, solved by NumPy."""
    at = {**values, **dict(zip(kane.q, q)), **dict(zip(kane.u, u)), t: time}
    solved = kane.kindiffdict()
    v = numbers([solved[x.diff(t)] for x in kane.q], at)[:, 0]
    at |= {x.diff(t): rate for x, rate in zip(kane.q, v)}
    du = np.linalg.solve(numbers(kane.mass_matrix, at), numbers(kane.forcing, at)[:, 0])
    at |= {x.diff(t): rate for x, rate in zip(kane.u, du)}
    dv = numbers([solved[x.diff(t)].diff(t) for x in kane.q], at)[:, 0]
    return v, du, dv


def lagrange_acceleration(lagrange, values, q, v, time=0.0):
    """q'' as SymPy's own augmented equations have it, multipliers included, solved by NumPy."""
    n = len(lagrange.q)
    at = {**values, **dict(zip(lagrange.q, q)), **dict(zip(lagrange.u, v)), t: time}
    full = numbers(lagrange.mass_matrix_full, at), numbers(lagrange.forcing_full, at)[:, 0]
    return np.linalg.solve(*full)[n : 2 * n]
