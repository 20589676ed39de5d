"""Problems, methods and records of `ukjax.tune`."""

from ._tune import LevenbergMarquardt as LevenbergMarquardt
from ._tune import Tuning as Tuning
from ._tune import TuningProblem as TuningProblem
