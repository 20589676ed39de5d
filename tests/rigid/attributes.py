"""Attributes of MJCF, one after the other: files that differ in one of them from a file that has all kinds of parts.

`PLACES`: where in a file an element stands, and other values of each of its attributes. A value is a text, a mapping of
attributes that go together (None takes one away), or a list of those.
"""

import re
import xml.etree.ElementTree as ET
from typing import Any, NamedTuple

import mujoco
import numpy as np


TREE = """<mujoco model="tree">
  <compiler angle="radian"/><size nuserdata="1"/><option gravity="0.3 -0.2 -9.7"><flag energy="disable"/></option>
  <default><geom contype="0" conaffinity="0"/>
    <default class="other"><joint damping="0.7" stiffness="1.1" armature="0.2" ref="0.4"/><geom density="3000"/>
      <site pos="0.3 0.1 0.2"/><motor gear="7"/><general gear="7"/><tendon stiffness="3"/></default></default>
  <asset><mesh name="solid" vertex="0 0 0 0.3 0 0 0 0.2 0 0 0 0.1"/><material name="red"/></asset>
  <worldbody><geom name="floor" type="plane" size="1 1 1"/><site name="peg" pos="0.3 0.2 0.5"/>
    <body name="arm" pos="0.1 0.2 0.3" euler="0.2 -0.3 0.4">
      <joint name="hinge" axis="0 1 0.2" pos="0.05 0 0.1" stiffness="2" damping="0.4" armature="0.01"/>
      <inertial pos="0.1 0 0.05" euler="0.1 0.2 0.3" mass="1.5" diaginertia="0.02 0.03 0.04"/>
      <geom name="shell" size="0.05" mass="0.2"/><site name="tip" pos="0.2 0 0"/>
      <body name="pad" pos="0.1 0.1 0.1"><geom name="patch" type="box" size="0.02 0.03 0.04"/></body>
      <body name="cart" pos="0.3 0 0.1">
        <joint name="slide" type="slide" axis="1 0 0" stiffness="3" damping="0.2" armature="0.02"/>
        <geom name="box" type="box" size="0.05 0.06 0.07" pos="0.01 0.02 0.03" euler="0.1 0.2 0.3"/>
        <geom name="trim" size="0.04" pos="0 0 0.2" group="1"/>
        <body name="head" pos="0 0.2 0"><joint name="ball" type="ball" pos="0 0 0.03" damping="0.1" armature="0.01"/>
          <geom name="rod" type="capsule" fromto="0 0 0 0.1 0 0.2" size="0.02"/><site name="hand" pos="0 0 0.2"/>
        </body></body></body>
    <body name="kite" pos="1 1 1"><freejoint name="wind"/>
      <geom name="wing" type="box" size="0.3 0.2 0.05" pos="0.1 0.05 0" euler="0.3 0.2 0.1"/></body>
    <body name="lever" pos="1 0 0"><joint name="pull" axis="0 1 0" range="-1 1" limited="false" damping="0.1"/>
      <geom name="grip" size="0.1" pos="0.2 0 0"/></body>
    <body name="post" pos="2 0 0"><geom name="pole" size="0.1"/></body>
  </worldbody>
  <tendon><fixed name="rope"><joint joint="pull" coef="2"/></fixed>
    <spatial name="line"><site site="tip"/><site site="peg"/></spatial></tendon>
  <actuator><motor name="act" joint="hinge" gear="2"/></actuator>
  <keyframe><key name="start"/></keyframe>
</mujoco>"""
TOUCHING = TREE.replace('<geom contype="0" conaffinity="0"/>', "").replace(
    '<geom name="wing" type="box" size="0.3 0.2 0.05"', '<geom name="wing" type="box" size="3 3 3" mass="2"'
)
PAIRED = TREE.replace("<tendon>", '<contact><pair name="p" geom1="floor" geom2="wing"/></contact><tendon>').replace(
    'size="0.3 0.2 0.05"', 'size="3 3 3" mass="2"'
)
EXCLUDED = TOUCHING.replace("<tendon>", '<contact><exclude name="x" body1="world" body2="kite"/></contact><tendon>')
LOOPS = """<mujoco model="loops"><compiler angle="radian"/>
  <default><geom contype="0" conaffinity="0"/><default class="other"><equality active="false"/></default></default>
  <worldbody><site name="peg" pos="0.3 0.2 0.5" euler="0.1 0.2 0.3"/>
    <body name="arm"><joint name="hinge" axis="0 1 0" ref="0.3" damping="0.2"/><site name="tip" pos="0.2 0.1 0"/>
      <inertial pos="0.2 0 0.1" mass="1" diaginertia="0.01 0.02 0.03"/>
      <body name="hand" pos="0.4 0 0"><joint name="slide" type="slide" axis="1 0 0.5" ref="0.1"/>
        <inertial pos="0.1 0.1 0" mass="0.5" diaginertia="0.01 0.01 0.01"/></body></body>
    <body name="plate" pos="0.5 0.1 0.2" euler="0.1 0.3 0.2"><freejoint name="wind"/>
      <inertial pos="0.1 0.05 0" mass="2" diaginertia="0.1 0.2 0.25"/>
      <site name="edge" pos="0.1 0 0.1" euler="0 0.2 0"/>
    </body></worldbody>
  <tendon><fixed name="one"><joint joint="hinge" coef="2"/></fixed>
    <fixed name="two"><joint joint="slide" coef="3"/></fixed>
  </tendon><equality>{}</equality></mujoco>"""


