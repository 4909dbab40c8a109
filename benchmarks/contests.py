"""The contests of the speed comparison: task, common settings and libraries of each. The driver
(speed.py) and the process of every contestant read them."""

from dataclasses import dataclass

START_STEPS = 1_000  # with random actions, stored before the first update
BUFFER_SIZE = 1_000_000
EXPLORATION_NOISE = 0.1  # of TD3 and DDPG, in normalized units
EPSILON = 0.05  # of Q-learning: constant, so that all libraries evaluate the network equally often
TARGET_INTERVAL = 500  # updates between two hard copies of the Q-network
LIBRARIES = ("understudy", "sbx", "sb3", "cleanrl")
TORCH = ("sb3", "cleanrl")


@dataclass(frozen=True)
class Contest:
    """One algorithm on one environment, under the name it has here."""

    algorithm: str
    environment: str
    hidden_sizes: tuple[int, int]
    batch_size: int | None  # drawn from replay; None for rollouts
    peers_algorithm: str  # what the peers call it
    peers: tuple[str, ...] = ("sbx", "sb3")
    num_envs: int = 1
    horizon: int = 1  # steps of every environment between two updates
    pace: int = 1  # how many times as long its slices are, in steps
    epochs: int = 1  # of updates on a rollout
    minibatches: int = 1  # of an epoch

    @property
    def steps_per_update(self) -> int:
        return self.num_envs * self.horizon

    @property
    def start_steps(self) -> int:
        return 0 if self.batch_size is None else START_STEPS

    def steps(self, slice_steps: int) -> int:
        """A slice's length at this contest's pace, in whole updates."""
        return -(-slice_steps * self.pace // self.steps_per_update) * self.steps_per_update

    def describe(self) -> str:
        environments = "1 environment" if self.num_envs == 1 else f"{self.num_envs} environments"
        sizes = "×".join(map(str, self.hidden_sizes))
        fed = f"batch {self.batch_size}" if self.batch_size else f"rollouts of {self.horizon} steps"
        updates = self.epochs * self.minibatches
        frequency = "one update a step" if self.steps_per_update == 1 else "one update a rollout"
        if updates > 1:
            frequency = f"{self.epochs} epochs of {self.minibatches} minibatches a rollout"
        return f"{self.environment}, {environments}, {fed}, {sizes}, {frequency}"


CHEETAH, CARTPOLE = "HalfCheetah-v5", "CartPole-v1"
CONTESTS = {
    contest.algorithm: contest
    for contest in (
        Contest("sac", CHEETAH, (256, 256), 256, "sac"),
        Contest("td3", CHEETAH, (256, 256), 256, "td3"),
        Contest("ddpg", CHEETAH, (256, 256), 256, "ddpg"),
        Contest("ddqn", CARTPOLE, (64, 64), 64, "dqn", pace=4),
        Contest("a2c", CARTPOLE, (64, 64), None, "a2c", ("sb3",), 8, 5, pace=20),
        Contest("ppo", CARTPOLE, (64, 64), None, "ppo", TORCH, 8, 128, 8, epochs=4, minibatches=4),
    )
}


@dataclass(frozen=True)
class Contestant:
    library: str
    contest: Contest
    torch_threads: int | None = None

    @property
    def name(self) -> str:
        ours = self.library == "understudy"
        algorithm = self.contest.algorithm if ours else self.contest.peers_algorithm
        threads = f"-{self.torch_threads}thread" if self.torch_threads else ""
        return f"{self.library}-{algorithm}{threads}"


def contestants(contest: Contest) -> list[Contestant]:
    """Understudy first. PyTorch comes with its default threads and with one."""
    found = []
    for library in ("understudy", *contest.peers):
        found += [
            Contestant(library, contest, n) for n in ((None, 1) if library in TORCH else (None,))
        ]
    return found


CONTESTANTS = tuple(one for contest in CONTESTS.values() for one in contestants(contest))
