"""Robots from MJCF and URDF, beside MuJoCo."""

import warnings

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import ukjax
from ukjax import rigid

from ..helpers import assert_close
from .in_mujoco import Theirs, assert_same


TIME = jnp.zeros(())
BODIES = """
<mujoco model="all of it">
  <option gravity="0.3 -0.2 -9.7"/>
  <compiler angle="radian"/>
  <worldbody>
    <body name="base" pos="0.1 0.2 0.3" quat="1 0.2 -0.3 0.4">
      <joint name="swing" type="hinge" axis="0 1 0" pos="0.05 0 0.1" ref="0.3" stiffness="2" springref="0.1"
             damping="0.4" armature="0.05"/>
      <joint name="lift" type="slide" axis="1 1 0" damping="0.3"/>
      <inertial pos="0.1 0 0.05" mass="1.5" fullinertia="0.02 0.03 0.04 0.001 0.002 -0.003"/>
      <body name="arm.1" pos="0.3 0 0.1" quat="0.5 0.1 0.2 0.3">
        <joint name="ball" type="ball" pos="0.02 0 0" damping="0.2" armature="0.01"/>
        <inertial pos="0 0.1 0" mass="0.7" diaginertia="0.01 0.02 0.015"/>
        <body pos="0 0.3 0">
          <joint type="hinge" axis="0 0 1"/>
          <inertial pos="0 0.1 0" mass="0.4" diaginertia="0.01 0.01 0.01"/>
        </body>
        <body name="tool" pos="0 0 0.2" quat="1 1 0 0">
          <inertial pos="0 0 0.1" mass="0.2" diaginertia="0.001 0.002 0.003"/>
        </body>
      </body>
    </body>
    <body name="plate" pos="1 1 1"><freejoint/><inertial pos="0.1 0.2 0" mass="2" diaginertia="0.1 0.2 0.25"/></body>
  </worldbody>
  <actuator><motor name="drive" joint="swing" gear="3"/></actuator>
</mujoco>
"""


def test_bodies_joints_and_what_they_do_against_mujoco():
    robot = rigid.from_mjcf(BODIES)
    assert robot.layout.bodies == ("base~0", "base", "arm_1", "body3", "tool", "plate")
    assert robot.layout.tree == ("swing", "lift", "ball", "joint3", "tool~", "joint4")
    assert_same(robot, Theirs(mujoco.MjModel.from_xml_string(BODIES)))
    assert_close(robot.actuation()[:, 0], jnp.zeros(12).at[0].set(3.0), atol=0.0)


LOOP = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body name="crank"><joint name="A" axis="0 1 0"/><inertial pos="0.2 0 0" mass="1" diaginertia="0.01 0.02 0.02"/>
      <body name="coupler" pos="0.4 0 0"><joint name="B" axis="0 1 0"/>
        <inertial pos="0.5 0 0" mass="2" diaginertia="0.01 0.2 0.2"/></body></body>
    <body name="rocker" pos="1 0 0"><joint name="C" axis="0 1 0" ref="0.2"/>
      <inertial pos="0.4 0 0" mass="1.5" diaginertia="0.01 0.1 0.1"/></body>
    <body name="wheel" pos="0 0 1"><joint name="D" axis="0 1 0" ref="0.5"/>
      <inertial pos="0 0 0" mass="0.3" diaginertia="0.01 0.02 0.01"/></body>
  </worldbody>
  <equality>
    <connect name="pin" body1="coupler" body2="rocker" anchor="0.9 0.1 0"/>
    <joint name="teeth" joint1="D" joint2="C" polycoef="0.1 -2 0.3 0 0"/>
  </equality>