class Place(NamedTuple):
    """An element of a file, and other values of its attributes, by attribute."""

    base: str
    path: str
    values: dict[str, Any]


def acting(element: str) -> str:
    """The tree with another actuator."""
    return TREE.replace('<motor name="act" joint="hinge" gear="2"/>', element)


def joined(element: str) -> str:
    return LOOPS.format(element)


TURNS = {
    "axisangle": "0 1 0 0.4", "euler": "0.3 0.1 0.5", "quat": "1 0.2 0.3 0.4", "xyaxes": "0 1 0 0 0 1",
    "zaxis": "1 0 1",
}  # fmt: skip
SOLVER = {
    f"sol{what}{of}": "0.05 0.9" if what == "ref" else "0.8 0.9 0.1"
    for what in ("ref", "imp")
    for of in ("friction", "limit")
}
SOFT = {"solref": "0.05 0.9", "solimp": "0.8 0.9 0.1", "solreffriction": "0.05 0.9"}


def turns(**more: Any) -> dict[str, Any]:
    """Ways to say an orientation, each in the place of the one that the file has."""
    return {name: dict.fromkeys(TURNS, None) | {name: value} for name, value in TURNS.items()} | more


def limits(attribute: str, values: str, *on: str) -> dict[str, Any]:
    """A range, and the attribute that switches it on."""
    return {attribute: values} | {name: {name: "true", attribute: values} for name in on}


