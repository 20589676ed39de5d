"""MuJoCo's model of a file: what of it acts, what `Robot` follows, and the features that only MuJoCo would simulate.

A feature that the file itself switches off, by the flags of its <option>, is not left out. `Robot` is an exact,
continuous mechanical system: MuJoCo's further data (softness of constraints, steps, drawings, sensors, caches) has no
effect on it. Tables say of every field of the model where the field is followed, named in a warning, or why it does not
matter. A test fails for a field that is in none of the tables, such as a new field of a new version of MuJoCo; a file
that uses such a field is read with a warning. "opt." marks fields of MuJoCo's `mjOption`; "*" stands for any further
characters.

MuJoCo 4.0 has arrays by actuator (`actuator_trnid`), by control (`actuator_ctrlrange`) and by output
(`actuator_gear`), which differ in length where an actuator has no control, or several. Earlier versions have one each.

model: MuJoCo's; j: number of a joint; k: of something else.

Source of the rules by which geoms may touch: MuJoCo's documentation, Computation, Collision detection, Selection.
"""

import functools
import importlib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from ._parts import Part


# `mujoco.MjModel`: MuJoCo describes no types, and is there only where MJCF is read.
MjModel = Any

# Read by `_from_model` and here; another value makes another robot.
FOLLOWED = {
    "opt.gravity": "Robot.gravity",
    "opt.disableflags": "Switches",
    "opt.disableactuator": "Actuator.is_on",
    "qpos0": "frames of joints, Robot.home",
    "qpos_spring": "Effort.rest",
    "body_parentid": "the tree",
    "body_jntadr": "the tree",
    "body_jntnum": "the tree",
    "body_pos": "frames of joints",
    "body_quat": "frames of joints",
    "body_ipos": "Inertia.center",
    "body_iquat": "Inertia.moments",
    "body_mass": "Inertia.mass",
    "body_inertia": "Inertia.moments",
    "jnt_type": "the kind of joint",
    "jnt_qposadr": "the place of its coordinates",
    "jnt_dofadr": "the place of its speeds",
    "jnt_pos": "frames of joints",
    "jnt_axis": "axes of joints",
    "jnt_stiffness": "Effort.stiffness",
    "dof_armature": "Effort.armature, Drag.armature",
    "dof_damping": "Effort.damping, Drag.damping",
    "site_bodyid": "frames of equalities",
    "site_pos": "frames of equalities",
    "site_quat": "frames of equalities",
    "eq_type": "the kind of constraint",
    "eq_obj1id": "what it holds",
    "eq_obj2id": "what it holds",
    "eq_objtype": "what it holds",
    "eq_active0": "whether there is one",
    "eq_data": "frames of equalities, Gear.coefficients, and whether a weld holds rotation",
    **dict.fromkeys(("tendon_adr", "tendon_num", "wrap_type", "wrap_objid"), "the joints that a fixed tendon adds up"),
    "wrap_prm": "Gear.factors",
    "tendon_length0": "Gear.coefficients",
    "actuator_ctrladr": "the place of its controls",
    "actuator_ctrlnum": "whether it is a motor",
    "actuator_outadr": "the place of its gear",
    "actuator_trntype": "what it acts on",
    "actuator_trnid": "what it acts on",
    "actuator_gear": "Motor.gear",
    "actuator_group": "Actuator.is_on",
    "actuator_damping": "Effort.damping, Drag.damping",
    "actuator_armature": "Effort.armature, Drag.armature",
    "actuator_gaintype": "whether it is a motor",
    "actuator_biastype": "whether it is a motor",
    "actuator_dyntype": "whether it is a motor",
    "actuator_gainprm": "Motor.gear",
    "key_qpos": "Robot.home, by from_mjcf(keyframe=...)",
    "key_qvel": "Robot.home_rates, likewise",
    "nactuator": "the actuators",
    "nbody": "the bodies",
    "neq": "the equalities",
    "njnt": "the joints",
    "nkey": "the keyframes",
    "nu": "the actuators, where there is one control of each",
    "name_*": "names",
    "names": "names",
}

