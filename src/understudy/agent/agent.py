"""An agent: an algorithm, its environments and all that it has learned, as users meet them."""

import contextlib
import dataclasses
import secrets
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

import understudy
from understudy.agent.drawing import draw_learning_curve
from understudy.agent.evaluation import Evaluating
from understudy.agent.inference import Acting
from understudy.agent.inside import Loaded, Scheduling, Trained
from understudy.algorithms import Algorithm
from understudy.algorithms.base import LossAddon
from understudy.algorithms.config import whole_number
from understudy.algorithms.spec_check import adapt_spec
from understudy.distributed.config import Cluster
from understudy.envs.descriptors import Descriptor
from understudy.envs.fault_guard import DEFAULT_GUARD, Guard
from understudy.envs.make import resolve
from understudy.envs.names import name_of_class
from understudy.export.describe import describe
from understudy.export.onnx import export_policy
from understudy.networks import Networks
from understudy.ops.schedules import Schedule
from understudy.ops.statistics import summary as summarize
from understudy.runner import Description
from understudy.runs import checkpoint
from understudy.runs.handed import Handed, check_weights, name_of
from understudy.runs.run import Callback, Run, RunConfig, Summary, check_callbacks
from understudy.runs.run_directory import Subject
from understudy.runs.watch import Counting, Watch
from understudy.state_dict import state_dict
from understudy.training.compilation import set_up_compilation
from understudy.training.devices import find_device
from understudy.training.episode_runner import EpisodePlan, EpisodeResults
from understudy.training.factory import longest_episode, see_stacked
from understudy.training.seed_axis import take_seed
from understudy.training.snapshot import Position, Snapshot
from understudy.training.trainer import Trainer, TrainingSetup
from understudy.training.update import LearnerState