JOINT = {
    **limits("actuatorfrcrange", "-0.3 0.3", "actuatorfrclimited"), **limits("range", "-0.01 0.01", "limited"),
    "actuatorgravcomp": "true", "armature": "0.3", "axis": "0.3 0.2 1", "class": "other",
    "damping": ["0.9", "0 0.3 0.1"], "frictionloss": "0.2", "group": "2", "margin": "0.01", "name": "other",
    "pos": "0.1 0.2 0.3", "ref": "0.3", **SOLVER, "springdamper": "0.5 0.7", "springref": "0.4", "springyield": "0.1",
    "stiffness": ["5", "0 0.3 0.1"], "user": "1 2",
}  # fmt: skip
BALL = {**JOINT, **limits("range", "0 0.01", "limited"), "springdamper": []}
GEOM = {
    **turns(), "adhesion": "1", "castshadow": "false", "class": "other", "conaffinity": "1", "condim": "4",
    "contype": "1", "density": "500", "fitscale": "2", "fluidcoef": "1 2 3 4 5", "fluidshape": "ellipsoid",
    "friction": "0.2 0.1 0.1", "fromto": {"type": "capsule", "fromto": "0 0 0 0.3 0 0", "pos": None, "euler": None},
    "gap": "0.1", "group": "3", "hfield": [], "margin": "0.1", "mass": "3", "material": "red",
    "mesh": [{"type": "mesh", "mesh": "solid"}, "solid"], "name": "other", "pos": "0.1 0.2 0.3", "priority": "2",
    "rgba": "1 0 0 0.5", "shellinertia": "true", "size": "0.1 0.2 0.3", "solimp": "0.8 0.9 0.1", "solmix": "3",
    "solref": "0.05 0.9", "surfacevel": "1 0 0 0 0 0", "type": ["ellipsoid", "cylinder", "sphere", "capsule"],
    "user": "1",
}  # fmt: skip
CRANK = {"joint": None, "cranksite": "tip", "slidersite": "peg", "cranklength": "0.9"}
AT_SITE = {"joint": None, "site": "tip", "refsite": "peg", "gear": "1 2 3 0 0 0"}
PASSED_ON = {
    **limits("ctrlrange", "-0.5 0.5", "ctrllimited"), **limits("forcerange", "-0.3 0.3", "forcelimited"),
    "armature": "0.3", "class": "other", "cranklength": CRANK, "cranksite": CRANK, "slidersite": CRANK,
    "damping": ["0.25", "0 0.3 0.1"], "delay": {"delay": "0.01", "nsample": "5"}, "nsample": "5",
    "interp": {"interp": "linear", "nsample": "5"}, "gear": "3", "group": "2", "joint": ["slide", "ball", "wind"],
    "jointinparent": {"joint": None, "jointinparent": "pull"}, "lengthrange": "0 1", "name": "other",
    "refsite": AT_SITE, "site": {"joint": None, "site": "tip", "gear": "1 2 3 0 0 0"},
    "tendon": {"joint": None, "tendon": "rope"}, "user": "1",
}  # fmt: skip
PID = {"gaintype": "pid", "gainprm": "0", "biastype": "affine", "biasprm": "0 -1 0"}
ACTIVE = limits("actrange", "-0.1 0.1", "actlimited")
ACTUATORS = {
    "general": (
        '<general name="act" joint="hinge"/>',
        {
            "actdim": {"dyntype": "user", "actdim": "2"}, "actearly": {"dyntype": "filter", "actearly": "true"},
            "actlimited": {"dyntype": "integrator", "actlimited": "true", "actrange": "-1 1"},
            "actrange": {"dyntype": "integrator", "actrange": "-1 1"},
            "biasprm": {"biastype": "affine", "biasprm": "1 2 3"}, "biastype": "affine",
            "body": {"joint": None, "body": "arm"}, "dynprm": {"dyntype": "filter", "dynprm": "0.1"},
            "dyntype": ["integrator", "filter", "filterexact"],
            "ffrange": {**PID, "input": "pos ff", "ffrange": "-1 1"}, "gainprm": "3",
            "gaintype": {"gaintype": "affine", "gainprm": "1 2 3"},
            "inheritrange": {"joint": "pull", "biastype": "affine", "biasprm": "0 -1 0", "inheritrange": "0.5"},
            "input": "pos", "velrange": {**PID, "input": "pos vel", "velrange": "-1 1"},
        },
    ),
    "motor": ('<motor name="act" joint="hinge"/>', {}),
    "position": (
        '<position name="act" joint="hinge" kp="3"/>',
        {
            "kp": "7", "kv": "2", "dampratio": "0.7", "timeconst": "0.1",
            "inheritrange": {"joint": "pull", "inheritrange": "1"},
        },
    ),
    "velocity": ('<velocity name="act" joint="hinge" kv="3"/>', {"kv": "7"}),
    "intvelocity": (
        '<intvelocity name="act" joint="hinge" kp="3" actrange="-1 1"/>',
        {
            **ACTIVE, "kp": "7", "kv": "2", "dampratio": "0.7",
            "inheritrange": {"joint": "pull", "actrange": None, "inheritrange": "1"},
        },
    ),
    "orientation": (
        '<orientation name="act" joint="ball" kp="3"/>',
        {
            "kp": "7", "kv": "2", "dampratio": "0.7", "input": "quat", "ctrlrange": "-0.1 0.1",
            "site": {"joint": None, "site": "tip", "refsite": "peg"},
            "refsite": {"joint": None, "site": "tip", "refsite": "peg"}, "joint": [],
            **limits("forcerange", "0 0.3", "forcelimited"),
        },
    ),
    "pid": (
        '<pid name="act" joint="hinge" kp="3"/>',
        {
            "kp": "7", "kv": "2", "ki": "2", "dampratio": "0.7", "imax": {"ki": "1", "imax": "2"}, "slewmax": "1",
            "input": ["pos", "pos vel ff"], "inheritrange": {"joint": "pull", "inheritrange": "1"},
            "posrange": "-1 1", "velrange": "-1 1", "ffrange": {"input": "pos vel ff", "ffrange": "-1 1"},
            "gear": "3", "joint": ["slide"],
        },
    ),
    "damper": ('<damper name="act" joint="hinge" kv="3" ctrlrange="0 1"/>', {"kv": "7", "ctrlrange": "0 0.2"}),
    "cylinder": (
        '<cylinder name="act" joint="hinge"/>', {"area": "3", "bias": "1 2 3", "diameter": "2", "timeconst": "0.1"},
    ),
    "muscle": (
        '<muscle name="act" joint="hinge" lengthrange="0.1 1"/>',
        {
            "force": "3", "fpmax": "2", "fvmax": "2", "lmax": "2", "lmin": "0.1", "range": "0.5 1", "scale": "100",
            "tausmooth": "0.1", "timeconst": "0.1 0.2", "vmax": "2", "lengthrange": "0.2 2", "joint": ["slide"],
        },
    ),
    "adhesion": (
        '<adhesion name="act" body="kite" ctrlrange="0 1"/>', {"body": "arm", "gain": "3", "ctrlrange": "0 2"},
    ),
    "dcmotor": (
        '<dcmotor name="act" joint="hinge" motorconst="0.1" resistance="2"/>',
        {
            "cogging": "0.1 3 0.2", "controller": {"controller": "1 2 3 0 0 0", "input": "pos"},
            "inductance": "0.1 0", "input": ["none", "pos vel ff voltage"], "lugre": "1 2 3 4 5", "motorconst": "0.2",
            "nominal": {"nominal": "12 1 100", "motorconst": None, "resistance": None}, "resistance": "3",
            "saturation": "0.01 0 0", "thermal": "1 2 0 0.1 20 25",
        },
    ),
}  # fmt: skip
EQUALITY = {"active": "false", "class": "other", "name": "other", "solref": "0.05 0.9", "solimp": "0.8 0.9 0.1"}
SITES = {"body1": None, "body2": None, "anchor": None, "relpose": None, "site1": "tip", "site2": "edge"}
CONNECT = '<connect name="eq" body1="plate" body2="arm" anchor="0.1 0.2 0.3"/>'
WELD = '<weld name="eq" body1="plate" body2="hand"/>'
GEARED = '<joint name="eq" joint1="hinge" joint2="slide" polycoef="0.1 0.5 0 0 0"/>'
TIED = '<tendon name="eq" tendon1="one" tendon2="two"/>'
TENDON = {
    **limits("actuatorfrcrange", "-0.3 0.3", "actuatorfrclimited"), **limits("range", "0.001 0.002", "limited"),
    "armature": "0.3", "class": "other", "damping": ["0.4", "0 0.3 0.1"], "frictionloss": "0.2", "group": "2",
    "margin": "0.1", "material": "red", "name": "other", "rgba": "1 0 0 1", **SOLVER,
    "springlength": {"springlength": "0.1", "stiffness": "1"},
    "springyield": {"springyield": "0.1", "stiffness": "1"}, "stiffness": ["3", "0 0.3 0.1"], "user": "1",
    "width": "0.1",
}  # fmt: skip
FLAGS = [
    "actuation", "autoreset", "clampctrl", "constraint", "contact", "damper", "equality", "eulerdamp", "filterparent",
    "frictionloss", "gravity", "island", "limit", "midphase", "multiccd", "nativeccd", "passive", "refsafe", "sensor",
    "spring", "warmstart", "diagexact", "energy", "fwdinv", "invdiscrete", "override", "sleep", "speculative",
]  # fmt: skip
NUMBERS = ["body", "jnt", "geom", "site", "cam", "tendon", "actuator", "sensor"]
PLACES: dict[str, list[Place]] = {
    "compiler": [
        Place(
            TREE,
            "compiler",
            {
                "alignfree": "true", "angle": "degree", "assetdir": ".", "autolimits": "false",
                "balanceinertia": "true", "boundinertia": "0.05", "boundmass": "2", "conflict": "merge",
                "coordinate": "local", "discardvisual": "true", "eulerseq": "zyx", "fitaabb": "true",
                "fusestatic": "true", "inertiafromgeom": "true", "inertiagrouprange": "0 0", "meshdir": ".",
                "passthrough": "textures", "savecanonical": "false", "savecompiled": "true", "saveinertial": "true",
                "settotalmass": "5", "strippath": "true", "texturedir": ".", "usethread": "false",
                "exactmeshinertia": "true",
            },
        ),
        Place(joined(GEARED), "compiler", {"inertiafromgeom": "false", "balanceinertia": "true"}),
    ],
    "option": [
        Place(
            TREE,
            "option",
            {
                "actuatorgroupdisable": ["0", "1 2"], "apirate": "50", "ccd_iterations": "9", "ccd_tolerance": "1e-3",
                "cone": "elliptic", "density": "1.2", "gravity": "1 2 3", "impratio": "3",
                "integrator": ["RK4", "implicit", "implicitfast", "discrete"], "iterations": "3", "jacobian": "dense",
                "ls_iterations": "3", "ls_tolerance": "0.1", "magnetic": "1 2 3", "noslip_iterations": "3",
                "noslip_tolerance": "0.1", "o_friction": "1 1 1 1 1", "o_margin": "0.1", "o_solimp": "0.8 0.9 0.1",
                "o_solref": "0.05 1", "sdf_initpoints": "3", "sdf_iterations": "3", "sleep_tolerance": "0.1",
                "solver": "CG", "timestep": "0.01", "tolerance": "1e-3", "viscosity": "0.1",
                "wind": ["1 2 3", {"density": "1", "wind": "1 2 3"}],
            },
        )
    ],
    "option/flag": [
        Place(TREE, "option/flag", {k: ["enable", "disable"] for k in FLAGS} | {"ipc": "disable"}),
        Place(TOUCHING, "option/flag", {k: ["enable", "disable"] for k in ("contact", "constraint", "override")}),
        Place(joined(WELD).replace("<default>", "<option><flag/></option><default>"), "option/flag",
            {"equality": "disable"}),
    ],
    "size": [
        Place(
            TREE,
            "size",
            {
                "memory": "10M", "nconmax": "9", "njmax": "9", "nkey": "5", "nstack": "100000", "nuserdata": "7",
                **{f"nuser_{k}": "3" for k in NUMBERS},
            },
        )
    ],
    "body": [
        Place(
            TREE,
            ".//body[@name='cart']",
            turns(gravcomp="0.5", pos="0.3 0.1 0.2", childclass="other", name="other", user="1", simple="false",
                fuse="false"),
        ),
        Place(TREE, ".//body[@name='pad']", {"fuse": "false", "pos": "0.3 0.1 0.2", "gravcomp": "0.5"}),
        Place(TREE, ".//body[@name='kite']", turns(pos="1 2 3", sleep=["never", "init"], gravcomp="1",
            simple="false")),
        Place(TREE, ".//body[@name='post']", turns(mocap="true", pos="1 2 3")),
    ],
    "body/inertial": [
        Place(
            TREE,
            ".//body[@name='arm']/inertial",
            turns(
                diaginertia="0.1 0.12 0.13", mass="4", pos="0.2 0.3 0.1",
                fullinertia={"diaginertia": None, "euler": None, "fullinertia": "0.03 0.04 0.05 0.001 0.002 0.003"},
            ),
        )
    ],
    "body/joint": [
        Place(TREE, ".//joint[@name='hinge']", JOINT | {"type": ["slide", "ball"], "name": []}),
        Place(TREE, ".//joint[@name='slide']", JOINT | {"type": "hinge"}),
        Place(TREE, ".//joint[@name='ball']", BALL),
        Place(
            TREE.replace('<freejoint name="wind"/>', '<joint name="wind" type="free"/>'),
            ".//joint[@name='wind']",
            {k: JOINT[k] for k in ("armature", "damping", "frictionloss", "stiffness", "pos", "axis", "ref",
                "class", "springref")},
        ),
        Place(
            TREE.replace('<body name="arm"', '<body name="arm" gravcomp="1"'),
            ".//joint[@name='hinge']",
            {"actuatorgravcomp": ["true", "false"]},
        ),
    ],
    "body/freejoint": [Place(TREE, ".//freejoint", {"align": ["true", "false"], "group": "2", "name": "other"})],
    "body/geom": [
        Place(TREE, ".//geom[@name='box']", GEOM),
        Place(TREE, ".//geom[@name='rod']", {k: GEOM[k] for k in ("density", "mass", "shellinertia", "group",
            "class")} | {"size": "0.05", "type": "cylinder"}),
        Place(
            TREE.replace("<flag", "<flag").replace('gravity="0.3 -0.2 -9.7"', 'density="2"'),
            ".//geom[@name='box']",
            {k: GEOM[k] for k in ("fluidcoef", "fluidshape")},
        ),
        Place(TOUCHING, ".//geom[@name='wing']", {k: GEOM[k] for k in GEOM if k not in ("class",
            *TURNS)} | {"contype": "0"}),
        Place(TREE, ".//geom[@name='wing']", {"contype": "1", "conaffinity": "1"}),
    ],
    "body/site": [
        Place(
            TREE,
            ".//site[@name='tip']",
            turns(
                group="2", material="red", mesh={"type": "mesh", "mesh": "solid"}, pos="1 2 3", rgba="1 0 0 1",
                size="0.1",
                type="box", user="1", fromto={"type": "capsule", "fromto": "0 0 0 1 0 0", "pos": None}, name=[],
                **{"class": "other"},
            ),
        ),
        Place(joined(WELD.replace('body1="plate" body2="hand"', 'site1="tip" site2="edge"')),
            ".//site[@name='edge']", turns(pos="0.1 0.2 0.1")),
    ],
    "contact/pair": [
        Place(
            PAIRED,
            ".//pair",
            {
                **SOFT, "adhesion": "1", "class": "other", "condim": "4", "friction": "1 1 1 1 1", "gap": "0.1",
                "geom1": "grip", "geom2": "pole", "margin": "0.1", "name": "other",
            },
        )
    ],
    "contact/exclude": [Place(EXCLUDED, ".//exclude", {"body1": "arm", "body2": "arm", "name": "other"})],
    "equality/connect": [
        Place(
            joined(CONNECT),
            ".//connect",
            EQUALITY | {"anchor": "0.3 0.1 0.1", "body1": "hand", "body2": "hand", "site1": SITES,
                "site2": SITES | {"site2": "peg", "site1": "edge"}},
        )
    ],
    "equality/weld": [
        Place(
            joined(WELD),
            ".//weld",
            EQUALITY
            | {
                "anchor": "0.3 0.1 0.1", "body1": "arm", "body2": "arm", "relpose": "0.1 0.2 0.3 1 0.2 0.1 0.3",
                "site1": SITES, "site2": SITES | {"site2": "peg", "site1": "edge"}, "torquescale": ["0", "0.3", "5"],
            },
        )
    ],
    "equality/joint": [
        Place(
            joined(GEARED),
            ".//equality/joint",
            EQUALITY | {"joint1": {"joint1": "slide", "joint2": "hinge"}, "joint2": {"joint2": None},
                "polycoef": "0.1 -0.3 0.2 0.1 0.05"},
        )
    ],
    "equality/tendon": [
        Place(
            joined(TIED),
            ".//equality/tendon",
            EQUALITY | {"tendon1": {"tendon1": "two", "tendon2": "one"}, "tendon2": {"tendon2": None},
                "polycoef": "0.1 0.5 0 0 0"},
        )
    ],
    "tendon/fixed": [Place(TREE, ".//fixed", {k: v for k, v in TENDON.items() if k not in ("material", "rgba",
    "width")})],
    "tendon/spatial": [Place(TREE, ".//spatial", TENDON)],
    **{
        f"actuator/{kind}": [Place(acting(element), f".//actuator/{kind}", PASSED_ON | more)]
        for kind, (element, more) in ACTUATORS.items()
    },
    "keyframe/key": [
        Place(
            TREE.replace('<body name="post"', '<body name="post" mocap="true"').replace('<motor name="act"',
                '<general dyntype="integrator" name="act"'),
            ".//key",
            {
                "act": "1", "ctrl": "1", "mpos": "1 2 3", "mquat": "0 1 0 0", "name": "other", "time": "3",
                "plastic": [], "qpos": "0.1 0.2 0 1 0 0 3 2 1 0 0 0 1 0.5", "qvel": "1 2 3 4 5 6 7 8 9 10 11 12",
            },
        )
    ],
}  # fmt: skip


