"""ukjax: constrained mechanical systems by the Udwadia-Kalaba equation, in JAX."""

import importlib as _importlib
import importlib.metadata as _metadata
import typing as _typing

from . import _collector


# isort: split
from . import analysis as analysis
from . import formulation as formulation
from . import modular as modular
from . import planning as planning
from . import pseudoinverse as pseudoinverse
from . import rigid as rigid
from . import study as study
from . import symbolic as symbolic
from . import tuning as tuning
from ._batch import Reduction as Reduction
from ._batch import simulate_batch as simulate_batch
from ._compiled import compile as compile
from ._constraint import AbstractConstraint as AbstractConstraint
from ._constraint import AccelerationConstraint as AccelerationConstraint
from ._constraint import Baumgarte as Baumgarte
from ._constraint import Holonomic as Holonomic
from ._constraint import Nonholonomic as Nonholonomic
from ._diagnose import diagnose as diagnose
from ._equation import equation_of_motion as equation_of_motion
from ._expand import Expanded as Expanded
from ._expand import Expansion as Expansion
from ._expand import expand as expand
from ._export import export as export
from ._formulation import AbstractFormulation as AbstractFormulation
from ._formulation import Motion as Motion
from ._formulation import UdwadiaKalaba as UdwadiaKalaba
from ._hybrid import Event as Event
from ._hybrid import HybridTrajectory as HybridTrajectory
from ._hybrid import Impact as Impact
from ._hybrid import Mode as Mode
from ._hybrid import simulate_hybrid as simulate_hybrid
from ._linalg import SVD as SVD
from ._linalg import AbstractPseudoinverse as AbstractPseudoinverse
from ._manifold import Assembly as Assembly
from ._manifold import Projection as Projection
from ._manifold import assemble as assemble
from ._mechanism import Mechanism as Mechanism
from ._plan import Plan as Plan
from ._plan import plan as plan
from ._result import RESULTS as RESULTS
from ._result import FailedTrajectories as FailedTrajectories
from ._result import InconsistentStart as InconsistentStart
from ._scenario import Scenario as Scenario
from ._servo import AbstractServo as AbstractServo
from ._servo import ConstraintFollowing as ConstraintFollowing
from ._servo import Control as Control
from ._servo import Feedback as Feedback
from ._servo import Servo as Servo
from ._servo import servo_control as servo_control
from ._simulate import simulate as simulate
from ._simulation import Rattle as Rattle
from ._sweep import sweep as sweep
from ._sympy import from_sympy as from_sympy
from ._system import AbstractKinematics as AbstractKinematics
from ._system import AbstractKinematicSystem as AbstractKinematicSystem
from ._system import AbstractSystem as AbstractSystem
from ._system import Kinematics as Kinematics
from ._system import LagrangianSystem as LagrangianSystem
from ._system import System as System
from ._terms import Terms as Terms
from ._trajectory import Trajectory as Trajectory
from ._tune import tune as tune


_collector.imported()
_NAMESPACES = (analysis, formulation, modular, planning, pseudoinverse, rigid, study, symbolic, tuning)
# What calls return, warn of and raise, which nobody calls; and the command.
_NOT_SHOWN = """AbstractKinematics Assembly Control Expanded Expansion FailedTrajectories HybridTrajectory
InconsistentStart Motion Plan Reduction Terms Trajectory cli examples"""


def __dir__() -> list[str]:
    return sorted(set(globals()) - set(_NOT_SHOWN.split()))


# Type checkers are to report a name that does not exist.
if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "plot":  # matplotlib is imported when it is needed
            return _importlib.import_module("ukjax.plot")
        places = [space.__name__ for space in _NAMESPACES if name in vars(space)]
        where = f" There is {places[0]}.{name}." if places and not name.startswith("_") else ""
        raise AttributeError(f"module 'ukjax' has no attribute {name!r}.{where}", name=name)


__version__ = _metadata.version("ukjax")
