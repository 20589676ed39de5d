"""What a file says about actuators, flags, groups and where it starts, beside MuJoCo and by hand."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import ukjax
from ukjax import rigid

from ..helpers import assert_close, central_difference, long, sampled
from ..inside import joint_rows
from .in_mujoco import Theirs, assert_same


TIME = jnp.zeros(())
IS_OLD = not hasattr(mujoco.MjModel, "actuator_armature")
needs_rotors = pytest.mark.skipif(IS_OLD, reason="this MuJoCo has no such attributes")
ARM = """<mujoco><compiler angle="radian"/>{options}<worldbody>
  <body name="arm"><joint name="turn" axis="0 1 0" {joint}/>
    <inertial pos="0.3 0 0.1" mass="1.2" diaginertia="0.03 0.04 0.05"/>
    <body name="cart" pos="0.5 0 0"><joint name="slide" type="slide" axis="1 0 0" damping="0.3"/>
      <inertial pos="0 0.1 0" mass="0.7" diaginertia="0.01 0.02 0.015"/>{inside}</body></body>
  {more}</worldbody>{rest}<actuator>{actuators}</actuator></mujoco>"""
WRIST = (
    '<body name="hand"><joint name="wrist" type="ball" damping="0.1"/>'
    '<inertial pos="0.05 0 0" mass="0.3" diaginertia="0.001 0.002 0.002"/></body>'
)


def text(**parts):
    return ARM.format(
        **{name: parts.get(name, "") for name in ("options", "joint", "inside", "more", "rest", "actuators")}
    )


def said(source, **options):
    """The robot, and its one warning, or none."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        robot = rigid.from_mjcf(source, **options)
    assert len(seen) <= 1
    return robot, str(seen[0].message) if seen else ""


def accelerations(robot, joints, rates):
    """Of joints with one coordinate, whatever the robot's coordinates are, at home with these rates."""
    q, v = robot.assemble({}, rates)
    motion = ukjax.equation_of_motion(robot.mechanism(), q, v)
    rows = [joint_rows(robot, name, q, v, TIME) for name in joints]
    return np.array([J @ motion.acceleration - b for J, b in rows])


@needs_rotors
def test_rotors_and_dampers_of_actuators_are_those_of_their_joints():
    """Several on a joint, on a slide, on a ball, a servo's, and one that the file disables: its rotor still turns."""
    actuators = """<motor name="one" joint="turn" gear="-4" armature="0.03" damping="0.25"/>
      <motor name="two" jointinparent="turn" gear="2" armature="0.05" damping="0.5" group="3"/>
      <position name="servo" joint="slide" gear="3" kp="10" armature="0.2" damping="0.1"/>
      <motor name="twist" joint="wrist" gear="5 1 2" armature="0.003" damping="0.02"/>"""
    source = text(inside=WRIST, options='<option actuatorgroupdisable="3"/>', actuators=actuators)
    robot, warned = said(source)
    assert_same(robot, Theirs(mujoco.MjModel.from_xml_string(source)))
    assert list(robot.motors) == ["one", "servo"]
    assert warned == (
        "not simulated: laws of actuators, of which only the gear is taken (servo); "
        "actuators that act on no single joint (twist)."
    )


@needs_rotors
@pytest.mark.parametrize("coordinates", ["joint", long("absolute", id="absolute")])
def test_a_rotor_by_hand_with_derivatives(coordinates):
    """(I + m c^2 + a + n^2 r) c'' = -m g c - (d + n^2 e) c', about a horizontal axis."""
    inertia, mass, center, ratio, rotor, damper, rate = 0.04, 1.2, 0.3, 3.0, 0.02, 0.15, 0.8
    source = f"""<mujoco><worldbody><body name="b"><joint name="j" axis="0 1 0" armature="0.05" damping="0.1"/>
      <inertial pos="{center} 0 0" mass="{mass}" diaginertia="{inertia} {inertia} {inertia}"/></body></worldbody>
      <actuator><motor name="m" joint="j" gear="{ratio}" armature="{rotor}" damping="{damper}"/></actuator></mujoco>"""
    M = inertia + mass * center**2 + 0.05 + ratio**2 * rotor
    # A turn about y takes x down.
    want = (mass * 9.81 * center - (0.1 + ratio**2 * damper) * rate) / M
    robot = rigid.from_mjcf(source, coordinates=coordinates)
    assert_close(accelerations(robot, ["j"], {"j": rate}), np.array([want]), rtol=1e-12)
    if coordinates == "absolute":
        return

    def first(robot, rate):
        return ukjax.equation_of_motion(robot.mechanism(), jnp.zeros(1), rate).acceleration[0]

    slope = jax.grad(first)(robot, jnp.array([rate])).joints["j"].effort
    assert slope is not None
    assert_close(slope.damping, jnp.asarray(-rate / M), rtol=1e-12)
    assert_close(slope.armature, jnp.asarray(-want / M), rtol=1e-12)
    rates = jnp.linspace(-1.0, 1.0, 3)[:, None]
    assert_close(jax.vmap(first, (None, 0))(robot, rates)[0], first(robot, rates[0]), rtol=1e-13)
    assert_close(jax.jacfwd(first, 1)(robot, rates[0])[0], jnp.asarray(-(0.1 + ratio**2 * damper) / M), rtol=1e-12)


