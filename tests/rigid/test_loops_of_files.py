"""Loops, motors and kinds of joints that stand beside a URDF, in the form of a suite of robots with closed chains."""

import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax import rigid

from ..helpers import assert_close, long
from ..inside import reading_of
from .test_urdf import joint, link, urdf


ROD = (0.02, 0.02, 0.002)


def leg(kind="continuous", frames="0 0 0"):
    """Two cranks 0.4 m apart on the ground, and a rod from the end of the first to the end of the second."""
    return urdf(
        link("hip"),
        link("left", 2, ROD, "0 0 -0.25"),
        link("right", 1, ROD, "0 0 -0.25"),
        link("rod", 0.5, ROD, "0.2 0 0"),
        link("loop1_A"),
        link("loop1_B"),
        joint("motor_left", "continuous", "hip", "left", more='<dynamics damping="0.1"/>'),
        joint("motor_right", "continuous", "hip", "right", more='<origin xyz="0.4 0 0"/>'),
        joint("free_rod", kind, "left", "rod", more='<origin xyz="0 0 -0.5"/>'),
        joint("A_frame", "fixed", "rod", "loop1_A", more=f'<origin xyz="0.4 0 0" rpy="{frames}"/>'),
        joint("B_frame", "fixed", "right", "loop1_B", more=f'<origin xyz="0 0 -0.5" rpy="{frames}"/>'),
    )


YAML = """
closed_loop: [['loop1_A', 'loop1_B']]
type: ['{kind}']
name_mot: ['motor_left', 'motor_right']
joint_name: ['free_rod']
joint_type: ['{joint}']
"""


def acceleration(robot):
    """The acceleration with the left crank 0.3 rad out, at 1 rad/s, both moved by their motors."""
    q, v = robot.assemble({"motor_left": 0.3, "motor_right": 0.3}, {"motor_left": 1.0}, keep=["motor_left"])
    push = robot.actuation() @ jnp.array([2.0, -1.0])
    return ukjax.equation_of_motion(robot.mechanism(), q, v, applied=push)


def exact():
    """The acceleration of the parallelogram: cranks turn by the same angle, the rod translates."""
    J = 0.02 * 2 + 3 * 0.25**2 + 0.5 * 0.5**2
    weight = 9.81 * (3 * 0.25 + 0.5 * 0.5) * np.sin(0.3)
    return (2.0 - 1.0 - 0.1 - weight) / J


@pytest.mark.parametrize(
    ("kind", "joint_kind", "rows", "speeds"), [long("3d", "SPHERICAL", 3, 5), long("5D", "UJOINT_YZ", 5, 4)]
)
def test_a_yaml_beside_the_file_closes_its_loops(tmp_path, kind, joint_kind, rows, speeds):
    """The parallelogram by a ball and a socket, or by hinges about y, which the frames of the loop see as z."""
    (tmp_path / "leg.urdf").write_text(leg(frames="1.5707963267948966 0 0"))
    (tmp_path / "leg.yaml").write_text(YAML.format(kind=kind, joint=joint_kind))
    robot = rigid.from_urdf(tmp_path / "leg.urdf")
    assert robot.layout.loops == ("loop1",)
    assert robot.layout.n == speeds
    assert [motor.joint for motor in robot.motors.values()] == ["motor_left", "motor_right"]
    motion = acceleration(robot)
    assert motion.constraint_force.shape == (speeds,)
    assert ukjax.diagnose(robot.mechanism(), *robot.assemble()).rows == rows
    assert_close(motion.acceleration[0], jnp.asarray(exact()), atol=1e-9)
    assert rigid.from_urdf(tmp_path / "leg.urdf", loops={}).layout.loops == ()


