"""The features of a file that MuJoCo would simulate, and `Robot` does not.

A feature that the file itself switches off, by the flags of its <option>, is not left out. `_fields` says of every
field of MuJoCo's model where the field is followed, or named here, or why it does not matter.

model: MuJoCo's; j: number of a joint; k: of something else.

Source of the rules by which geoms may touch: MuJoCo's documentation, Computation, Collision detection, Selection.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ._actuators import BALL, FREE, Actuator, Switches
from ._fields import unknown
from ._parts import Part


def touching(model: Any, switches: Switches) -> list[int]:
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


def _by_type(model: Any, switches: Switches, moves: np.ndarray) -> np.ndarray:
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


def _allowed(model: Any, switches: Switches, bodies: np.ndarray, moves: np.ndarray) -> np.ndarray:
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


def _moving(model: Any) -> np.ndarray:
    """Whether each body moves: it has a joint, or hangs on a body that moves."""
    moves = np.asarray(model.body_dofnum) > 0
    for i in range(1, model.nbody):  # parents come first
        moves[i] |= moves[model.body_parentid[i]]
    return moves


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
