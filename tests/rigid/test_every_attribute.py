"""Every attribute of MJCF, one at a time: what it changes in MuJoCo it changes here, or a warning names it.

M, what acts without control, what actuators do, the exact acceleration under the equalities, the start, and rows of
constraints that are no equalities, which there are none of here.
"""

import re

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ..inside import CONTACTS, LAWS, in_tree, reading_of, replaced, switches_of
from .attributes import PLACES, schema, several, variations
from .in_mujoco import Theirs, found_by, full_mass


# Versions that know the attributes, but not all of their values.
IS_OLD = not hasattr(mujoco.MjModel, "jnt_springyield")
# What differs from MuJoCo where something is named.
EXPLAINED = {
    "contacts between geoms": {"rows"},
    "limits of joints": {"rows"},
    "dry friction of joints": {"rows"},
    "damping that is not linear, of joints": {"force"},
    "stiffness of ball and free joints": {"force"},
    "stiffness that is not linear, of joints": {"force"},
    "springs that yield, of joints": {"force"},
    "damping and armature of free joints": {"mass", "force"},
    "limits of what actuators do to joints": {"actuation"},
    "laws of actuators, of which only the gear is taken": {"actuation"},
    "actuators without control": {"actuation"},
    "actuators that act on no single joint": {"actuation", "rows"},
    "limits of actuators": {"actuation"},
    "delays of actuators": {"actuation"},
    "damping and armature of actuators elsewhere than at a joint": {"mass", "force"},
    "damping that is not linear, of actuators": {"force"},
    "tendons": {"mass", "force", "rows"},
    "limits of what actuators do to tendons": {"actuation"},
    "equalities of other kinds": {"constraints"},
    "compensation of gravity": {"force", "actuation"},
    "bodies moved by hand": {"start"},
    "bodies that sleep": set(),
    "a fluid": {"force"},
    "plugins": {"mass", "force", "actuation", "rows"},
}


def differences(text):
    """What is not the same in MuJoCo, by what it is; and what is named."""
    reading = reading_of(text)
    robot, named = reading.robot, dict(reading.unsupported_features)
    model = mujoco.MjModel.from_xml_string(text)
    theirs = Theirs(mujoco.MjModel.from_xml_string(text))
    found = set()
    start = in_tree(robot, {}, "coordinates")
    if not np.allclose(start, model.qpos0, atol=1e-14):
        found.add("start")
    G = np.asarray(robot.actuation()) if robot.motors else np.zeros((model.nv, 0))
    for seed in range(2):
        q, v = theirs.state(seed, 0.3)
        mass, force, motion = (np.asarray(x) if x is not None else x for x in found_of(robot, q, v))
        found |= compare(model, theirs, q, v, (mass, force, motion), G @ controls(model, robot))
    return found, named


def found_of(robot, q, v):
    mass, force, motion = found_by(robot, jnp.asarray(q), jnp.asarray(v))
    return mass, force, motion.acceleration


def controls(model, robot):
    """Those of the robot's motors, of what all are in `control`."""
    return np.array([control(model)[first_control(model, name)] for name in robot.motor_names])


def first_control(model, name):
    k = model.actuator(name).id
    return model.actuator_ctrladr[k] if hasattr(model, "actuator_ctrladr") else k


def control(model):
    return 0.8 + 0.3 * np.arange(model.nu)


def compare(model, theirs, q, v, ours, actuation):
    """Names of what differs at a state; M, the force and the acceleration in our speeds."""
    mass, force, acceleration = ours
    data = mujoco.MjData(model)
    turn, lacks = theirs.turn(q), theirs.with_axes(v)
    data.qpos, data.qvel, data.ctrl = q, turn.T @ v, control(model)
    mujoco.mj_forward(model, data)
    M, Q = full_mass(model, data), data.qfrc_passive - data.qfrc_bias
    want = {
        "mass": (mass, turn @ M @ turn.T),
        "force": (force, turn @ (Q - M @ turn.T @ lacks)),
        "actuation": (actuation, turn @ data.qfrc_actuator),
    }
    found = {name for name, (got, there) in want.items() if off(got, there) > 1e-11}
    others = data.efc_type[: data.nefc] != mujoco.mjtConstraint.mjCNSTR_EQUALITY
    if np.any(np.reshape(data.efc_J, (-1, model.nv))[: data.nefc][others]):
        found.add("rows")
    A = theirs.rows(q)
    if not found & {"mass", "force"}:
        there = turn @ constrained(M, Q, A, theirs.drift(q, turn.T @ v) if len(A) else None) - lacks
        if off(acceleration, there) > 1e-8:
            found.add("constraints")
    return found


