"""Modules joined into one: against the same mechanism written by hand in one piece."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import block_diag

import ukjax
from models.rr_leg import FreeBar, PivotedBar, along
from ukjax.modular import Composite, Coupling, Module

from ..helpers import assert_close, assert_gradients, falling, long, rod


class Pin(eqx.Module):
    """Joins the far end of one bar to the near end of the next."""

    length: jax.Array

    def closed(self, q, t):
        before, after = q
        return before[:2] + self.length * along(before.phi) - after[:2]

    def stacked(self, q, v, t):
        return self.closed(q, t) + v[0][:2]


XYPHI = ("x", "y", "phi")
bar = lambda i: Module(FreeBar(m=1.0 + 0.1 * i, c=0.1 + 0.02 * i), XYPHI)
pin = lambda a, b, length=0.5: Coupling((a, b), ukjax.Holonomic(Pin(jnp.asarray(length)).closed))


def joint(i):
    return pin(f"bar{i}", f"bar{i + 1}", 0.4 + 0.1 * i)


def chain(count):
    """Free bars, pinned to each other."""
    return Composite({f"bar{i}": bar(i) for i in range(count)}, [joint(i) for i in range(count - 1)])


def state(composite, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=composite.size)), jnp.asarray(rng.normal(size=composite.size))


def test_mass_and_force_are_those_of_the_modules():
    pendulum = Module(ukjax.Mechanism(falling(), rod(1.0)), ("x", "y"))
    swing = ukjax.LagrangianSystem(lambda q, v, t: 0.3 * v @ v, lambda q, t: -2.0 * jnp.cos(q[0]))
    arms = {"arm": Module(PivotedBar(), "theta"), "swing": Module(swing, "angle")}
    composite = Composite({"a": bar(0), "point": pendulum, "b": bar(1), **arms})
    q, v = state(composite)
    t = jnp.zeros(())
    parts = [
        (FreeBar(m=1.0, c=0.1), slice(0, 3)),
        (falling(), slice(3, 5)),
        (FreeBar(m=1.1, c=0.12), slice(5, 8)),
        (PivotedBar(), slice(8, 9)),
        (swing, slice(9, 10)),
    ]
    terms = eqx.filter_jit(lambda s, q, v: (s.mass(q, t), s.force(q, v, t)))
    M, Q = terms(composite, q, v)
    one_by_one = [terms(s, q[i], v[i]) for s, i in parts]
    assert_close(M, block_diag(*(M for M, _ in one_by_one)), atol=1e-15)
    assert_close(Q, np.concatenate([Q for _, Q in one_by_one]), atol=1e-15)
    # Two bars are one kind, computed together; the pendulum's rod came along.
    assert composite.partition == (((0, 1, 2), (5, 6, 7)), ((3, 4),), ((8,),), ((9,),))
    assert [block.shape for block in jax.eval_shape(composite.blocks, q)] == [
        (2, 3, 3),
        (1, 2, 2),
        (1, 1, 1),
        (1, 1, 1),
    ]
    assert composite.levels == (1,)
    assert_close(composite.mechanism().position_error(q, t), (q[3:5] @ q[3:5] - 1.0)[None], atol=1e-15)


def test_equal_modules_are_traced_once():
    count = []

    class Counted(ukjax.AbstractSystem):
        m: jax.Array

        def mass(self, q, t):
            count.append(1)
            return self.m * jnp.eye(2)

        def force(self, q, v, t):
            return jnp.zeros(2)

    composite = Composite({f"m{i}": Module(Counted(jnp.asarray(1.0 + i)), ("x", "y")) for i in range(7)})
    eqx.filter_jit(composite.mass)(jnp.zeros(14), jnp.zeros(()))
    assert len(count) == 1


def by_hand(count):
    """The chain in one piece, with columns counted by hand."""
    bars = [(FreeBar(m=1.0 + 0.1 * i, c=0.1 + 0.02 * i), slice(3 * i, 3 * i + 3)) for i in range(count)]

    def gap(i, q):
        tip = q[3 * i : 3 * i + 2] + (0.4 + 0.1 * i) * along(q[3 * i + 2])
        return tip - q[3 * i + 3 : 3 * i + 5]

    M = lambda q, t: jax.scipy.linalg.block_diag(*(b.mass(q[i], t) for b, i in bars))
    Q = lambda q, v, t: jnp.concatenate([b.force(q[i], v[i], t) for b, i in bars])
    phi = lambda q, t: jnp.concatenate([gap(i, q) for i in range(count - 1)])
    return ukjax.Mechanism(ukjax.System(M, Q), ukjax.Holonomic(phi))


@pytest.mark.parametrize(
    "make",
    [
        ukjax.UdwadiaKalaba,
        long(ukjax.formulation.LagrangeMultiplier),
        lambda: ukjax.formulation.Recursive((6,), expand=False),
    ],
)
def test_couplings_on_names_are_the_rows_on_columns(make):
    composite = chain(4)
    q, v = state(composite)
    got = ukjax.equation_of_motion(composite.mechanism(), q, v, formulation=make())
    want = ukjax.equation_of_motion(by_hand(4), q, v)
    assert_close(got.acceleration, want.acceleration, atol=1e-11)
    assert_close(got.constraint_force, want.constraint_force, atol=1e-11)
    assert len(composite.constraints) == 1  # the three pins, of different lengths, are one kind
    assert composite.constraints[0].alike.columns == ((0, 1, 2, 3, 4, 5), (3, 4, 5, 6, 7, 8), (6, 7, 8, 9, 10, 11))


@pytest.mark.long
def test_nested_composites_have_their_levels():
    pairs = {
        f"pair{i}": Composite({"a": bar(2 * i), "b": bar(2 * i + 1)}, pin("a", "b", 0.4 + 0.2 * i)) for i in range(2)
    }
    whole = Composite(pairs, pin("pair0.b", "pair1.a", 0.5))
    q, v = state(whole)
    want = ukjax.equation_of_motion(by_hand(4), q, v)
    got = ukjax.equation_of_motion(
        whole.mechanism(), q, v, formulation=ukjax.formulation.Recursive(whole.levels, expand=False)
    )
    assert_close(got.acceleration, want.acceleration, atol=1e-11)
    assert (whole.levels, whole.depth) == ((4, 2), 3)
    assert len(whole.systems) == 1  # all four bars, of both pairs
    assert_close(whole.view(q).pair1.b.phi, q[11])
    assert_close(whole.view(q)["pair1.a"][:], q[6:9])
    again = whole.add(pin("pair0.b", "pair1.a", 0.5))
    assert again.levels == (4, 2, 2)
    repeated = ukjax.equation_of_motion(
        again.mechanism(), q, v, formulation=ukjax.formulation.Recursive(again.levels, expand=False)
    )
    assert_close(repeated.acceleration, want.acceleration, atol=1e-11)
    assert repeated.rank == 6
    parts = {"pair0": {"a": q[:3], "b": q[3:6]}, "pair1": {"a": q[6:9], "b": {"x": q[9], "y": q[10], "phi": q[11]}}}
    assert_close(whole.state(parts), q)


def test_velocity_and_acceleration_couplings():
    modules = {"a": bar(0), "b": bar(1)}
    rolling = lambda q, v, t: (v[0].x * jnp.sin(q[0].phi) - v[1].y)[None]
    rows = ukjax.AccelerationConstraint(lambda q, v, t: jnp.eye(6)[:1], lambda q, v, t: v[1].phi[None])
    composite = Composite(
        modules,
        [Coupling(("b", "a"), ukjax.Nonholonomic(rolling)), Coupling(("b", "a"), rows)],
    )
    q, v = state(composite)
    A, b = (np.concatenate(x) for x in zip(*(c.rows(q, v, jnp.zeros(())) for c in composite.constraints), strict=True))
    want = np.zeros((2, 6))
    want[0, 3], want[0, 1] = np.sin(q[5]), -1.0
    want[1, 3] = 1.0  # the first column is that of the module named first
    assert_close(A, want, atol=1e-15)
    assert_close(b, np.array([-v[3] * np.cos(q[5]) * v[5], v[2]]), atol=1e-15)
    assert_close(
        composite.constraints[0].velocity_error(q, v, jnp.zeros(())), (v[3] * jnp.sin(q[5]) - v[1])[None], atol=1e-15
    )


def test_gradients_with_respect_to_modules_and_couplings():
    composite = chain(3)
    q, v = state(composite)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=9))
    f = lambda c: weights @ ukjax.equation_of_motion(c.mechanism(), q, v, throw=False).acceleration
    assert_gradients(f, composite, atol=1e-7)


def test_an_indefinite_block_is_reported():
    composite = Composite({"a": bar(0), "b": Module(FreeBar(m=-1.0), XYPHI)})
    with pytest.raises(RuntimeError, match="mass matrix"):
        ukjax.equation_of_motion(composite.mechanism(), *state(composite))


@pytest.fixture(scope="module")
def climbed():
    """A chain of five bars, level by level in two orders, with and without noise; and the same by dense matrices."""
    composite = chain(5)
    q, v = state(composite)
    modular = {noise: [ukjax.modular.ModularLevel.start(composite, q, v)] for noise in (None, 0.1)}
    M, Q = eqx.filter_jit(lambda c: (c.mass(q, 0.0), c.force(q, v, 0.0)))(composite)
    dense = {noise: [ukjax.formulation.Level.start(M, Q)] for noise in (None, 0.1)}
    for i in (0, 3, 1, 2, 0):  # two halves that grow together, and a joint again
        coupling = joint(i)
        A, b = eqx.filter_jit(composite.bind(coupling).rows)(q, v, jnp.zeros(()))
        for noise in (None, 0.1):
            modular[noise].append(modular[noise][-1].enforce(coupling, noise))
            dense[noise].append(dense[noise][-1].enforce(A, b, noise))
    return composite, q, v, modular, dense


@pytest.mark.long
@pytest.mark.parametrize("noise", [None, 0.1])
def test_modular_levels_are_dense_levels(climbed, noise):
    *_, modular, dense = climbed
    for got, want in zip(modular[noise], dense[noise], strict=True):
        size = float(jnp.max(jnp.abs(want.acceleration)))
        assert_close(got.acceleration, want.acceleration, atol=1e-12 * size)
        assert_close(got.force, want.force, atol=1e-12 * size)
        assert_close(got.projector, want.projector, atol=1e-11)
        assert got.rank == want.rank


@pytest.mark.long
def test_modular_levels_reach_what_is_joined_and_no_more(climbed):
    composite, q, v, modular, _ = climbed
    reach = [one.columns for one in modular[None][-1].enforced]
    assert reach[:3] == [tuple(range(6)), tuple(range(9, 15)), tuple(range(9))]
    assert reach[3] == tuple(range(15))
    # All pins at once, as the composite holds them, and with a force applied.
    push = jnp.zeros(15).at[4].set(3.0)
    level = ukjax.modular.ModularLevel.start(composite, q, v, applied=push).enforce(composite.constraints[0])
    want = ukjax.equation_of_motion(composite.mechanism(), q, v, applied=push)
    assert_close(level.acceleration, want.acceleration, atol=1e-11)
    assert_close(level.force, want.constraint_force, atol=1e-11)
    assert level.rank == 8


@pytest.mark.long
def test_gradients_through_modular_levels():
    composite = chain(3)
    q, v = state(composite)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=9))

    def f(x):
        level = ukjax.modular.ModularLevel.start(x[0], q, v)
        return weights @ level.enforce(x[0].constraints[0], jnp.exp(x[1])).acceleration

    assert_gradients(f, (composite, jnp.asarray(-1.0)), atol=1e-7)


PAIR = {"a": bar(0), "b": bar(1)}
BARS = {"bar0": jnp.zeros(2), "bar1": jnp.zeros(3)}
begin = lambda composite, n: ukjax.modular.ModularLevel.start(composite, jnp.zeros(n), jnp.zeros(n))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Composite(PAIR, pin("a", "c")), ValueError, "There is no module 'c': .* there is a, b"),
        (lambda: Composite(PAIR, pin("a", "b.x")), ValueError, "'b.x' is a coordinate, not"),
        (lambda: Composite(PAIR, pin("a", "b.x.y")), ValueError, "'x' is a coordinate, which"),
        (lambda: Composite({"a": bar(0)}, [3]), TypeError, r"couplings\[0\] must be an instance of Coupling"),
        (lambda: Composite({"a": falling()}), TypeError, r"modules\['a'\] must be a ukjax.modular.Module"),
        (lambda: Composite({}), TypeError, "modules must be a mapping"),
        (lambda: Composite({"a b": bar(0)}), ValueError, "modules must be Python identifiers.* 'a b'"),
        (lambda: Module(falling(), ("x", "x")), ValueError, "coordinates must be one or several different names"),
        (lambda: Module(3, ("x",)), TypeError, "system must be"),
        (lambda: Coupling(("a", "a"), ukjax.Holonomic(rod)), ValueError, "modules must name one"),
        (lambda: Coupling("a", 3), TypeError, "constraint must be an instance of AbstractConstraint"),
        (
            lambda: Composite({"a": bar(0)}, Coupling("a", ukjax.Holonomic(lambda q, t: q[0].z[None]))),
            AttributeError,
            "there is no 'z'; there is x, y, phi",
        ),
        (
            lambda: Composite(
                {"a": bar(0), "b": bar(1)},
                Coupling(
                    ("a", "b"),
                    ukjax.AccelerationConstraint(lambda q, v, t: jnp.ones((1, 4)), lambda q, v, t: jnp.ones(1)),
                ),
            ),
            ValueError,
            r"matrix\(q, v, t\) must return an array of shape \(m, 6\), but returned shape \(1, 4\)",
        ),
        (
            lambda: Module(ukjax.Mechanism(falling(), (), lambda q, v, t, f: -v), ("x", "y")),
            ValueError,
            "non-ideal forces; give those to Composite.mechanism",
        ),
        (lambda: chain(2).state({"bar0": jnp.zeros(3)}), ValueError, "parts must have the entries .* not so bar1"),
        (lambda: chain(2).state(BARS), ValueError, r"parts\['bar0'\] must have shape \(3,\)"),
        (lambda: begin(chain(2), 5), ValueError, r"q must have shape \(6,\)"),
        (lambda: begin(falling(), 2), TypeError, "composite must be an instance of Composite"),
        (lambda: begin(chain(2), 6).enforce(joint(0), -1.0), ValueError, "noise must be symmetric and not negative"),
        (lambda: begin(chain(2), 6).enforce(rod(1.0)), TypeError, "coupling must be an instance of Coupling"),
    ],
)  # fmt: skip
def test_senseless_modules_are_named(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize("n", [5, 7])
@pytest.mark.parametrize(
    "of",
    [
        pytest.param(lambda whole, q: ukjax.equation_of_motion(whole, q, q), id="blocks"),
        pytest.param(
            lambda whole, q: ukjax.equation_of_motion(whole, q, q, formulation=ukjax.formulation.RangeSpace()),
            id="matrices",
        ),
        pytest.param(lambda whole, q: ukjax.simulate(whole, q, q, np.linspace(0.0, 1.0, 3)), id="simulate"),
        pytest.param(lambda whole, q: whole.system.mass(q, 0.0), id="mass"),
        pytest.param(lambda whole, q: whole.system.force(q, q, 0.0), id="force"),
    ],
)
def test_a_state_of_another_length_is_refused(of, n):
    """Beyond its end an index of JAX gives the last entry, so that modules would take the one for the other."""
    with pytest.raises(ValueError, match=r"q must have shape \(6,\), as the composite has"):
        of(chain(2).mechanism(), jnp.ones(n))


@pytest.mark.long
def test_one_more_joint_costs_in_proportion_to_the_chain():
    """By the compiler's own count of operations, not by the clock; the dense projector's grow with the square."""
    modular, dense = [], []
    for count in (8, 16, 32):
        modules = {f"bar{i}": bar(i) for i in range(count)}
        composite = Composite(modules, [joint(i) for i in range(count - 2)])
        q, v = state(composite)
        last = composite.bind(joint(count - 2))
        assembled = ukjax.modular.ModularLevel.start(composite, q, v).enforce(composite.constraints[0])
        modular.append(operations(lambda level, last=last: level.enforce(last).acceleration, assembled))
        A, b = last.rows(q, v, jnp.zeros(()))
        level = ukjax.formulation.Level.start(composite.mass(q, 0.0), composite.force(q, v, 0.0))
        dense.append(operations(lambda level, A=A, b=b: level.enforce(A, b).acceleration, level))
    assert modular[1] <= 2.1 * modular[0]
    assert modular[2] <= 2.1 * modular[1]
    assert dense[2] >= 3.0 * dense[1]


def operations(function, argument):
    return eqx.filter_jit(function).lower(argument).compile().compiled.cost_analysis()["flops"]


class Skate(ukjax.AbstractConstraint):
    """A person's own constraint, v_a.x = b.y, written on views."""

    def rows(self, q, v, t):
        _, b = v
        return jnp.array([[1.0, 0.0, 0.0, 0.0]]), b.y[None]

    def position_error(self, q, t):
        return jnp.zeros(0)

    def velocity_error(self, q, v, t):
        return (v[0].x - q[1].y)[None]


