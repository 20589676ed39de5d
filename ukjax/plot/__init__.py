"""Pictures. Every function returns a matplotlib figure; saving it is up to the caller."""

from ._figures import components as components
from ._figures import controls as controls
from ._figures import overview as overview
from ._tuning import convergence as convergence
