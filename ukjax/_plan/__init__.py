"""Motion planning: controls over time that lead to a goal at the least cost."""

from ._plan import Plan as Plan
from ._plan import plan as plan
from ._shooting import Curve as Curve
