"""Tuning by gradient: losses, optimisers and their results."""

from ._levenberg_marquardt import LevenbergMarquardt as LevenbergMarquardt
from ._tune import tune as tune
from ._tuning import Tuning as Tuning
from ._tuning_problem import TuningProblem as TuningProblem
