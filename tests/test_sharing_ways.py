"""However a constraint reaches a parameter of its system, it is the parameter that the system has now."""

import dataclasses
import functools as ft
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import ukjax

from .helpers import assert_close


class Pendulum(ukjax.AbstractSystem):
    """A particle whose rod is a constraint."""

    m: Array
    l: Array

    def mass(self, q, t):
        return self.m * jnp.eye(2)

    def force(self, q, v, t):
        return jnp.stack([0.0 * t, -9.81 * self.m])

    def rod(self, q, t):
        return jnp.stack([q @ q - self.l**2])

    def scaled(self, q, t, *, factor=1.0):
        return factor * self.rod(q, t)


Q, V = jnp.array([0.6, -0.8]), jnp.array([0.8, 0.6])
GAINS = ukjax.Baumgarte(3.0, 10.0)


class Rod:
    """A callable object."""

    def __init__(self, model):
        self.model = model

    def __call__(self, q, t):
        return self.model.rod(q, t)

    def bound(self, q, t):
        return self.model.rod(q, t)


@dataclasses.dataclass
class Data:
    model: Any

    def __call__(self, q, t):
        return self.model.rod(q, t)


@dataclasses.dataclass(frozen=True)
class Frozen:
    length: Any

    def __call__(self, q, t):
        return jnp.stack([q @ q - self.length**2])


class Slots:
    __slots__ = ("kept",)


class Held(eqx.Module):
    model: Pendulum

    def __call__(self, q, t):
        return self.model.rod(q, t)


class Own(ukjax.AbstractConstraint):
    """A person's own constraint that reaches the model by a global variable."""

    def rows(self, q, v, t, kinematics=None):
        return ukjax.Holonomic(of_globals, GAINS).rows(q, v, t)

    def position_error(self, q, t):
        return of_globals(q, t)

    def velocity_error(self, q, v, t, kinematics=None):
        return jax.jvp(lambda q: of_globals(q, t), (q,), (v,))[1]


GLOBAL: Any = None
BOX = types.SimpleNamespace()


def of_globals(q, t):
    return GLOBAL.rod(q, t)


def helper(q, t):
    return of_globals(q, t)


def with_jvp(model):
    """The rule reaches it too."""

    @jax.custom_jvp
    def phi(q, t):
        return model.rod(q, t)

    @phi.defjvp
    def _(primals, tangents):
        return phi(*primals), jax.jvp(model.rod, primals, tangents)[1]

    return phi


def with_rule_only(model):
    """The derivative by q is 2 q l / l: once the rule reaches l, once it is an argument."""

    @jax.custom_jvp
    def row(q, length):
        return jnp.stack([q @ q - length**2])

    @row.defjvp
    def _(primals, tangents):
        (q, length), (d, d_length) = primals, tangents
        of_q = 2 * q @ d * model.l / length
        return row(*primals), jnp.stack([of_q - 2 * length * d_length])

    return lambda q, t: row(q, model.l)


def static_argument(model):
    @ft.partial(jax.jit, static_argnums=2)
    def phi(q, t, n):
        return model.rod(q, t) * n

    return lambda q, t: phi(q, t, 1)


def in_scan(model):
    def phi(q, t):
        total, _ = jax.lax.scan(lambda s, x: (s + x * x, None), jnp.zeros(()), q)
        _, lengths = jax.lax.scan(lambda s, x: (s, jax.jit(lambda x: x * model.l)(x)), 0.0, jnp.ones(1))
        return jnp.stack([total - lengths[0] ** 2])

    return phi


def in_loop(model):
    inner = with_jvp(model)
    return lambda q, t: jax.lax.fori_loop(0, 2, lambda i, x: x + inner(q, t) / 2, jnp.zeros(1))


def in_cond(model):
    row = jax.jit(lambda q, t: model.rod(q, t))
    return lambda q, t: jax.lax.cond(t < 1, lambda q: jax.jit(lambda q: row(q, t))(q), lambda q: row(q, t), q)


