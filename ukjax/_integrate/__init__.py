"""The integration from an acceleration to a trajectory: diffrax, and derivatives by replaying its steps."""

from ._first import Found as Found
from ._first import Watch as Watch
from ._first import first_crossing as first_crossing
from ._flow import Flow as Flow
from ._flow import Problem as Problem
from ._flow import advance as advance
from ._integrator import Integrator as Integrator
from ._kinks import Kinked as Kinked
from ._lane import Common as Common
from ._lane import in_order as in_order
from ._lane import rows as rows
from ._lane import starts_of as starts_of
from ._lanes import Ends as Ends
from ._lanes import Progress as Progress
from ._lanes import Queue as Queue
from ._leaping import Rattle as Rattle
from ._march import Place as Place
from ._replay import linear_in_all as linear_in_all
from ._sampling import Sampled as Sampled
from ._sampling import is_due as is_due
