"""Which settings are best: many at once in one program (`sweep`), or one after another, with those
that fall behind given up (`search`, by Optuna)."""

from understudy.sweep.optuna_search import search as search
from understudy.sweep.result import Outcome as Outcome
from understudy.sweep.result import SweepResult as SweepResult
from understudy.sweep.space import Range as Range
from understudy.sweep.vectorized import sweep as sweep