ROTOR = 'damping="0.1"'
FLAGS = {
    "equality": '<option><flag equality="disable"/></option>',
    "constraint": '<option><flag constraint="disable"/></option>',
    "gravity": '<option><flag gravity="disable"/></option>',
    "actuation": '<option><flag actuation="disable"/></option>',
    "none": "",
    # Before 3.3.6 one flag was for springs and dampers.
    **{
        name: f'<option><flag {name}="disable"/></option>' for name in (["passive"] if IS_OLD else ["spring", "damper"])
    },
}


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_of_a_file_are_followed(flag):
    source = text(
        options=FLAGS[flag],
        joint='stiffness="3" springref="0.2" damping="0.4" ref="0.3"',
        rest='<equality><joint name="tie" joint1="slide" joint2="turn" polycoef="0 0.5 0 0 0"/></equality>',
        actuators=f'<motor name="m" joint="turn" gear="4" {"" if IS_OLD else ROTOR}/>',
    )
    robot, warned = said(source)
    assert warned == ""
    assert bool(robot.gears) == (flag not in ("equality", "constraint"))
    assert bool(robot.motors) == (flag != "actuation")
    model = mujoco.MjModel.from_xml_string(source)
    want = Theirs(model).acceleration(np.array(model.qpos0), np.array([1.0, 0.5]))
    q, v = robot.assemble({}, {"turn": 1.0, "slide": 0.5})
    found = ukjax.equation_of_motion(robot.mechanism(), q, v).acceleration
    assert_close(np.asarray(found), want, rtol=1e-9)


def test_what_a_file_switches_off_is_not_named():
    loud = text(
        joint='range="-1 1" limited="true" frictionloss="0.1" actuatorfrcrange="-2 2"',
        inside='<geom name="ball" size="0.1"/>',
        more='<geom name="floor" type="plane" size="1 1 1"/>',
        actuators='<motor name="m" joint="turn" ctrlrange="-1 1"/><position name="s" joint="slide" kp="3" group="2"/>',
        options="{}",
    )
    _, warned = said(loud.format(""))
    for part in (
        "contacts between geoms (floor, ball)", "limits of joints (turn)", "dry friction of joints (turn)",
        "limits of what actuators do to joints (turn)", "limits of actuators (m)", "(s)",
    ):  # fmt: skip
        assert part in warned
    off = [f'{name}="disable"' for name in ("contact", "limit", "frictionloss", "actuation")]
    assert said(loud.format(f"<option><flag {' '.join(off)}/></option>"))[1] == ""
    _, warned = said(
        loud.format('<option actuatorgroupdisable="2"><flag constraint="disable" clampctrl="disable"/></option>')
    )
    assert warned == "not simulated: limits of what actuators do to joints (turn)."


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ('<geom name="floor" type="plane" size="1 1 1" contype="2" conaffinity="4"/>', ""),
        ('<geom name="floor" type="plane" size="1 1 1" contype="2" conaffinity="1"/>', "floor, ball"),
        ('<geom name="floor" size="1"/><geom name="wall" size="1"/>', "floor, wall, ball"),
    ],
    ids=["other bits", "affinity", "all"],
)
def test_contacts_are_named_of_geoms_that_may_touch(more, named):
    """Within the arm, its cart is the next body, and neither touches the other; nor do floor and wall, which stay."""
    of_arm = '<geom name="ball" size="0.1"/>'
    _, warned = said(text(inside=of_arm, more=more))
    assert warned == (f"not simulated: contacts between geoms ({named})." if named else "")
    excluded = '<contact><exclude body1="world" body2="cart"/></contact>'
    assert said(text(inside=of_arm, more=more, rest=excluded))[1] == ""
    pair = f'<contact><pair geom1="floor" geom2="ball"/>{excluded[9:]}'
    assert said(text(inside=of_arm, more=more, rest=pair))[1] == "not simulated: contacts between geoms (floor, ball)."


