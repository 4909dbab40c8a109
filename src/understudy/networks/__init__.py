"""Networks as plain pytrees of arrays: encoders, heads, ensembles. No algorithm names here."""

from understudy.networks.custom import Networks, arrays_only
from understudy.networks.encoders import Identity, Features, ObservationEncoder, share_encoder
from understudy.networks.ensembles import (
    Critics,
    select_critics,
    ensemble,
    evaluate_ensemble,
    encode,
    encode_shared,
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
from understudy.networks.normalizer import (
    Statistics,
    initial_statistics,
    normalize,
    update_statistics,
)
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
    "Features",
    "ObservationEncoder",
    "SquashedGaussianActor",
    "StateDependentActor",
    "StateValue",
    "Statistics",
    "arrays_only",
    "select_critics",
    "ensemble",
    "evaluate_ensemble",
    "exploration_matrices",
    "initial_statistics",
    "share_encoder",
    "normalize",
    "encode",
    "encode_shared",
    "state_dependent_noise",
    "state_dependent_std",
    "update_statistics",
]
