"""Robots from parts: bodies, and joints between them, open or closed, planar or spatial."""

from ._body import Body as Body
from ._effort import Effort as Effort
from ._force import AbstractForce as AbstractForce
from ._force import Load as Load
from ._force import Spring as Spring
from ._frame import Frame as Frame
from ._frame import Pose as Pose
from ._frame import Wrench as Wrench
from ._inertia import Inertia as Inertia
from ._joint import AbstractJoint as AbstractJoint
from ._joint import Cylindrical as Cylindrical
from ._joint import Fixed as Fixed
from ._joint import Free as Free
from ._joint import Planar as Planar
from ._joint import Prismatic as Prismatic
from ._joint import Revolute as Revolute
from ._joint import Screw as Screw
from ._joint import Spherical as Spherical
from ._joint import Universal as Universal
from ._link import Distance as Distance
from ._link import PointOn as PointOn
from ._robot import Robot as Robot
