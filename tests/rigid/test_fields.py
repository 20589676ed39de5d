"""Every field of MuJoCo's model is followed, named, or does not matter; and what does not matter changes nothing."""

import re

import mujoco
import numpy as np
import pytest

from ..helpers import sampled
from ..inside import (
    FLAGS,
    FOLLOWED,
    NAMED,
    NO_MATTER,
    actuators_of,
    compiled,
    entries_of,
    fields_of,
    read,
    replaced,
    switches_of,
    unknown_fields,
    unsupported_features,
)
from .in_mujoco import Theirs, assert_same, full_mass


FIELDS = fields_of(mujoco.MjModel, mujoco.MjOption)


def test_every_field_of_mujoco_is_in_one_table():
    """A new one of a new version is in none: then find out what it does, and follow it, name it, or say why not."""
    assert len(FIELDS) > 400
    assert {field: entries_of(field) for field in FIELDS if len(entries_of(field)) != 1} == {}
    assert entries_of("jnt_antigravity") == []


def test_every_flag_of_mujoco_is_known():
    bits = [
        k for kind in (mujoco.mjtDisableBit, mujoco.mjtEnableBit) for k in dir(kind) if re.match("mj(DSBL|ENBL)_", k)
    ]
    assert set(bits) <= set(FLAGS)
    assert [k for k in dir(mujoco.mjtJoint) if k.startswith("mj")] == [
        f"mjJNT_{k}" for k in ("BALL", "FREE", "HINGE", "SLIDE")
    ]


def test_fields_of_a_newer_mujoco_are_named(monkeypatch):
    monkeypatch.delitem(NO_MATTER, "opt.timestep")
    monkeypatch.delitem(FOLLOWED, "jnt_pos")
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body><joint/><geom size="1"/></body></worldbody></mujoco>'
    )
    with replaced(unknown_fields=unknown_fields.__wrapped__):  # which remembers what it found
        assert said(model) == {"what this version of MuJoCo is newer in": ["opt.timestep"]}


BODY = '<body name="b" pos="0 0 1"><joint name="j" {}/>{}<inertial pos="0.1 0 0" mass="1" diaginertia="1 1 1"/></body>'
BALL = '<geom size="0.1" contype="0" conaffinity="0"/>'
FREE = f'<body name="b" pos="0 0 1"><joint name="j" type="free" {{}}/>{BALL}</body>'
TENDON = '<tendon><fixed name="t" {}><joint joint="j" coef="2"/></fixed></tendon>'
WORLD = "<mujoco>{}<worldbody>{}</worldbody>{}</mujoco>"
plain = BODY.format("", "")


def of_joint(attributes, rest=""):
    return WORLD.format("", BODY.format(attributes, ""), rest)


def driven(element, options="", body=plain, rest=""):
    return WORLD.format(options, body, f"{rest}<actuator>{element}</actuator>")


