"""Where branches of the motion meet; and states next to where a coordinate of a quaternion turns back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import parallelogram
from tests.helpers import assert_close, long
from ukjax import rigid


L, A, G = 1.2, 0.5, 9.81  # bars [m], distance of the pivots [m], gravity [m/s^2]
M1, M2, M3 = 1.0, 0.7, 1.5  # at the bars' tips, in the middle of the coupler [kg]


def linkage(*more):
    """Two massless bars that hang from pivots above each other, their tips on a coupler: in line when it hangs.

    With small angles a and b of the bars the coupler's length says (a - b) ((L + A) a - (L - A) b) = 0 to second order:
    either a = b, or b = a (L + A) / (L - A).
    """
    both = np.block([[np.eye(2), np.eye(2)], [np.eye(2), np.eye(2)]])
    mass = jnp.asarray(np.diag([M1, M1, M2, M2]) + M3 / 4 * both)
    weight = -G * jnp.array([0.0, M1 + M3 / 2, 0.0, M2 + M3 / 2])
    system = ukjax.System(lambda q, t: mass, lambda q, v, t: weight)
    bars = lambda q, t: jnp.stack([q[0] ** 2 + q[1] ** 2, q[2] ** 2 + (q[3] + A) ** 2]) - L**2
    coupler = lambda q, t: jnp.stack([(q[0] - q[2]) ** 2 + (q[1] - q[3]) ** 2 - A**2])
    return ukjax.Mechanism(system, [ukjax.Holonomic(bars), ukjax.Holonomic(coupler), *more])


HANGING = jnp.array([0.0, -L, 0.0, -L - A])
RATIO = (L + A) / (L - A)
CLOSED = {
    "parallel": (lambda q, t: q[:1] - q[2:3], np.sqrt(G / L)),
    "crossed": (
        lambda q, t: q[:1] * RATIO - q[2:3],
        np.sqrt(
            G / L * (M1 + M2 * RATIO**2 + M3 * (1 + RATIO**2) / 2) / (M1 + M2 * RATIO**2 + M3 * (1 + RATIO) ** 2 / 4)
        ),
    ),
}


def test_a_singular_configuration_is_refused():
    with pytest.raises(RuntimeError, match="The configuration is singular"):
        ukjax.analysis.linearize(linkage(), HANGING)


@pytest.mark.parametrize("branch", CLOSED)
def test_a_branch_has_its_own_frequency(branch):
    close, frequency = CLOSED[branch]
    found = ukjax.analysis.linearize(linkage(ukjax.Holonomic(close)), HANGING)
    assert found.modes().frequencies == pytest.approx([frequency], abs=1e-9)


def test_a_little_way_along_a_branch_it_is_regular():
    a = 0.01
    q = jnp.array([L * np.sin(a), -L * np.cos(a), L * np.sin(a), -A - L * np.cos(a)])
    found = ukjax.analysis.linearize(linkage(), q)
    assert found.modes().frequencies == pytest.approx([np.sqrt(G / L)], rel=1e-4)


@pytest.mark.parametrize("angle", [0.0, long(np.pi, id="folded")])
def test_an_overconstrained_parallelogram_is_singular_in_line_only(angle):
    model = parallelogram.Parallelogram()
    mechanism = ukjax.Mechanism(model, ukjax.Holonomic(model.joints))
    results = [
        ukjax.analysis.linearize(mechanism, *model.state(jnp.asarray(a), jnp.zeros(())), throw=False).result
        for a in (angle, angle + 0.3)
    ]
    assert results[0] == ukjax.RESULTS.singular_configuration
    assert results[1] == ukjax.RESULTS.successful


@pytest.mark.parametrize("coordinates", ["joint", long("absolute")])
@pytest.mark.parametrize("turn", [long(1e-18), 1e-16, long(1e-12), long(1e-9)])
def test_a_ball_joint_next_to_the_identity(coordinates, turn):
    """A body on a ball joint swings with w^2 = m g c / (I + m c^2) about x and y, and is free about z."""
    body = rigid.Body(rigid.Inertia(1.0, (0.02, 0.03, 0.04), (0.0, 0.0, -0.3)))
    joints = {"ball": rigid.Spherical("ground", "body")}
    robot = rigid.Robot({"body": body}, joints, gravity=(0.0, 0.0, -9.81), coordinates=coordinates)
    n_q, n = (4, 3) if coordinates == "joint" else (7, 6)
    q = jnp.zeros(n_q).at[-4:].set(jnp.array([1.0, -turn, 0.3 * turn, turn]))
    found = ukjax.analysis.linearize(robot.mechanism(), q, jnp.zeros(n))
    assert f"q[{n_q - 4}]" not in found.names
    want = np.sqrt(9.81 * 0.3 / np.array([0.03 + 0.09, 0.02 + 0.09]))
    assert found.modes().frequencies[-2:] == pytest.approx(want, abs=1e-6)


@pytest.mark.long
def test_an_equilibrium_that_is_unstable_is_found_from_nearby():
    """Three rods in a row, each up or down: from 3 mm away the search does not leave for another one."""
    phi = lambda q, t: jnp.sum(jnp.diff(jnp.concatenate([jnp.zeros((1, 2)), q.reshape(3, 2)]), axis=0) ** 2, axis=1) - 1
    weight = jnp.tile(jnp.array([0.0, -9.81]), 3)
    chain = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(6), lambda q, v, t: weight), ukjax.Holonomic(phi))
    signs = np.array([[-1, 1, 1], [1, 1, 1], [1, -1, 1], [1, 1, -1]])
    want = np.zeros((4, 3, 2))
    want[:, :, 1] = np.cumsum(signs, axis=1)
    want = want.reshape(4, 6)
    starts = want + 0.003 * np.random.default_rng(2).normal(size=want.shape)
    found = jax.jit(jax.vmap(lambda q: ukjax.analysis.equilibrium(chain, q, throw=False).q))(jnp.asarray(starts))
    assert_close(found, want, atol=1e-9)
