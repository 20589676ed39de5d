"""From an acceleration to a trajectory: diffrax, and derivatives by replaying its steps."""

from ._flow import Flow as Flow
from ._integrator import Integrator as Integrator
