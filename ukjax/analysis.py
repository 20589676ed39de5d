"""Analysis of a mechanism at a state: equilibria, linearization, modes, regulators, inverse dynamics, diagnosis."""

from ._analysis import Equilibrium as Equilibrium
from ._analysis import Independent as Independent
from ._analysis import InverseDynamics as InverseDynamics
from ._analysis import Linearization as Linearization
from ._analysis import Modes as Modes
from ._analysis import Regulator as Regulator
from ._analysis import equilibrium as equilibrium
from ._analysis import independent as independent
from ._analysis import inverse_dynamics as inverse_dynamics
from ._analysis import linearize as linearize
from ._analysis import lqr as lqr
from ._diagnose import Diagnosis as Diagnosis
from ._diagnose import diagnose as diagnose
