"""The rows of `proof.py`: algorithms and recipes on tasks, with published results.

QUEUE is the evidence: a million steps, seeds that chose no setting. PILOT compares all recipes of
SAC at a fifth of the steps; the best two are rows of the queue.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

from understudy.algorithms.config import shown_name
from understudy.algorithms.sac import SACConfig

HEADER = """# Up to ten seeds per row, beside published results

`python benchmarks/proof.py report` writes this page and its figures from the CSV files beside it.
Each CSV file has its settings beside it as JSON. Settings are the library's presets. They were
fixed before these seeds were run, except in two cases. PPO on HalfCheetah-v5 first ran on these
seeds with clipped values and a larger first deviation (mean 2,070 after 450,000 steps); its preset
was then changed on seeds 20–22. A2C first ran on HalfCheetah-v5 with 8 environments (mean 526),
then with the 16 of its source (792, and 485 on Walker2d-v5); its entropy bonus was then removed,
after two smaller ones were tried on seeds 0–2 of both tasks.

A score is the mean return of one seed's deterministic episodes with its last policy. The table
shows the mean and the standard deviation (divisor n) of the seeds' scores, their interquartile mean
(IQM), and the 95 % stratified bootstrap interval of the IQM (Agarwal et al., 2021). "Best
evaluation" is the highest mean over seeds of all evaluations during training. Published numbers of
metric "final" compare with the mean, those of metric "best" with the best evaluation.

A row shows the seeds that have reached the planned steps. Until one has, it is partial, and shows
the last evaluation of the seeds that got furthest.

The rows of commit ed200d8 ran beside each other on one GPU, so their wall-clock time is no measure
of speed. TD3 on Walker2d-v5 was stopped early for lack of time.
"""
PILOT_HEADER = """# A pilot of all recipes of SAC

`python benchmarks/proof.py report --matrix pilot` writes this page and its figures from the CSV
files beside it. Each CSV file has its settings beside it as JSON.

The pilot chooses the recipes that enter the [queue of long runs](../proof/README.md). Three seeds
and 200,000 steps are too few to rank close ones. Schedules of the learning rate span these 200,000
steps. The columns are those of the queue's page.

