"""Tuning by gradient: losses, optimisers and their results."""

from ._descent import LevenbergMarquardt as LevenbergMarquardt
from ._loop import Tuning as Tuning
from ._tune import TuningProblem as TuningProblem
from ._tune import tune as tune
