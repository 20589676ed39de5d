"""What each constraint carries: named constraints, their forces and multipliers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import ukjax
from ukjax import plot, rigid

from .helpers import assert_close, assert_gradients
from .inside import check_drawing, scene


G = 9.81


class Masses(ukjax.AbstractSystem):
    """Point masses in the plane, one below the other, q = (x1, y1, x2, y2, ...)."""

    m: Float[Array, " k"]  # [kg]

    def mass(self, q, t):
        return jnp.diag(jnp.repeat(self.m, 2))

    def force(self, q, v, t):
        return jnp.stack([jnp.zeros_like(self.m), -G * self.m], axis=1).ravel()


class Between(eqx.Module):
    """The vector from mass i - 1 (the origin, for the first) to mass i, less what it is when the chain hangs."""

    i: int = eqx.field(static=True)
    scale: float = eqx.field(static=True, default=1.0)

    def __call__(self, q, t):
        before = jnp.zeros(2) if self.i == 0 else q[2 * self.i - 2 : 2 * self.i]
        return self.scale * (q[2 * self.i : 2 * self.i + 2] - before - jnp.array([0.0, -1.0]))


def hanging(masses=(1.0, 2.0, 3.0), **more):
    pins = {f"pin {i + 1}": ukjax.Holonomic(Between(i)) for i in range(len(masses))}
    mechanism = ukjax.Mechanism(Masses(jnp.asarray(masses)), {**pins, **more})
    q = jnp.stack([jnp.zeros(len(masses)), -jnp.arange(1.0, len(masses) + 1)], axis=1).ravel()
    return mechanism, q, jnp.zeros_like(q)


def test_every_pin_carries_what_hangs_on_it():
    mechanism, q, v = hanging()
    motion = ukjax.equation_of_motion(mechanism, q, v, reactions=True)
    for i, below in enumerate((6.0, 5.0, 3.0)):
        assert_close(motion.multipliers[f"pin {i + 1}"], jnp.array([0.0, below * G]), atol=1e-12)
    assert_close(motion.constraint_forces["pin 2"], jnp.array([0.0, -5.0, 0.0, 5.0, 0.0, 0.0]) * G, atol=1e-12)
    assert_close(sum(motion.constraint_forces.values()), motion.constraint_force, atol=1e-12)


def test_a_trajectory_and_its_data_set_tell_what_each_constraint_does():
    mechanism, q, v = hanging()
    ts = jnp.array([0.0, 0.1, 0.2])
    trajectory = ukjax.simulate(mechanism, q, v, ts, keep="all")
    assert_close(trajectory.multipliers["pin 1"], jnp.tile(jnp.array([0.0, 6.0 * G]), (3, 1)), atol=1e-10)
    data = trajectory.to_dataset()
    assert_close(data.multipliers.sel(row="pin 3 row 1").values, np.full(3, 3.0 * G), atol=1e-10)
    assert_close(
        data.constraint_forces.sel(constraint="pin 3").values[0, :4], np.array([0, 0, 0, -3.0 * G]), atol=1e-10
    )
    plain = ukjax.simulate(mechanism, q, v, ts)
    assert plain.multipliers is None
    assert plain.constraint_forces is None


def test_of_dependent_rows_the_multipliers_of_least_norm():
    mechanism, q, v = hanging((1.0, 2.0), again=ukjax.Holonomic(Between(0)))
    motion = ukjax.equation_of_motion(mechanism, q, v, reactions=True)
    for name in ("pin 1", "again"):
        assert_close(motion.multipliers[name], jnp.array([0.0, 1.5 * G]), atol=1e-12)
    A, b = motion.constraint_forces["pin 1"] + motion.constraint_forces["again"], motion.constraint_force
    assert_close(A + motion.constraint_forces["pin 2"], b, atol=1e-12)


def beam(places, mass=2.0, moment=0.3, center=0.0):
    """A rigid beam on supports, of which it may press on and pull at each."""
    beam = {f"at {i}": rigid.Frame((x, 0.0, 0.0)) for i, x in enumerate(places)}
    body = {"beam": rigid.Body(rigid.Inertia(mass, moment, (center, 0.0, 0.0)), beam)}
    joints = {"base": rigid.Planar("ground", "beam")}
    joints |= {f"{i}": rigid.PointOn("ground", f"beam.at {i}", lambda p: p[1]) for i in range(len(places))}
    return rigid.Robot(body, joints, gravity=(0.0, -G, 0.0), planar=True)


def test_equal_rigid_supports_share_equally_whatever_the_inertia():
    for mass, moment in ((2.0, 0.3), (2.0, 1e-3), (2.0, 50.0)):
        robot = beam((-1.0, 0.0, 1.0), mass, moment)
        found = robot.reactions(jnp.zeros(3), jnp.array([0.4, 0.0, 0.0]))
        for i in range(3):
            assert_close(found[f"{i}"].force, jnp.array([0.0, 2.0 * G / 3, 0.0]), atol=1e-10)
    # With the weight off the middle: of least norm, a + b x with equal sums and moments.
    found = beam((-1.0, 0.0, 1.0), center=0.3).reactions(jnp.zeros(3), jnp.zeros(3))
    for i, x in enumerate((-1.0, 0.0, 1.0)):
        assert_close(found[f"{i}"].force[1], 2.0 * G * (1 / 3 + 0.3 * x / 2), atol=1e-10)


def test_shares_change_continuously_along_a_motion():
    share = jax.jit(jax.vmap(lambda x: _least(jnp.array([-1.0, 0.2, x]))))
    x = jnp.linspace(0.3, 40.0, 400)
    got = share(x)
    rows = np.stack([np.ones((400, 3)), np.stack([-np.ones(400), np.full(400, 0.2), np.asarray(x)], axis=1)], axis=1)
    want = np.einsum("kij,j->ki", np.linalg.pinv(rows), np.array([2.0 * G, 0.0]))
    assert_close(got, want, atol=1e-9)


def _least(places):
    """What three supports at these places carry of a weight at zero."""
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([2.0, 0.3])), lambda q, v, t: jnp.array([-2.0 * G, 0.0]))
    rows = ukjax.Holonomic(lambda q, t: q[0] + places * q[1])
    motion = ukjax.equation_of_motion(
        ukjax.Mechanism(system, {"on": rows}), jnp.zeros(2), jnp.zeros(2), reactions=True, throw=False
    )
    return motion.multipliers["on"]


def test_gradients_of_shared_multipliers():
    places = lambda x: jnp.array([-1.0, 0.2, 0.0]).at[2].set(x)
    assert_gradients(lambda x: jnp.sum(_least(places(x)) ** 3), jnp.array(1.3), atol=1e-5)


def test_small_scales_of_rows_that_do_not_depend_on_others_do_not_matter():
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([1.0, 0.3])), lambda q, v, t: jnp.array([-G, 1.0]))
    rows = ukjax.Holonomic(lambda q, t: jnp.stack([q[0] - 2 * q[1], 1e-8 * q[1]]))
    rest = jnp.zeros(2)
    motion = ukjax.equation_of_motion(ukjax.Mechanism(system, {"both": rows}), rest, rest, reactions=True)
    assert_close(motion.multipliers["both"] * jnp.array([1.0, 1e-8]), jnp.array([G, 2 * G - 1.0]), atol=1e-10)


def test_the_scale_of_a_row_is_that_of_its_multiplier():
    mechanism, q, v = hanging((1.0,), again=ukjax.Holonomic(Between(0, 1e-6)))
    motion = ukjax.equation_of_motion(mechanism, q, v, reactions=True)
    total = motion.constraint_forces["pin 1"] + motion.constraint_forces["again"]
    assert_close(total, jnp.array([0.0, G]), atol=1e-10)


@pytest.mark.long
def test_gradients_of_multipliers():
    mechanism, q, v = hanging((1.0, 2.0), again=ukjax.Holonomic(Between(0)))
    v = jnp.array([0.3, -0.2, 0.1, 0.5])

    def carried(mechanism):
        return ukjax.equation_of_motion(mechanism, q, v, reactions=True, throw=False).multipliers["pin 2"][1] ** 2

    assert_gradients(carried, mechanism, atol=1e-7)


def test_names_are_checked():
    system, pin = Masses(jnp.ones(1)), ukjax.Holonomic(Between(0))
    assert list(ukjax.Mechanism(system, [pin, pin]).named_constraints) == ["constraints[0]", "constraints[1]"]
    with pytest.raises(ValueError, match="constraints must map names, which are text, to constraints, but one is 3"):
        ukjax.Mechanism(system, {3: pin})
    with pytest.raises(TypeError, match=r"constraints\['pin'\] must be a ukjax.Holonomic"):
        ukjax.Mechanism(system, {"pin": lambda q, t: q})


def scenario(arrows):
    mechanism, q, v = hanging((1.0, 2.0))
    drawing = ukjax.study.Drawing({"chain": lambda q, t: q.reshape(2, 2)}, forces=arrows)
    return ukjax.Scenario(mechanism, q, v, 0.1, drawing=drawing)


@pytest.mark.long
def test_an_arrow_of_one_constraint():
    case = scenario({"pin 1 [N]": ("pin 1", lambda q, t, force, multipliers: (jnp.zeros(2), multipliers))})
    ts = jnp.array([0.0, 0.1])
    with pytest.raises(ValueError, match='Pass keep="all" to ukjax.simulate'):
        plot.path(case, ukjax.simulate(case.mechanism, case.q0, case.v0, ts))
    trajectory = ukjax.simulate(case.mechanism, case.q0, case.v0, ts, keep="all")
    drawn = scene(case, trajectory)
    assert_close(drawn.arrows["pin 1 [N]"][1], np.array([[0.0, 3 * G], [0.0, 3 * G]]), atol=1e-10)


@pytest.mark.parametrize(
    ("arrow", "match"),
    [
        (("pin 7", lambda q, t, force, multipliers: (q, q)), "about the constraint 'pin 7', but there is pin 1, pin 2"),
        (("pin 1",), "must be a function, or a pair of a constraint's name and one"),
    ],
)
def test_arrows_of_nothing_are_named(arrow, match):
    with pytest.raises(ValueError, match=match):
        check_drawing(scenario({"arrow": arrow}))


def test_members_of_a_composite_have_names():
    pair = {name: ukjax.modular.Module(Masses(jnp.ones(1)), ("x", "y")) for name in ("a", "b")}
    together = lambda q, t: q[0][:] - q[1][:]
    level = lambda q, t: (q[0].y - q[1].y)[None]
    couplings = [ukjax.modular.Coupling(("a", "b"), ukjax.Holonomic(f)) for f in (together, level)]
    mechanism = ukjax.Mechanism(ukjax.modular.Composite(pair, {"pin": couplings[0]}).add(couplings[1]))
    motion = jax.jit(lambda q, v: ukjax.equation_of_motion(mechanism, q, v, reactions=True, throw=False))(
        jnp.zeros(4), jnp.zeros(4)
    )
    assert {k: x.shape for k, x in motion.multipliers.items()} == {"pin": (2,), "a-b": (1,)}
