"""Tables of all fields of MuJoCo's model: where a field is followed, named in a warning, or why it does not matter.

`Robot` is an exact, continuous mechanical system. MuJoCo's further data (softness of constraints, steps, drawings,
sensors, caches) has no effect on the robot. A test fails for a field that is in none of the tables, such as a new field
of a new version of MuJoCo; a file that uses such a field is read with a warning. "opt." marks fields of MuJoCo's
`mjOption`; "*" stands for any further characters.
"""

import functools
from fnmatch import fnmatchcase
from typing import Any

import numpy as np


# Read by _from_model and _actuators; another value makes another robot.
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
    **dict.fromkeys(
        (f"tendon_{k}" for k in ("lengthspring", "springyield", "plasticadr", "type", "adr", "num")), TENDONS
    ),
    **dict.fromkeys(("ntendon", "nwrap", "wrap_*"), TENDONS),
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
    **dict.fromkeys(("tendon_length0", "actuator_acc0", "actuator_length0"), MADE),
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
    own = lambda kind: [k for k in dir(kind) if not k.startswith("_") and not callable(getattr(kind, k))]
    return (*(k for k in own(model) if k != "opt"), *(f"opt.{k}" for k in own(option)))


def entries_of(field: str) -> list[str]:
    """The entries of the tables that match a field: one for a known field, none for an unknown field."""
    return [entry for table in (FOLLOWED, NAMED, NO_MATTER) for entry in table if fnmatchcase(field, entry)]


def unknown(model: Any) -> list[str]:
    """Fields in none of the tables, from a newer version of MuJoCo, that hold nonzero floating-point numbers."""
    return [field for field in _unknown(type(model), type(model.opt)) if _numbers(model, field)]


@functools.cache
def _unknown(model: type, option: type) -> tuple[str, ...]:
    return tuple(field for field in fields_of(model, option) if not entries_of(field))


def _numbers(model: Any, field: str) -> bool:
    """Whether a field holds nonzero floating-point numbers; integers are ignored, since most are addresses."""
    owner = model.opt if field.startswith("opt.") else model
    value = np.asarray(getattr(owner, field.removeprefix("opt.")))
    return value.dtype.kind == "f" and bool(np.any(value != 0))