def generator(model):
    phis = (phi for phi in [model.rod] * 1000)
    return lambda q, t: next(phis)(q, t)


def set_global(model):
    global GLOBAL
    GLOBAL = model
    return lambda q, t: of_globals(q, t)


def boxed(model):
    BOX.model = model
    return lambda q, t: BOX.model.rod(q, t)


def slots(model):
    x = Slots()
    x.kept = {"deep": [model.l]}
    return lambda q, t: jnp.stack([q @ q - x.kept["deep"][0] ** 2])


def weak(model):
    """A method of a subclass, with what it needs in the class."""
    kind = type("Kind", (), {"model": model, "phi": staticmethod(lambda q, t: kind.model.rod(q, t))})
    return kind.phi


def nested(model):
    def outer(q, t):
        def inner(x):
            return jnp.stack([x @ x - model.l**2])

        return inner(q)

    return outer


def computed(model):
    return lambda q, t: jnp.stack([q @ q - jnp.prod(jnp.stack([model.l, model.l]))])


WAYS = {
    "method": lambda m: m.rod,
    "lambda": lambda m: lambda q, t: m.rod(q, t),
    "array": lambda m: (lambda length: lambda q, t: jnp.stack([q @ q - length**2]))(m.l),
    "default": lambda m: lambda q, t, s=m: s.rod(q, t),
    "keyword default": lambda m: lambda q, t, *, s=m: s.rod(q, t),
    "partial": lambda m: ft.partial(Pendulum.rod, m),
    "partial of a closure": lambda m: ft.partial(lambda q, t, k: k * m.rod(q, t), k=1.0),
    "partial of a method": lambda m: ft.partial(m.scaled, factor=1.0),
    "jax's partial": lambda m: jax.tree_util.Partial(Pendulum.rod, m),
    "object": Rod,
    "method of an object": lambda m: Rod(m).bound,
    "dataclass": Data,
    "frozen dataclass": lambda m: Frozen(m.l),
    "module": Held,
    "dict": lambda m: (lambda d: lambda q, t: d["a"]["b"].rod(q, t))({"a": {"b": m}}),
    "list": lambda m: (lambda x: lambda q, t: x[0].rod(q, t))([m]),
    "slots": slots,
    "class": weak,
    "attribute": boxed,
    "global": set_global,
    "helper of a helper": lambda m: (set_global(m), lambda q, t: helper(q, t))[1],
    "nested": nested,
    "generator": generator,
    "computed": computed,
    "jit": lambda m: jax.jit(lambda q, t: m.rod(q, t)),
    "jit in a jit": lambda m: jax.jit(lambda q, t: jax.jit(lambda q: m.rod(q, t))(q)),
    "static argument": static_argument,
    "filter_jit": lambda m: eqx.filter_jit(lambda q, t: m.rod(q, t)),
    "checkpoint": lambda m: jax.checkpoint(lambda q, t: m.rod(q, t)),
    "checkpoint of a jit": lambda m: jax.checkpoint(jax.jit(lambda q, t: m.rod(q, t))),
    "vmap": lambda m: lambda q, t: jax.vmap(lambda q: m.rod(q, t))(q[None])[0],
    "vmap of a jit": lambda m: lambda q, t: jax.vmap(jax.jit(lambda q: m.rod(q, t)))(q[None])[0],
    "linearised": lambda m: lambda q, t: jax.jvp(lambda s: m.rod(s * q, t), (1.0,), (1.0,))[0],
    "gradient": lambda m: lambda q, t: jax.grad(lambda s: s * m.rod(q, t)[0])(1.0)[None],
    "gradient of a jit": lambda m: lambda q, t: jax.grad(jax.jit(lambda s: s * m.rod(q, t)[0]))(1.0)[None],
    "custom_jvp": with_jvp,
    "jit of a custom_jvp": lambda m: jax.jit(with_jvp(m)),
    "rule": with_rule_only,
    "scan": in_scan,
    "loop": in_loop,
    "cond": in_cond,
}


