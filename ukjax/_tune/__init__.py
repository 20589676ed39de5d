"""Tuning by gradient."""

from ._levenberg_marquardt import LevenbergMarquardt as LevenbergMarquardt
from ._tune import Tuning as Tuning
from ._tune import tune as tune
from ._tuning_problem import TuningProblem as TuningProblem