# The words of `unsupported_features` where a field has an effect. A field that only qualifies one shares its words.
CONTACTS, LIMITS, FRICTION = "contacts between geoms", "limits of joints", "dry friction of joints"
LAWS, TENDONS = "laws of actuators, of which only the gear is taken", "tendons"
NAMED = {
    "geom_contype": CONTACTS,
    "geom_conaffinity": CONTACTS,
    "geom_bodyid": CONTACTS,
    **dict.fromkeys((f"geom_{k}" for k in ("type", "size", "pos", "quat", "condim", "priority", "dataid")), CONTACTS),
    **dict.fromkeys((f"geom_{k}" for k in ("friction", "margin", "gap", "surfacevel", "adhesion")), CONTACTS),
    **dict.fromkeys(("ngeom", "npair", "nexclude", "pair_*", "exclude_signature", "hfield_*", "nhfield*"), CONTACTS),
    **dict.fromkeys(("opt.o_*", "flg_surfacevel", "flg_adhesion"), CONTACTS),
    **dict.fromkeys(("jnt_limited", "jnt_range"), LIMITS),
    "dof_frictionloss": FRICTION,
    "dof_dampingpoly": "damping that is not linear, of joints",
    "jnt_stiffnesspoly": "stiffness that is not linear, of joints",
    **dict.fromkeys(("jnt_springyield", "jnt_plasticadr", "nplastic"), "springs that yield, of joints"),
    **dict.fromkeys(("jnt_actfrclimited", "jnt_actfrcrange"), "limits of what actuators do to joints"),
    **dict.fromkeys(("actuator_biasprm", "actuator_dynprm", "actuator_ctrlspec", "actuator_actadr", "na"), LAWS),
    **dict.fromkeys(("actuator_actlimited", "actuator_actrange", "actuator_actearly", "actuator_actnum"), LAWS),
    **dict.fromkeys(("actuator_plugin", "actuator_lengthrange"), LAWS),
    **dict.fromkeys(("actuator_cranklength", "actuator_outnum", "nout"), "actuators that act on no single joint"),
    **dict.fromkeys(("actuator_ctrllimited", "actuator_ctrlrange"), "limits of actuators"),
    **dict.fromkeys(("actuator_forcelimited", "actuator_forcerange"), "limits of actuators"),
    **dict.fromkeys(("actuator_delay", "actuator_history*", "nhistory"), "delays of actuators"),
    "actuator_dampingpoly": "damping that is not linear, of actuators",
    **dict.fromkeys(("tendon_actfrclimited", "tendon_actfrcrange"), "limits of what actuators do to tendons"),
    **dict.fromkeys((f"tendon_{k}" for k in ("stiffness", "stiffnesspoly", "damping", "dampingpoly")), TENDONS),
    **dict.fromkeys((f"tendon_{k}" for k in ("armature", "frictionloss", "limited", "range", "margin")), TENDONS),
    **dict.fromkeys((f"tendon_{k}" for k in ("lengthspring", "springyield", "plasticadr", "type")), TENDONS),
    **dict.fromkeys(("ntendon", "nwrap"), TENDONS),
    **dict.fromkeys(("body_gravcomp", "ngravcomp", "flg_gravcomp", "jnt_actgravcomp"), "compensation of gravity"),
    **dict.fromkeys(("body_mocapid", "nmocap"), "bodies moved by hand"),
    **dict.fromkeys(("flex*", "nflex*", "nJfe", "nJfv", "nefm*", "efm*"), "flexible bodies"),
    **dict.fromkeys(("opt.density", "opt.viscosity", "opt.wind", "geom_fluid"), "a fluid"),
    **dict.fromkeys(("plugin*", "nplugin*", "body_plugin", "geom_plugin"), "plugins"),
    **dict.fromkeys(("opt.enableflags", "opt.sleep_tolerance", "tree_sleep_policy"), "bodies that sleep"),
}

