"""Loops of machine code: members that step to their ends, save rows, and wait for steps made the sure way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import ShapedArray

from ..helpers import assert_close
from ..inside import Gathers, LoopTables, Marks, NotScalar, Repeats, Saves, ScalarLoop
from .test_bind import bits, elsewhere


TIMES = jnp.array([0.0, 0.5, 1.0, 2.5, 2.75, 9.0, 30.0])
TURN = jnp.array([[0.6, -0.8], [0.8, 0.6]])


def begun(x):
    return {
        "also": jnp.zeros((), jnp.int32),  # other integers than the numbers of rows
        "x": x,
        "steps": jnp.zeros((), int),
        "following": jnp.zeros((), int),
        "marks": jnp.zeros((), int),
        "going": jnp.asarray(True),
        "waits": jnp.asarray(False),
    }


def made(state, stays):
    """A turn, for `count` steps; what lies in every third step is not looked at."""
    turn, (shift, count, _) = stays
    steps = state["steps"] + 1
    new = state | {"x": turn @ state["x"] + shift, "steps": steps, "going": steps < count, "waits": jnp.asarray(False)}
    return new, ((steps % 3 != 0), (steps.astype(float), new["x"]))


def step(state, stays, row):
    new, (kept, others) = made(state, stays)
    waits = state | {"going": jnp.asarray(False), "waits": jnp.asarray(True)}
    return new, waits, kept, others, (state["steps"] == stays[1][2]), jnp.asarray(True)


def sure(state, stays, row):
    """The same, and leaves a mark."""
    new, found = made(state, stays)
    return new | {"marks": state["marks"] + 1}, found


def due(found, t):
    return found[0] & (t <= found[1][0])


def look(found, t):
    return found[1][1] * (1.0 + t)


GOING, WAITS, FOLLOWING = (lambda s, k=k: s[k] for k in ("going", "waits", "following"))
REPEATS = Repeats(step, sure, GOING, WAITS, Saves(due, look, FOLLOWING))


def run(x, shift, count, doubtful, turn=TURN, times=TIMES):
    state, stays = begun(x), (turn, (shift, count, doubtful))
    loop = ScalarLoop(REPEATS, state, stays, times=ShapedArray(times.shape, times.dtype))
    end, rows, _ = loop(state, stays, saves=(times, jnp.full((*times.shape, 2), jnp.inf)))
    return end, rows


def test_what_is_saved_by_an_operation_on_arrays_is_no_loop():
    state, stays = begun(jnp.ones(2)), (TURN, (jnp.ones(2), jnp.asarray(3), jnp.asarray(-1)))
    saves = Saves(due, lambda found, t: jnp.sort(look(found, t)), FOLLOWING)
    with pytest.raises(NotScalar, match="an operation on arrays"):
        ScalarLoop(REPEATS._replace(saves=saves), state, stays, times=ShapedArray(TIMES.shape, TIMES.dtype))


def by_hand(x, shift, count, doubtful):
    rows, j, marks = np.full((len(TIMES), 2), np.inf), 0, 0
    for k in range(count):
        x = np.asarray(TURN) @ x + shift
        marks += k == doubtful
        while (k + 1) % 3 and j < len(TIMES) and TIMES[j] <= k + 1:
            rows[j] = x * (1 + TIMES[j])
            j += 1
    return x, rows, marks


def members(size):
    rng = np.random.default_rng(size)
    x = jnp.asarray(rng.normal(size=(size, 2)))
    count, doubtful = rng.integers(1, 40, size), rng.integers(-20, 20, size)
    return x, jnp.asarray(rng.normal(size=size)), jnp.asarray(count), jnp.asarray(doubtful)


TOGETHER, ALONE = jax.jit(jax.vmap(run)), jax.jit(run)


@pytest.mark.parametrize("size", [0, 1, 3, 8, 9, 200])
def test_members_of_a_batch_are_what_they_are_alone(size):
    args = members(size)
    end, rows = TOGETHER(*args)
    for i in range(size):
        x, want, marks = by_hand(*(np.asarray(a[i]) for a in args))
        assert_close(end["x"][i], x, rtol=1e-13)
        assert_close(rows[i], want, rtol=1e-13)
        assert int(end["steps"][i]) == int(args[2][i])
        assert int(end["marks"][i]) == int(marks)
        assert not end["going"][i]
        assert not end["waits"][i]
    for i in {0, size // 2, size - 1} & set(range(size)):
        assert bits(ALONE(*(a[i] for a in args))) == bits(jax.tree_util.tree_map(lambda y, i=i: y[i], (end, rows)))


def test_what_members_share_is_theirs_too():
    """A turn for each member, or times for each, are those that all share."""
    args = members(11)
    want = TOGETHER(*args)
    each = [jnp.broadcast_to(a, (11, *a.shape)) for a in (TURN, TIMES)]
    for axes in ((0, None), (None, 0), (0, 0)):
        others = [b if axis == 0 else a for a, b, axis in zip((TURN, TIMES), each, axes, strict=True)]
        assert bits(jax.jit(jax.vmap(run, (0, 0, 0, 0, *axes)))(*args, *others)) == bits(want)


def test_without_machine_code_it_is_a_loop_of_jax():
    args = members(9)
    want = TOGETHER(*args)
    exported = jax.export.export(TOGETHER)(*args)
    assert "ukjax_machine_code" not in exported.mlir_module()
    for a, b in zip(jax.tree_util.tree_leaves(exported.call(*args)), jax.tree_util.tree_leaves(want), strict=True):
        if a.shape != want[0]["marks"].shape:  # there every step is a sure one
            assert_close(a, b, rtol=1e-13)


def test_loops_within_a_loop_of_jax_and_in_many_threads():
    args = members(5)

    def again(carry, _):
        end, _ = jax.vmap(run)(*carry)
        return (end["x"], *carry[1:]), end["steps"]

    (x, *_), steps = jax.jit(lambda args: jax.lax.scan(again, args, None, length=3))(args)
    want = args
    for k in range(3):
        end, _ = TOGETHER(*want)
        want = (end["x"], *want[1:])
        np.testing.assert_array_equal(steps[k], args[2])
    assert bits(x) == bits(want[0])


def test_a_step_that_closes_over_an_array_is_refused():
    with pytest.raises(NotScalar, match="closes over"):
        jax.jit(lambda a: ScalarLoop(
            REPEATS._replace(step=lambda s, p, r: step(s | {"x": s["x"] + a}, p, r)), begun(jnp.zeros(2)),
            (TURN, (a, jnp.asarray(3), jnp.asarray(9))), times=ShapedArray(TIMES.shape, TIMES.dtype),
        ) and a)(jnp.zeros(()))  # fmt: skip


def test_devices_share_a_batch_out():
    program = """
    from tests.lowering.test_loop import *
    args = members(64)
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    there = jax.device_put(args, jax.NamedSharding(mesh, jax.P("i")))
    print(bits(TOGETHER(*there)) == bits(TOGETHER(*args)))
    """
    assert elsewhere(program, devices=2).split() == ["True"]


TABLE = jnp.asarray(np.random.default_rng(1).normal(size=(12, 2)))
FURTHER = jnp.asarray(np.random.default_rng(2).normal(size=(20, 2)))


def begun_backwards(rows, later):
    x, no = jnp.zeros(2), jnp.asarray(False)
    zero = jnp.zeros((), int)
    also = jnp.zeros((), jnp.int32)
    return {
        "also": also,
        "x": x,
        "sum": x,
        "k": rows,
        "j": later,
        "kept": no,
        "place": zero,
        "going": rows > 0,
        "waits": no,
    }


def backwards(state, stays, row):
    """Adds to what was gathered a row of a table, the last first, and marks every other sum."""
    k = state["k"] - 1
    x = 0.5 * state["x"] + state["sum"] + stays * row
    new = {"x": x, "sum": jnp.zeros(2), "k": k, "kept": k % 2 == 0, "place": k // 2, "going": k > 0}
    return state | new | {"waits": jnp.asarray(False)}


def step_backwards(state, stays, row):
    waits = state | {"going": jnp.asarray(False), "waits": jnp.asarray(True)}
    doubt = state["k"] == 5  # its step leaves a mark
    return backwards(state, stays, row), waits, (), (), doubt, jnp.asarray(True)


def gather(state, row, further):
    """Adds the rows of the other table whose numbers are at least twice that of the step."""
    is_due = state["going"] & (state["j"] >= 0) & (state["j"] >= 2 * state["k"])
    return is_due, state | {"sum": state["sum"] + row * further, "j": state["j"] - 1}


READING = Repeats(
    step_backwards, lambda *args: (backwards(*args), ((), ())), GOING, WAITS, at=lambda s: s["k"],
    gathers=Gathers(gather, lambda s: s["j"], lambda s: (s["sum"], s["j"])),
    marks=(Marks(lambda s: (s["x"], s["k"]), lambda s: s["kept"], lambda s: s["place"], 4),),
)  # fmt: skip


def run_backwards(rows, later, factor, table=TABLE, further=FURTHER):
    tables = LoopTables(table, further)
    state = begun_backwards(rows, later)
    loop = ScalarLoop(READING, state, factor, tables)
    end, _, marked = loop(state, factor, tables, marked=((jnp.full((4, 2), jnp.inf), jnp.full(4, -1)),))
    return end, marked[0]


def backwards_by_hand(rows, later, factor, table, further):
    x, total, j, marked, numbers = np.zeros(2), np.zeros(2), later, np.full((4, 2), np.inf), np.full(4, -1)
    for k in range(rows, 0, -1):
        row = table[min(k, 11)]
        while j >= 0 and j >= 2 * k:
            total = total + row * further[min(j, 19)]
            j -= 1
        x, total = 0.5 * x + total + factor * row, np.zeros(2)
        if (k - 1) % 2 == 0 and (k - 1) // 2 < 4:
            marked[(k - 1) // 2], numbers[(k - 1) // 2] = x, k - 1
    return x, j, marked, numbers


BACK, BACK_ALONE = jax.jit(jax.vmap(run_backwards)), jax.jit(run_backwards)


@pytest.mark.parametrize("size", [1, 7, 40])
def test_rows_of_tables_are_read_gathered_and_marked(size):
    """With tables of each member, and with tables that all share; there is no row 12, nor a place for marks past 3."""
    rng = np.random.default_rng(size)
    rows, later = jnp.asarray(rng.integers(0, 13, size)), jnp.asarray(rng.integers(-1, 21, size))
    factor = jnp.asarray(rng.normal(size=size))
    tables = jnp.asarray(rng.normal(size=(size, 12, 2))), jnp.asarray(rng.normal(size=(size, 20, 2)))
    own = BACK(rows, later, factor, *tables)
    shared = jax.jit(jax.vmap(lambda *args: run_backwards(*args)))(rows, later, factor)
    plain = jax.export.export(BACK)(rows, later, factor, *tables)
    assert "ukjax_machine_code" not in plain.mlir_module()
    for (end, marked), of in ((own, tables), (shared, None), (plain.call(rows, later, factor, *tables), tables)):
        for i in range(size):
            pair = (TABLE, FURTHER) if of is None else (of[0][i], of[1][i])
            given = int(rows[i]), int(later[i]), float(factor[i]), *map(np.asarray, pair)
            x, j, want, numbers = backwards_by_hand(*given)
            assert_close(end["x"][i], x, rtol=1e-12)
            assert int(end["j"][i]) == j
            assert_close(marked[0][i], want, rtol=1e-12)
            np.testing.assert_array_equal(marked[1][i], numbers)
    assert bits(BACK_ALONE(rows[0], later[0], factor[0], *(t[0] for t in tables))) == bits(
        jax.tree_util.tree_map(lambda y: y[0], own)
    )