Rows ran beside each other on one GPU, those of commit 13c7deb beside 13 to 17 others, so their
wall-clock time is no measure of speed. Partial rows were stopped when the time on the GPU was over.
"""


class Source(NamedTuple):
    name: str
    metric: str  # "final" or "best", see HEADER
    text: str


class Reference(NamedTuple):
    """A published result."""

    value: float
    spread: float | None
    source: Source


@final
@dataclass(frozen=True)
class Row:
    """An algorithm on a task: what is run, how it is evaluated, and what is published."""

    algorithm: str
    env: str
    references: tuple[Reference, ...] = ()
    recipe: str | None = None
    num_envs: int | None = None  # per seed; None: the algorithm's default
    seeds: tuple[int, ...] = tuple(range(10, 20))
    steps: int = 1_000_000
    evaluate_every: int = 25_000
    episodes: int = 5
    final_episodes: int = 10

    @property
    def method(self) -> str:
        """The algorithm and its recipe, in CSV files and in names of files."""
        return f"{self.algorithm}-{self.recipe}" if self.recipe else self.algorithm

    @property
    def shown_method(self) -> str:
        algorithm = shown_name(self.algorithm)
        return f"{algorithm}, {self.recipe}" if self.recipe else algorithm

    @property
    def name(self) -> str:
        return f"{self.method}_{self.task}"

    @property
    def task(self) -> str:
        """The environment in names of files."""
        return self.env.replace(":", "-").replace("/", "-")

    @property
    def title(self) -> str:
        return f"{self.shown_method} on {self.env}"

    def csv(self, results: Path) -> Path:
        return results / f"{self.name}.csv"


# Published results. A metric is explained in HEADER.
SBX = Source("SBX", "final", "SAC of SBX, v4, 10 seeds, evaluation at 1,000,000 steps; "
             "results/baseline/sac.csv of github.com/dojeon-ai/SimbaV2 (14fafb2)")  # fmt: skip
TIANSHOU = Source("Tianshou", "best", "v3, 10 seeds, 10 episodes per evaluation, within 1,000,000 "
                  "steps; examples/mujoco of github.com/thu-ml/tianshou")  # fmt: skip
TD7 = Source("TD7 paper", "final", "TD3 in Fujimoto et al. (2023), For SALE: State-Action "
             "Representation Learning for Deep Reinforcement Learning; v4, 10 seeds, 1,000,000 "
             "steps; as listed in appendix F.1 of Lee et al. (2025), Hyperspherical Normalization "
             "for Scalable Deep Reinforcement Learning")  # fmt: skip
TD3_PAPER = Source("TD3 paper", "best", "Fujimoto et al. (2018), Addressing Function Approximation "
                   "Error in Actor-Critic Methods, table 1; v1, 10 seeds, 10 episodes per "
                   "evaluation, within 1,000,000 steps")  # fmt: skip
SPINNING_UP = Source("Spinning Up", "final", "v3, 10 seeds, smoothed over 11 epochs, at 1,000,000 "
                     "steps; read from the vector figures in docs/images/plots/pyt of "
                     "github.com/openai/spinningup (038665d)")  # fmt: skip
TONIC = Source("Tonic", "final", "v3, 10 seeds, 5 episodes per evaluation, at 1,000,000 steps; log "
               "files of github.com/fabiopardo/tonic_data (0534420)")  # fmt: skip


def _published(*found: tuple[float, float | None, Source]) -> tuple[Reference, ...]:
    return tuple(Reference(*each) for each in found)


QUEUE = (
    Row("sac", "HalfCheetah-v5", _published((11_321, 1_051, SBX), (12_139, 1_049, TIANSHOU))),
    Row("td3", "HalfCheetah-v5", _published((10_574, None, TD7), (9_637.0, 859, TD3_PAPER))),
    Row("sac", "Hopper-v5", _published((2_787, 823, SBX), (3_542, 52, TIANSHOU))),
    Row("td3", "Hopper-v5", _published((3_226, None, TD7), (3_564.1, 115, TD3_PAPER))),
    Row("sac", "Walker2d-v5", _published((4_536, 469, SBX), (5_007, 252, TIANSHOU))),
    Row("td3", "Walker2d-v5", _published((3_946, None, TD7), (4_682.8, 540, TD3_PAPER))),
    Row("sac", "Ant-v5", _published((5_734, 639, SBX), (5_850, 476, TIANSHOU))),
    Row("td3", "Ant-v5", _published((3_942, None, TD7), (4_372.4, 1_000, TD3_PAPER))),
    Row("ddpg", "HalfCheetah-v5",
        _published((10_109, None, SPINNING_UP), (11_718.7, 465.6, TIANSHOU))),
    Row("ddpg", "Walker2d-v5", _published((1_921, None, SPINNING_UP), (1_400.6, 905.0, TIANSHOU))),
    Row("mpo", "HalfCheetah-v5", _published((7_104, 681, TONIC))),
    Row("mpo", "Walker2d-v5", _published((4_491, 960, TONIC))),
    Row("ppo", "HalfCheetah-v5", _published((5_784, 1_244, TIANSHOU))),
    Row("ppo", "Hopper-v5", _published((2_609, 701, TIANSHOU))),
    Row("ppo", "Walker2d-v5", _published((3_589, 757, TIANSHOU))),
    # The preset is for 16 environments.
    Row("a2c", "HalfCheetah-v5", _published((1_829.9, 1_068, TIANSHOU)), num_envs=16),
    Row("a2c", "Walker2d-v5", _published((1_091.6, 709, TIANSHOU)), num_envs=16),
)  # fmt: skip


def _updates_per_step(recipe: str) -> float:
    return SACConfig.recipes[recipe].settings["updates_per_step"]


# SAC without a recipe first, then those with few updates.
RECIPES = (None, *sorted(SACConfig.recipes, key=_updates_per_step))
PILOT = tuple(
    Row("sac", env, recipe=recipe, seeds=(0, 1, 2), steps=200_000, evaluate_every=20_000)
    for recipe in RECIPES
    for env in ("HalfCheetah-v5", "Ant-v5")
)


class Matrix(NamedTuple):
    """Rows in the order in which they run, and the page that shows them."""

    rows: tuple[Row, ...]
    header: str


MATRICES = {"proof": Matrix(QUEUE, HEADER), "pilot": Matrix(PILOT, PILOT_HEADER)}