def mechanism_of(way, model):
    return ukjax.Mechanism(model, ukjax.Holonomic(WAYS[way](model), GAINS))


def replaced(mechanism, length):
    return eqx.tree_at(lambda m: m.system.l, mechanism, length)


def right_side(mechanism, length):
    """b = -2 v.v - 3 (2 q.v) - 10 (q.q - l^2), of which 20 l is the slope."""
    return replaced(mechanism, length).terms(Q, V, jnp.zeros(())).b[0]


def test_every_way_reaches_the_leaf():
    model = Pendulum(jnp.array(2.0), jnp.array(1.0))
    mechanisms = {way: mechanism_of(way, model) for way in WAYS}
    lengths = jnp.array([1.0, 1.3])
    of = lambda length: {way: right_side(mechanism, length) for way, mechanism in mechanisms.items()}
    along = lambda length: jax.jvp(of, (length,), (jnp.ones(()),))
    values, forward = jax.jit(jax.vmap(along))(lengths)
    reverse = jax.jit(jax.vmap(jax.jacrev(of)))(lengths)
    for way, mechanism in mechanisms.items():
        leaves = eqx.filter(mechanism, eqx.is_array)
        assert len(jax.tree_util.tree_leaves(leaves)) == 4, way
        found = {way: jnp.stack([values[way], forward[way], reverse[way]])}
        want = {way: jnp.stack([-2.0 - 10.0 * (1.0 - lengths**2), 20.0 * lengths, 20.0 * lengths])}
        assert eqx.tree_equal(found, want, rtol=1e-12, atol=1e-12), (found, want)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_the_acceleration_follows_the_leaf(way):
    """Alone, in a program, in a batch, forward and reverse; a = g + lambda q, lambda = -(q.g + v.v + 5 (1 - l^2))."""
    model = Pendulum(jnp.array(2.0), jnp.array(1.0))
    mechanism, lengths = mechanism_of(way, model), jnp.array([1.0, 1.3])
    of = lambda m: ukjax.equation_of_motion(m, Q, V, throw=False).acceleration[1]
    at = lambda length: of(replaced(mechanism, length))
    want = -9.81 - Q[1] * (-9.81 * Q[1] + 1.0 + 5 * (1.0 - lengths**2))
    slopes = 10.0 * lengths * Q[1]
    assert_close(right_side(mechanism, lengths[1]), -2.0 - 10.0 * (1.0 - lengths[1] ** 2), rtol=1e-12)
    assert_close(at(lengths[1]), want[1], rtol=1e-12)
    value, forward = jax.jit(jax.vmap(lambda x: jax.jvp(at, (x,), (jnp.ones(()),))))(lengths)
    assert_close(value, want, rtol=1e-12)
    assert_close(forward, slopes, rtol=1e-12)
    assert_close(jax.jit(jax.vmap(jax.grad(at)))(lengths), slopes, rtol=1e-12)
    assert_close(eqx.filter_grad(of)(mechanism).system.l, slopes[0], rtol=1e-12)


def of_own(model):
    set_global(model)
    return ukjax.Mechanism(model, Own())


def of_rows(model):
    """Rows given outright, of which the right side has a rule for reverse mode that reaches the model too."""

    @jax.custom_vjp
    def right(q, length):
        return jnp.stack([-2.0 - 10.0 * (q @ q - model.l * length)])

    forward = lambda q, length: (right(q, length), (q, length))
    backward = lambda kept, slope: (-20.0 * kept[0] * slope[0], 10.0 * model.l * slope[0])
    right.defvjp(forward, backward)
    b = jax.jit(lambda q, v, t: jax.lax.cond(t < 1, right, lambda q, length: right(q, length), q, model.l))
    return ukjax.Mechanism(model, ukjax.AccelerationConstraint(lambda q, v, t: 2 * q[None], b))


