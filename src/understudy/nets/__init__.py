"""Networks as plain pytrees of arrays: encoders, heads, ensembles. No algorithm names here."""

from understudy.nets.ensemble import ensemble, evaluate_ensemble
from understudy.nets.heads import DeterministicActor, QCritic, SquashedGaussianActor
from understudy.nets.mlp import MLP, Linear
from understudy.nets.replaceable import Networks, arrays_only

__all__ = [
    "MLP",
    "DeterministicActor",
    "Linear",
    "Networks",
    "QCritic",
    "SquashedGaussianActor",
    "arrays_only",
    "ensemble",
    "evaluate_ensemble",
]