def off(got, want):
    """The largest difference, relative to what is there, or absolute where that is less than one."""
    assert np.shape(got) == np.shape(want)
    return np.max(np.abs(got - want), initial=0.0) / max(1.0, np.max(np.abs(want), initial=0.0))


def constrained(M, Q, A, drift):
    """Of all accelerations that the rows allow, the one nearest to the free one in the metric M."""
    free = np.linalg.solve(M, Q)
    if not len(A):
        return free
    L = np.linalg.cholesky(M)
    B = np.linalg.solve(L, A.T).T
    return free + np.linalg.solve(L.T, np.linalg.pinv(B, rcond=1e-9) @ (-drift - A @ free))


@pytest.mark.long
@pytest.mark.parametrize("element", PLACES)
def test_no_attribute_is_silent(element, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo may write a log
    silent = {}
    for what, text in variations(element):
        try:
            found, named = differences(text)
        except Exception as error:
            if IS_OLD and re.search("too much data|invalid keyword", str(error)):
                continue
            silent[what] = f"{type(error).__name__}: {error}"
            continue
        rest = unexplained(what, found, named)
        if rest:
            silent[what] = rest, named
    assert silent == {}


def unexplained(what, found, named):
    """What differs although no name says so."""
    adheres = "adhesion" in what and CONTACTS in named  # which MuJoCo counts as passive
    return found - set().union(*(EXPLAINED[name] for name in named)) - ({"force"} if adheres else set())


@pytest.mark.long
def test_several_attributes_at_once_are_not_silent(tmp_path, monkeypatch):
    """Changes that go with each other by chance; files that MuJoCo does not take are passed over."""
    monkeypatch.chdir(tmp_path)
    rng, tried = np.random.default_rng(0), 0
    while tried < 80:
        what, text = several(rng)
        try:
            mujoco.MjModel.from_xml_string(text)
        except ValueError:
            continue
        found, named = differences(text)
        assert unexplained(what, found, named) == set(), what
        tried += 1


@pytest.mark.long
def test_what_is_silent_is_found():
    """Without actuators' damping and armature, drawn starts, flags, and a name that goes with a law."""
    rotor, start, flag, law = (
        next(text for what, text in variations(element) if change in what)
        for element, change in (
            ("actuator/motor", "armature" if "armature" in schema()["actuator/motor"] else "gear"),
            ("body/joint", "'hinge']: ref"),
            ("option/flag", "gravity=disable"),
            ("actuator/position", "kp=7"),
        )
    )
    assert differences(rotor) == (set(), {})
    if "armature" in schema()["actuator/motor"]:
        with replaced(read_armature=lambda *_: (0.0, 0.0)):
            assert differences(rotor) == ({"mass"}, {})
    with replaced(read_start=lambda *_: ({}, {})):
        assert differences(start) == ({"start"}, {})
    with replaced(read_switches=lambda model: switches_of(model)._replace(gravity=True)):
        assert differences(flag) == ({"force"}, {})
    assert differences(law) == ({"actuation"}, {LAWS: ["act"]})


def test_every_attribute_is_tried():
    """Of the elements that move something; a new one of a new MuJoCo is none of those tried."""
    known = schema()
    missed = {
        element: known[element] - set().union(*(place.values for place in places))
        for element, places in PLACES.items()
        if element in known
    }
    assert {element: names for element, names in missed.items() if names} == {}
