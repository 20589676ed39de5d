"""Servo constraints: the motion that a mechanism is to follow, its actuators, and their control."""

from ._actuation import actuation_at as actuation_at
from ._actuation import actuation_of as actuation_of
from ._actuation import limits_at as limits_at
from ._actuation import limits_of as limits_of
from ._control import Acting as Acting
from ._control import as_acting as as_acting
from ._control import as_memoryless as as_memoryless
from ._control import as_servos as as_servos
from ._control import missed_rows as missed_rows
from ._control import servo_control as servo_control
from ._feedback import Feedback as Feedback
from ._motion import Control as Control
from ._motion import controlled_motion as controlled_motion
from ._servo import AbstractServo as AbstractServo
from ._servo import ConstraintFollowing as ConstraintFollowing
from ._servo import Servo as Servo