def test_loops_as_a_mapping_a_path_or_joints_are_the_same(tmp_path):
    contents = {"closed_loop": [["loop1_B", "A_frame"]], "name_mot": "motor"}
    (tmp_path / "other.yml").write_text(f"closed_loop: {contents['closed_loop']}\nname_mot: motor\n")
    joints = {"loop": rigid.Fixed("loop1_B", "loop1_A")}
    ways = (contents, tmp_path / "other.yml", str(tmp_path / "other.yml"), joints)
    robots = [rigid.from_urdf(leg("fixed"), loops=loops) for loops in ways]
    for robot in robots:
        loop = robot.joints[robot.layout.loops[0]]
        assert isinstance(loop, rigid.Fixed)
        assert (loop.parent, loop.child) == ("loop1_B", "loop1_A")
    assert [list(robot.motors) for robot in robots] == [["motor_left", "motor_right"]] * 3 + [[]]


def test_the_older_form_names_parts_of_names():
    old = {"name_mot": "motor", "name_closedloop": "loop", "closed_loop_number": 1, "type": "3D"}
    robot = rigid.from_urdf(leg(), loops=old)
    assert isinstance(robot.joints["loop1"], rigid.Spherical)
    assert list(robot.motors) == ["motor_left", "motor_right"]
    with pytest.raises(ValueError, match="asks for 2 loops of two links or joints each with 'loop'.*has 1"):
        rigid.from_urdf(leg(), loops=old | {"closed_loop_number": 2})
    by_joints = leg().replace("loop1_A", "end").replace("loop1_B", "tip").replace("A_frame", "loop1_A")
    robot = rigid.from_urdf(by_joints.replace("B_frame", "loop1_B"), loops=old)
    assert (robot.joints["loop1"].parent, robot.joints["loop1"].child) == ("end", "tip")
    oldest = {"name_mot": "motor", "rotule_name": "rod", "Lidmot": [0, 1], "Lidvmot": [0, 1], "closed_loop": PAIR}
    robot = rigid.from_urdf(leg(), loops=oldest)
    assert [name for name in robot.joint_names if isinstance(robot.joints[name], rigid.Spherical)] == ["free_rod"]
    assert list(robot.motors) == ["motor_left", "motor_right"]
    with pytest.warns(UserWarning, match="Left out: rotule_name 'ball' of the loops, which no joint has in its name"):
        rigid.from_urdf(leg(), loops=oldest | {"rotule_name": "ball"})


def test_kinds_of_joints_are_replaced_and_missing_ones_named():
    loops = {"joint_name": ["free_rod"], "joint_type": ["FIXED"], "name_mot": ["motor_left", "none"]}
    with pytest.warns(UserWarning, match="Left out: name_mot 'none' of the loops, which is no joint of one coordinate"):
        robot = rigid.from_urdf(leg(), loops=loops)
    assert robot.layout.n == 2
    assert list(robot.motors) == ["motor_left"]
    with pytest.warns(UserWarning, match="Left out: joint_name 'none'"):
        rigid.from_urdf(leg(), loops={"joint_name": ["none"], "joint_type": ["FIXED"]})
    turned = rigid.from_urdf(leg(), loops={"joint_name": ["free_rod"], "joint_type": ["ujoint_yx"]})
    assert isinstance(turned.joints["free_rod"], rigid.Universal)
    q, angles = turned.assemble({"free_rod": (0.4, -0.7)}).q, jnp.array([0.4, -0.7])
    want = rigid.Universal("", "", "y", "x").motion.pose(angles).R
    assert_close(turned.pose(q, "rod").R, want, atol=1e-14)
    followed = leg().replace('<dynamics damping="0.1"/>', '<mimic joint="free_rod"/>')
    with pytest.raises(ValueError, match="mimic.* joint 'free_rod', which is spherical and has no single coordinate"):
        rigid.from_urdf(followed, loops={"joint_name": ["free_rod"], "joint_type": ["SPHERICAL"]})


PAIR = [["loop1_A", "loop1_B"]]