def of_two(model):
    """The length is in a module that two constraints hold, and that the system does not."""
    held = Held(Pendulum(jnp.array(7.0), jnp.array(1.0)))
    still = ukjax.Nonholonomic(jax.jit(lambda q, v, t: held.model.l * (v[0] - V[0])[None]))
    return ukjax.Mechanism(Pendulum(model.m, jnp.array(5.0)), [still, ukjax.Holonomic(held, GAINS)])


def of_functions(model):
    force = lambda q, v, t, s=model: s.force(q, v, t)
    return ukjax.Mechanism(ukjax.System(model.mass, jax.jit(force)), ukjax.Holonomic(WAYS["default"](model), GAINS))


def of_floats(model):
    model = Pendulum(2.0, np.array(1.0))
    return ukjax.Mechanism(model, ukjax.Holonomic(WAYS["default"](model), GAINS))


def with_branches(model):
    """Which Python decides while nothing is compiled."""
    phi = lambda q, t: model.rod(q, t) if model.l > 0.5 and q[0] > 0 else 0 * q[:1]
    return ukjax.Mechanism(model, ukjax.Holonomic(phi, GAINS))


def of_a_composite(model):
    on = lambda q, t, s=model: s.rod(q[0][:], t)
    inner = ukjax.modular.Composite(
        {"a": ukjax.modular.Module(model, ("x", "y"))}, ukjax.modular.Coupling("a", ukjax.Holonomic(on, GAINS))
    )
    return ukjax.modular.Composite({"b": inner}).mechanism()


def of_modules(model):
    inside = ukjax.Mechanism(model, ukjax.Holonomic(WAYS["jit"](model), GAINS))
    return ukjax.modular.Composite({"a": ukjax.modular.Module(inside, ("x", "y"))}).mechanism()


def on_a_composite(model):
    system = ukjax.modular.Composite({"a": ukjax.modular.Module(model, ("x", "y"))})
    return ukjax.Mechanism(system, ukjax.Holonomic(WAYS["jit"](model), GAINS))


def bound_to_a_composite(model):
    system = ukjax.modular.Composite({"a": ukjax.modular.Module(model, ("x", "y"))})
    on = ukjax.modular.Coupling("a", ukjax.Holonomic(lambda q, t, s=model: s.rod(q[0][:], t), GAINS))
    return ukjax.Mechanism(system, system.bind(on))


def added_to_what_changed(model):
    """A composite that is differentiated, and gets a coupling then."""
    on = lambda q, t, s=model: s.rod(q[0][:], t)
    return ukjax.modular.Composite({"a": ukjax.modular.Module(model, ("x", "y"))}), ukjax.modular.Coupling(
        "a", ukjax.Holonomic(on, GAINS)
    )


def lengths_of(mechanism):
    """The only leaves that are one."""
    leaves, structure = jax.tree_util.tree_flatten(eqx.filter(mechanism, eqx.is_array))
    assert sum(float(x.ravel()[0]) == 1.0 for x in leaves) == 1
    return lambda length: structure.unflatten([x if float(x.ravel()[0]) != 1.0 else length * x for x in leaves])


@pytest.mark.parametrize(
    "make",
    [
        of_own, of_rows, of_two, of_functions, of_floats, with_branches, of_a_composite, of_modules, on_a_composite,
        bound_to_a_composite,
    ],
)  # fmt: skip
def test_a_mechanism_of_another_kind_reaches_its_leaf(make):
    mechanism = make(Pendulum(jnp.array(2.0), jnp.array(1.0)))
    put = lengths_of(mechanism)

    def of(length):
        changed = eqx.combine(put(length), mechanism)
        return changed.terms(Q, V, jnp.zeros(())).b[-1]

    if make is of_own:
        assert isinstance(mechanism.constraints[0], Own)
    assert_close(of(jnp.array(1.3)), jnp.array(-2.0 - 10.0 * (1.0 - 1.3**2)), rtol=1e-12)
    assert_close(jax.grad(of)(jnp.array(1.3)), jnp.array(26.0), rtol=1e-12)


