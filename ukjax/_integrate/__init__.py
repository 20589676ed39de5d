"""The integration from an acceleration to a trajectory: diffrax, and derivatives by replaying its steps."""

from ._event_search import Found as Found
from ._event_search import Watch as Watch
from ._event_search import first_crossing as first_crossing
from ._flow import Dynamics as Dynamics
from ._flow import IntegrationProblem as IntegrationProblem
from ._flow import advance as advance
from ._integrator import Integrated as Integrated
from ._integrator import Integrator as Integrator
from ._replay import linear_in_all as linear_in_all
from ._step_sizes import Kinked as Kinked
from ._step_sizes import Sampled as Sampled
from ._step_sizes import is_due as is_due
