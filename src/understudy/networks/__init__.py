"""Networks as plain pytrees of arrays: encoders, heads, ensembles. They know no algorithm."""

from understudy.networks.custom import Networks as Networks
from understudy.networks.encoders import share_encoder as share_encoder
from understudy.networks.ensembles import evaluate_ensemble as evaluate_ensemble
from understudy.networks.heads import BoundedGaussianActor as BoundedGaussianActor
from understudy.networks.heads import CategoricalActor as CategoricalActor
from understudy.networks.heads import DeterministicActor as DeterministicActor
from understudy.networks.heads import DuelingQValues as DuelingQValues
from understudy.networks.heads import GaussianActor as GaussianActor
from understudy.networks.heads import MultiCategoricalActor as MultiCategoricalActor
from understudy.networks.heads import QCritic as QCritic
from understudy.networks.heads import QValues as QValues
from understudy.networks.heads import SquashedGaussianActor as SquashedGaussianActor
from understudy.networks.heads import StateDependentActor as StateDependentActor
from understudy.networks.heads import StateValue as StateValue
from understudy.networks.mlp import MLP as MLP
from understudy.networks.mlp import Linear as Linear
from understudy.networks.residual import SimBa as SimBa
from understudy.networks.residual import SimBaV2 as SimBaV2
