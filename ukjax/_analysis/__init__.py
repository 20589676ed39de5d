"""A mechanism near a state: where it stays, and how it moves about there."""

from ._equilibrium import Equilibrium as Equilibrium
from ._equilibrium import equilibrium as equilibrium
from ._linearization import Linearization as Linearization
from ._linearize import linearize as linearize
from ._modes import Modes as Modes
from ._states import Independent as Independent
from ._states import independent as independent