SOFT = "how soft a constraint is: equalities are met exactly, and all other constraints are named"
STEPS = "how steps are taken, and equations solved: the equations are what they are"
MADE = "made by MuJoCo of other fields"
INDEX = "an address, a number or a count of other fields"
LOOKS = "drawn only"
MEASURES = "measured only"
LABELS = "for the user of MuJoCo only"
USER = [f"{k}_user" for k in ("body", "jnt", "geom", "site", "tendon", "actuator")]
NO_MATTER = {
    **dict.fromkeys(("dof_solref", "dof_solimp", "jnt_solref", "jnt_solimp", "eq_solref", "eq_solimp"), SOFT),
    **dict.fromkeys(("geom_solmix", "geom_solref", "geom_solimp", "tendon_solref_*", "tendon_solimp_*"), SOFT),
    **dict.fromkeys(("body_invweight0", "dof_invweight0", "tendon_invweight0", "opt.impratio"), SOFT),
    "jnt_margin": "where a limit begins to act, which is named",
    **dict.fromkeys(("opt.timestep", "opt.integrator", "opt.cone", "opt.jacobian", "opt.solver"), STEPS),
    **dict.fromkeys(("opt.apirate", "opt.iterations", "opt.tolerance", "opt.ls_*"), STEPS),
    **dict.fromkeys(("opt.noslip_*", "opt.ccd_*", "opt.sdf_*", "stat"), STEPS),
    **dict.fromkeys(("body_rootid", "body_weldid", "body_dofnum", "body_dofadr", "body_treeid"), INDEX),
    **dict.fromkeys(("body_geomnum", "body_geomadr", "jnt_bodyid", "jnt_actuatorid", "dof_bodyid"), INDEX),
    **dict.fromkeys(("dof_jntid", "dof_parentid", "dof_treeid", "dof_Madr", "dof_simplenum"), INDEX),
    **dict.fromkeys(("tree_bodyadr", "tree_bodynum", "tree_dofadr", "tree_dofnum", "ntree"), INDEX),
    **dict.fromkeys(("tendon_treenum", "tendon_treeid", "tendon_actuatorid", "ten_J_*", "nJten", "nJmom"), INDEX),
    **dict.fromkeys(("nq", "nv", "nM", "nB", "nC", "nD", "nemax", "njmax", "nconmax", "narena", "nbuffer"), INDEX),
    **dict.fromkeys(
        ("B_*", "M_*", "D_*", "names_map", "mapM2M", "mapM2D", "mapD2M", "nnames", "nnames_map", "signature"), INDEX
    ),
    **dict.fromkeys(("body_simple", "body_sameframe", "geom_sameframe", "site_sameframe"), MADE),
    **dict.fromkeys(("body_subtreemass", "body_margin", "body_contype", "body_conaffinity"), MADE),
    **dict.fromkeys(("body_bvhadr", "body_bvhnum", "bvh_*", "nbvh*", "oct_*", "noct", "npolygonmax"), MADE),
    **dict.fromkeys(("dof_M0", "dof_length", "geom_aabb", "geom_rbound"), MADE),
    **dict.fromkeys(("actuator_acc0", "actuator_length0"), MADE),
    **dict.fromkeys(
        ("mesh_*", "nmesh*"), "the shape of geoms, whose inertia is that of their body, and whose contacts are named"
    ),
    **dict.fromkeys(
        ("cam_*", "ncam", "light_*", "nlight", "mat_*", "nmat", "tex_*", "ntex*", "skin_*", "nskin*"), LOOKS
    ),
    **dict.fromkeys(("vis", "geom_rgba", "geom_matid", "geom_group", "geom_castshadow", "jnt_group"), LOOKS),
    **dict.fromkeys(("site_type", "site_dataid", "site_matid", "site_group", "site_size", "site_rgba", "nsite"), LOOKS),
    **dict.fromkeys(("tendon_matid", "tendon_group", "tendon_width", "tendon_rgba", "paths", "npaths"), LOOKS),
    **dict.fromkeys(("sensor_*", "nsensor*", "opt.magnetic"), MEASURES),
    **dict.fromkeys((*USER, "nuser*", "numeric_*", "nnumeric*", "text_*"), LABELS),
    **dict.fromkeys(("tuple_*", "ntuple*"), LABELS),
    **dict.fromkeys(
        ("key_time", "key_act", "key_ctrl", "key_mpos", "key_mquat", "key_plastic"), "no part of the state here"
    ),
}


