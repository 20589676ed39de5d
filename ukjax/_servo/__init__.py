"""Servo constraints: the motion that a mechanism is to follow, its actuators, and their control."""

from ._controller import AbstractController as AbstractController
from ._controller import Driven as Driven
from ._controller import Feedback as Feedback
from ._controller import ServoLike as ServoLike
from ._controller import Uncontrolled as Uncontrolled
from ._controller import as_controller as as_controller
from ._controller import as_servos as as_servos
from ._controller import as_static_controller as as_static_controller
from ._controller import missed_rows as missed_rows
from ._controller import servo_control as servo_control
from ._motion import Control as Control
from ._motion import controlled_motion as controlled_motion
from ._servo import AbstractServo as AbstractServo
from ._servo import ActuationLike as ActuationLike
from ._servo import ConstraintFollowing as ConstraintFollowing
from ._servo import Servo as Servo
from ._servo import actuation_at as actuation_at
from ._servo import actuation_of as actuation_of
from ._servo import limits_at as limits_at
from ._servo import limits_of as limits_of
