"""The integration from an acceleration to a trajectory: diffrax, and derivatives by replaying its steps."""

from ._event_search import Found as Found
from ._event_search import Watch as Watch
from ._event_search import first_crossing as first_crossing
from ._integrator import Integrated as Integrated
from ._integrator import Integrator as Integrator
from ._march import Dynamics as Dynamics
from ._march import IntegrationProblem as IntegrationProblem
from ._march import advance as advance
from ._replay import linear_in_all as linear_in_all
from ._steps import Kinked as Kinked
from ._steps import Sampled as Sampled
from ._steps import is_due as is_due