# Bits of opt.disableflags and opt.enableflags, by their names in MuJoCo's mjtDisableBit and mjtEnableBit.
FLAGS = {
    **dict.fromkeys(("mjDSBL_CONSTRAINT", "mjDSBL_EQUALITY", "mjDSBL_GRAVITY", "mjDSBL_ACTUATION"), "followed"),
    **dict.fromkeys(("mjDSBL_SPRING", "mjDSBL_DAMPER", "mjDSBL_PASSIVE"), "followed"),
    **dict.fromkeys(("mjDSBL_FRICTIONLOSS", "mjDSBL_LIMIT", "mjDSBL_CONTACT"), "what is named without them is not"),
    **dict.fromkeys(("mjDSBL_CLAMPCTRL", "mjDSBL_FILTERPARENT"), "what is named with them, or without, is right"),
    "mjENBL_SLEEP": "named",
    **dict.fromkeys(
        ("mjDSBL_WARMSTART", "mjDSBL_EULERDAMP", "mjDSBL_AUTORESET", "mjDSBL_ISLAND", "mjENBL_ISLAND"), STEPS
    ),
    **dict.fromkeys(("mjENBL_FWDINV", "mjENBL_INVDISCRETE"), STEPS),
    **dict.fromkeys(("mjDSBL_REFSAFE", "mjENBL_DIAGEXACT"), SOFT),
    **dict.fromkeys(
        ("mjDSBL_MIDPHASE", "mjDSBL_NATIVECCD", "mjDSBL_MULTICCD", "mjENBL_MULTICCD"), "contacts are named"
    ),
    **dict.fromkeys(("mjENBL_OVERRIDE", "mjENBL_IPC", "mjENBL_SPECULATIVE"), "contacts and flexible bodies are named"),
    **dict.fromkeys(("mjDSBL_SENSOR", "mjENBL_ENERGY"), MEASURES),
}


@functools.cache
def fields_of(model: type, option: type) -> tuple[str, ...]:
    """Names of all fields of MuJoCo's models, and of their options."""
    of_model, of_option = (
        [k for k in dir(kind) if not k.startswith("_") and not callable(getattr(kind, k))] for kind in (model, option)
    )
    return (*(k for k in of_model if k != "opt"), *(f"opt.{k}" for k in of_option))


def entries_of(field: str) -> list[str]:
    """The entries of the tables that match a field: one for a known field, none for an unknown field."""
    return [entry for table in (FOLLOWED, NAMED, NO_MATTER) for entry in table if fnmatchcase(field, entry)]


def unknown(model: MjModel) -> list[str]:
    """Fields in none of the tables, from a newer version of MuJoCo, that hold nonzero floating-point numbers."""
    return [field for field in _unknown(type(model), type(model.opt)) if _numbers(model, field)]


@functools.cache
def _unknown(model: type, option: type) -> tuple[str, ...]:
    return tuple(field for field in fields_of(model, option) if not entries_of(field))


def _numbers(model: MjModel, field: str) -> bool:
    """Whether a field holds nonzero floating-point numbers; integers are ignored, since most are addresses."""
    owner = model.opt if field.startswith("opt.") else model
    value = np.asarray(getattr(owner, field.removeprefix("opt.")))
    return value.dtype.kind == "f" and bool(np.any(value != 0))


