"""One parameter is one leaf, whoever uses it."""

import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import ukjax
from models.scara import Scara

from .helpers import assert_close, central_difference, flat_gradient, name_of, sampled
from .inside import checksum_of, joined, separated


class Rod(ukjax.AbstractSystem):
    """A particle on a rod, which it also brings as a constraint."""

    m: Float[Array, ""]
    length: Float[Array, ""]

    def __init__(self, m=1.3, length=0.7):
        self.m, self.length = jnp.asarray(m, float), jnp.asarray(length, float)

    def mass(self, q, t):
        return (self.m + 0.1 * self.length) * jnp.eye(2)

    def force(self, q, v, t):
        return jnp.stack([-self.length * v[0], -9.81 * self.m])

    def on(self, q, t):
        return (q @ q - self.length**2)[None]

    def row(self, q, v, t):
        return 2 * q[None]

    def right(self, q, v, t):
        return -2 * (v @ v)[None] - self.length

    def friction(self, q, v, t, ideal):
        return -self.length * v


Q, V = jnp.array([0.4, -0.6]), jnp.array([0.6, 0.4])


def by_method(rod):
    return ukjax.Mechanism(rod, ukjax.Holonomic(rod.on))


def by_closure(rod):
    return ukjax.Mechanism(rod, ukjax.Holonomic(lambda q, t: rod.on(q, t)))


def by_closure_in_a_closure(rod):
    inner = lambda q, t: rod.on(q, t)
    return ukjax.Mechanism(rod, [ukjax.Holonomic(lambda q, t: 2 * inner(q, t)), ukjax.Holonomic(rod.on)])


def by_array(rod):
    length = rod.length
    return ukjax.Mechanism(rod, ukjax.Holonomic(lambda q, t: (q @ q - length**2)[None]))


def by_rows(rod):
    return ukjax.Mechanism(rod, ukjax.AccelerationConstraint(rod.row, rod.right))


def by_functions(rod):
    return ukjax.Mechanism(ukjax.System(rod.mass, rod.force), ukjax.Holonomic(rod.on))


def with_friction(rod):
    return ukjax.Mechanism(rod, ukjax.Holonomic(rod.on), rod.friction)


def of_modules(rod):
    couplings = ukjax.modular.Coupling("rod", ukjax.Holonomic(OnRod(rod)))
    return ukjax.Mechanism(ukjax.modular.Composite({"rod": ukjax.modular.Module(rod, ("x", "y"))}, couplings))


def of_modules_by_closure(rod):
    couplings = ukjax.modular.Coupling("rod", ukjax.Holonomic(lambda q, t: rod.on(q[0][:], t)))
    return ukjax.modular.Composite({"rod": ukjax.modular.Module(rod, ("x", "y"))}, couplings).mechanism()


def rows_of_modules(rod):
    row, right = RowOfRod(rod), lambda q, v, t: rod.right(q[0][:], v[0][:], t)
    couplings = ukjax.modular.Coupling("rod", ukjax.AccelerationConstraint(row, right))
    return ukjax.modular.Composite({"rod": ukjax.modular.Module(rod, ("x", "y"))}, couplings).mechanism()


def of_modules_of_modules(rod):
    inner = ukjax.modular.Composite(
        {"rod": ukjax.modular.Module(rod, ("x", "y"))}, ukjax.modular.Coupling("rod", ukjax.Holonomic(OnRod(rod)))
    )
    outer = ukjax.modular.Composite({"arm": inner}, ukjax.modular.Coupling("arm.rod", ukjax.Holonomic(OnRod(rod))))
    return outer.mechanism()


def with_more_added(rod):
    once = ukjax.modular.Composite(
        {"rod": ukjax.modular.Module(rod, ("x", "y"))}, ukjax.modular.Coupling("rod", ukjax.Holonomic(OnRod(rod)))
    )
    return once.add(ukjax.modular.Coupling("rod", ukjax.Holonomic(OnRod(rod)))).mechanism()


