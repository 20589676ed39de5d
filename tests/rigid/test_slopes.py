"""How inverse dynamics changes with q and v, in closed form, beside what JAX makes of M a - Q."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ukjax import rigid

from ..helpers import assert_close
from ..inside import Branches, bias, falling, mass_unrolled, posture, slopes, stacked
from . import trees


def robot(fixed):
    """Six hinges and slides that branch; `fixed`: the one in the middle does not move."""
    links = trees.random_links(6, 11, kinds=("hinge", "slide"))
    found = trees.robot(links)
    if not fixed:
        return found
    joints = dict(found.joints)
    name = found.joint_names[2]
    joints[name] = rigid.Fixed(joints[name].parent, joints[name].child)
    return rigid.Robot(found.bodies, joints, frames=found.frames)


@pytest.mark.parametrize("fixed", [False, True])
def test_of_pairs_of_joints(fixed):
    it = robot(fixed)
    n, rng = it.layout.n, np.random.default_rng(5)
    q, v, a = (jnp.asarray(rng.normal(size=n)) for _ in range(3))

    def tau(q, v):
        return mass_unrolled(posture(it, q), q.dtype) @ a + bias(it, q, v, large=False)

    branches = Branches.of(it.layout)
    got = jax.jit(lambda q, v: slopes(stacked(it, q), branches, v, a, falling(it, q), short=False))(q, v)
    by_q, by_v = jax.jit(jax.jacfwd(tau, (0, 1)))(q, v)
    assert_close(got.by_q, by_q, rtol=1e-12, atol=1e-12)
    assert_close(got.by_v, by_v, rtol=1e-12, atol=1e-12)
    assert_close(got.mass, mass_unrolled(posture(it, q), q.dtype), rtol=1e-12, atol=1e-12)
    apart = np.ones((n, n), bool)
    for i, j in branches.entries:
        apart[i, j] = apart[j, i] = False
    assert apart.any()
    assert all(not np.any(np.asarray(x)[apart]) for x in got)