class Switches(NamedTuple):
    """Whether each part of a model acts.

    Attributes:
        equality: Equalities.
        friction: Dry friction.
        limit: Limits of joints and tendons.
        contact: Contacts between geoms.
        spring: Springs of joints and tendons.
        damper: Dampers likewise, those of actuators included.
        passive: Compensation of gravity, fluids, and passive plugins: off where springs and dampers are both off.
        gravity: Gravity.
        actuation: Forces of actuators; their damping and armature act in any case.
        clamps_control: Ranges of controls.
        filters_parents: Whether a body and its parent body do not touch.
        sleep: Whether bodies at rest are left out of the simulation.
    """

    equality: bool
    friction: bool
    limit: bool
    contact: bool
    spring: bool
    damper: bool
    passive: bool
    gravity: bool
    actuation: bool
    clamps_control: bool
    filters_parents: bool
    sleep: bool


def switches_of(model: MjModel) -> Switches:
    """The `Switches` of a model, by names: MuJoCo's versions number the flags differently, and old ones lack some."""
    mujoco = importlib.import_module("mujoco")

    def disabled(name: str) -> bool:
        return _is_set(model.opt.disableflags, mujoco.mjtDisableBit, f"mjDSBL_{name}")

    # Before 3.3.6 one flag was for springs, dampers and all else that is passive.
    spring, damper = (not disabled(name) and not disabled("PASSIVE") for name in ("SPRING", "DAMPER"))
    solves = not disabled("CONSTRAINT")
    return Switches(
        equality=solves and not disabled("EQUALITY"),
        friction=solves and not disabled("FRICTIONLOSS"),
        limit=solves and not disabled("LIMIT"),
        contact=solves and not disabled("CONTACT"),
        spring=spring,
        damper=damper,
        passive=spring or damper,
        gravity=not disabled("GRAVITY"),
        actuation=not disabled("ACTUATION"),
        clamps_control=not disabled("CLAMPCTRL"),
        filters_parents=not disabled("FILTERPARENT"),
        sleep=_is_set(model.opt.enableflags, mujoco.mjtEnableBit, "mjENBL_SLEEP"),
    )


def _is_set(flags: int, bits: object, name: str) -> bool:
    return bool(int(flags) & int(getattr(bits, name, 0)))


# MuJoCo's numbers for kinds of joints.
FREE, BALL, SLIDE, HINGE = range(4)
# Its numbers for an equality of tendons, and for a joint on the way of a tendon.
OF_TENDONS, WRAPS_JOINT = 3, 1


class Actuator(NamedTuple):
    """An actuator.

    Attributes:
        name: Name in the file, or "motor0".
        joint: Number of the joint on which it acts; -1 if it does not act on a joint.
        kind: Kind of that joint; -1 if there is no joint.
        gear: Gear of its first output.
        gain: Force for a unit of control, before the gear, if it is a motor; else 1.
        controls: Number of its controls.
        is_motor: Whether its force is the gain times its control.
        is_on: Whether the file leaves it on.
        is_limited: Whether control, force or the rate of the control have bounds.
        is_delayed: Whether the control is delayed.
        damping: Linear damping at the joint [N m s/rad or N s/m]; for a ball, that of any speed.
        armature: Armature at the joint [kg m^2 or kg].
        is_curved: Whether it has damping that is not linear.
    """

    name: str
    joint: int
    kind: int
    gear: float
    gain: float
    controls: int
    is_motor: bool
    is_on: bool
    is_limited: bool
    is_delayed: bool
    damping: float
    armature: float
    is_curved: bool

    @property
    def drives(self) -> bool:
        """Whether the actuator acts on a single joint of one coordinate."""
        return self.joint >= 0 and self.kind in (SLIDE, HINGE)


def actuators_of(model: MjModel, switches: Switches) -> list[Actuator]:
    return [_actuator(model, switches, k) for k in range(getattr(model, "nactuator", model.nu))]