def with_a_mechanism_inside(rod):
    """Its force, and its constraint, ask another mechanism, which has parameters in common with itself and with it."""
    inner = by_method(rod)
    force = lambda q, v, t: rod.force(q, v, t) + 0.1 * inner.terms(q, v, t).b[0] * q
    held = ukjax.Holonomic(lambda q, t: inner.position_error(q, t))
    return ukjax.Mechanism(ukjax.System(rod.mass, force), [held, ukjax.Holonomic(rod.on)])


class RowOfRod(eqx.Module):
    rod: Rod

    def __call__(self, q, v, t):
        return self.rod.row(q[0][:], v[0][:], t)


class OnRod(eqx.Module):
    rod: Rod

    def __call__(self, q, t):
        return self.rod.on(q[0][:], t)


WAYS = (
    by_method, by_closure, by_closure_in_a_closure, by_array, by_rows, by_functions, with_friction, of_modules,
    of_modules_by_closure, rows_of_modules, of_modules_of_modules, with_more_added,
    with_a_mechanism_inside,
)  # fmt: skip


def force(mechanism):
    motion = ukjax.UdwadiaKalaba(ukjax.pseudoinverse.RowGramSchmidt()).solve(mechanism.terms(Q, V, jnp.zeros(())))
    return jnp.sum(motion.constraint_force * jnp.array([1.0, 2.0])) + motion.acceleration[0]


SHORT = ("by_method", "by_closure", "by_array", "of_modules", "of_modules_of_modules", "with_a_mechanism_inside")


@pytest.mark.parametrize("make", sampled(WAYS, SHORT, name_of))
def test_the_gradient_of_a_leaf_is_the_whole_effect(make):
    mechanism = make(Rod())
    leaves = jax.tree_util.tree_leaves(eqx.filter(mechanism, eqx.is_inexact_array))
    assert sorted(float(jnp.ravel(x)[0]) for x in leaves) == [0.7, 1.3]
    assert all(x.size == 1 for x in leaves)
    rebuilt = jax.jit(lambda m, length: force(make(Rod(m, length))))
    want = sorted(central_difference(lambda x: rebuilt(*x), (jnp.asarray(1.3), jnp.asarray(0.7)))[0])
    got = sorted(flat_gradient(eqx.filter_jit(eqx.filter_grad(force))(mechanism)))
    assert_close(np.array(got), np.array(want), rtol=1e-7)


SCARA = Scara()  # a global variable, as in a script


def test_a_function_that_uses_a_global_variable():
    mechanism = ukjax.Mechanism(SCARA, ukjax.Holonomic(lambda q, t: SCARA.on_helix(q, t)))
    longer = eqx.tree_at(lambda m: m.system.l1, mechanism, jnp.asarray(0.3))
    q = jnp.array([0.1, 0.2, 0.3, 0.4])
    want = eqx.tree_at(lambda s: s.l1, SCARA, jnp.asarray(0.3)).on_helix(q, 0.0)
    assert_close(longer.position_error(q, jnp.zeros(())), want, atol=1e-15)
    assert float(mechanism.position_error(q, jnp.zeros(()))[0]) != float(want[0])


def test_a_replaced_system_and_a_batch_of_them():
    mechanism = by_method(Rod())
    other = eqx.tree_at(lambda m: m.system, mechanism, Rod(2.0, 0.5))
    assert_close(other.position_error(Q, jnp.zeros(())), Rod(2.0, 0.5).on(Q, 0.0))
    batch = eqx.tree_at(lambda m: m.system.length, mechanism, jnp.array([0.5, 0.6]))
    axes = jax.tree_util.tree_map(lambda x: 0 if x.ndim else None, batch)
    errors = jax.vmap(lambda m: m.position_error(Q, jnp.zeros(())), in_axes=(axes,))(batch)
    assert_close(errors, Q @ Q - jnp.array([[0.25], [0.36]]), atol=1e-15)


