"""ukjax: constrained mechanical systems by the Udwadia-Kalaba equation, in JAX."""

from ._assemble import assemble as assemble
from ._constraint import AbstractConstraint as AbstractConstraint
from ._constraint import AccelerationConstraint as AccelerationConstraint
from ._constraint import Baumgarte as Baumgarte
from ._constraint import Holonomic as Holonomic
from ._constraint import Nonholonomic as Nonholonomic
from ._equation import equation_of_motion as equation_of_motion
from ._formulation import AbstractFormulation as AbstractFormulation
from ._formulation import Motion as Motion
from ._formulation import UdwadiaKalaba as UdwadiaKalaba
from ._linalg import SVD as SVD
from ._mechanism import Mechanism as Mechanism
from ._mechanism import Terms as Terms
from ._result import RESULTS as RESULTS
from ._scenario import Scenario as Scenario
from ._simulate import simulate as simulate
from ._system import AbstractSystem as AbstractSystem
from ._system import LagrangianSystem as LagrangianSystem
from ._system import System as System
from ._trajectory import Trajectory as Trajectory
from ._tune import Tuning as Tuning
from ._tune import tune as tune