def _actuator(model: MjModel, switches: Switches, k: int) -> Actuator:

    def of(field: str, otherwise: float) -> float:
        return getattr(model, field)[k] if hasattr(model, field) else otherwise

    first, count = int(of("actuator_ctrladr", k)), int(of("actuator_ctrlnum", 1))
    joint = int(model.actuator_trnid[k, 0]) if model.actuator_trntype[k] in (0, 1) else -1
    gear = float(model.actuator_gear[int(of("actuator_outadr", k)), 0])
    bounds = bool(np.any(model.actuator_ctrllimited[first : first + count])) and switches.clamps_control
    plain = model.actuator_gaintype[k] == model.actuator_biastype[k] == model.actuator_dyntype[k] == 0
    is_motor = bool(plain) and count == 1 and model.actuator_plugin[k] < 0
    group = int(model.actuator_group[k])
    off = 0 <= group <= 30 and int(model.opt.disableactuator) >> group & 1
    return Actuator(
        name=model.actuator(k).name or f"motor{k}",
        joint=joint,
        kind=int(model.jnt_type[joint]) if joint >= 0 else -1,
        gear=gear,
        gain=float(model.actuator_gainprm[k, 0]) if is_motor else 1.0,
        controls=count,
        is_motor=is_motor,
        is_on=switches.actuation and not off,
        is_limited=bounds or bool(model.actuator_forcelimited[k]),
        is_delayed=bool(of("actuator_delay", 0.0)),
        damping=gear**2 * float(of("actuator_damping", 0.0)) if switches.damper else 0.0,
        armature=gear**2 * float(of("actuator_armature", 0.0)),
        is_curved=switches.damper and bool(gear) and bool(np.any(of("actuator_dampingpoly", 0.0))),
    )


def at_joint(actuators: list[Actuator], j: int) -> tuple[float, float]:
    """The damping and armature that the actuators of a joint add to those of the joint."""
    own = [a for a in actuators if a.joint == j]
    return sum(a.damping for a in own), sum(a.armature for a in own)


def touching(model: MjModel, switches: Switches) -> list[int]:
    """Numbers of the geoms that may touch another geom, with at least one of the two on a moving body."""
    if not switches.contact:
        return []
    moves = _moving(model)
    found = np.zeros(model.ngeom, bool)
    if model.ngeom:
        found |= _by_type(model, switches, moves)
    for first, second in zip(model.pair_geom1, model.pair_geom2, strict=True):
        if moves[model.geom_bodyid[first]] or moves[model.geom_bodyid[second]]:
            found[[first, second]] = True
    return np.flatnonzero(found).tolist()


def _by_type(model: MjModel, switches: Switches, moves: np.ndarray) -> np.ndarray:
    """Whether each geom may touch a geom of another body, by the bits of type and affinity (ngeom,)."""
    types, affinities = np.asarray(model.geom_contype), np.asarray(model.geom_conaffinity)
    body = np.asarray(model.geom_bodyid)
    bodies = np.unique(body[(types != 0) | (affinities != 0)])
    allowed = _allowed(model, switches, bodies, moves)
    of_types, of_affinities = (_together(bits, body, bodies) for bits in (types, affinities))
    found = np.zeros(model.ngeom, bool)
    for i, b in enumerate(bodies):
        others = allowed[i]
        type_there = np.bitwise_or.reduce(of_types[others], initial=0)
        affinity_there = np.bitwise_or.reduce(of_affinities[others], initial=0)
        found |= (body == b) & (((types & affinity_there) | (affinities & type_there)) != 0)
    return found


