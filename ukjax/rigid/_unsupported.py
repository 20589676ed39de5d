"""The features of a file that MuJoCo would simulate, and `Robot` does not.

A feature that the file itself switches off, by the flags of its <option>, is not left out. `_fields` says of every
field of MuJoCo's model where the field is followed, or named here, or why it does not matter.

model: MuJoCo's; j: number of a joint; k: of something else.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ._actuators import BALL, FREE, Actuator
from ._contacts import touching
from ._fields import unknown
from ._parts import Part
from ._switches import Switches


def unsupported_features(model: Any, switches: Switches, actuators: Sequence[Actuator]) -> list[Part]:
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


def _of_joints(model: Any, switches: Switches) -> list[Part]:
    named = lambda which: [joint_name(model, j) for j in np.flatnonzero(which)]
    of_dofs = lambda values: named(np.bincount(model.dof_jntid[np.flatnonzero(values)], minlength=model.njnt))
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
    named = lambda which: [a.name for a in actuators if which(a)]
    elsewhere = lambda a: not a.drives and not (a.joint >= 0 and a.kind == BALL)
    law = lambda a: a.is_on and a.drives and a.controls and not a.is_motor
    return [
        ("laws of actuators, of which only the gear is taken", named(law)),
        ("actuators without control", named(lambda a: a.is_on and not a.controls)),
        ("actuators that act on no single joint", named(lambda a: a.is_on and not a.drives)),
        ("limits of actuators", named(lambda a: a.is_on and a.is_limited)),
        ("delays of actuators", named(lambda a: a.is_on and a.is_delayed)),
        (
            "damping and armature of actuators elsewhere than at a joint",
            named(lambda a: elsewhere(a) and (a.damping or a.armature)),
        ),
        ("damping that is not linear, of actuators", named(lambda a: a.is_curved)),
    ]


def _of_tendons(model: Any, switches: Switches) -> list[Part]:
    """The tendons that have an effect of their own, unlike a tendon that is only measured or drawn."""
    n = model.ntendon
    springs = _any(model, "tendon_stiffness", n) | _any(model, "tendon_stiffnesspoly", n)
    dampers = _any(model, "tendon_damping", n) | _any(model, "tendon_dampingpoly", n)
    acts = springs & switches.spring | dampers & switches.damper | _any(model, "tendon_armature", n)
    acts |= (
        _any(model, "tendon_limited", n) & switches.limit | _any(model, "tendon_frictionloss", n) & switches.friction
    )
    limited = _any(model, "tendon_actfrclimited", n) & switches.actuation
    named = lambda which: [model.tendon(k).name or f"tendon{k}" for k in np.flatnonzero(which)]
    return [("tendons", named(acts)), ("limits of what actuators do to tendons", named(limited))]


def _other_equalities(model: Any, switches: Switches) -> list[str]:
    others = (np.asarray(model.eq_type) > 2) & np.asarray(model.eq_active0, bool) & switches.equality
    return [model.equality(k).name or f"equality{k}" for k in np.flatnonzero(others)]


def _of_bodies(model: Any, switches: Switches) -> list[Part]:
    named = lambda which: [model.body(i).name or f"body{i}" for i in np.flatnonzero(which)]
    falls = switches.passive and switches.gravity and bool(np.any(model.opt.gravity))
    fluid = switches.passive and bool(model.opt.density or model.opt.viscosity)
    return [
        ("compensation of gravity", named((np.asarray(model.body_gravcomp) * model.body_mass != 0) & falls)),
        ("bodies moved by hand", named(np.asarray(model.body_mocapid) >= 0)),
        ("flexible bodies", [f"flex{k}" for k in range(model.nflex)]),
        ("a fluid", ["density and viscosity"] if fluid else []),
        ("bodies that sleep", ["all that are at rest"] if switches.sleep else []),
    ]


def joint_name(model: Any, j: Any) -> str:
    return model.joint(j).name or f"joint{j}"


def _any(model: Any, field: str, count: int) -> np.ndarray:
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
