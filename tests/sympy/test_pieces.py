"""Forces in pieces, whose other branches are not defined at a state; and functions that JAX has, or has not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import sympy as sm
import sympy.physics.mechanics as me

import ukjax

from ..helpers import assert_close, assert_gradients


t = me.dynamicsymbols._t
X, U = me.dynamicsymbols("x u")
M, K, C, E = sm.symbols("m k c e")
VALUES = {M: 2.0, K: 500.0, C: 0.7, E: 1.3}
HALF, HERTZ = sm.Rational(1, 2), sm.Rational(3, 2)


def cart(force):
    """A particle on a line, driven by `force`."""
    frame, point = me.ReferenceFrame("frame"), me.Point("point")
    point.set_vel(frame, U * frame.x)
    kane = me.KanesMethod(frame, [X], [U], [U - X.diff(t)])
    kane.kanes_equations([me.Particle("cart", point, M)], [(point, force * frame.x)])
    return kane


def sides(at, inside, outside=0, condition=None):
    """`inside` beyond X = at, `outside` before."""
    return sm.Piecewise((inside, sm.Gt(X, at) if condition is None else condition), (outside, True))


# What is written, what of it counts, and where: (x, u).
PIECES = {
    "root not taken": (sides(1, -K * (X - 1) ** HERTZ), 0, (0.0, 0.3)),
    "root taken": (sides(1, -K * (X - 1) ** HERTZ), -K * (X - 1) ** HERTZ, (1.2, 0.3)),
    "at the edge of the root": (sides(1, -K * sm.sqrt(X - 1)), 0, (1.0, 0.3)),
    "power with a parameter": (sides(1, -K * (X - 1) ** E), 0, (0.5, 0.3)),
    "logarithm": (sides(0, K * sm.log(X), C * X), C * X, (-0.4, 0.1)),
    "logarithm at its pole": (sides(0, K * sm.log(X), C * X), C * X, (0.0, 0.1)),
    "division": (sides(0, C * X, K / X, X <= 0), K / X, (0.5, 0.1)),
    "division by zero": (sides(0, K / X, C * U), C * U, (0.0, 0.1)),
    "arc sine": (sm.Piecewise((K * sm.asin(X), sm.Abs(X) < 1), (C * sm.sign(X), True)), C, (1.7, 0.1)),
    "inverse hyperbolic cosine": (sides(1, K * sm.acosh(X), U), U, (0.3, -0.2)),
    "exponential that overflows": (sides(0, K, K * sm.exp(-1000 * X)), K, (2.0, 0.1)),
    "roots in roots": (sides(1, K * sm.sqrt(sm.log(X) ** 3 + sm.sqrt(X - 1))), 0, (-2.0, 0.1)),
    "nested": (sides(1, sides(2, sm.sqrt(X - 2), K * sm.sqrt(X - 1)), -C * X), K * sm.sqrt(X - 1), (1.5, 0.1)),
    "nested, outside": (sides(1, sides(2, sm.sqrt(X - 2), K * sm.sqrt(X - 1)), -C * X), -C * X, (0.5, 0.1)),
    "three pieces": (
        sm.Piecewise((K / X, X > 1), (sm.sqrt(X), sm.And(X > 0, X <= 1)), (C * (-X) ** HERTZ, True)),
        C * (-X) ** HERTZ,
        (-0.6, 0.1),
    ),
    "either side": (sm.Piecewise((C * X, sm.Or(X < 0, X > 2)), (sm.sqrt(X * (2 - X)), True)), C * X, (2.5, 0.1)),
    "step times root": (-K * sm.Heaviside(X - 1) * (X - 1) ** HERTZ, 0, (0.2, 0.1)),
    "step times root, taken": (-K * sm.Heaviside(X - 1) * (X - 1) ** HERTZ, -K * (X - 1) ** HERTZ, (1.4, 0.1)),
    "two steps": (K * sm.Heaviside(X) * sm.Heaviside(U) * sm.sqrt(X) * sm.log(U), 0, (-0.2, -0.1)),
    "root of a maximum": (-K * sm.Max(0, X - 1) ** HALF, 0, (0.2, 0.1)),
    "power of a maximum": (-K * sm.Max(0, X - 1) ** E * (1 + C * U), 0, (0.2, 0.1)),
    "minimum": (K * sm.sqrt(sm.Min(X, 2, 1 + X**2)), K * sm.sqrt(2), (3.0, 0.1)),
    "maximum of a logarithm": (K * sm.Max(sm.log(X), -1), -K, (0.0, 0.1)),
    "root of pieces": (K * sm.sqrt(sides(0, X)), 0, (-1.0, 0.1)),
    "root of two maxima": (K * sm.sqrt(sm.Max(0, X) + sm.Max(0, U)), K * sm.sqrt(U), (-1.0, 0.3)),
    "absolute value": (-C * U * sm.Abs(U) - K * sm.Abs(X) ** HERTZ * sm.sign(X), 0, (0.0, 0.0)),
    "length that vanishes": (-C * U * sm.sqrt(U**2 + X**2) + K * (U**2 + X**2) ** HALF, 0, (0.0, 0.0)),
    "length in a branch": (sides(1, X, C * U / sm.sqrt(U**2 + X**2) + sm.sqrt(U**2 + X**2)), X, (2.0, 0.0)),
    "root of a square": (-C * U * sm.sqrt(U**2), 0, (0.2, 0.0)),
}  # fmt: skip


def compiled_force(force, specifieds=None):
    system = ukjax.from_sympy(cart(force), VALUES, specifieds).system

    @jax.jit
    def at(parameters, q, v):
        return system.mechanism(parameters).system.force(q, v, jnp.zeros(()))[0]

    return at, system.parameters


@pytest.mark.parametrize("name", PIECES)
def test_derivatives_are_those_of_the_branch_taken(name):
    force, active, (x, u) = PIECES[name]
    at, used = compiled_force(force)
    symbols = [sm.Dummy(), sm.Dummy(), K, C, E]
    plain = sm.sympify(active).subs({X: symbols[0], U: symbols[1]})
    numbers = dict(zip(symbols, [x, u, *list(VALUES.values())[1:]]))
    exact = lambda e: np.float64(e.subs(numbers).evalf(20))
    q, v = jnp.array([x]), jnp.array([u])
    assert_close(at(used, q, v), exact(plain), rtol=1e-14, atol=1e-14)
    in_batch = lambda p, q, v: jnp.sum(jax.vmap(lambda q, v: at(p, q, v))(jnp.stack([q, q]), jnp.stack([v, v]))) / 2
    for f, derive in ((at, jax.jacrev), (at, jax.jacfwd), (in_batch, jax.jacrev), (in_batch, jax.jacfwd)):
        of_p, of_q, of_v = derive(f, argnums=(0, 1, 2))(used, q, v)
        got = [of_q[0], of_v[0], *(of_p.get(name, np.float64(0.0)) for name in "kce")]
        assert_close(np.array(got), np.array([exact(plain.diff(s)) for s in symbols]), rtol=1e-12, atol=1e-12)


def test_accelerations_in_pieces():
    """A stop k (x - 1)^(3/2) beyond x = 1: a = f / m before it, and its derivatives, in a batch on both sides."""
    push = sm.Piecewise((-K * (X - 1) ** HERTZ, X > 1), (0, True))
    system = ukjax.from_sympy(cart(C + push), VALUES).system
    acceleration = lambda p, q: ukjax.equation_of_motion(system.mechanism(p), q, jnp.zeros(1)).acceleration[0]
    at = system.parameters
    both = jnp.array([[0.0], [1.25]])
    for derive in (jax.jacrev, jax.jacfwd):
        found = jax.jit(derive(lambda p: jax.vmap(acceleration, (None, 0))(p, both)))(at)
        assert_close(found["c"], np.full(2, 0.5), atol=1e-14)
        assert_close(found["k"], np.array([0.0, -0.125 / 2]), atol=1e-14)
        assert_close(found["m"], np.array([-0.7 / 4, -(0.7 - 500.0 * 0.125) / 4]), atol=1e-12)


def test_a_potential_in_pieces():
    """Lagrange differentiates pieces and absolute values before they are written."""
    x, y = me.dynamicsymbols("x y")
    rates = x.diff(t) ** 2 + y.diff(t) ** 2
    potential = sm.Piecewise((K * (x - 1) ** (HERTZ + 1), x > 1), (0, True))
    potential += C * sm.Abs(y) ** 3 + K * sm.Max(0, y) ** E
    lagrange = me.LagrangesMethod(M * rates / 2 - potential, [x, y])
    lagrange.form_lagranges_equations()
    system = ukjax.from_sympy(lagrange, VALUES).system
    force = jax.jit(lambda q: system.force(q, jnp.zeros(2), jnp.zeros(())))
    assert_close(force(jnp.array([0.5, -0.3])), np.array([0.0, 3 * 0.7 * 0.09]), atol=1e-14)
    for derive in (jax.jacrev, jax.jacfwd):
        found = derive(force)(jnp.array([0.5, -0.3]))
        assert_close(found, np.array([[0.0, 0.0], [0.0, -6 * 0.7 * 0.3]]), atol=1e-13)
    pushed = -2.5 * 500.0 * 0.25**1.5, -3 * 0.7 * 0.04 - 1.3 * 500.0 * 0.2**0.3
    assert_close(force(jnp.array([1.25, 0.2])), np.array(pushed), rtol=1e-13)


# By SciPy, at x = 0.6.
HAD = {
    "error function": (sm.erf(X) + sm.erfc(X / 2) + sm.erf2(X, 2), lambda x: (
        scipy.special.erf(x) + scipy.special.erfc(x / 2) + scipy.special.erf(2) - scipy.special.erf(x)
    )),
    "gamma": (sm.gamma(X) + sm.loggamma(X) + sm.factorial(X), lambda x: (
        scipy.special.gamma(x) + scipy.special.gammaln(x) + scipy.special.gamma(x + 1)
    )),
    "of gamma": (sm.digamma(X) + sm.polygamma(2, X) + sm.beta(X, 2), lambda x: (
        scipy.special.digamma(x) + scipy.special.polygamma(2, x) + scipy.special.beta(x, 2)
    )),
    "incomplete gamma": (sm.lowergamma(C, X) + sm.uppergamma(C, X) ** 2, lambda x: (
        scipy.special.gamma(0.7) * scipy.special.gammainc(0.7, x)
        + (scipy.special.gamma(0.7) * scipy.special.gammaincc(0.7, x)) ** 2
    )),
    "modified Bessel": (sm.besseli(0, X) * sm.besseli(1, X), lambda x: scipy.special.iv(0, x) * scipy.special.iv(1, x)),
    "integrals": (sm.fresnels(X) + 2 * sm.fresnelc(X) + sm.Si(X) + sm.Ci(X) + sm.Ei(X), lambda x: (
        np.dot(scipy.special.fresnel(x), [1.0, 2.0]) + sum(scipy.special.sici(x)) + scipy.special.expi(x)
    )),
    "reciprocals": (sm.sec(X) + sm.coth(X) + sm.acot(X) + sm.sech(X) * sm.csc(X) + sm.asec(X + 1), lambda x: (
        1 / np.cos(x) + 1 / np.tanh(x) + np.arctan(1 / x) + 1 / np.cosh(x) / np.sin(x) + np.arccos(1 / (x + 1))
    )),
    "sinc": (sm.sinc(X) + sm.sinc(X - sm.Rational(3, 5)), lambda x: np.sin(x) / x + 1.0),
    "parts of a number": (sm.frac(7 * X) + sm.Mod(X, C) + sm.floor(9 * X) + sm.ceiling(9 * X), lambda x: (
        0.2 + x + 5.0 + 6.0
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", HAD)
def test_functions_that_jax_has(name):
    force, by_scipy = HAD[name]
    at, used = compiled_force(force)
    assert_close(at(used, jnp.array([0.6]), jnp.zeros(1)), np.float64(by_scipy(0.6)), rtol=1e-12)
    assert_gradients(lambda x: at(used, x, jnp.zeros(1)), jnp.array([0.6]), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("force", "message"),
    [
        (sm.besselj(0, X), r"method has besselj\(0, x\(t\)\) in the forcing vector, but JAX has no besselj\. Write"),
        (sm.besseli(2, X), "JAX has no besseli"),
        (K * sm.DiracDelta(X), "JAX has no DiracDelta. A blow is an event of ukjax.simulate_hybrid"),
        (sm.Piecewise((sm.zeta(X), X > 2), (0, True)), "JAX has no zeta"),
        (sm.airyai(X) + sm.LambertW(X), "JAX has no"),
        (sm.Integral(sm.exp(-(C**2) * X / C**3), (C, 0, E)), "JAX has no Integral"),
        (sm.I * X, "method has the imaginary unit in the forcing vector, which must be real"),
    ],
)
def test_functions_that_jax_has_not_are_refused(force, message):
    with pytest.raises(ValueError, match=message):
        ukjax.from_sympy(cart(force), VALUES)


def test_what_is_refused_can_be_specified():
    open_force = sm.Function("F")(t)
    law = lambda q, v, t: jax.scipy.special.bessel_jn(q[0], v=0)[0]
    at, used = compiled_force(K * open_force, {open_force: law})
    assert_close(at(used, jnp.array([0.4]), jnp.zeros(1)), np.float64(500.0 * scipy.special.jv(0, 0.4)), rtol=1e-12)