def _allowed(model: MjModel, switches: Switches, bodies: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Whether MuJoCo checks geoms of two bodies: not within a body, nor, by default, between a body and its parent."""
    weld = np.asarray(model.body_weldid)[bodies]
    parent = np.asarray(model.body_weldid)[np.asarray(model.body_parentid)[weld]]
    allowed = weld[:, None] != weld[None]
    allowed &= moves[bodies][:, None] | moves[bodies][None]
    if switches.filters_parents:
        kin = (weld[:, None] == parent[None]) | (parent[:, None] == weld[None])
        allowed &= ~(kin & (weld[:, None] != 0) & (weld[None] != 0))
    place = {b: i for i, b in enumerate(bodies.tolist())}
    for signature in np.asarray(model.exclude_signature).tolist():
        pair = [place.get(b) for b in (signature >> 16, signature & 0xFFFF)]
        if None not in pair:
            allowed[pair, pair[::-1]] = False
    return allowed


def _together(bits: np.ndarray, body: np.ndarray, bodies: np.ndarray) -> np.ndarray:
    """The bitwise or of the bits of all geoms of each body."""
    return np.array([np.bitwise_or.reduce(bits[body == b], initial=0) for b in bodies], bits.dtype)


def _moving(model: MjModel) -> np.ndarray:
    """Whether each body moves: it has a joint, or hangs on a body that moves."""
    moves = np.asarray(model.body_dofnum) > 0
    for i in range(1, model.nbody):  # parents come first
        moves[i] |= moves[model.body_parentid[i]]
    return moves


def unsupported_features(model: MjModel, switches: Switches, actuators: Sequence[Actuator]) -> list[Part]:
    """The features that are not simulated, each with the names of the parts that have it; empty ones are dropped."""
    found = [
        ("contacts between geoms", [model.geom(g).name or f"geom{g}" for g in touching(model, switches)]),
        *_of_joints(model, switches),
        *_of_actuators(actuators),
        *_of_tendons(model, switches),
        ("equalities of other kinds", _other_equalities(model, switches)),
        *_of_bodies(model, switches),
        ("plugins", [f"plugin{k}" for k in range(model.nplugin)]),
        ("what this version of MuJoCo is newer in", unknown(model)),
    ]
    return [(what, names) for what, names in found if names]


def _of_joints(model: MjModel, switches: Switches) -> list[Part]:

    def named(which: np.ndarray) -> list[str]:
        return [joint_name(model, j) for j in np.flatnonzero(which)]

    def of_dofs(values: np.ndarray) -> list[str]:
        return named(np.bincount(model.dof_jntid[np.flatnonzero(values)], minlength=model.njnt))

    kind = np.asarray(model.jnt_type)
    spring, damper = switches.spring, switches.damper
    stiff = np.asarray(model.jnt_stiffness) != 0
    curved = _any(model, "jnt_stiffnesspoly", model.njnt)
    damped = np.bincount(model.dof_jntid[np.asarray(model.dof_damping) != 0], minlength=model.njnt) > 0
    heavy = np.bincount(model.dof_jntid[np.asarray(model.dof_armature) != 0], minlength=model.njnt) > 0
    yields = _any(model, "jnt_springyield", model.njnt) & (stiff | curved)
    limited = np.asarray(model.jnt_limited, bool) & (kind != FREE)
    return [
        ("limits of joints", named(limited & switches.limit)),
        ("dry friction of joints", of_dofs((np.asarray(model.dof_frictionloss) != 0) & switches.friction)),
        ("damping that is not linear, of joints", of_dofs(_any(model, "dof_dampingpoly", model.nv) & damper)),
        ("stiffness of ball and free joints", named((kind <= BALL) & stiff & spring)),
        ("stiffness that is not linear, of joints", named(curved & spring)),
        ("springs that yield, of joints", named(yields & spring)),
        ("damping and armature of free joints", named((kind == FREE) & ((damped & damper) | heavy))),
        (
            "limits of what actuators do to joints",
            named(np.asarray(model.jnt_actfrclimited, bool) & (kind > BALL) & switches.actuation),
        ),
    ]


def _of_actuators(actuators: Sequence[Actuator]) -> list[Part]:
    on = [a for a in actuators if a.is_on]
    elsewhere = [a for a in actuators if not a.drives and not (a.joint >= 0 and a.kind == BALL)]
    return [
        (
            "laws of actuators, of which only the gear is taken",
            [a.name for a in on if a.drives and a.controls and not a.is_motor],
        ),
        ("actuators without control", [a.name for a in on if not a.controls]),
        ("actuators that act on no single joint", [a.name for a in on if not a.drives]),
        ("limits of actuators", [a.name for a in on if a.is_limited]),
        ("delays of actuators", [a.name for a in on if a.is_delayed]),
        (
            "damping and armature of actuators elsewhere than at a joint",
            [a.name for a in elsewhere if a.damping or a.armature],
        ),
        ("damping that is not linear, of actuators", [a.name for a in actuators if a.is_curved]),
    ]


def _of_tendons(model: MjModel, switches: Switches) -> list[Part]:
    """The tendons that have an effect of their own, unlike a tendon that is only measured or drawn."""
    n = model.ntendon
    springs = _any(model, "tendon_stiffness", n) | _any(model, "tendon_stiffnesspoly", n)
    dampers = _any(model, "tendon_damping", n) | _any(model, "tendon_dampingpoly", n)
    acts = springs & switches.spring | dampers & switches.damper | _any(model, "tendon_armature", n)
    acts |= (
        _any(model, "tendon_limited", n) & switches.limit | _any(model, "tendon_frictionloss", n) & switches.friction
    )
    limited = _any(model, "tendon_actfrclimited", n) & switches.actuation
    both = ("tendons", acts), ("limits of what actuators do to tendons", limited)
    return [(what, [model.tendon(k).name or f"tendon{k}" for k in np.flatnonzero(which)]) for what, which in both]


def factors_of(model: MjModel, k: int) -> dict[int, float] | None:
    """The factors of a fixed tendon by the number of the joint; None for a tendon through space."""
    at = range(model.tendon_adr[k], model.tendon_adr[k] + model.tendon_num[k])
    if any(model.wrap_type[i] != WRAPS_JOINT for i in at):
        return None
    return {int(model.wrap_objid[i]): float(model.wrap_prm[i]) for i in at}


def _other_equalities(model: MjModel, switches: Switches) -> list[str]:

    def is_other(k: int) -> bool:
        if model.eq_type[k] != OF_TENDONS:
            return model.eq_type[k] > OF_TENDONS
        tendons = (model.eq_obj1id[k], model.eq_obj2id[k])
        return any(factors_of(model, one) is None for one in tendons if one >= 0)

    others = np.array([is_other(k) for k in range(model.neq)], bool)
    others &= np.asarray(model.eq_active0, bool) & switches.equality
    return [model.equality(k).name or f"equality{k}" for k in np.flatnonzero(others)]


def _of_bodies(model: MjModel, switches: Switches) -> list[Part]:

    def named(which: np.ndarray) -> list[str]:
        return [model.body(i).name or f"body{i}" for i in np.flatnonzero(which)]

    falls = switches.passive and switches.gravity and bool(np.any(model.opt.gravity))
    fluid = switches.passive and bool(model.opt.density or model.opt.viscosity)
    return [
        ("compensation of gravity", named((np.asarray(model.body_gravcomp) * model.body_mass != 0) & falls)),
        ("bodies moved by hand", named(np.asarray(model.body_mocapid) >= 0)),
        ("flexible bodies", [f"flex{k}" for k in range(model.nflex)]),
        ("a fluid", ["density and viscosity"] if fluid else []),
        ("bodies that sleep", ["all that are at rest"] if switches.sleep else []),
    ]


def joint_name(model: MjModel, j: int | np.integer) -> str:
    return model.joint(j).name or f"joint{j}"


def _any(model: MjModel, field: str, count: int) -> np.ndarray:
    """Whether each entry of a field is nonzero; all False for a field that an older version of MuJoCo does not have."""
    values = np.asarray(getattr(model, field, np.zeros(count)))
    return np.any(values != 0, axis=tuple(range(1, values.ndim)))


def in_words(parts: Iterable[Part]) -> str:
    """A text of the features, with the first few names of each."""
    return "; ".join(f"{what} ({listed(names)})" for what, names in parts)


def listed(names: Iterable[str], most: int = 4) -> str:
    """A text of the first few names and the number of the rest."""
    names = list(dict.fromkeys(name or "unnamed" for name in names))
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
