"""What `simulate` is made of: the choices, the start, and what there is to know about the states."""

from ._options import integrator as integrator
from ._options import kept as kept
from ._options import method as method
from ._phase import Phase as Phase
from ._start import off_constraints as off_constraints
from ._start import projected as projected
from ._start import warn_of_start as warn_of_start
from ._states import OF_MOTION as OF_MOTION
from ._states import derivative as derivative
from ._states import judged as judged
from ._states import motion_at as motion_at
from ._states import of_each as of_each
from ._states import residuals as residuals
from ._states import row as row
from ._states import verdict as verdict
