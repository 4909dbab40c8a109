"""Which policy an agent holds: the last one of its training, or the best one of a run directory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from understudy.agent.manifest import Manifest, read
from understudy.runs import checkpoint
from understudy.runs.run_directory import RUN_JSON
from understudy.types import CheckpointError, ConfigError

BEST, LAST = "best", "last"


@final
@dataclass(frozen=True)
class Origin:
    """The run directory of an agent, if it has one, and which of its policies the agent holds."""

    run_dir: Path | None = None
    which: str = LAST

    @classmethod
    def of_checkpoint(cls, place: Path) -> "Origin":
        """The origin of an agent that was loaded from there."""
        # A run that was killed while it replaced its best has left `.best.previous`.
        which = BEST if checkpoint.BEST in place.name.split(".") else LAST
        run_dir = place.parent if which == BEST else place.parent.parent
        return cls(run_dir, which) if (run_dir / RUN_JSON).is_file() else cls()

    def holds(self, which: Any) -> bool:
        """Whether an agent of this origin holds that policy; raise a ConfigError if `which` is no
        policy."""
        if which not in (BEST, LAST):
            raise ConfigError(f'which policy: "{BEST}" or "{LAST}", got {which!r}')
        return which in (LAST, self.which)

    def read_best(self, algorithm: Any, run_id: str) -> Manifest:
        """Read the best checkpoint by evaluation."""
        if self.run_dir is None:
            raise ConfigError(
                "this agent has no run directory, which would keep its best policy: give "
                f'train(…) a run_dir, or export the policy that it has now, which="{LAST}"'
            )
        place = self.run_dir / checkpoint.BEST
        if not checkpoint.candidates(place):
            raise CheckpointError(f"no evaluation of {self.run_dir} has picked a best policy yet")
        manifest = read(place, algorithm.name, algorithm.config_class)
        if manifest.about["run"] != run_id:
            raise CheckpointError(f"{place} belongs to another run: its policy was not exported")
        return manifest