@needs_rotors
def test_actuators_without_control_and_with_several():
    """Controls of those before them are not theirs; nor are gears of outputs."""
    actuators = """<pid name="keeper" joint="slide" kp="10" kv="1" input="pos vel ff" gear="7"/>
      <orientation name="point" joint="wrist" kp="2"/>
      <dcmotor name="coil" joint="slide" motorconst="0.1" resistance="2" input="none" gear="9"/>
      <motor name="pull" joint="turn" gear="5" ctrlrange="-1 1"/>
      <general name="push" joint="slide" gear="2" gainprm="3"/>"""
    robot, warned = said(text(inside=WRIST, actuators=actuators))
    assert warned == (
        "not simulated: laws of actuators, of which only the gear is taken (keeper); "
        "actuators without control (coil); actuators that act on no single joint (point); limits of actuators (pull)."
    )
    assert list(robot.motors) == ["keeper", "pull", "push"]
    assert_close(robot.actuation("pull", "push"), jnp.zeros((5, 2)).at[0, 0].set(5.0).at[1, 1].set(6.0), atol=0.0)


@needs_rotors
def test_what_mujoco_warns_of_is_said_and_leaves_no_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, warned = said(text(options='<compiler settotalmass="5"/>'))
    assert warned.startswith("MuJoCo warns: compiler attribute 'settotalmass' is deprecated")
    assert list(tmp_path.iterdir()) == []


def test_a_weld_without_torque_holds_a_point_only():
    weld = '<equality><weld name="glue" body1="arm" body2="free" torquescale="{}" anchor="0.1 0 0"/></equality>'
    free = '<body name="free" pos="0.7 0.1 0"><freejoint/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body>'
    for scale, kind in (("0", rigid.Spherical), ("-2", rigid.Fixed)):
        robot, _ = said(text(more=free, rest=weld.format(scale)))
        assert type(robot.joints["glue"]) is kind


DRAWN = {
    "a hinge and a slide": (text(joint='ref="0.3"'), [0.3, 0.0]),
    "a free body": (
        text(more='<body name="kite" pos="1 2 3" euler="0 0 1"><freejoint/><geom size="0.1" contype="0"/></body>'),
        [0.0, 0.0, 1.0, 2.0, 3.0, np.cos(0.5), 0.0, 0.0, np.sin(0.5)],
    ),
    "a loop": (
        text(
            joint='ref="-0.4"',
            more='<body name="kite" pos="0.6 0.2 0" euler="0.2 0.4 1"><freejoint/><geom size="0.1"/></body>',
            rest='<equality><connect body1="cart" body2="kite" anchor="0.05 0 0"/></equality>',
        ),
        None,
    ),
}


@pytest.mark.parametrize("name", sampled([*DRAWN], []))
def test_a_robot_starts_as_its_file_draws_it(name):
    source, want = DRAWN[name]
    model = mujoco.MjModel.from_xml_string(source)
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    robot, _ = said(source)
    q, v = robot.assemble()
    assert_close(q, jnp.array(model.qpos0), atol=1e-15)
    assert_close(v, jnp.zeros(model.nv), atol=0.0)
    if want is not None:
        assert_close(q, jnp.array(want), atol=1e-15)
    absolute, _ = said(source, coordinates="absolute")
    q, _ = absolute.assemble()
    for body in robot.layout.bodies:
        assert_close(np.asarray(absolute.position(q, body)), data.body(body).xpos, atol=1e-14)
    # What is said to be elsewhere is, and the rest stays.
    q, _ = said(source, home={})[0].assemble({"turn": 0.1}) if name != "a loop" else robot.assemble(keep=["turn"])
    assert_close(q[0], jnp.asarray(0.1 if name != "a loop" else -0.4), atol=1e-15)


def test_a_keyframe_is_a_start():
    key = """<keyframe><key name="up" qpos="0.5 -0.2 1 2 3 0 0 2 0" qvel="0.1 0.2 1 2 3 4 5 6"/><key/></keyframe>"""
    kite = '<body name="kite"><freejoint name="wind"/><geom size="0.1" contype="0"/></body>'
    source = text(more=kite, rest=key)
    model = mujoco.MjModel.from_xml_string(source)
    robot, warned = said(source, keyframe="up")
    assert warned == ""
    q, v = robot.assemble()
    assert_close(q, jnp.array([0.5, -0.2, 1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0]), atol=1e-15)
    # Half a turn about y: the velocity seen from the kite.
    assert_close(v, jnp.array([0.1, 0.2, -1.0, 2.0, -3.0, 4.0, 5.0, 6.0]), atol=1e-15)
    assert model.nkey == 2
    assert said(source, keyframe="1")[0].home == {}
    with pytest.raises(ValueError, match="keyframe must name one of the file's, which has 'up', '1', but is 'down'"):
        said(source, keyframe="down")


