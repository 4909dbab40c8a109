"""Finding the best settings: many at once in one program (`sweep`), or one after another, where
trials that fall behind are stopped (`search`, by Optuna)."""

from understudy.sweep.optuna_search import search as search
from understudy.sweep.result import Outcome as Outcome
from understudy.sweep.result import SweepResult as SweepResult
from understudy.sweep.space import Range as Range
from understudy.sweep.vectorized import sweep as sweep
