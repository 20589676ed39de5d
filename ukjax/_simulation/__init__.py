"""The parts of `simulate`: options, start, run, and the evaluation of states."""

from ._rattle import Rattle as Rattle
from ._rattle import check_rattle as check_rattle
from ._rattle import scalar_rattle_step as scalar_rattle_step
from ._run import FailureEvidence as FailureEvidence
from ._run import Run as Run
from ._run import RunDiagnostics as RunDiagnostics
from ._run import assemble_trajectory as assemble_trajectory
from ._run import diagnose_failure as diagnose_failure
from ._run import named as named
from ._run import off_constraints as off_constraints
from ._run import set_up as set_up
from ._run import warn_of_start as warn_of_start
from ._settings import Settings as Settings
from ._settings import adaptive as adaptive
from ._settings import kept as kept
from ._states import OF_MOTION as OF_MOTION
from ._states import StateLayout as StateLayout
from ._states import motion_at as motion_at
from ._states import of_each as of_each
from ._states import report_state as report_state
from ._states import residuals as residuals
