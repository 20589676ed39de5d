"""Mass matrices of trees, factorised without new entries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..helpers import assert_close, assert_gradients
from ..inside import Branches, Node, TreeLayout


def before(parents):
    ways: list[list[int]] = []
    for parent in parents:
        ways.append([] if parent < 0 else [parent, *ways[parent]])
    return ways


TREES = {"branching": (-1, 0, 1, 1, 0, 4, 4, -1, 7), "chain": (-1, 0, 1, 2), "apart": (-1, -1, -1), "one": (-1,)}


def definite(tree, seed, count):
    """Random matrices (count, n, n) with entries where the tree has some."""
    n, rng = len(tree.before), np.random.default_rng(seed)
    there = np.zeros((n, n), bool)
    for i, j in tree.entries:
        there[i, j] = there[j, i] = True
    spread = rng.normal(size=(count, n, n))
    return jnp.asarray(np.where(there, spread + np.swapaxes(spread, 1, 2), 0.0) + 2 * n * np.eye(n))


@pytest.mark.parametrize("name", TREES)
def test_it_solves_and_adds_no_entries(name):
    tree = Branches(before(TREES[name]))
    M = definite(tree, 0, 3)
    y = jnp.asarray(np.random.default_rng(1).normal(size=(3, M.shape[1], 4)))
    got = jax.jit(jax.vmap(tree.solve))(M, y)
    assert_close(got, np.linalg.solve(M, y), rtol=1e-12, atol=1e-13)
    # M = L^T D L, from the factors as they lie.
    rows, columns = np.array(tree.entries).T
    factors, n = np.asarray(tree._factors(M[0][rows, columns])), M.shape[1]
    L, count = np.eye(n), len(tree.beside)
    L[rows[:count], columns[:count]] = factors[:count]
    assert_close(L.T @ np.diag(1 / factors[count:]) @ L, M[0], atol=1e-12)


def test_of_a_robot_with_a_joint_that_is_fixed():
    """Which is no row of M, and passed over on the way to the ground."""
    node = lambda parent, *v: Node(parent, f"j{parent}", f"b{parent}", v, v)
    layout = TreeLayout((node(-1, 0, 0), node(0, 0, 1), node(1, 1, 1), node(2, 1, 2), node(0, 2, 3)), (), (), ())
    assert Branches.of(layout).before == [[], [0], []]


def test_gradients():
    tree = Branches(before(TREES["branching"]))
    M, y = definite(tree, 2, 1)[0], jnp.asarray(np.random.default_rng(3).normal(size=(9, 2)))
    loss = lambda x: jnp.sum(jnp.sin(tree.solve(M + jnp.diag(x["d"]), x["y"])))
    assert_gradients(loss, {"d": jnp.linspace(0.0, 1.0, 9), "y": y})


def test_long_chains_are_left_to_others():
    assert Branches(before(range(-1, 14))).are_short
    assert not Branches(before(range(-1, 29))).are_short
