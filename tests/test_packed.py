"""Many small arrays as a few, and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from .inside import packed


ROWS = {
    "q": np.arange(12.0).reshape(3, 2, 2),
    "t": np.array([1.0, -0.0, np.nan]),
    "single": np.arange(3, dtype=np.float32),
    "index": jnp.arange(3),
    "failed": np.array([True, False, True]),
    "nothing": np.zeros((3, 0)),
    "large": np.arange(15.0).reshape(3, 5),
    "none": None,
}


def same(x, y):
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("traced", [False, True])
def test_rows_there_and_back(traced):
    there = lambda tree: packed(tree, axes=1, most=4)
    found = jax.jit(there)(ROWS) if traced else there(ROWS)
    assert {kind: x.shape for kind, x in found.joined.items()} == {
        "float64": (3, 5), "float32": (3, 1), "int64": (3, 1), "bool": (3, 1),
    }  # fmt: skip
    assert [x.shape for x in found.others] == [(3, 5)]
    assert isinstance(found.joined["float64"], jax.Array if traced else np.ndarray)
    jax.tree_util.tree_map(same, found.tree, ROWS)
    # Rows of what is packed are those of what it is made of.
    jax.tree_util.tree_map(lambda x, y: same(x, y[1:]), jax.tree_util.tree_map(lambda x: x[1:], found).tree, ROWS)


def test_what_all_share():
    key, weak, table = jax.random.key(0), jnp.asarray(2.0), jnp.ones((2000,))
    function, known = np.sin, np.ones(2)
    tree = (jnp.float64(3.0), key, weak + 0, function, table, known, jnp.ones((2, 3)))
    assert weak.weak_type
    found = packed(tree)
    assert found.joined["float64"].shape == (7,)
    back = found.tree
    for x, y in zip(back[1:6], tree[1:6], strict=True):
        assert x is y
    same(back[0], tree[0])
    same(back[6], tree[6])
