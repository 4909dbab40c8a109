"""The settings that all algorithms share: the discount, normalization, optimizer and encoder."""

from dataclasses import dataclass
from functools import partial

from understudy.algorithms.config import Config, setting
from understudy.ops.schedules import Schedule, linear

encoder_setting = partial(setting, topic="seeing and remembering")
optimizer_setting = partial(setting, topic="optimizer")

OPTIMIZERS = ("adam", "adamw", "rmsprop")


@dataclass(frozen=True)
class AlgorithmConfig(Config):
    """The settings that all algorithms share. Abstract."""

    learning_rate: float = setting(3e-4, at_least=0.0, moving=True)
    """The learning rate of every network without one of its own."""
    anneal_learning_rate: bool = setting(False)
    """Decrease all learning rates linearly to zero over the run."""
    gamma: float = setting(0.99, at_least=0.0, at_most=1.0, moving=True)
    """Discount per step."""
    normalize_observations: bool = setting(False)
    """Normalize observations to zero mean and unit variance by running statistics."""
    normalize_rewards: bool = setting(False)
    """Divide rewards by the running standard deviation of the discounted return."""

    optimizer: str = optimizer_setting("adam", choices=OPTIMIZERS)
    """The optimizer of all networks."""
    optimizer_epsilon: float | None = optimizer_setting(None, above=0.0)
    """ε of the optimizer, against division by zero (default: Adam 1e-8, RMSprop 1e-5)."""
    adam_beta1: float = optimizer_setting(0.9, at_least=0.0, at_most=1.0)
    """Adam and AdamW: decay of the running mean of gradients."""
    adam_beta2: float = optimizer_setting(0.999, at_least=0.0, at_most=1.0)
    """Adam and AdamW: decay of the running mean of squared gradients."""
    weight_decay: float | None = optimizer_setting(None, at_least=0.0)
    """AdamW: weight decay of the networks, multiplied by the learning rate (default: 0.01)."""
    rmsprop_decay: float = optimizer_setting(0.99, at_least=0.0, at_most=1.0)
    """RMSprop: decay of the running mean of squared gradients."""
    epsilon_inside_root: bool = optimizer_setting(True)
    """RMSprop: add optimizer_epsilon to the mean square, not to its root."""

    encoder: str = encoder_setting("auto", choices=("auto", "nature", "impala", "small"))
    """The encoder of images; auto is nature from 36×36 pixels on, small below."""
    encoder_features: int | None = encoder_setting(None, at_least=1)
    """Features of an image (default: nature 512, impala 256, small 128)."""
    frame_stack: int = encoder_setting(1, at_least=1)
    """Newest images that make one observation; replay stores each of them once."""
    memory: str | None = encoder_setting(None, choices=("gru", "lstm"))
    """The recurrent cell; none by default."""
    memory_size: int = encoder_setting(128, at_least=1)
    """Features of the recurrent cell."""

    def contradictions(self) -> list[str]:
        problems = []
        if self.weight_decay is not None and self.optimizer != "adamw":
            problems.append(
                f"weight_decay is AdamW's: optimizer must be adamw, not {self.optimizer}"
            )
        if self.adam_beta1 == 1.0 or self.adam_beta2 == 1.0:
            problems.append("adam_beta1 and adam_beta2 must be below 1")
        return problems

    def schedules(self) -> dict[str, Schedule]:
        """Return schedules that decrease all learning rates to zero, if the config says so."""
        rates = self.moving() if self.anneal_learning_rate else {}
        return {name: linear(rate, 0.0) for name, rate in rates.items() if "learning_rate" in name}

    @property
    def memory_width(self) -> int:
        """The length of a recurrent state; 0 without a cell."""
        cells = {None: 0, "gru": 1, "lstm": 2}
        return cells[self.memory] * self.memory_size
