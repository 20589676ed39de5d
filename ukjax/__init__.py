"""ukjax: constrained mechanical systems by the Udwadia-Kalaba equation, in JAX."""

import importlib.metadata as _metadata

from . import _seldom_collected


# isort: split
from . import rigid as rigid
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
from ._batch import Reduction as Reduction
from ._batch import simulate_batch as simulate_batch
from ._constraint import AbstractConstraint as AbstractConstraint
from ._constraint import AccelerationConstraint as AccelerationConstraint
from ._constraint import Baumgarte as Baumgarte
from ._constraint import Holonomic as Holonomic
from ._constraint import Nonholonomic as Nonholonomic
from ._coordinate import Coordinate as Coordinate
from ._diagnose import Diagnosis as Diagnosis
from ._diagnose import diagnose as diagnose
from ._drawing import Drawing as Drawing
from ._equation import equation_of_motion as equation_of_motion
from ._expand import Expanded as Expanded
from ._expand import Expansion as Expansion
from ._expand import expand as expand
from ._formulation import AbstractFormulation as AbstractFormulation
from ._formulation import AbstractKernel as AbstractKernel
from ._formulation import KernelProjection as KernelProjection
from ._formulation import LagrangeMultiplier as LagrangeMultiplier
from ._formulation import Level as Level
from ._formulation import Motion as Motion
from ._formulation import ObliqueProjector as ObliqueProjector
from ._formulation import OrthogonalComplement as OrthogonalComplement
from ._formulation import OrthogonalProjector as OrthogonalProjector
from ._formulation import Orthonormalization as Orthonormalization
from ._formulation import PennestriDeFalco as PennestriDeFalco
from ._formulation import RangeSpace as RangeSpace
from ._formulation import Recursive as Recursive
from ._formulation import UdwadiaKalaba as UdwadiaKalaba
from ._formulation import UdwadiaPhohomsiri as UdwadiaPhohomsiri
from ._hybrid import Event as Event
from ._hybrid import HybridTrajectory as HybridTrajectory
from ._hybrid import Impact as Impact
from ._hybrid import Mode as Mode
from ._hybrid import simulate_hybrid as simulate_hybrid
from ._integrate import Rattle as Rattle
from ._kinematics import AbstractKinematics as AbstractKinematics
from ._kinematics import Kinematics as Kinematics
from ._linalg import SVD as SVD
from ._linalg import AbstractPseudoinverse as AbstractPseudoinverse
from ._linalg import GramSchmidtLS as GramSchmidtLS
from ._linalg import Greville as Greville
from ._linalg import HouseholderLS as HouseholderLS
from ._linalg import Jacobi as Jacobi
from ._linalg import RowGramSchmidt as RowGramSchmidt
from ._linalg import Varga as Varga
from ._manifold import Assembly as Assembly
from ._manifold import Projection as Projection
from ._manifold import assemble as assemble
from ._mechanism import Mechanism as Mechanism
from ._modular import Composite as Composite
from ._modular import Coupling as Coupling
from ._modular import ModularLevel as ModularLevel
from ._modular import Module as Module
from ._plan import Curve as Curve
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
from ._sweep import sweep as sweep
from ._sweep import sweep_export as sweep_export
from ._sweep import sweep_status as sweep_status
from ._sympy import SympySystem as SympySystem
from ._sympy import from_sympy as from_sympy
from ._system import AbstractKinematicSystem as AbstractKinematicSystem
from ._system import AbstractModularSystem as AbstractModularSystem
from ._system import AbstractSystem as AbstractSystem
from ._system import LagrangianSystem as LagrangianSystem
from ._system import System as System
from ._terms import Terms as Terms
from ._trajectory import Trajectory as Trajectory
from ._tune import LevenbergMarquardt as LevenbergMarquardt
from ._tune import Tuning as Tuning
from ._tune import TuningProblem as TuningProblem
from ._tune import tune as tune


_seldom_collected.done()
__version__ = _metadata.version("ukjax")
