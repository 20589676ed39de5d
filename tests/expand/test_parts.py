"""Parts of programs that are too long for one function, and functions that are written out for many states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import spatial_chain

from ..helpers import assert_close, central_difference, long
from ..inside import (
    Graph,
    Lowering,
    Program,
    ScalarProgram,
    fused,
    interpret,
    parts_of,
    replaced,
    tiled_dynamics,
)


def program_of(function, *like):
    closed = jax.make_jaxpr(function)(*like)
    build = lambda graph, arguments: interpret(graph, closed, arguments)
    return ScalarProgram(closed.in_avals, closed.out_avals, build, 100_000, inlines=True).program


def swarm(x):
    """Every number meets all others, and the first angle is asked for at both ends."""
    s, c = jnp.sin(x), jnp.cos(x)
    for k in range(12):
        s, c = s * jnp.roll(c, k + 1) + x, c - 0.1 * jnp.roll(s, k) * x
    return jnp.concatenate([s, c[:3], x[:2], jnp.ones(2), jnp.cos(x[:1]), s[:1]])


@pytest.fixture
def short_parts():
    with replaced(part=200):
        yield


def test_parts_hand_on_what_later_ones_need_and_nothing_twice():
    program = program_of(swarm, jnp.zeros(9))
    parts = list(parts_of(program, 60))
    assert len(parts) > 5
    assert sum(part.operations for part in parts) == program.operations
    known, given = {x.order for x in program.inputs}, []
    for i, part in enumerate(parts):
        assert {x.order for x in part.inputs} <= known
        later = {x.order for other in parts[i + 1 :] for x in other.inputs}
        found = {x.order for x in part.outputs}
        assert found <= later | {getattr(x, "order", None) for x in program.outputs}
        known |= found
        given += found
    assert len(given) == len(set(given))


def test_operations_stand_after_what_they_need_and_soon_before_its_use():
    """Few numbers wait from part to part, though all sines are made before any is used."""

    def late(x):
        sines = [jnp.sin(k * x) for k in range(1, 80)]
        return jnp.stack([s[0] * s[1] - s[2] / s[0] for s in sines])

    program = fused(program_of(late, jnp.ones(3)))
    known = {x.order for x in program.inputs}
    for node in program.steps:
        assert {x.order for x in node.nodes} <= known
        known.add(node.order)
    as_made = Program(program.inputs, program.outputs, sorted(program.steps, key=lambda node: node.order))
    given = {x.order for x in program.inputs}
    waiting, before = (
        sum(x.order not in given for part in parts_of(p, 60) for x in part.inputs) for p in (program, as_made)
    )
    assert len(program.steps) == len({node.order for node in as_made.steps})
    assert before > 200
    assert waiting < 20


@pytest.mark.parametrize("size", [1, 40, 300])
def test_in_parts_it_is_the_same(short_parts, size):
    """Outputs that are inputs, constants, or there twice, too."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(size, 9)))
    got = jax.jit(jax.vmap(ukjax.expand(swarm)))(x)
    assert_close(got, jax.vmap(swarm)(x), rtol=1e-12, atol=1e-12)
    assert_close(jax.jit(ukjax.expand(swarm))(x[0]), got[0], rtol=1e-12, atol=1e-12)


def test_many_numbers_are_read_and_given_back():
    function = lambda x: (x * 2, jnp.sum(x))
    x = jnp.arange(900.0).reshape(3, 300)
    twice, total = jax.jit(jax.vmap(ukjax.expand(function)))(x)
    assert_close(twice, 2 * x)
    assert_close(total, jnp.sum(x, axis=1), rtol=1e-14)


def chain(x, y):
    """A recursion of forty steps, each scalar code by itself, and then all of its results at once."""
    step = ukjax.expand(lambda c, y: c * jnp.cos(y) + y**2)
    last, found = jax.lax.scan(lambda c, y: (step(c, y),) * 2, x, y)
    return jax.vmap(ukjax.expand(lambda f, y: f * y))(found, y[::-1]), jnp.all(last > -1e9)


@pytest.mark.parametrize("size", [5, long(300)])
def test_a_recursion_is_written_out(size):
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(size, 2))), jnp.asarray(rng.normal(size=(size, 40, 2)))

    ways = (Lowering.UNROLLED, Lowering.TILES)

    def of(x, y, way):
        function = lambda x, y: (chain(x, y)[0].ravel(), chain(x, y)[1])
        return tiled_dynamics(function, (x, y), (), lowering=way)[0]

    both = [jax.jit(jax.vmap(lambda x, y, w=w: of(x, y, w))) for w in ways]
    got, want = (f(x, y) for f in both)
    assert_close(got, want, rtol=1e-12, atol=1e-12)
    loops = [f.lower(x, y).as_text().count("stablehlo.while") for f in both]
    assert loops[0] < loops[1]
    slopes = [jax.jit(jax.vmap(jax.jacfwd(lambda x, y, w=w: of(x, y, w)))) for w in ways]
    assert_close(slopes[0](x[:3], y[:3]), slopes[1](x[:3], y[:3]), rtol=1e-12, atol=1e-12)


def test_pieces_within_a_program_are_none_of_its_own():
    """Unless all of it is to be written out, they stay what they are."""
    closed = jax.make_jaxpr(chain)(jnp.zeros(2), jnp.zeros((40, 2)))
    graph = Graph(10_000)
    with pytest.raises(Exception, match="scalar code by itself"):
        interpret(graph, closed, [np.full(x.shape, 0.5, object) for x in closed.in_avals])


def chained(**options):
    """The acceleration of a robot of more than nine speeds with a loop, whose recursions are loops of pieces."""
    case = spatial_chain.closed()
    of = lambda q, v: ukjax.equation_of_motion(case.mechanism, q, v, throw=False, **options).acceleration
    return of, jnp.asarray(case.q0, float), jnp.asarray(case.v0, float)


@pytest.mark.long
def test_a_robot_with_loops_in_space_is_one_operation_and_moves_as_by_matrices():
    fast, q, v = chained()
    text = jax.jit(fast).lower(q, v).as_text()
    assert text.count("stablehlo.custom_call") == 1
    assert "stablehlo.while" not in text
    assert "stablehlo.dot_general" not in text
    slow = jax.jit(chained(formulation=ukjax.UdwadiaKalaba(expand=False))[0])
    assert_close(jax.jit(fast)(q, v), slow(q, v), rtol=1e-9, atol=1e-9)
    along = jnp.linspace(-1.0, 1.0, len(v))
    slope = jax.jit(lambda v: jax.jvp(lambda v: fast(q, v), (v,), (along,))[1])(v)
    differences = central_difference(lambda h: slow(q, v + h * along), jnp.zeros(()))[:, 0]
    assert_close(slope, differences, rtol=1e-6, atol=1e-6)
    back = jax.jit(lambda v: jax.vjp(lambda v: fast(q, v), v)[1](along)[0])(v)
    assert_close(back @ along, slope @ along, rtol=1e-10, atol=1e-10)
