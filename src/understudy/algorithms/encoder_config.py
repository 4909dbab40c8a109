"""The settings of what an agent sees and remembers, which all algorithms share."""

from dataclasses import dataclass
from functools import partial

from understudy.algorithms.config import Config, setting

sense = partial(setting, topic="seeing and remembering")


@dataclass(frozen=True)
class PerceptionConfig(Config):
    """The settings of what an agent sees and remembers, which all algorithms share. Abstract."""

    encoder: str = sense("auto", choices=("auto", "nature", "impala", "small"))
    """What sees images; auto is nature from 36×36 pixels on, small below."""
    encoder_features: int | None = sense(None, at_least=1)
    """Features that come of an image (default: nature 512, impala 256, small 128)."""
    frame_stack: int = sense(1, at_least=1)
    """Newest images that make one observation; replay keeps each of them once."""
    memory: str | None = sense(None, choices=("gru", "lstm"))
    """The cell that remembers what was seen before; none by default."""
    memory_size: int = sense(128, at_least=1)
    """Features that such a cell has."""

    @property
    def memory_width(self) -> int:
        """Numbers that a memory consists of; 0 where there is none."""
        cells = {None: 0, "gru": 1, "lstm": 2}
        return cells[self.memory] * self.memory_size
