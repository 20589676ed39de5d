"""Pictures. Every function returns a figure, an animation or the text of a page; the caller saves the result."""

from ._figures import components as components
from ._figures import contact_sheet as contact_sheet
from ._figures import controls as controls
from ._figures import convergence as convergence
from ._figures import eigenvalues as eigenvalues
from ._figures import energy as energy
from ._figures import mode as mode
from ._figures import overview as overview
from ._figures import path as path
from ._frame import Canvas as Canvas
from ._pages import animation as animation
from ._pages import live as live
from ._pages import page as page
from ._study import over_parameters as over_parameters
from ._study import quantiles as quantiles