def test_home_is_a_parameter_in_either_mode():
    tip = {"tip": rigid.Frame((1.0, 0.0, 0.0))}
    robot = rigid.Robot(
        {"a": rigid.Body(rigid.Inertia(1.0)), "b": rigid.Body(rigid.Inertia(1.0), tip)},
        {"A": rigid.Prismatic("ground", "a"), "B": rigid.Revolute("a", "b")},
        home={"A": 0.5, "B": 0.2},
        home_rates={"B": 2.0},
    )  # fmt: skip
    q, v = robot.assemble({"B": 0.3})
    assert_close(q, jnp.array([0.5, 0.3]), atol=0.0)
    assert_close(v, jnp.array([0.0, 2.0]), atol=0.0)

    def tip_of(home):
        q, _ = eqx.tree_at(lambda r: r.home, robot, home).assemble()
        return robot.position(q, "b.tip")[:2]

    want = central_difference(tip_of, robot.home)
    for mode in (jax.jacfwd, jax.jacrev):
        slope = mode(tip_of)(robot.home)
        assert_close(np.concatenate([slope["A"], slope["B"]], axis=1), np.asarray(want), atol=1e-9)
    for home in ({"C": 0.0}, {"A": [0.0, 1.0]}):
        with pytest.raises(ValueError, match="home"):
            rigid.Robot(robot.bodies, robot.joints, home=home)


def test_tendons_that_add_up_joints_are_exact_rows():
    """A finger whose tendon is pulled by another: rows by hand, the motion beside MuJoCo."""
    text = """<mujoco><compiler angle="radian"/><worldbody>
        <body name="a"><joint name="A" axis="0 1 0" ref="0.2"/>{0}
        <body name="b" pos="0.3 0 0"><joint name="B" axis="0 1 0"/>{0}
        <body name="c" pos="0.3 0 0"><joint name="C" axis="0 1 0"/>{0}</body></body></body></worldbody>
      <tendon><fixed name="all"><joint joint="A" coef="1"/><joint joint="B" coef="0.75"/>
        <joint joint="C" coef="-2"/></fixed><fixed name="first"><joint joint="A" coef="3"/></fixed></tendon>
      <equality><tendon name="pull" tendon1="all" tendon2="first" polycoef="0.1 0.3 0 0 0"/>{1}</equality></mujoco>"""
    inertia = '<inertial pos="0.15 0 0" mass="1" diaginertia="0.01 0.02 0.03"/>'
    robot = rigid.from_mjcf(text.format(inertia, ""))
    q, v = jnp.array([0.3, -0.2, 0.1]), jnp.array([0.4, 0.1, -0.2])
    # a + 0.75 b - 2 c - 0.2 = 0.1 + 0.3 (3 a - 0.6)
    terms = robot.mechanism().terms(q, v, TIME)
    assert_close(terms.A, jnp.array([[1.0 - 0.9, 0.75, -2.0]]), atol=1e-14)
    assert_close(terms.b, jnp.zeros(1), atol=1e-14)
    assert_same(robot, Theirs(mujoco.MjModel.from_xml_string(text.format(inertia, ""))), seeds=range(2))
    error = robot.mechanism().position_error(q, TIME)
    assert_close(error, jnp.array([0.3 - 0.15 - 0.2 - 0.2 - 0.1 - 0.3 * (0.9 - 0.6)]), atol=1e-14)
    held = rigid.from_mjcf(text.format(inertia, '<tendon name="hold" tendon1="first" polycoef="0.6 0 0 0 0"/>'))
    state = held.assemble({"A": 0.3})
    assert_close(3 * state.q[0] - 0.6, jnp.asarray(0.6), atol=1e-12)
    slope = jax.grad(lambda robot: ukjax.equation_of_motion(robot.mechanism(), q, v).acceleration[2])(robot)
    changed = lambda x: eqx.tree_at(lambda r: r.gears["pull"].factors[0], robot, jnp.array([1.0, x, -2.0]))
    found = [ukjax.equation_of_motion(changed(0.75 + d).mechanism(), q, v).acceleration[2] for d in (-1e-5, 1e-5)]
    assert_close(slope.gears["pull"].factors[0][1], (found[1] - found[0]) / 2e-5, atol=1e-6)


def test_sides_of_a_gear_are_checked():
    with pytest.raises(TypeError, match="first must be the name of a joint, or a mapping"):
        rigid.Gear(3, None, 0.0)
    with pytest.raises(ValueError, match="second must name a joint at least"):
        rigid.Gear("a", {}, 0.0)
    with pytest.raises(ValueError, match=r"first\['a'\] must be a scalar"):
        rigid.Gear({"a": [1.0, 2.0]}, None, 0.0)
    arm = rigid.Body(rigid.Inertia(1.0, 0.1))
    with pytest.raises(ValueError, match="names 'none'"):
        rigid.Robot({"a": arm}, {"A": rigid.Revolute("ground", "a")}, gears={"g": rigid.Gear({"none": 1.0}, None, 0.0)})