@pytest.mark.parametrize(
    ("loops", "words"),
    [
        ({"closed_loop": [["loop1_A"]]}, "must have pairs of names as closed_loop"),
        ({"closed_loop": "loop"}, "must have pairs of names as closed_loop"),
        ({"closed_loop": [["loop1_A", "loop1_C"]]}, "names 'loop1_C', which is neither.*alike are 'loop1_"),
        ({"closed_loop": PAIR, "type": ["4D"]}, "has the type '4D', which is none of 6D, 5D, 3D"),
        ({"closed_loop": PAIR, "type": ["3D", "3D"]}, "has 1 pairs as closed_loop, but 2 as type"),
        ({"joint_name": ["free_rod"]}, "has 1 joint_name, but 0 joint_type"),
        ({"joint_name": ["free_rod"], "joint_type": ["UJOINT_XX"]}, "has the joint_type 'UJOINT_XX'"),
        ({"closed_loop": PAIR, "frames": []}, "has the key 'frames', but the keys are"),
        ({"name_closedloop": 3}, "must have a text as name_closedloop"),
        ({"rotule_name": ["rod"]}, "must have a text as rotule_name"),
        ({"name_mot": [1]}, "must have a list of names as name_mot"),
    ],
)
def test_what_is_wrong_with_loops_is_said(loops, words):
    with pytest.raises(ValueError, match=words):
        rigid.from_urdf(leg(), loops=loops)


def test_files_that_are_no_loops_are_said_or_left_alone(tmp_path):
    (tmp_path / "leg.urdf").write_text(leg())
    (tmp_path / "leg.yml").write_text("servos: {gain: 3}")  # of another program
    assert rigid.from_urdf(tmp_path / "leg.urdf").layout.loops == ()
    bad = tmp_path / "bad.yaml"
    # Ten aliases of ten: a hundred gigabytes of names, if they were written out.
    laughs = "b0: &b0 [x]\n" + "".join(f"b{k}: &b{k} [{', '.join([f'*b{k - 1}'] * 10)}]\n" for k in range(1, 12))
    for text, words in (
        ("[", "is no YAML that can be read"),
        ("[" * 2000, "is no YAML that can be read"),
        ("3", "must be a mapping with closed_loop, type"),
        ("closed_loop: !!python/object/apply:os.getcwd []", "is no YAML that can be read"),
        ("#" * (2**20 + 1), "at most 1048576 are read"),
        (laughs, "has the key 'b0'"),
    ):
        bad.write_text(text)
        with pytest.raises(ValueError, match=words):
            rigid.from_urdf(tmp_path / "leg.urdf", loops=bad)
    with pytest.raises(ValueError, match="loops must be a path to a YAML file, or a mapping, but .* cannot be read"):
        rigid.from_urdf(tmp_path / "leg.urdf", loops=tmp_path / "none.yaml")
    with pytest.raises(TypeError, match="loops must be a mapping"):
        rigid.from_urdf(leg(), loops=3)
    with pytest.raises(ValueError, match="loops is .* but is for URDF only"):
        reading_of("<mujoco/>", loops={})


def test_links_without_mass_are_held_by_loops_or_named():
    """A massless rod moves with the parallelogram on a universal joint and a ball; on two balls it spins freely."""
    text = leg().replace(link("rod", 0.5, ROD, "0.2 0 0"), link("rod"))
    loops = {"closed_loop": PAIR, "type": ["3D"], "name_mot": ["motor_left", "motor_right"], "joint_name": ["free_rod"]}
    robot = rigid.from_urdf(text, loops={**loops, "joint_type": ["UJOINT_YZ"]})
    assert robot.bodies["rod"].inertia is None
    J = 0.02 * 2 + 3 * 0.25**2
    want = (2.0 - 1.0 - 0.1 - 9.81 * 3 * 0.25 * np.sin(0.3)) / J
    assert_close(acceleration(robot).acceleration[0], jnp.asarray(want), atol=1e-9)
    with pytest.raises(
        ValueError, match="joint 'free_rod' can move without any mass: its child, the link 'rod'.*FIXED"
    ):
        rigid.from_urdf(text, loops={**loops, "joint_type": ["SPHERICAL"]})
    with pytest.raises(ValueError, match="joint 'free_rod' can move without any mass"):
        rigid.from_urdf(text)
