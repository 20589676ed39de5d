"""The parts of `simulate`: options, start, run, and the evaluation of states."""

from ._leap import check_leap as check_leap
from ._leap import equal_steps as equal_steps
from ._options import Method as Method
from ._options import adaptive as adaptive
from ._options import integrator as integrator
from ._options import kept as kept
from ._options import method as method
from ._phase import Phase as Phase
from ._run import Notes as Notes
from ._run import Run as Run
from ._run import Unexplained as Unexplained
from ._run import begin as begin
from ._run import explain as explain
from ._run import judge as judge
from ._run import named as named
from ._run import with_store as with_store
from ._start import off_constraints as off_constraints
from ._start import warn_of_start as warn_of_start
from ._states import OF_MOTION as OF_MOTION
from ._states import derivative as derivative
from ._states import margins_at as margins_at
from ._states import motion_at as motion_at
from ._states import of_each as of_each
from ._states import residuals as residuals
from ._states import row as row
