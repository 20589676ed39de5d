"""Actuators of a model, from any version of MuJoCo, and the features that the flags of its <option> leave on.

MuJoCo 4.0 has arrays by actuator (`actuator_trnid`), by control (`actuator_ctrlrange`) and by output
(`actuator_gear`), which differ in length where an actuator has no control, or several. Earlier versions have one each.

model: MuJoCo's; k: number of an actuator; j: of a joint.
"""

import importlib
from typing import Any, NamedTuple

import numpy as np


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


def switches_of(model: Any) -> Switches:
    """The `Switches` of a model, by names: MuJoCo's versions number the flags differently, and old ones lack some."""
    mujoco: Any = importlib.import_module("mujoco")
    disabled = lambda name: _is_set(model.opt.disableflags, mujoco.mjtDisableBit, f"mjDSBL_{name}")
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


def _is_set(flags: int, bits: Any, name: str) -> bool:
    return bool(int(flags) & int(getattr(bits, name, 0)))


# MuJoCo's numbers for kinds of joints.
FREE, BALL, SLIDE, HINGE = range(4)


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


def actuators_of(model: Any, switches: Switches) -> list[Actuator]:
    return [_actuator(model, switches, k) for k in range(getattr(model, "nactuator", model.nu))]


def _actuator(model: Any, switches: Switches, k: int) -> Actuator:
    of = lambda field, otherwise: getattr(model, field)[k] if hasattr(model, field) else otherwise
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