class Agent:
    """An algorithm, its environments and what it has learned. Subclasses set `algorithm_class`."""

    algorithm_class: ClassVar[type[Algorithm]]

    def __init__(
        self,
        env: Any,
        config: Any = None,
        *,
        seed: int = 0,
        num_seeds: int = 1,
        num_envs: int | None = None,
        networks: Networks | None = None,
        loss_addons: tuple[LossAddon, ...] = (),
        env_workers: int = 0,
        guard: Guard = DEFAULT_GUARD,
        cluster: Cluster | None = None,
        device: str | None = None,
    ):
        """`env` is a Gymnasium id, "jax:ID", a callable that makes an environment, an
        environment, a vector environment or a native one. Without a config, the preset for the
        environment is used. `num_seeds` agents are trained at once, with seeds seed, seed + 1 …
        `env_workers` processes step the environments; with 0 this process does. `guard` says how
        much misbehavior of theirs is survived. A `cluster` collects, and computes gradients,
        elsewhere too; then each of its collectors has `num_envs` environments."""
        seed, num_seeds = whole_number("seed", seed, 0), whole_number("num_seeds", num_seeds, 1)
        set_up_compilation()
        self._device = find_device(device)
        self._source = resolve(env, num_envs, self.algorithm_class.num_envs)
        self.env_name = env if isinstance(env, str) else None
        self._class_name = name_of_class(env)
        self.preset = "given"
        if config is None:
            config, self.preset = self.algorithm_class.config_class.for_environment(self.env_name)
        self.algorithm = self.algorithm_class(config, networks=networks, loss_addons=loss_addons)
        self._source = see_stacked(self._source, config.frame_stack)
        self.spec = adapt_spec(self.algorithm, self._source.spec)
        self.algorithm.check(self.spec)
        self.config, self.seed, self.num_seeds = config, seed, num_seeds
        self.num_envs = num_envs or getattr(self._source, "num_envs", self.algorithm_class.num_envs)
        devices = 1 if cluster is None else cluster.devices
        setup = TrainingSetup(self.algorithm, self.spec, seed, num_seeds, self.num_envs, devices)
        self._trained = Trained(setup, self._source, env_workers, guard, cluster)
        with self._on_device():
            self._trained.check()
        self._trainer: Trainer | None = None
        self._loaded: Loaded | None = None  # a checkpoint, until training needs it
        self._evaluating = Evaluating(self._trained, self.env_name)
        self._scheduling = Scheduling()
        self._run = secrets.token_hex(8)  # which run a directory belongs to
        self._acting = Acting(self.algorithm, self.spec)
        self._draws = 0

    # -- what everybody uses ----------------------------------------------------------------

    def train(
        self,
        steps: int,
        *,
        schedules: dict[str, Schedule] | None = None,
        run: RunConfig | None = None,
        run_dir: str | Path | None = None,
        logger: Any = None,
        callbacks: tuple[Callback, ...] = (),
        progress: bool = True,
        observers: Any = None,
    ) -> Summary:
        """Train for that many more steps (per seed).

        `schedules` maps moving hyper-parameters to curves (`us.linear(3e-4, 0.0)`) or functions
        of the step. Curves end with this training, and so do the config's own schedules.

        With a `run_dir` everything is kept there: the log (progress.csv), a learning curve,
        checkpoints, the best agent by evaluation (`best`) and its policy (policy.safetensors).
        SIGINT and SIGTERM end training after the step at hand, with a checkpoint.

        `logger` is "tensorboard", "wandb", "mlflow", a logger, or several of these. Callbacks
        are called with every row of the log; one that returns True ends training.
        """
        steps = whole_number("steps", steps, 1)
        callbacks = check_callbacks(callbacks, observers)
        with self._on_device(), contextlib.ExitStack() as stack:
            trainer = self.trainer
            total, longest = trainer.steps + steps, longest_episode(self._source)
            run = (run or RunConfig()).completed(total, trainer.setup.num_envs, longest)
            trainer.begin_training(total)
            self._scheduling.follow(trainer, schedules, total)
            facts = {"total_steps": total, "env_title": self.env_title}
            about = self._about() | facts | {"run_config": dataclasses.asdict(run)}
            title = f"{self.name} on {self.env_title}"
            logged = trainer.position.logged * self.num_envs
            counting = Counting(trainer.steps, logged, now=lambda: trainer.steps)
            watch = Watch(stack, counting, about, title, None if run_dir is None else Path(run_dir))
            subject = Subject(self._capture, self._describe, draw_learning_curve)
            records = watch.records(subject, run.keep_checkpoints)
            watchers = [*watch.trackers(logger), *watch.progress(progress), *callbacks]
            evaluate = partial(self.selection_returns, run.evaluation_episodes)
            return Run(trainer, evaluate, [*records, *watchers], run, *records).train(steps)

    def act(self, observation: Any, memory: Any = None, *, deterministic: bool = True) -> Any:
        """The action for one observation or a batch, in the environment's own units.

        An agent that remembers answers with the action and what to remember: give that back with
        the next observation, and None at an episode's start. With several seeds, the best one
        acts."""
        with self._on_device():
            key = jax.random.fold_in(jax.random.PRNGKey(self.seed), self._draws)
            self._draws += not deterministic
            chosen = self._policy(), self._evaluating.best
            return self._acting.act(*chosen, observation, memory, key, not deterministic)

    def evaluate(
        self,
        episodes: int = 10,
        descriptor: str | Descriptor | None = None,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        epsilon: float | None = None,
    ) -> dict[str, Any]:
        """Play on environments of its own: mean, std, IQM, 95 % interval and the returns
        themselves ([episodes], or [seeds, episodes] with several seeds).

        The episodes follow from `seed` (default: the agent's). They are never those by which
        training picks the `best`. `deterministic=False` draws actions, or adds noise, as in
        training. A share `epsilon` of discrete actions is uniformly random. With a `descriptor`
        (the name of one that the environment has, or a `us.Descriptor`) also what the behavior
        looks like: the mean, and the `descriptors` of all episodes."""
        plan = self._evaluating.plan(episodes, descriptor, seed, deterministic, epsilon)
        with self._on_device():
            returns, _, described = self._play(plan)
        found = summarize(returns[0] if self.num_seeds == 1 else returns)
        if described is not None:
            found["descriptor"] = described.mean(axis=(0, 1))
            found["descriptors"] = described[0] if self.num_seeds == 1 else described
        return found

    def selection_returns(self, episodes: int) -> np.ndarray:
        """Returns [seeds, episodes] of the episodes by which training picks the `best`."""
        with self._on_device():
            return self._play(self._evaluating.plan_selection(episodes)).returns

    def save(self, path: str | Path, experience: bool = True) -> Path:
        """Write a checkpoint directory. It holds arrays and JSON only; loading runs no code.

        Without the experience (and the open episodes) it is small, but training cannot go on from
        it as if nothing had happened."""
        with self._on_device():
            return checkpoint.write(path, *self._capture(experience))

    def export(self, path: str | Path) -> Path:
        """Write the policy alone (of several seeds, the best one's): `.safetensors` for
        `understudy.runner`, which needs no JAX, or `.onnx`."""
        return export_policy(path, self._describe)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        env: Any = None,
        networks: Networks | None = None,
        loss_addons: tuple[LossAddon, ...] = (),
        schedules: dict[str, Schedule] | None = None,
        refill: bool = False,
        cluster: Cluster | None = None,
        trust_environment: bool = False,
        device: str | None = None,
    ) -> Any:
        """Like `us.load`, but refuses a checkpoint of another algorithm."""
        from understudy.agent.loading import load_agent

        handed = Handed(env, networks, loss_addons, schedules or {}, cluster, trust_environment)
        return load_agent(path, handed, refill, device, cls)

    def __len__(self) -> int:
        return self.num_seeds

    def __getitem__(self, index: int) -> Any:
        """One seed as an agent of its own."""
        if not -self.num_seeds <= index < self.num_seeds:
            raise IndexError(f"there are {self.num_seeds} seeds, got index {index}")
        index %= self.num_seeds
        single = type(self)(
            self.env_name or self._source,
            self.config,
            seed=self.seed + index,
            num_envs=self.num_envs,
            networks=self.algorithm.networks,
            loss_addons=self.algorithm.loss_addons,
            env_workers=self._trained.env_workers,
            guard=self._trained.guard,
            cluster=self._trained.cluster,
        )
        single.preset, single._device = self.preset, self._device
        single._class_name = self._class_name
        learner = state_dict(take_seed(self._learner(), index))
        position = dataclasses.replace(self._position())  # its own: ours moves on
        single._take(Snapshot(position, learner, None), refill=True)
        return single

    @property
    def best(self) -> Any:
        """The seed that did best in training's last evaluation (the first one before any)."""
        return self[self._evaluating.best]

    def set(self, **values: Any) -> None:
        """Change moving hyper-parameters now: `agent.set(learning_rate=1e-4)`, or one value per
        seed. Nothing is compiled; a schedule of that name ends."""
        with self._on_device():
            self.trainer.set(values)
        self._scheduling.end(values)

    def get_weights(self) -> dict[str, Any]:
        """The networks that learn, by name, as trees of NumPy arrays with a leading axis of
        seeds. Their targets are not among them."""
        return jax.device_get(self.algorithm.get_weights(self.state))

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Take over networks as `get_weights` gives them; targets follow at once."""
        check_weights(weights, self.get_weights())
        with self._on_device():
            self.trainer.set_weights(jax.tree.map(jax.numpy.asarray, weights))

    def q_values(self, observation: Any, action: Any) -> np.ndarray:
        """Each critic's value of (observation, action): [critics, batch]; actions in the
        environment's own units."""
        return self._ask("q_values", observation, action)

    def log_prob(self, observation: Any, action: Any) -> np.ndarray:
        """Log-density of actions under the policy: [batch]. Actions are in the environment's own
        units, the density is that of the normalized action."""
        return self._ask("log_prob", observation, action)

    def value(self, observation: Any) -> np.ndarray:
        """The value of each observation under the policy: [batch]."""
        return self._ask("value", observation)

    def evaluate_actions(self, observation: Any, action: Any) -> Any:
        """Value, log-density and entropy for a batch: three times [batch]."""
        return self._ask("evaluate_actions", observation, action)

    def close(self) -> None:
        """Release environments and their processes."""
        if self._trainer is not None:
            self._trainer.close()
        self._evaluating.close()

    @property
    def name(self) -> str:
        return self.algorithm.name.upper()

    @property
    def env_title(self) -> str:
        """What the environment is called where people read it."""
        return self.env_name or self._class_name

    @property
    def steps(self) -> int:
        """Transitions per seed so far."""
        return self._position().iterations * self.num_envs

    def __repr__(self) -> str:
        seeds = f", {self.num_seeds} seeds" if self.num_seeds > 1 else ""
        return f"{self.name}({self.env_title}, {self.steps} steps{seeds})"

    def _about(self) -> dict[str, Any]:
        """What this agent is, for files; `us.load` makes it again from this."""
        cluster = self._trained.cluster
        return {
            "understudy": understudy.__version__,
            "algorithm": self.algorithm.name,
            "env": self.env_name,
            "preset": self.preset,
            "seed": self.seed,
            "num_seeds": self.num_seeds,
            "num_envs": self.num_envs,
            "env_workers": self._trained.env_workers,
            "guard": dataclasses.asdict(self._trained.guard),
            "cluster": cluster and dataclasses.asdict(cluster),
            "own_networks": self.algorithm.networks != Networks(),
            "loss_addons": [name_of(addon) for addon in self.algorithm.loss_addons],
            "run": self._run,
            "config": dataclasses.asdict(self.config),
            "spec": dataclasses.asdict(self.spec),
            **self._scheduling.about(),
        }

    # -- inside -----------------------------------------------------------------------------

    def adopt(self, snapshot: Snapshot, about: Any, schedules: Any, refill: bool) -> None:
        """Become what a checkpoint holds; `us.load` calls this."""
        self._take(snapshot, refill)
        self._scheduling = Scheduling(schedules, set(about["set_by_hand"]))
        self.preset, self._run, self._draws = about["preset"], about["run"], about["draws"]
        self._evaluating.scores = None if about["scores"] is None else np.array(about["scores"])

    def _take(self, snapshot: Snapshot, refill: bool) -> None:
        with self._on_device():
            self._loaded = Loaded.of(self._trained.learner, snapshot, refill)

    @property
    def trainer(self) -> Trainer:
        """The trainer, which is made or restored when it is first asked for."""
        if self._trainer is None:
            make = self._trained.trainer
            self._trainer = make() if self._loaded is None else self._loaded.go_on(make)
            self._loaded = None
        return self._trainer

    def _capture(self, world: bool) -> tuple[Any, Any]:
        """Groups of arrays and the manifest of a checkpoint, on the host."""
        if self._loaded is not None:
            snapshot = self._loaded.snapshot
        else:
            snapshot = self.trainer.snapshot(world)
        manifest = self._about() | {
            "position": dataclasses.asdict(snapshot.position),
            "scores": None if (scores := self._evaluating.scores) is None else scores.tolist(),
            "draws": self._draws,
        }
        return snapshot.groups(world), manifest

    def _describe(self) -> Description:
        policy = jax.device_get(jax.tree.map(lambda x: x[self._evaluating.best], self._policy()))
        return describe(self.algorithm, policy, self.spec, self._about())

    def _learner(self) -> LearnerState:
        return self._loaded.learner if self._loaded else self.trainer.learner

    @property
    def state(self) -> Any:
        """The training state of the algorithm, with a leading axis of seeds."""
        return self._learner().state

    def _position(self) -> Position:
        if self._loaded:
            return self._loaded.snapshot.position
        return Position() if self._trainer is None else self._trainer.position

    def _policy(self) -> Any:
        return self.algorithm.policy(self.state)

    def _play(self, plan: EpisodePlan) -> EpisodeResults:
        """What the present policies do."""
        return self._evaluating.play(plan, self._policy(), self._learner().meter)

    def _ask(self, question: str, observation: Any, action: Any = None) -> Any:
        answer = getattr(self.algorithm, question, None)
        if answer is None:
            raise AttributeError(f"{self.name} has no {question}")
        with self._on_device():
            state = jax.tree.map(lambda x: x[self._evaluating.best], self.state)
            return self._acting.ask(answer, state, observation, action)

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        return jax.default_device(self._device) if self._device else contextlib.nullcontext()