# A file in which each thing that can be left out is; those of newer versions apart.
EXAMPLES = {
    "contacts between geoms": WORLD.format("", BODY.format("", '<geom size="1"/>') + '<geom size="1"/>', ""),
    "limits of joints": of_joint('range="-1 1" limited="true"'),
    "dry friction of joints": of_joint('frictionloss="1"'),
    "stiffness of ball and free joints": of_joint('type="ball" stiffness="1"'),
    "damping and armature of free joints": WORLD.format("", FREE.format('damping="1"'), ""),
    "limits of what actuators do to joints": of_joint('actuatorfrclimited="true" actuatorfrcrange="-1 1"'),
    "laws of actuators, of which only the gear is taken": driven('<position joint="j"/>'),
    "actuators that act on no single joint": driven('<motor tendon="t"/>', rest=TENDON.format("")),
    "limits of actuators": driven('<motor joint="j" forcelimited="true" forcerange="-1 1"/>'),
    "tendons": WORLD.format("", plain, TENDON.format('stiffness="1"')),
    "equalities of other kinds": WORLD.format(
        "",
        plain.replace("<inertial", '<site name="s"/><inertial') + '<site name="g" pos="0 1 0"/>',
        '<tendon><spatial name="t"><site site="s"/><site site="g"/></spatial></tendon>'
        '<equality><tendon tendon1="t"/></equality>',
    ),
    "compensation of gravity": WORLD.format("", plain.replace("<body", '<body gravcomp="1"'), ""),
    "bodies moved by hand": WORLD.format("", plain + '<body mocap="true"/>', ""),
    "flexible bodies": WORLD.format(
        "",
        "".join(f'<body name="{k}" pos="{k} 0 0"><freejoint/>{BALL}</body>' for k in (1, 2)),
        '<deformable><flex dim="1" body="1 2" vertex="0 0 0 0 0 0" element="0 1"/></deformable>',
    ),
    "a fluid": WORLD.format('<option density="1"/>', plain, ""),
    "plugins": WORLD.format(
        '<extension><plugin plugin="mujoco.pid"/></extension>',
        plain,
        '<actuator><plugin plugin="mujoco.pid" joint="j"/></actuator>',
    ),
}  # fmt: skip
SINCE_MORE = {
    "damping that is not linear, of joints": of_joint('damping="0 1"'),
    "stiffness that is not linear, of joints": of_joint('stiffness="0 1"'),
    "springs that yield, of joints": of_joint('stiffness="1" springyield="1"'),
    "actuators without control": driven('<dcmotor joint="j" motorconst="1" resistance="1" input="none"/>'),
    "delays of actuators": driven('<motor joint="j" delay="0.01" nsample="5"/>'),
    "damping and armature of actuators elsewhere than at a joint": driven(
        '<motor tendon="t" damping="1"/>', rest=TENDON.format("")
    ),
    "damping that is not linear, of actuators": driven('<motor joint="j" damping="0 1"/>'),
    "limits of what actuators do to tendons": WORLD.format(
        "", plain, TENDON.format('actuatorfrclimited="true" actuatorfrcrange="-1 1"')
    ),
    "bodies that sleep": WORLD.format('<option><flag sleep="enable"/></option>', plain, ""),
}


def said(model):
    switches = switches_of(model)
    return dict(unsupported_features(model, switches, actuators_of(model, switches)))


def test_every_name_is_given_by_a_file():
    known = dict(EXAMPLES)
    if hasattr(mujoco.MjModel, "jnt_springyield"):
        known |= SINCE_MORE
    for what, text in known.items():
        assert what in said(compiled(text)[0]), what
    assert set(NAMED.values()) <= set(EXAMPLES) | set(SINCE_MORE)


RICH = """<mujoco><compiler angle="radian"/><option gravity="0.3 -0.2 -9.7"/>
  <worldbody><site name="peg" pos="-0.22 0.51 0.71" quat="1 0.1 0.2 0.1"/>
    <body name="a" pos="0.1 0.2 0.3" quat="1 0.2 -0.3 0.4">
      <joint name="A" axis="0.1 1 0.2" pos="0.05 0.01 0.1" ref="0.3" stiffness="2" springref="0.1" damping="0.4"
             armature="0.05"/>
      <inertial pos="0.1 0.02 0.05" quat="1 0.1 0.2 0.3" mass="1.5" diaginertia="0.02 0.03 0.04"/>
      <geom size="0.1 0.1 0.1" type="box" contype="0" conaffinity="0" mass="0"/>
      <body name="b" pos="0.3 0.02 0.1" quat="0.5 0.1 0.2 0.3">
        <joint name="B" type="slide" axis="1 0.1 0.3" pos="0.1 0.1 0.1" stiffness="3" ref="0.2" damping="0.3"/>
        <inertial pos="0.03 0.1 0.02" quat="1 0.3 0.2 0.1" mass="0.7" diaginertia="0.01 0.02 0.015"/>
        <body name="c" pos="0.1 0.3 0.01" quat="1 0.4 0.3 0.2">
          <site name="tip" pos="0.2 0.1 0.1" quat="1 0.2 0.1 0.3"/>
          <joint name="C" type="ball" pos="0.02 0.03 0.04" damping="0.2" armature="0.01"/>
          <inertial pos="0.1 0.1 0.03" quat="1 0.5 0.2 0.1" mass="0.4" diaginertia="0.01 0.012 0.014"/>
        </body></body></body>
    <body name="d" pos="1 0.9 0.8" quat="1 0.1 0.1 0.1"><joint name="D" axis="1 1 0.2" damping="0.1" stiffness="0.1"/>
      <inertial pos="0.1 0.2 0.01" mass="2" diaginertia="0.1 0.2 0.25"/></body>
  </worldbody>
  <equality><connect name="pin" site1="tip" site2="peg"/>
    <joint name="teeth" joint1="D" joint2="A" polycoef="0.1 -2 0.3 0.02 0.03"/>
    <tendon name="pull" tendon1="rope" tendon2="cord" polycoef="0.1 0.7 0.05 0 0"/></equality>
  <tendon><fixed name="rope"><joint joint="B" coef="1.5"/><joint joint="D" coef="-0.4"/></fixed>
    <fixed name="cord"><joint joint="A" coef="0.6"/></fixed></tendon>
  <actuator><motor name="m" joint="A" gear="3"{}/></actuator><sensor><jointpos joint="A"/></sensor></mujoco>"""
