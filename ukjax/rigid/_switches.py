"""The features that the flags of a file's <option> leave on.

model: MuJoCo's.
"""

import importlib
from typing import Any, NamedTuple


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
