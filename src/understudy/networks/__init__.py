"""Networks as plain pytrees of arrays: encoders, heads, ensembles. No algorithm names here."""

from understudy.networks.custom import Networks, arrays_only
from understudy.networks.encoders import Plain, Recalled, Senses, lend
from understudy.networks.ensembles import (
    Critics,
    chosen,
    ensemble,
    evaluate_ensemble,
    perceive,
    seen_by_both,
)
from understudy.networks.heads import (
    BoundedGaussianActor,
    CategoricalActor,
    DeterministicActor,
    DuelingQValues,
    GaussianActor,
    MultiCategoricalActor,
    QCritic,
    QValues,
    SquashedGaussianActor,
    StateValue,
)
from understudy.networks.mlp import MLP, Linear
from understudy.networks.normalizer import Statistics, initial_statistics, normalize, take_in
from understudy.networks.state_dependent import (
    StateDependentActor,
    exploration_matrices,
    state_dependent_noise,
    state_dependent_std,
)

__all__ = [
    "MLP",
    "BoundedGaussianActor",
    "CategoricalActor",
    "Critics",
    "DeterministicActor",
    "DuelingQValues",
    "GaussianActor",
    "Linear",
    "MultiCategoricalActor",
    "Networks",
    "Plain",
    "QCritic",
    "QValues",
    "Recalled",
    "Senses",
    "SquashedGaussianActor",
    "StateDependentActor",
    "StateValue",
    "Statistics",
    "arrays_only",
    "chosen",
    "ensemble",
    "evaluate_ensemble",
    "exploration_matrices",
    "initial_statistics",
    "lend",
    "normalize",
    "perceive",
    "seen_by_both",
    "state_dependent_noise",
    "state_dependent_std",
    "take_in",
]