def skating(constraint):
    modules = {name: Module(falling(), ("x", "y")) for name in ("a", "b")}
    return Composite(modules, Coupling(("a", "b"), constraint))


@pytest.mark.parametrize("constraint", [ukjax.Nonholonomic(lambda q, v, t: (v[0].x - q[1].y)[None]), long(Skate())])
def test_constraints_on_modules_are_what_they_are_in_one_piece(constraint):
    q, v = jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.array([0.4, 0.1, 0.2, 0.3])
    system = ukjax.System(lambda q, t: jnp.eye(4), lambda q, v, t: -9.81 * jnp.array([0.0, 1.0, 0.0, 1.0]))
    whole = ukjax.Mechanism(system, ukjax.Nonholonomic(lambda q, v, t: (v[0] - q[3])[None]))
    parts = ukjax.Mechanism(skating(constraint))
    assert not ukjax.diagnose(whole, q, v).holonomic[0]
    assert not ukjax.diagnose(parts, q, v).holonomic[0]
    want = ukjax.equation_of_motion(whole, q, v).acceleration
    assert_close(ukjax.equation_of_motion(parts, q, v).acceleration, want, atol=1e-13)


def test_a_mechanism_of_a_composite_has_its_couplings_once():
    composite = chain(3)
    q, v = state(composite)
    terms_of = eqx.filter_jit(lambda mechanism: mechanism.terms(q, v, jnp.zeros(())))
    want = terms_of(composite.mechanism())
    for mechanism in (ukjax.Mechanism(composite), ukjax.Mechanism(composite, composite.constraints)):
        terms = terms_of(mechanism)
        assert_close(terms.A, want.A)
        assert terms.rows == want.rows
    assert want.A.shape[0] > 0
    further = ukjax.Mechanism(composite, {"floor": ukjax.Holonomic(lambda q, t: q[1:2])})
    assert terms_of(further).A.shape[0] == want.A.shape[0] + 1
    assert composite.upto(1).mechanism().constraints == ()


def test_names_of_couplings_are_checked():
    joint = Coupling(("a", "b"), ukjax.Holonomic(lambda q, t: q[0].x - q[1].x[None]))
    pair = Composite(PAIR, {"joint": joint})
    assert pair.constraints[0].names == ("joint",)
    with pytest.raises(
        ValueError, match="couplings has 'joint', but the modules already have a constraint of that name"
    ):
        pair.add({"joint": joint})