</mujoco>
"""


@pytest.mark.long
def test_equalities_are_those_of_mujoco_met_exactly():
    robot, theirs = rigid.from_mjcf(LOOP), Theirs(mujoco.MjModel.from_xml_string(LOOP))
    assert robot.layout.loops == ("pin",)
    assert list(robot.own_constraints) == ["pin", "teeth"]
    mechanism = robot.mechanism()
    q, v = ukjax.assemble(mechanism, theirs.model.qpos0 + 0.1, 0.3 * np.ones(4))
    assert int(ukjax.equation_of_motion(mechanism, q, v).rank) == 3
    # Their rows at this state: all but those across the plane, which nothing moves.
    J = theirs.rows(np.asarray(q))
    assert_close(np.asarray(theirs.data.efc_pos), np.zeros(4), atol=1e-9)
    assert np.max(np.abs(J @ np.asarray(v))) < 1e-9
    both = np.concatenate([np.asarray(mechanism.terms(q, v, TIME).A), J])
    assert np.linalg.matrix_rank(both, tol=1e-8) == np.linalg.matrix_rank(J, tol=1e-8) == 3
    # The exact motion: their M and forces, their rows, and how these change along the motion.
    assert_same(robot, theirs, spread=0.1)


@pytest.mark.long
def test_a_weld_holds_the_pose_that_mujoco_holds():
    text = """<mujoco><worldbody>
      <body name="a" pos="0 0 1"><freejoint/><inertial pos="0 0 0" mass="1" diaginertia="0.1 0.2 0.2"/></body>
      <body name="b" pos="0.5 0.2 1.3" quat="1 0.1 0.2 0.3"><freejoint/>
        <inertial pos="0 0 0" mass="2" diaginertia="0.2 0.2 0.3"/></body>
    </worldbody><equality><weld name="glue" body1="a" body2="b"/></equality></mujoco>"""
    robot, theirs = rigid.from_mjcf(text), Theirs(mujoco.MjModel.from_xml_string(text))
    gap = robot.mechanism().position_error(jnp.asarray(theirs.model.qpos0), TIME)
    assert_close(gap, jnp.zeros(6), atol=1e-12)
    found = ukjax.diagnose(robot.mechanism(), theirs.model.qpos0, np.zeros(12))
    assert (int(found.rank), int(found.degrees_of_freedom)) == (6, 6)
    assert_same(robot, theirs, spread=0.1)


URDF = """
<robot name="two legs">
  <link name="base">
    <inertial><mass value="1"/><inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial>
    <visual><geometry><mesh filename="package://somewhere/base.stl"/></geometry></visual></link>
  <link name="left"><inertial><origin xyz="0.1 0 0" rpy="0.1 0.2 0.3"/><mass value="0.5"/>
    <inertia ixx="0.01" iyy="0.02" izz="0.02" ixy="0.001" ixz="0" iyz="0"/></inertial></link>
  <link name="right">
    <inertial><mass value="0.5"/><inertia ixx="0.01" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="hip" type="revolute"><parent link="base"/><child link="left"/><origin xyz="0.2 0 0" rpy="0 0.5 0"/>
    <axis xyz="0 1 0"/><limit lower="-1" upper="1" effort="1" velocity="1"/></joint>
  <joint name="slide" type="prismatic"><parent link="base"/><child link="right"/><axis xyz="1 0 0"/>
    <limit lower="-1" upper="1" effort="1" velocity="1"/></joint>
