"""A mechanism near a state: equilibria, linearisation, modes, inverse dynamics and regulators."""

from ._equilibrium import Equilibrium as Equilibrium
from ._equilibrium import equilibrium as equilibrium
from ._inverse import InverseDynamics as InverseDynamics
from ._inverse import inverse_dynamics as inverse_dynamics
from ._linearize import Linearization as Linearization
from ._linearize import Modes as Modes
from ._linearize import is_consistent as is_consistent
from ._linearize import linearize as linearize
from ._linearize import on_constraints as on_constraints
from ._regulator import Regulator as Regulator
from ._regulator import lqr as lqr
from ._states import Independent as Independent
from ._states import independent as independent
