"""What of a file MuJoCo would simulate, and we do not."""

from collections.abc import Iterable
from typing import Any

import numpy as np


FREE, BALL = 0, 1


def left_out(model: Any) -> list[str]:
    """In words, with the names of what they are about."""
    joint = lambda j: model.joint(j).name or f"joint{j}"
    of_dofs = lambda values: [joint(model.dof_jntid[d]) for d in np.flatnonzero(values)]
    touching = np.flatnonzero((model.geom_contype != 0) | (model.geom_conaffinity != 0))
    soft = [j for j in range(model.njnt) if model.jnt_type[j] in (FREE, BALL) and model.jnt_stiffness[j]]
    dragged = [j for j in range(model.njnt) if model.jnt_type[j] == FREE and _drags(model, j)]
    # Older versions of MuJoCo have no such thing.
    polynomial = lambda name, count: getattr(model, name, np.zeros((count, 1)))
    curved = np.flatnonzero(np.any(polynomial("jnt_stiffnesspoly", model.njnt) != 0, axis=-1))
    driven = model.actuator_trntype
    springy = [k for k in range(model.nu) if not _is_motor(model, k)]
    elsewhere = [k for k in range(model.nu) if driven[k] not in (0, 1) or _on_many(model, k)]
    equality = lambda k: model.equality(k).name or f"equality{k}"
    found = [
        ("contacts between geoms", [model.geom(g).name or f"geom{g}" for g in touching] if len(touching) > 1 else []),
        ("limits of joints", [joint(j) for j in np.flatnonzero(model.jnt_limited)]),
        ("dry friction of joints", of_dofs(model.dof_frictionloss)),
        (
            "damping that is not linear, of joints",
            of_dofs(np.any(polynomial("dof_dampingpoly", model.nv) != 0, axis=-1)),
        ),
        ("stiffness of ball and free joints", [joint(j) for j in soft]),
        ("stiffness that is not linear, of joints", [joint(j) for j in curved]),
        ("damping and armature of free joints", [joint(j) for j in dragged]),
        ("tendons", [model.tendon(k).name or f"tendon{k}" for k in range(model.ntendon)]),
        ("equalities of other kinds", [equality(k) for k in np.flatnonzero(model.eq_type > 2)]),
        ("laws of actuators, of which only the gear is taken", [_actuator(model, k) for k in springy]),
        ("actuators that act on no single joint", [_actuator(model, k) for k in elsewhere]),
        ("compensation of gravity", [model.body(i).name for i in np.flatnonzero(model.body_gravcomp)]),
        ("bodies moved by hand", [model.body(i).name for i in np.flatnonzero(model.body_mocapid >= 0)]),
        ("flexible bodies", [f"flex{k}" for k in range(model.nflex)]),
        ("a fluid", ["density and viscosity"] if model.opt.density or model.opt.viscosity else []),
        ("plugins", [f"plugin{k}" for k in range(model.nplugin)]),
    ]
    return [f"{what} ({_listed(names)})" for what, names in found if len(list(names))]


def _drags(model: Any, j: int) -> bool:
    dofs = slice(model.jnt_dofadr[j], model.jnt_dofadr[j] + 6)
    return bool(np.any(model.dof_damping[dofs]) or np.any(model.dof_armature[dofs]))


def _is_motor(model: Any, k: int) -> bool:
    """Whether its force is the control, once."""
    gain, bias, dynamics = model.actuator_gaintype[k], model.actuator_biastype[k], model.actuator_dyntype[k]
    return gain == 0 and bias == 0 and dynamics == 0 and model.actuator_gainprm[k, 0] == 1


def _on_many(model: Any, k: int) -> bool:
    return model.jnt_type[model.actuator_trnid[k, 0]] in (FREE, BALL)


def _actuator(model: Any, k: int) -> str:
    return model.actuator(k).name or f"motor{k}"


def _listed(names: Iterable[str], most: int = 4) -> str:
    """The first few of them, and how many there are besides."""
    names = list(dict.fromkeys(name or "unnamed" for name in names))
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