</robot>
"""


def test_urdf_with_a_loop_beside_it():
    with pytest.warns(UserWarning, match="limits of joints \\(hip, slide\\)"):
        robot = rigid.from_urdf(
            URDF,
            loops={"rod": rigid.Distance("left.tip", "right", 0.3)},
            frames={"left": {"tip": rigid.Frame((0.3, 0.0, 0.0))}},
        )
    assert robot.layout.tree == ("base~", "hip", "slide")
    assert robot.layout.loops == ("rod",)
    assert robot.ranges == robot.in_joints().ranges == {"hip": (-1.0, 1.0), "slide": (-1.0, 1.0)}
    assert robot.bodies["left"].inertia is not None
    assert_close(robot.bodies["left"].inertia.mass, jnp.asarray(0.5), atol=0.0)
    q, _ = robot.assemble({"slide": 0.3})
    assert_close(robot.mechanism().position_error(q, TIME), jnp.zeros(1), atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        floating = rigid.from_urdf(URDF, floating=True)
    assert floating.layout.tree == ("base~", "hip", "slide")
    assert (floating.layout.n_q, floating.layout.n) == (9, 8)


@pytest.mark.filterwarnings("ignore:not simulated")
def test_ranges_are_those_of_the_coordinates():
    """In degrees, of a joint that the file draws turned; those of ball joints, and without a limit, are none."""
    inertial = '<inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>'
    text = WITHIN.format(
        f'<body><joint name="hip" range="-30 60" ref="20"/>{inertial}<body><joint name="free"/>{inertial}'
        f'<body><joint name="ball" type="ball" range="0 60"/>{inertial}<body>'
        f'<joint name="slide" type="slide" range="0.1 0.4"/>{inertial}</body></body></body></body>'
    )
    robot = rigid.from_mjcf(text)
    assert list(robot.ranges) == ["hip", "slide"]
    assert_close(jnp.array(robot.ranges["hip"]), jnp.array([-np.pi / 6, np.pi / 3]), atol=1e-15)
    assert_close(robot.coordinate(robot.assemble().q, "hip"), jnp.asarray(np.pi / 9), atol=1e-15)
    q = robot.assemble({"hip": 2.0}, bounds=robot.ranges).q
    assert_close(robot.coordinate(q, "hip"), jnp.asarray(np.pi / 3), atol=1e-12)
    assert_close(robot.coordinate(q, "slide"), jnp.asarray(0.1), atol=1e-12)


def test_names_that_a_file_gives_are_no_obstacle_to_those_of_its_unnamed_parts():
    inertial = '<inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>'
    text = WITHIN.format(
        f'<body name="a.b"><joint name="joint1"/><joint axis="1 0 0"/>{inertial}</body>'
        f'<body><joint name="body1"/>{inertial}</body>'
        f'<body name="body2"><joint name="j.1"/>{inertial}</body>'
        f'<body name="a_b"><joint name="j_1"/>{inertial}</body>'
        f'<body name="a_b~0">{inertial}</body><body name="ground">{inertial}</body>'
    )
    robot = rigid.from_mjcf(text)
    assert robot.layout.bodies == ("a_b~0_", "a_b", "body2_", "body2", "a_b_", "a_b~0", "ground_")
    assert robot.layout.tree == ("joint1", "joint1_", "body1", "j_1", "j_1_", "a_b~0~", "ground_~")


def test_what_else_a_urdf_holds_is_passed_over():
    """Prefixes of names that it does not declare, and folders of meshes, which are not read."""
    more = (
        '<mujoco><compiler meshdir="../../meshes"/></mujoco><gazebo><plugin filename="../way.so"/></gazebo>'
        '<drake:group name="g"><drake:member link="left"/></drake:group></robot>'
    )
    text = URDF.replace("</robot>", more).replace("<limit ", '<limit drake:acceleration="2.5" ')
    with pytest.warns(UserWarning, match="limits of joints"):
        robot = rigid.from_urdf(text)
    assert robot.layout.tree == ("base~", "hip", "slide")


def test_what_is_not_simulated_is_named_once():
    text = """<mujoco><option density="1.2"/><worldbody><geom name="floor" type="plane" size="1 1 1"/>
      <body name="a"><joint name="A" range="-1 1" limited="true" frictionloss="0.1"/>
        <geom name="ball" size="0.1"/></body>
      <body name="b" gravcomp="1"><freejoint name="F"/><geom size="0.1"/></body></worldbody>
      <actuator><position name="servo" joint="A" kp="10"/></actuator></mujoco>"""
    with pytest.warns(UserWarning, match="not simulated") as seen:
        rigid.from_mjcf(text)
    assert len(seen) == 1
    said = str(seen[0].message)
    for part in (
        "contacts between geoms (floor, ball, geom2)", "limits of joints (A)", "dry friction of joints (A)", "a fluid",
        "compensation of gravity (b)", "laws of actuators, of which only the gear is taken (servo)",
    ):  # fmt: skip
        assert part in said, said


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


WITHIN = "<mujoco><worldbody>{}</worldbody></mujoco>"
SMALL = '<mujoco><worldbody><body name="a"><joint/><geom size="0.1"/></body></worldbody></mujoco>'


def test_a_file_with_parts_in_its_folder(tmp_path):
    body = '<mujoco><worldbody><body name="a"><joint name="A"/><geom size="0.1"/></body></worldbody></mujoco>'
    write(tmp_path, "parts/a.xml", body)
    path = write(tmp_path, "robot.xml", '<mujoco><include file="parts/a.xml"/></mujoco>')
    assert rigid.from_mjcf(path).layout.tree == ("A",)
    assert rigid.from_mjcf(str(path)).layout.tree == ("A",)