MOVED = RICH.format(' armature="0.02" damping="0.1"' if hasattr(mujoco.MjModel, "actuator_armature") else "")


def changed(model, field, seed=0):
    """Whether the numbers of a field were changed by some per cent: quaternions stay unit, signs stay."""
    owner = model.opt if field.startswith("opt.") else model
    values = np.atleast_1d(np.array(getattr(owner, field.removeprefix("opt."))))
    if values.dtype.kind != "f" or not np.any(values):
        return False
    factor = 1.0 + 0.1 * np.random.default_rng(seed).uniform(size=values.shape)
    new = values * factor
    if field.endswith("quat"):
        new /= np.linalg.norm(new, axis=-1, keepdims=True)
    if getattr(getattr(owner, field.removeprefix("opt.")), "shape", ()):
        getattr(owner, field.removeprefix("opt."))[...] = new
    else:
        setattr(owner, field.removeprefix("opt."), float(new[0]))
    return not np.array_equal(new, values)


def motion_in_mujoco(model):
    """M, the force, the rows of equalities and their errors at a state."""
    data = mujoco.MjData(model)
    rng = np.random.default_rng(1)
    data.qpos, data.qvel = rng.normal(size=model.nq), rng.normal(size=model.nv)
    mujoco.mj_normalizeQuat(model, data.qpos)
    data.ctrl = 0.7
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    mujoco.mj_forward(model, data)
    force = data.qfrc_passive - data.qfrc_bias + data.qfrc_actuator
    return full_mass(model, data), force, np.array(data.efc_J), np.array(data.efc_pos)


def test_what_does_not_matter_changes_nothing_in_mujoco():
    """Every field of floating numbers that the table says so of, and that the model has."""
    want = motion_in_mujoco(mujoco.MjModel.from_xml_string(MOVED))
    tried = []
    for field in FIELDS:
        if entries_of(field)[0] in NO_MATTER:
            model = mujoco.MjModel.from_xml_string(MOVED)
            if changed(model, field):
                tried.append(field)
                for got, same in zip(motion_in_mujoco(model), want, strict=True):
                    np.testing.assert_allclose(got, same, rtol=1e-11, atol=1e-11, err_msg=field)
    assert {"dof_solref", "eq_solimp", "body_invweight0", "opt.timestep", "body_subtreemass"} <= set(tried)


NUMBERS = [
    "opt.gravity", "qpos_spring", "body_pos", "body_quat", "body_ipos", "body_iquat", "body_mass", "body_inertia",
    "jnt_pos", "jnt_axis", "jnt_stiffness", "dof_armature", "dof_damping", "site_pos", "eq_data", "qpos0", "wrap_prm",
    *(k for k in ("actuator_damping", "actuator_armature") if hasattr(mujoco.MjModel, k)),
]  # fmt: skip


@pytest.mark.parametrize("field", sampled(NUMBERS, ["body_iquat", "eq_data", "wrap_prm", NUMBERS[-1]]))
def test_what_is_followed_is_what_mujoco_does(field):
    assert field in FOLLOWED
    model = mujoco.MjModel.from_xml_string(MOVED)
    before = motion_in_mujoco(model)
    assert changed(model, field)
    if field == "jnt_axis":
        model.jnt_axis /= np.linalg.norm(model.jnt_axis, axis=1, keepdims=True)
    if field.startswith("dof_"):  # a joint has one for all its speeds
        getattr(model, field)[3:5] = getattr(model, field)[2]
    if field == "qpos0":  # a ball's has no effect
        model.qpos0[2:6] = 1.0, 0.0, 0.0, 0.0
    assert not all(np.allclose(*pair, rtol=1e-9) for pair in zip(motion_in_mujoco(model), before, strict=True))
    assert_same(read(model).robot, Theirs(model), seeds=range(2), spread=0.2)
