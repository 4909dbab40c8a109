"""An agent: an algorithm, its environments and all that it has learned."""

import copy
import dataclasses
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from understudy.agent.arguments import check_names, choose_config, miss, tell_departures
from understudy.agent.evaluation import AgentEvaluator, summarize
from understudy.agent.inference import Inference, check_weights
from understudy.agent.manifest import Manifest, describe_agent, read
from understudy.agent.origin import BEST, LAST, Origin
from understudy.agent.schedules import Schedules
from understudy.agent.trainer_factory import LazyTrainer, TrainerFactory
from understudy.agent.training import Summary, TrainableAgent
from understudy.agent.training_envs import TrainingEnvs
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
from understudy.runner import Description
from understudy.runs import checkpoint
from understudy.runs.callbacks import Callbacks, CallbacksArgument, check_callbacks
from understudy.runs.config import RunConfig
from understudy.runs.run import Run
from understudy.state_dict import state_dict
from understudy.training.devices import set_up_device
from understudy.training.episode_runner import EpisodeResults
from understudy.training.factory import longest_episode, with_frame_stack
from understudy.training.seed_axis import take_seed
from understudy.training.snapshot import Snapshot
from understudy.training.trainer import Trainer, TrainingSetup


class Agent:
    """An algorithm, its environments and what it has learned. Subclasses set `algorithm_class`."""

    algorithm_class: ClassVar[type[Algorithm]]

    @check_names
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
        env_args: dict[str, Any] | None = None,
        **settings: Any,
    ):
        """`env` is a Gymnasium id, "jax:ID", a callable that makes an environment, an
        environment, a vector environment or a native one; `env_args` are keyword arguments of one
        that is named. `settings` are fields of the config, or a recipe:
        `us.SAC("Ant-v5", recipe="redq", gamma=0.98)` is the preset for Ant-v5, changed by a recipe
        and then by γ. A `config` is used as it is. `num_seeds` agents, with seeds seed, seed + 1 …,
        train at once. `env_workers` processes step the environments; with 0 this one does. `guard`
        limits the faults that a training survives. A `cluster` collects experience, and computes
        gradients, in other processes; each of its collectors has `num_envs` environments."""
        seed, num_seeds = whole_number("seed", seed, 0), whole_number("num_seeds", num_seeds, 1)
        self.env_name, kind = env if isinstance(env, str) else None, self.algorithm_class
        config, self.preset = choose_config(kind.config_class, self.env_name, config, settings)
        self._on_device = set_up_device(device)
        self._source = resolve(env, num_envs, kind.num_envs, env_args)
        self.env_args = dict(env_args or {})
        self._class_name = name_of_class(env)
        self.algorithm = self.algorithm_class(config, networks=networks, loss_addons=loss_addons)
        self._source = with_frame_stack(self._source, config.frame_stack)
        self.spec = adapt_spec(self.algorithm, self._source.spec)
        self.algorithm.check(self.spec)
        self.config = config
        self.env_workers, self.guard, self.cluster = env_workers, guard, cluster
        self.num_envs = num_envs or getattr(self._source, "num_envs", self.algorithm_class.num_envs)
        self._begin(seed, num_seeds)

    def _begin(self, seed: int, num_seeds: int) -> None:
        """Begin without anything learned, with these seeds."""
        cluster, source = self.cluster or Cluster(), self._source
        devices = cluster.devices
        setup = TrainingSetup(self.algorithm, self.spec, seed, num_seeds, self.num_envs, devices)
        factory = TrainerFactory(setup, source, self.env_workers, self.guard, cluster)
        with self._on_device():
            factory.check()
        self.seed, self.num_seeds = seed, num_seeds
        self._lazy = LazyTrainer(factory, self._on_device)
        self.evaluator = AgentEvaluator(factory, self.env_name)
        self._inference = Inference(self.algorithm, self.spec, seed)
        self._schedules, self._callbacks, self._origin = Schedules(), Callbacks(), Origin()
        self.run_id, self._draws = secrets.token_hex(8), 0  # the id in a run directory

    @check_names
    def train(
        self,
        steps: int,
        *,
        schedules: dict[str, Schedule] | None = None,
        run: RunConfig | None = None,
        run_dir: str | Path | None = None,
        logger: Any = None,
        callbacks: CallbacksArgument = (),
        progress: bool = True,
    ) -> Summary:
        """Train for that many more steps (per seed).

        `schedules` maps moving hyper-parameters to curves (`us.linear(3e-4, 0.0)`) or functions
        of the step. Curves end with this training, and so do the config's own schedules.
        A `run_dir` gets the log (progress.csv), a learning curve, checkpoints, the best agent by
        evaluation (`best`) and its policy (policy.safetensors). SIGINT and SIGTERM end training
        after the present step, with a checkpoint. `logger` is "tensorboard", "wandb", "mlflow", a
        logger, or several of these. Callbacks are `us.Callback` objects, or functions of the row
        of the log; training ends if one returns True."""
        steps = whole_number("steps", steps, 1)
        self._callbacks = self._callbacks.follow(check_callbacks(callbacks))
        tell_departures(self, self.steps)
        with self._on_device():
            trainer, start = self.trainer, self.trainer.steps
            total, longest = start + steps, longest_episode(self._source)
            limits = total, self.num_envs, longest, trainer.least_iterations
            run = (run or RunConfig()).completed(*limits)
            trainer.begin_training(total)
            self._origin = Origin(None if run_dir is None else Path(run_dir))
            self._schedules.follow(trainer, schedules, total)
            play = partial(self.play_selection, run.evaluation_episodes)
            trainable = TrainableAgent(trainer, play, self.capture, partial(self._describe, BEST))
            env = self.env_title
            about = (self._metadata() | {"env_title": env}, f"{self.name} on {env}")
            training = Run(trainable, run, total, *about, self._callbacks, self)
            history = training.execute(run_dir, logger, progress)
            return trainable.summary(start, training.seconds, history)

    def act(self, observation: Any, memory: Any = None, *, deterministic: bool = True) -> Any:
        """Return the action for one observation or a batch, in the environment's own units. A
        recurrent agent returns the action and its memory: pass the memory with the next
        observation, and None at the start of an episode. With several seeds, the best one acts."""
        with self._on_device():
            version, algorithm = self._lazy.version, self.algorithm
            self._inference.use_policies(version, lambda: algorithm.policy(self.state))
            draw = None if deterministic else self._draws
            self._draws += not deterministic
            return self._inference.act(self.evaluator.best, observation, memory, draw)

    @check_names
    def evaluate(
        self,
        episodes: int = 10,
        descriptor: str | Descriptor | None = None,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        epsilon: float | None = None,
    ) -> dict[str, Any]:
        """Play episodes in separate environments. Return mean, std, IQM, 95 % interval and the
        returns themselves ([episodes], or [seeds, episodes] with several seeds); `success_rate` and
        `info` (the mean of each number) if the environment reports them.
        The episodes follow from `seed` (default: the agent's). They are never those by which
        training picks the `best`. `deterministic=False` samples actions, or adds noise, as in
        training. A share `epsilon` of discrete actions is uniformly random. With a `descriptor`
        (the name of one that the environment has, or a `us.Descriptor`) the result has the mean
        `descriptor` of the behavior and the `descriptors` of all episodes."""
        plan = self.evaluator.plan(episodes, descriptor, seed, deterministic, epsilon)
        with self._on_device():
            return summarize(self.evaluator.play(plan, self._lazy.learner, self.steps))

    def play_selection(self, episodes: int) -> EpisodeResults:
        """Play the episodes by which training picks the `best`; return [seeds, episodes]."""
        plan = self.evaluator.plan_selection(episodes)
        with self._on_device():
            return self.evaluator.play(plan, self._lazy.learner, self.steps)

    @check_names
    def save(self, path: str | Path, experience: bool = True) -> Path:
        """Write a checkpoint directory of arrays and JSON; loading it runs no code. Without the
        experience (and the open episodes) it is small, but training cannot resume exactly."""
        with self._on_device():
            return checkpoint.write(path, *self.capture(experience))

    def export(self, path: str | Path, which: str = LAST) -> Path:
        """Write a policy alone (of several seeds, the best one's): `.safetensors` for
        `understudy.runner`, which needs no JAX, or `.onnx`. `which` is the "last" policy, the one
        that acts now, or the "best" one of the run directory, by training's evaluations."""
        return export_policy(path, partial(self.describe_policy, which))

    def describe_policy(self, which: str = LAST) -> Description:
        """Describe a policy as data, for `export`; about["policy"] is its step, seed and score."""
        if self._origin.holds(which):
            return self._describe(self._origin.which)
        manifest, best = self._origin.read_best(self.algorithm, self.run_id), copy.copy(self)
        best._begin(self.seed, self.num_seeds)
        return best._restore(manifest, refill=True, schedules={})._describe(BEST)

    @classmethod
    @check_names
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
        env_args: dict[str, Any] | None = None,
    ) -> Any:
        """Restore an agent from a checkpoint, or from the newest good one of a run directory.

        `us.load` restores agents of all algorithms, `us.SAC.load` those of SAC only. Some inputs
        cannot be stored and must be given again: `env` (if it was no id; without one the agent can
        only act), `networks`, `loss_addons`, `schedules` that are your own functions, and the
        `cluster` of a run that had joined one by its address. Loading runs no code that the
        checkpoint names: an environment "module:Id" is made only if that module is imported
        already, or with `trust_environment`. `env_args` replace those that are stored.

        Training resumes bit for bit if the checkpoint holds the experience. One without (`best`)
        trains on only with `refill`, which collects new experience before it learns."""
        from understudy.agent.agents import agent_class

        own = getattr(cls, "algorithm_class", None)  # the base class has none
        manifest = read(path) if own is None else read(path, own.name, own.config_class)
        about, given = manifest.about, schedules or {}
        manifest.check_inputs(networks, loss_addons, given)
        env_args = manifest.choose_env_args(env, env_args, trust_environment)
        agent = (agent_class(about["algorithm"]) if own is None else cls)(
            manifest.choose_environment(env, env_args),
            manifest.config,
            **manifest.resources,
            networks=networks,
            loss_addons=loss_addons,
            cluster=manifest.choose_cluster(cluster),
            device=device,
            env_args=None if env is None else env_args,
        )
        manifest.refuse_other_spec("trained", agent.spec)
        if env is None:
            agent.env_name, agent.env_args = about["env"], env_args
        return agent._restore(manifest, refill, given)

    def _restore(self, manifest: Manifest, refill: bool, schedules: dict[str, Schedule]) -> "Agent":
        """Continue from a checkpoint. These schedules replace those that it holds."""
        about, curves = manifest.about, manifest.curves | schedules
        self.load_snapshot(manifest.snapshot, refill)
        self._schedules = Schedules(curves, set(about["set_by_hand"]))
        self.preset, self.run_id, self._draws = about["preset"], about["run"], about["draws"]
        self.evaluator.restore(about["scores"], about["scored_at"])
        self._callbacks = Callbacks(stored=about["callbacks"])
        self._origin = Origin.of_checkpoint(manifest.stored.place)
        return self

    if not TYPE_CHECKING:
        __getattr__ = miss

    def __len__(self) -> int:
        return self.num_seeds

    def __getitem__(self, index: int) -> Any:
        """Return one seed as a separate agent."""
        if not -self.num_seeds <= index < self.num_seeds:
            raise IndexError(f"there are {self.num_seeds} seeds, got index {index}")
        index, single = index % self.num_seeds, copy.copy(self)
        single._begin(self.seed + index, num_seeds=1)
        lazy, learner = self._lazy, state_dict(take_seed(self._lazy.learner, index))
        position = dataclasses.replace(lazy.position)  # a copy: ours moves on
        single.load_snapshot(Snapshot(position, learner, None, lazy.env_changes), refill=True)
        return single

    @property
    def best(self) -> Any:
        """The seed that did best in training's last evaluation (the first one before any)."""
        return self[self.evaluator.best]

    def set(self, **values: Any) -> None:
        """Set moving hyper-parameters, for all seeds or for each: `agent.set(learning_rate=1e-4)`.
        This compiles nothing, and ends a schedule of that name."""
        with self._on_device():
            self.trainer.set(values)
        self._schedules.end(values)

    def log(self, name: str, value: float) -> None:
        """Add a number of your own, such as "custom/distance", to the log: the next row has the
        mean of the values since the last row."""
        self._callbacks.log(name, value)

    def get_weights(self) -> dict[str, Any]:
        """Return the learned networks by name: trees of NumPy arrays with an axis of seeds."""
        return jax.device_get(self.algorithm.get_weights(self.state))

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Replace the networks, and their targets, by weights as `get_weights` returns them."""
        check_weights(weights, self.get_weights())
        with self._on_device():
            self.trainer.set_weights(jax.tree.map(jax.numpy.asarray, weights))
        self.evaluator.scored_at, self._origin = None, Origin(self._origin.run_dir)

    def q_values(self, observation: Any, action: Any) -> np.ndarray:
        """Return each critic's value of actions in the environment's units: [critics, batch]."""
        return self._query("q_values", observation, action)

    def log_prob(self, observation: Any, action: Any) -> np.ndarray:
        """Return the log-density of actions under the policy: [batch]. Actions are in the
        environment's own units, the density is that of the normalized action."""
        return self._query("log_prob", observation, action)

    def value(self, observation: Any) -> np.ndarray:
        """Return the value of each observation under the policy: [batch]."""
        return self._query("value", observation)

    def evaluate_actions(self, observation: Any, action: Any) -> Any:
        """Return value, log-density and entropy for a batch, each [batch]."""
        return self._query("evaluate_actions", observation, action)

    def close(self) -> None:
        """Release environments and their processes."""
        self._lazy.close()
        self.evaluator.close()

    @property
    def name(self) -> str:
        return self.algorithm.name.upper()

    @property
    def env_title(self) -> str:
        """The name of the environment in titles."""
        return self.env_name or self._class_name

    @property
    def steps(self) -> int:
        """Transitions per seed so far."""
        return self._lazy.position.iterations * self.num_envs

    def __repr__(self) -> str:
        seeds = f", {self.num_seeds} seeds" if self.num_seeds > 1 else ""
        return f"{self.name}({self.env_title}, {self.steps} steps{seeds})"

    @property
    def trainer(self) -> Trainer:
        """The trainer, which is made or restored when it is first asked for."""
        return self._lazy.trainer

    @property
    def envs(self) -> TrainingEnvs:
        """The environments of training: `set_attr`, `call` and `get_attr`."""
        return TrainingEnvs(self.trainer)

    @property
    def state(self) -> Any:
        """The training state of the algorithm, with a leading axis of seeds."""
        return self._lazy.learner.state

    def load_snapshot(self, snapshot: Snapshot, refill: bool) -> None:
        """Take over a snapshot. Training from one without experience needs `refill`."""
        self._lazy.load(snapshot, refill)

    def capture(self, experience: bool) -> tuple[Any, Any]:
        """Return the groups of arrays and the manifest of a checkpoint, on the host."""
        snapshot = self._lazy.snapshot(experience)
        manifest = self._metadata() | {
            **snapshot.describe(),
            **self.evaluator.describe(),
            "draws": self._draws,
            "callbacks": self._callbacks.state_dict(),
        }
        return snapshot.groups(experience), manifest

    def _metadata(self) -> dict[str, Any]:
        """The manifest's description, from which `load` builds this agent."""
        return describe_agent(self) | self._schedules.describe()

    def _describe(self, which: str) -> Description:
        index, policies = self.evaluator.best, self.algorithm.policy(self.state)
        best = jax.device_get(jax.tree.map(lambda x: x[index], policies))
        origin = {"which": which} | self.evaluator.describe_best(self.steps)
        return describe(self.algorithm, best, self.spec, self._metadata() | {"policy": origin})

    def _query(self, name: str, observation: Any, action: Any = None) -> Any:
        """Call a function of the algorithm with the networks of the best seed."""
        with self._on_device():
            state = jax.tree.map(lambda x: x[self.evaluator.best], self.state)
            return self._inference.query(name, state, observation, action)