def test_a_coupling_that_is_added_to_a_changed_composite():
    composite, coupling = added_to_what_changed(Pendulum(jnp.array(2.0), jnp.array(1.0)))
    put = lengths_of(composite)

    def of(length):
        changed = eqx.combine(put(length), composite).add(coupling)
        return changed.mechanism().terms(Q, V, jnp.zeros(())).b[0]

    assert_close(jax.grad(of)(jnp.array(1.3)), jnp.array(26.0), rtol=1e-12)


def test_what_cannot_be_followed_is_said():
    model = Pendulum(jnp.array(2.0), jnp.array(1.0))
    times = jax.jit(lambda x: x / model.l)
    solve = lambda q, t: jax.lax.custom_linear_solve(times, q[:1], lambda _, b: b * model.l, symmetric=True)
    mechanism = ukjax.Mechanism(model, ukjax.Holonomic(solve))
    with pytest.raises(ValueError, match="within 'custom_linear_solve', where it cannot be followed"):
        replaced(mechanism, jnp.array(1.3)).position_error(Q, jnp.zeros(()))
    mechanism = mechanism_of("default", model)
    with pytest.raises(ValueError, match=r"l has shape \(2,\) now, but a function that reaches it was given \(\)"):
        replaced(mechanism, jnp.ones(2)).position_error(Q, jnp.zeros(()))


def test_equal_functions_that_reach_the_arrays_of_another_mechanism():
    """What was compiled for a mechanism that the function does not reach does not serve one that it does."""
    model = Pendulum(jnp.array(2.0), jnp.array(1.0))
    phi = jax.tree_util.Partial(set_global(model))
    slope = eqx.filter_jit(eqx.filter_grad(lambda m: m.position_error(Q, jnp.zeros(()))[0]))
    other = Pendulum(jnp.array(2.0), jnp.array(1.0))
    assert float(slope(ukjax.Mechanism(other, ukjax.Holonomic(phi))).system.l) == 0.0
    assert float(slope(ukjax.Mechanism(model, ukjax.Holonomic(phi))).system.l) == -2.0


def test_parameters_of_a_system_are_arrays_of_their_own():
    one = jnp.array(1.0)
    model = Pendulum(one, one)
    assert model.m is not model.l
    mechanism = ukjax.Mechanism(model, ukjax.Holonomic(lambda q, t: model.rod(q, t), GAINS))
    gradient = eqx.filter_grad(lambda m: m.terms(Q, V, jnp.zeros(())).b[0])(mechanism)
    assert (float(gradient.system.m), float(gradient.system.l)) == (0.0, 20.0)
    model = Pendulum(2.0, np.float32(1.5))
    assert isinstance(model.m, jax.Array)
    assert model.l.dtype == jnp.float32


def test_an_array_that_stands_for_two_parameters_is_neither_of_them():
    """Of one constraint; in another one, which cannot tell which of them is meant, it is a constant."""
    one = jnp.array(1.0)
    held = jax.tree_util.Partial(lambda a, b, q, t: jnp.stack([a * q[0] + b * q[1]]), one, one)
    rod = ukjax.Holonomic(lambda q, t: jnp.stack([q @ q - one**2]))
    mechanism = ukjax.Mechanism(Pendulum(2.0, 3.0), [ukjax.Holonomic(held), rod])
    gradient = lambda i: eqx.filter_grad(lambda m: m.position_error(Q, jnp.zeros(()))[i])(mechanism)
    slopes = lambda i: [float(x) for x in jax.tree_util.tree_leaves(gradient(i))]
    assert slopes(1) == [0.0] * 4
    assert slopes(0) == [0.0, 0.0, float(Q[0]), float(Q[1])]