def test_a_system_of_another_kind_cannot_stand_in():
    mechanism = ukjax.Mechanism(Rod(), ukjax.Holonomic(OnRod(Rod())))  # nothing shared
    assert len(jax.tree_util.tree_leaves(mechanism)) == 4
    inside = Rod()
    system = ukjax.System(inside.mass, inside.force)
    mechanism = ukjax.Mechanism(system, ukjax.Holonomic(inside.on))
    plain = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.zeros(2))
    with pytest.raises(ValueError, match="shares .* with its system, but the system has no such parameter"):
        _ = eqx.tree_at(lambda m: m.system, mechanism, plain).constraints


def test_what_is_put_together_again_is_what_was_given():
    rod, gains = Rod(), ukjax.Baumgarte(1.0, 2.0)
    constraints = [ukjax.Holonomic(rod.on, gains), ukjax.Holonomic(lambda q, t: rod.on(q, t), gains)]
    mechanism = ukjax.Mechanism(rod, constraints)
    first, second = mechanism.constraints
    assert first.phi.__self__ is rod
    assert second.stabilization.damping is first.stabilization.damping
    assert len(jax.tree_util.tree_leaves(mechanism)) == 4  # m, length, damping, stiffness
    again = ukjax.Mechanism(mechanism.system, mechanism.constraints)
    assert len(jax.tree_util.tree_leaves(again)) == 4


def test_two_parameters_that_happen_to_be_one_array_stay_two():
    one = jnp.asarray(1.0)
    gains = ukjax.Baumgarte(one, one)
    mechanism = ukjax.Mechanism(Rod(), ukjax.Holonomic(lambda q, t: (q[0] - q[1])[None], gains))
    assert len(jax.tree_util.tree_leaves(mechanism)) == 4
    rod = Rod(one, one)
    both = ukjax.Mechanism(rod, ukjax.Holonomic(lambda q, t: (q @ q - one)[None]))
    assert len(jax.tree_util.tree_leaves(both)) == 2


def test_functions_that_call_themselves_or_are_not_there_yet():
    rod = Rod()

    def count(q, t, depth=2):
        return rod.on(q, t) if depth == 0 else count(q, t, depth - 1)

    mechanism = ukjax.Mechanism(rod, [ukjax.Holonomic(count), ukjax.Holonomic(lambda q, t: later(q))])
    later = lambda q: q[:1]
    assert_close(mechanism.position_error(Q, jnp.zeros(())), jnp.concatenate([rod.on(Q, 0.0), Q[:1]]))


def test_equal_mechanisms_compile_once():
    traces = []

    @eqx.filter_jit
    def error(mechanism):
        traces.append(0)
        return mechanism.position_error(Q, jnp.zeros(()))

    for length in (0.5, 0.6):
        error(by_method(Rod(1.0, length)))
    assert len(traces) == 1


def test_what_a_mechanism_is_does_not_depend_on_where_its_arrays_lie():
    kept = by_functions(Rod()), by_functions(Rod())
    first, second = map(checksum_of, kept)
    assert first == second
    assert checksum_of(by_functions(Rod(length=0.8))) != first
    copy = pickle.loads(pickle.dumps(kept[0]))
    again = eqx.tree_at(lambda m: m.system._mass.__self__.length, copy, jnp.asarray(0.5))
    assert_close(again.position_error(Q, jnp.zeros(())), Rod(length=0.5).on(Q, 0.0))


def test_separated_and_joined_are_inverses_for_nested_containers():
    rod = Rod()
    parts = [rod, {"a": [rod, rod.length], "b": (1.0, None)}, (rod,)]
    apart, origin = separated(*parts)
    assert len(jax.tree_util.tree_leaves(eqx.filter(apart, eqx.is_array))) == 2
    whole = joined(apart, origin)
    assert whole[1]["a"][0] is rod
    assert whole[1]["a"][1] is rod.length
    assert whole[2][0] is rod
