"""URDF as courses and makers write it, beside closed forms and Pinocchio."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pinocchio
import pytest

import ukjax
from ukjax import rigid

from ..helpers import assert_close
from ..inside import joint_rows


TIME = jnp.zeros(())


def link(name, mass=None, moments=(), center="0 0 0"):
    """Moments: none, or ixx, iyy, izz."""
    if mass is None:
        return f'<link name="{name}"/>'
    given = " ".join(f'{k}="{x}"' for k, x in zip(("ixx", "iyy", "izz"), moments, strict=False))
    inertia = f'<inertia {given} ixy="0" ixz="0" iyz="0"/>' if moments else ""
    return f'<link name="{name}"><inertial><origin xyz="{center}"/><mass value="{mass}"/>{inertia}</inertial></link>'


def joint(name, kind, parent, child, axis="0 1 0", more=""):
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/><axis xyz="{axis}"/>'
        f"{more}</joint>"
    )


def urdf(*parts):
    return f'<robot name="r">{"".join(parts)}</robot>'


def accelerations(robot, q, v, applied=None):
    motion = ukjax.equation_of_motion(robot.mechanism(), q, v, applied=applied)
    return motion.acceleration


WORLD = urdf(
    link("mount", 1, (1, 1, 1)),
    joint("bolt", "fixed", "world", "mount"),
    link("bob", 2, (0.1, 0.1, 0.01), "0 0 -0.5"),
    joint("turn", "continuous", "mount", "bob"),
)


def test_a_world_that_is_named_and_one_that_is_declared_are_the_ground():
    """A compound pendulum: -m g c sin q / (I + m c^2)."""
    want = -2 * 9.81 * 0.5 * np.sin(0.4) / (0.1 + 2 * 0.5**2)
    for text in (WORLD, WORLD.replace("<link", '<link name="world"/><link', 1)):
        robot = rigid.from_urdf(text)
        assert robot.layout.tree == ("mount~", "turn")
        assert_close(accelerations(robot, [0.4], [0.0]), jnp.array([want]), atol=1e-12)
    hung = urdf(link("bob", 2, (), "0 0 1"), joint("turn", "continuous", "world", "bob"))
    with pytest.raises(ValueError, match="floating is True, but the file's root is the world"):
        rigid.from_urdf(hung, floating=True)
    assert rigid.from_urdf(WORLD, floating=True).layout.n == 7


@pytest.mark.parametrize("moments", [(), (0, 0, 0)])
def test_points_with_a_mass_are_a_double_pendulum(moments):
    """From the Lagrangian of two points on rods of 0.5 and 0.8 m, with the second angle relative to the first."""
    robot = rigid.from_urdf(
        urdf(
            link("mount"),
            link("near", 2, moments, "0 0 -0.5"),
            joint("top", "continuous", "mount", "near"),
            link("far", 1, moments, "0 0 -0.8"),
            joint("mid", "continuous", "near", "far", more='<origin xyz="0 0 -0.5"/>'),
        )
    )
    (a, b), (u, w), g = (0.5, -1.0), (1.0, 2.0), 9.81
    c, s = 0.5 * 0.8 * np.cos(b), 0.5 * 0.8 * np.sin(b)
    M = np.array([[3 * 0.25 + 0.64 + 2 * c, 0.64 + c], [0.64 + c, 0.64]])
    gravity = -g * np.array([3 * 0.5 * np.sin(a) + 0.8 * np.sin(a + b), 0.8 * np.sin(a + b)])
    Q = gravity + np.array([s * (2 * u * w + w**2), -s * u**2])
    assert_close(accelerations(robot, [a, b], [u, w]), jnp.asarray(np.linalg.solve(M, Q)), atol=1e-12)


STAGE = urdf(
    link("beam"),
    link("trolley"),
    link("load", 2, (0.03, 0.03, 0.002), "0 0 -0.6"),
    joint("along", "prismatic", "beam", "trolley", "1 0 0"),
    joint("sway", "continuous", "trolley", "load"),
)


def test_a_link_without_mass_between_two_joints():
    """A load on a massless trolley: M = [[m, -m l cos q], [., I + m l^2]]."""
    robot = rigid.from_urdf(STAGE)
    m, length, q, w = 2.0, 0.6, 0.3, 1.0
    M = np.array([[m, -m * length * np.cos(q)], [-m * length * np.cos(q), 0.03 + m * length**2]])
    assert_close(robot.mass(jnp.array([0.0, q]), TIME), jnp.asarray(M), atol=1e-13)
    Q = np.array([-m * length * np.sin(q) * w**2, -m * 9.81 * length * np.sin(q)])
    assert_close(accelerations(robot, [0.0, q], [0.2, w]), jnp.asarray(np.linalg.solve(M, Q)), atol=1e-11)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "joints", "state"),
    [
        (STAGE, ("along", "sway"), ({"sway": 0.3}, {"along": 0.2, "sway": 1.0})),
        (
            # A slender rod, and a point on it.
            urdf(
                link("a"),
                link("rod", 2, (0.1, 0.1, 0), "0 0 -0.5"),
                link("point", 1, (), "0 0.3 -0.8"),
                joint("turn", "continuous", "a", "rod"),
                joint("tilt", "continuous", "rod", "point", "1 0 0", '<origin xyz="0 0 -1"/>'),
            ),
            ("turn", "tilt"),
            ({"turn": 0.4, "tilt": -0.7}, {"turn": 1.0, "tilt": -2.0}),
        ),
    ],
    ids=["massless", "rod and point"],
)
def test_links_without_mass_or_moments_in_absolute_coordinates(text, joints, state):
    """M is singular there, and the joints make up for it: accelerations and derivatives as in joint coordinates."""

    def found(robot, q, v):
        a = ukjax.equation_of_motion(robot.mechanism(), q, v, TIME, throw=False).acceleration
        rows = [joint_rows(robot, name, q, v, TIME) for name in joints]
        return jnp.stack([J @ a - b for J, b in rows])

    own = rigid.from_urdf(text)
    want = [f(found)(own, *own.assemble(*state)) for f in (jax.jit, jax.jacfwd)]
    robot = rigid.from_urdf(text, coordinates="absolute")
    q, v = robot.assemble(*state)
    assert_close(jax.jit(jax.vmap(found, (None, 0, None)))(robot, q[None], v)[0], want[0], atol=1e-10)
    heavy = next(name for name, body in own.bodies.items() if body.inertia is not None)
    for mode in (jax.jacfwd, jax.jacrev):
        slope = jax.jit(mode(found))(robot, q, v).bodies[heavy].inertia
        for name in ("mass", "center"):
            assert_close(getattr(slope, name), getattr(want[1].bodies[heavy].inertia, name), atol=1e-9)


def test_what_follows_another_joint_and_what_follows_that():
    """One degree of freedom: 1 / (0.2 + 3^2 0.1 + 0.6^2 0.5)."""
    robot = rigid.from_urdf(
        urdf(
            link("palm"),
            link("thumb", 1, (0.2, 0.2, 0.2)),
            link("finger", 1, (0.1, 0.1, 0.1)),
            link("pad", 0.5),
            link("nail"),
            joint("drive", "continuous", "palm", "thumb", "0 0 1"),
            joint("show", "prismatic", "palm", "nail", "0 1 0", '<mimic joint="drive"/>'),
            joint("press", "prismatic", "palm", "pad", "0 1 0", '<mimic joint="curl" multiplier="0.2"/>'),
            joint(
                "curl", "continuous", "palm", "finger", "0 0 3", '<mimic joint="drive" multiplier="-3" offset="0.2"/>'
            ),
        ),
        gravity=(0.0, 0.0, 0.0),
    )
    names = robot.layout.tree
    q, v = robot.assemble({"drive": 0.4}, keep=["drive"])
    at = dict(zip(names[1:], np.asarray(q), strict=True))
    assert at == pytest.approx({"drive": 0.4, "press": -0.2, "curl": -1.0, "show": 0.4})
    a = dict(zip(names[1:], np.asarray(accelerations(robot, q, v, jnp.array([1.0, 0.0, 0.0, 0.0]))), strict=True))
    assert a == pytest.approx({"drive": 0.78125, "press": -0.46875, "curl": -2.34375, "show": 0.78125})


def test_what_follows_nothing_ends_in_an_error_and_what_follows_a_fixed_joint_stands():
    hand = lambda mimic, kind="continuous": urdf(
        link("palm"),
        link("a", 1, (1, 1, 1)),
        link("b", 1, (1, 1, 1)),
        joint("lead", kind, "palm", "a"),
        joint("follow", "continuous", "palm", "b", more=f'<mimic joint="{mimic}" multiplier="2" offset="0.3"/>'),
    )
    with pytest.raises(ValueError, match="<mimic> of joint 'follow' names the joint 'led', which does not exist"):
        rigid.from_urdf(hand("led"))
    with pytest.raises(ValueError, match="names the joint itself"):
        rigid.from_urdf(hand("follow"))
    with pytest.raises(ValueError, match="about joint 'lead', which is floating"):
        rigid.from_urdf(hand("lead", "floating"))
    robot = rigid.from_urdf(hand("lead", "fixed"))
    assert_close(robot.assemble().q, jnp.array([0.3]), atol=1e-12)


def test_a_link_that_floats_below_another_starts_where_it_is_drawn():
    text = urdf(
        link("cart", 1, (1, 1, 1)),
        joint("roll", "prismatic", "world", "cart", "1 0 0"),
        link("bird", 2, (0.1, 0.2, 0.25), "0.1 0 0"),
        joint("fly", "floating", "cart", "bird", more='<origin xyz="1 2 3" rpy="0 0 1.5707963267948966"/>'),
    )
    robot = rigid.from_urdf(text)
    q, v = robot.assemble({"roll": 0.5})
    place = robot.pose(q, "bird")
    assert_close(place.p, jnp.array([1.5, 2.0, 3.0]), atol=1e-12)
    assert_close(place.R @ jnp.array([1.0, 0.0, 0.0]), jnp.array([0.0, 1.0, 0.0]), atol=1e-12)
    # It falls freely, whatever the cart does.
    want = jnp.array([0.0, 0.0, 0.0, -9.81, 0.0, 0.0, 0.0])
    assert_close(accelerations(robot, q, v), want, atol=1e-12)


def test_a_planar_joint_lies_across_its_axis():
    text = urdf(link("a"), link("b", 2, (1, 1, 1.5)), joint("j", "planar", "a", "b", "1 0 0"))
    robot = rigid.from_urdf(text)
    assert robot.layout.tree == ("a~", "j_TX", "j_TY", "j_RZ")
    q, v = jnp.array([0.3, -0.2, 0.7]), jnp.zeros(3)
    assert_close(robot.position(q, "b")[0], jnp.zeros(()), atol=1e-15)
    M = robot.mass(q, TIME)
    assert_close(M, jnp.diag(jnp.array([2.0, 2.0, 1.0])), atol=1e-14)
    drop = jax.jvp(lambda q: robot.position(q, "b"), (q,), (accelerations(robot, q, v),))[1]
    assert_close(drop, jnp.array([0.0, 0.0, -9.81]), atol=1e-12)


SWING = lambda *inertial: urdf(link("a"), link("b", *inertial), joint("j", "continuous", "a", "b"))


@pytest.mark.parametrize(
    ("inertial", "moment"),
    [
        ((1, (0, 0.2, 0)), 0.2),  # of a planar mechanism, about its axis only
        ((1, (0.002, 0.005, 0.002)), 0.005),  # rounded
        ((0, (0.1, 0.1, 0.1)), 0.1),
        ((1, (0.3, 0.3, 0), "0 0 1"), 1.3),  # a rod
    ],
)
def test_moments_that_are_rounded_or_left_out_are_moved_and_odd_ones_named(inertial, moment):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        robot = rigid.from_urdf(SWING(*inertial))
    said = " ".join(str(w.message) for w in seen)
    if moment == 1.3:
        assert not said
    else:
        shown = ", ".join(f"{x:g}" for x in sorted(inertial[1]))
        assert (
            f"Moved as it is: link 'b', of mass {inertial[0]} kg, has the principal moments of inertia {shown}" in said
        )
    assert_close(robot.mass(jnp.zeros(1), TIME), jnp.array([[moment]]), atol=1e-15)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (SWING(1, (1, 1, 9)), "link 'b', of mass 1 kg, has the principal moments of inertia 1, 1, 9 kg m"),
        (SWING(1, (-1, 1, 1)), "the principal moments of inertia -1, 1, 1 kg m.*must not be negative"),
        (SWING(-1, (1, 1, 1)), "link 'b' has a mass of -1 kg"),
        (SWING(), "joint 'j' can move without any mass: its child, the link 'b', has no <inertial>"),
        (SWING(1, (1, 0, 1)), "joint 'j' can move without any mass: its child, the link 'b', has the mass 1 kg"),
        (SWING().replace("/></joint>", '/><origin xyz="0 0"/></joint>'), "xyz of <origin> of joint 'j' must be three"),
        (SWING(1, (1,)), "link 'b' has an <inertia> without iyy, izz"),
        (SWING(1).replace('<mass value="1"/>', ""), "link 'b' has an <inertial> without <mass"),
        (SWING(1).replace("0 1 0", "0 0 0"), "<axis> of joint 'j' has length zero"),
        (SWING(1).replace("continuous", "ball"), "joint 'j' has the type 'ball', which is none of"),
        (SWING(1).replace("<joint", "<xacro:if/><joint"), "has <xacro:if>. Expand it first"),
        (SWING(1) .replace("</robot>", joint("k", "fixed", "a", "b") + "</robot>"), "child of two joints, 'j' and 'k'"),
        (urdf(link("world")), "no <link> that could move"),
    ],
)  # fmt: skip
def test_what_cannot_be_moved_is_named_with_its_numbers(text, match):
    with pytest.raises(ValueError, match=match):
        rigid.from_urdf(text)


def test_all_that_a_file_says_and_is_not_simulated_is_named():
    more = (
        '<limit lower="-1" upper="1" effort="3" velocity="4"/><dynamics damping="0.1" friction="0.2" stiffness="3"/>'
        '<safety_controller k_velocity="1"/>'
    )
    touched = "<collision><geometry><sphere radius='1'/></geometry></collision></link>"
    text = urdf(
        link("a", 1).replace("</link>", touched),
        link("b", 1, (1, 1, 1)).replace("</link>", touched),
        joint("j", "revolute", "a", "b", more=more),
        "<transmission/>",
    )
    with pytest.warns(UserWarning, match="not simulated") as seen:
        robot = rigid.from_urdf(text)
    assert len(seen) == 1
    assert str(seen[0].message) == (
        "not simulated: contacts between links (a, b); limits of joints (j); dry friction of joints (j); limits of "
        "what actuators do to joints (j); limits of the speeds of joints (j); safety controllers of joints (j); what "
        "is for other programs (transmission, dynamics.stiffness)."
    )
    assert_close(robot.force(jnp.zeros(1), jnp.ones(1), TIME), jnp.array([-0.1]), atol=1e-15)


def branching(seed, n=12):
    """A random tree of all kinds of joints; some links without mass, some points, some rods."""
    rng = np.random.default_rng(seed)
    numbers = lambda size, k=3: " ".join(f"{x:.3f}" for x in size * rng.normal(size=k))
    parts = [link("l0")]
    for i in range(1, n):
        heavy = (1.5, (0.03, 0.04, 0.05), numbers(0.2))
        kinds = {1: (), 4: (0.7, (0, 0, 0), "0 0.3 0.1"), 6: (0.5, (0.02, 0.02, 0), "0.1 0.2 0"), 7: ()}
        parts.append(link(f"l{i}", *kinds.get(i, heavy)))
        kind = ("revolute", "continuous", "prismatic")[i % 3]
        place = (
            f'<origin xyz="{numbers(0.3)}" rpy="{numbers(1.0)}"/><limit lower="-9" upper="9" effort="9" velocity="9"/>'
        )
        above = i - 1 if i in (2, 8) else rng.integers(0, i)
        parts.append(joint(f"j{i}", kind, f"l{above}", f"l{i}", numbers(1.0), place))
    return urdf(*parts)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)])
def test_random_trees_against_pinocchio(seed):
    """M and inverse dynamics; a hinge without ends has cosine and sine there."""
    text = branching(seed)
    with pytest.warns(UserWarning, match="limits of joints"):
        robot = rigid.from_urdf(text)
    model = pinocchio.buildModelFromXML(text)
    data = model.createData()
    rng = np.random.default_rng(seed)
    q, v = rng.normal(size=(2, robot.layout.n))
    theirs, order = pinocchio.neutral(model), []
    for k, name in enumerate(name for name in robot.layout.tree if "~" not in name):
        i = model.getJointId(name)
        at = model.joints[i].idx_q
        theirs[at : at + model.joints[i].nq] = (np.cos(q[k]), np.sin(q[k])) if model.joints[i].nq == 2 else q[k]
        order.append(model.joints[i].idx_v)
    back = np.argsort(order)
    M = pinocchio.crba(model, data, theirs)
    M = (np.triu(M) + np.triu(M, 1).T)[np.ix_(order, order)]
    force = -pinocchio.nonLinearEffects(model, data, theirs, v[back])[order]
    got = jax.jit(lambda q, v: (robot.mass(q, TIME), robot.force(q, v, TIME)))(jnp.asarray(q), jnp.asarray(v))
    assert_close(got[0], jnp.asarray(M), atol=1e-13)
    assert_close(got[1], jnp.asarray(force), atol=1e-12)