def schema() -> dict[str, set[str]]:
    """Attributes that the installed MuJoCo knows of each element, by its path below the root."""
    found: dict[str, list[str]] = {}
    path: list[str] = []
    for line in mujoco.mj_printSchema(False, False).splitlines():
        new = re.match(r"^(\s*)(\S+) \((.)\)\s*(.*)$", line)
        if new:
            path = [*path[: len(new[1]) // 3], new[2].replace("(world)", "")]
            found["/".join(path[1:])] = new[4].split()
        elif line.strip():
            found["/".join(path[1:])] += line.split()
    return {element: set(attributes) for element, attributes in found.items()}


def variations(element: str) -> list[tuple[str, str]]:
    """What is changed, in words, and the file, for all attributes of an element that the installed MuJoCo knows."""
    known, found = schema().get(element, set()), []
    for place in PLACES[element]:
        for attribute, given in place.values.items():
            for value in given if isinstance(given, list) else [given]:
                changes = value if isinstance(value, dict) else {attribute: value}
                if {attribute, *(k for k, v in changes.items() if v is not None)} <= known:
                    root = ET.fromstring(place.base)
                    part = root.find(place.path)
                    assert part is not None, place.path
                    _change(part, changes)
                    shown = ", ".join(f"{k}={v}" for k, v in changes.items())
                    found.append((f"{place.path}: {shown}", ET.tostring(root, encoding="unicode")))
    return found


def several(rng: np.random.Generator, most: int = 6) -> tuple[str, str]:
    """What is changed, in words, and a file with some of the changes at once, which MuJoCo may not take."""
    actuators = [acting(element) for element, _ in ACTUATORS.values()]
    bases = [TREE, TOUCHING, *actuators, *map(joined, (CONNECT, WELD, GEARED))]
    root, found = ET.fromstring(bases[rng.integers(len(bases))]), []
    places = [place for element in PLACES for place in PLACES[element]]
    while len(found) < most:
        place = places[rng.integers(len(places))]
        attribute = rng.choice(list(place.values))
        given = place.values[attribute]
        given = given if isinstance(given, list) else [given]
        part = root.find(place.path)
        if part is not None and given:
            value = given[rng.integers(len(given))]
            changes = value if isinstance(value, dict) else {attribute: value}
            _change(part, changes)
            found.append(f"{place.path}: {changes}")
    return "; ".join(found), ET.tostring(root, encoding="unicode")


def _change(part: ET.Element, changes: dict[str, str | None]) -> None:
    for name, new in changes.items():
        part.attrib.pop(name, None)
        if new is not None:
            part.set(name, new)
