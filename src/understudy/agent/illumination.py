"""Quality-diversity: `us.PGAME` and `us.MAPElites`."""

import math
import secrets
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from understudy.agent.agent import Agent
from understudy.agent.agents import TD3 as TD3Agent
from understudy.agent.arguments import check_names, choose_config, tell_departures
from understudy.agent.manifest import Manifest, describe_setup, read
from understudy.agent.repertoire import Repertoire
from understudy.algorithms.config import shown_name, whole_number
from understudy.algorithms.td3 import TD3
from understudy.distributed.config import Cluster
from understudy.distributed.episode_runner import RemoteEpisodeRunner, check_cluster
from understudy.envs.base import NativeEnv
from understudy.envs.descriptors import Descriptor, find_descriptor
from understudy.envs.fault_guard import DEFAULT_GUARD, Guard
from understudy.envs.make import resolve
from understudy.qd.config import MAPElitesConfig, PGAMEConfig, QDConfig
from understudy.qd.illuminators import HostIlluminator, Illuminator, NativeIlluminator, Reevaluation
from understudy.qd.map_elites import Plan
from understudy.qd.repertoire import corrected
from understudy.qd.run import Position, QDSummary, TrainableRepertoire
from understudy.qd.snapshot import capture, restore
from understudy.runs import checkpoint
from understudy.runs.callbacks import (
    BETWEEN_CHUNKS,
    Callbacks,
    CallbacksArgument,
    check_callbacks,
    refuse_hooks,
)
from understudy.runs.config import QDRunConfig
from understudy.runs.run import Run
from understudy.runs.run_directory import CURVE
from understudy.state_dict import state_dict
from understudy.training.devices import set_up_device
from understudy.training.episode_runner import HostEpisodeRunner
from understudy.training.factory import Source, check_workers
from understudy.training.initialization import init_learner
from understudy.training.seed_axis import INITIALIZATION, seed_keys
from understudy.training.snapshot import Position as AgentPosition
from understudy.training.snapshot import Snapshot
from understudy.training.update import LearnerState
from understudy.types import CheckpointError, ConfigError, EnvironmentError

HEAT_MAP = "heat_map.png"
AGENT_HOOKS = (*BETWEEN_CHUNKS, "on_evaluation")  # which only the training of an agent calls


class Illumination:
    """A method, its environments and the repertoire it has found. Abstract: `us.PGAME` and
    `us.MAPElites` differ only in their config."""

    config_class: ClassVar[type[QDConfig]]
    method: ClassVar[str]

    @check_names
    def __init__(
        self,
        env: Any,
        config: Any = None,
        *,
        descriptor: str | Descriptor | None = None,
        seed: int = 0,
        env_workers: int = 0,
        guard: Guard = DEFAULT_GUARD,
        cluster: Cluster | None = None,
        device: str | None = None,
        env_args: dict[str, Any] | None = None,
        **settings: Any,
    ):
        """`env` and `env_args` are as for agents; actions must be continuous. `descriptor` measures
        behaviors: the name of one that the environment has (None: its usual one), or your own
        `us.Descriptor`. `settings` are fields of the config that override the preset for the
        environment; a whole `config` is used as it is. The collectors of a `cluster` play the
        episodes."""
        seed = whole_number("seed", seed, 0)
        self.env_name = env if isinstance(env, str) else None
        config, self.preset = choose_config(self.config_class, self.env_name, config, settings)
        self._on_device = set_up_device(device)
        self.env_workers, self.guard, self.cluster = env_workers, guard, cluster
        self._source: Source = resolve(env, env_args=env_args)
        self.env_args = dict(env_args or {})
        check_workers(env_workers, self._source)
        if not isinstance(config, self.config_class):
            wanted, got = self.config_class.__name__, type(config).__name__
            raise ConfigError(f"{self.name} takes a {wanted}, got a {got}")
        self.config, self.seed = config, seed
        if cluster is not None and cluster.remote:
            native = isinstance(self._source, NativeEnv)
            check_cluster(cluster, config.generation_size, native, env_workers)
        td3 = TD3(config.td3())
        td3.check(self._source.spec)
        if len(self._source.spec.observation.shape) != 1 or self._source.spec.observation.in_bytes:
            raise EnvironmentError(f"{self.name} needs observations that are vectors of floats")
        known = self._source.descriptors
        found = self.descriptor = find_descriptor(known, descriptor, self.env_name)
        self._descriptor_name = next((name for name in known if known[name] is found), None)
        self._plan = Plan(td3, self._source.spec, self.descriptor, config, seed)
        if config.grid is not None:
            self._plan.cells()  # refuses a grid that does not fit the descriptor
        self._position, self._callbacks = Position(), Callbacks()
        self._resumable = True  # False if a checkpoint lacks the experience
        self.run_id = secrets.token_hex(8)  # identifies the run in its directory

    @check_names
    def illuminate(
        self,
        evaluations: int,
        *,
        run: QDRunConfig | None = None,
        run_dir: str | Path | None = None,
        logger: Any = None,
        callbacks: CallbacksArgument = (),
        progress: bool = True,
    ) -> QDSummary:
        """Evaluate that many more policies (in whole generations), and keep the best of each cell.

        A `run_dir` gets the log (progress.csv), the map (heat_map.png), curves and checkpoints.
        SIGINT and SIGTERM end the run after a generation, with a checkpoint. Callbacks are
        `us.Callback` objects (on_train_start, on_log, on_checkpoint, on_train_end), or functions of
        the row of the log."""
        evaluations = whole_number("evaluations", evaluations, 1)
        callbacks = check_callbacks(callbacks)
        tell_departures(self, self.evaluations)
        refuse_hooks(callbacks, AGENT_HOOKS, "illuminate")
        if not self._resumable:
            raise CheckpointError(
                "this checkpoint holds a repertoire to use, but not the experience to go on from"
            )
        config, size = run or QDRunConfig(), self.config.generation_size
        with self._on_device():
            illuminator, episodes = self.illuminator, config.reevaluation_episodes
            trainable = TrainableRepertoire(
                illuminator, self._position, episodes, self.capture, self.draw
            )
            stop = self.evaluations + math.ceil(evaluations / size) * size
            title = f"{self.name} on {self.env_name or 'your environment'}"
            self._callbacks = later = self._callbacks.follow(callbacks)
            illumination = Run(trainable, config, stop, self._metadata(), title, later, self)
            return trainable.summary(illumination.execute(run_dir, logger, progress))

    @property
    def repertoire(self) -> Repertoire:
        """The repertoire so far."""
        with self._on_device():
            state = self.illuminator.state
            # A copy, because the next generation overwrites the arrays.
            cells = jax.tree.map(jnp.copy, state.repertoire)
            return Repertoire(cells, self.descriptor, float(state.offset), self.make_agent)

    def reevaluate(self, episodes: int = 10) -> tuple[Repertoire, Reevaluation]:
        """Return the repertoire that results if every policy is scored by its mean over fresh
        episodes, and the results of these episodes in the order of `repertoire.filled`."""
        found = self.repertoire
        found.refuse_empty()
        played = self.play(found.filled, episodes)
        with self._on_device():
            cells = corrected(found.cells, found.filled, *played)
            return Repertoire(cells, self.descriptor, found.offset, self.make_agent), played

    def play(self, cells: Sequence[int] | np.ndarray, episodes: int = 10) -> Reevaluation:
        """Play the policies of these cells in fresh episodes."""
        episodes = whole_number("episodes", episodes, 1)
        with self._on_device():
            return self.illuminator.reevaluate(self._filled(cells), episodes)

    def replay(self, cells: Sequence[int] | np.ndarray) -> Reevaluation:
        """Play the policies of these cells in the episodes in which they were found."""
        with self._on_device():
            return self.illuminator.replay(self._filled(cells))

    def log(self, name: str, value: float) -> None:
        """Add a number of your own to the next row of the log."""
        self._callbacks.log(name, value)

    def save(self, path: str | Path, experience: bool = True) -> Path:
        """Write a checkpoint directory. It holds arrays and JSON only; loading runs no code."""
        with self._on_device():
            return checkpoint.write(path, *self.capture(experience))

    def close(self) -> None:
        """Release environments and their processes."""
        if "illuminator" in vars(self):
            self.illuminator.close()

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        env: Any = None,
        descriptor: str | Descriptor | None = None,
        cluster: Cluster | None = None,
        trust_environment: bool = False,
        device: str | None = None,
        env_args: dict[str, Any] | None = None,
    ) -> Any:
        """Restore a run, to resume it bit for bit or to use its repertoire. An environment or a
        descriptor of your own must be given again. Without a `cluster` the run has the one it had;
        `us.Cluster()` uses this process alone. An environment "module:Id" is made only if that
        module is imported already, or with `trust_environment`. `env_args` replace the stored
        ones."""
        manifest = read(path, cls.method)
        about, given = manifest.about, {"env": env, "descriptor": descriptor}
        missing = [name for name, own in given.items() if own is None and about[name] is None]
        manifest.refuse_missing(missing, "load")
        env_args = manifest.choose_env_args(env, env_args, trust_environment)
        found = cls(
            about["env"] if env is None else env,
            manifest.config,
            descriptor=about["descriptor"] if descriptor is None else descriptor,
            **manifest.resources,
            cluster=manifest.choose_cluster(cluster),
            device=device,
            env_args=env_args,
        )
        found._restore(manifest)
        return found

    def _restore(self, manifest: Manifest) -> None:
        about, stored = manifest.about, manifest.stored
        manifest.refuse_other_spec("made", self._source.spec)
        over = about["described_by"].get("over")
        if self.descriptor.over != over:
            raise CheckpointError(
                f'{stored.place} tells behaviors apart by a descriptor over "{over}", not '
                f'"{self.descriptor.over}"'
            )
        with self._on_device():
            self._resumable = restore(self.illuminator, stored)
        self._position = manifest.position
        self.preset, self.run_id = about["preset"], about["run"]
        self._callbacks = Callbacks(stored=about["callbacks"])

    @property
    def name(self) -> str:
        return shown_name(self.method)

    @property
    def evaluations(self) -> int:
        """Policies evaluated so far."""
        return self._position.generations * self.config.generation_size

    def __repr__(self) -> str:
        return f"{self.name}({self.env_name or 'environment'}, {self.evaluations} evaluations)"

    def _filled(self, cells: Sequence[int] | np.ndarray) -> np.ndarray:
        wanted, known = np.asarray(cells), self.repertoire.filled
        if not len(wanted) or not np.isin(wanted, known).all():
            raise ConfigError(f"these cells are not among the {len(known)} filled ones: {wanted}")
        return wanted

    @cached_property
    def illuminator(self) -> Illuminator:
        """The object that evaluates generations, which is made when it is first asked for."""
        source, plan = self._source, self._plan.episode_plan
        if isinstance(source, NativeEnv):
            return NativeIlluminator(self._plan, source)
        if self.cluster is not None and self.cluster.collectors:
            runner = RemoteEpisodeRunner(self.cluster, plan, source, self.guard)
        else:
            runner = HostEpisodeRunner(plan, source, self.env_workers, self.guard)
        return HostIlluminator(self._plan, runner)

    def capture(self, experience: bool) -> tuple[Any, Any]:
        """Return the groups of arrays and the manifest of a checkpoint, on the host."""
        groups, manifest = capture(self.illuminator, self._position, experience)
        return groups, self._metadata() | manifest | {"callbacks": self._callbacks.state_dict()}

    def _metadata(self) -> dict[str, Any]:
        """The manifest's description, from which `load` builds this object."""
        one = self.descriptor
        return describe_setup(self, self.method, self._plan.spec) | {
            "descriptor": self._descriptor_name,
            "described_by": dict(low=one.low, high=one.high, over=one.over, names=one.axis_names),
        }

    def draw(self, directory: Path, title: str) -> None:
        """Draw the growth of the repertoire and its map into a run directory."""
        # Matplotlib takes half a second to import, so it is imported when there is a picture.
        from understudy.reports.growth import growth

        growth([directory], directory / CURVE)
        if len(self.repertoire):
            self.repertoire.draw(directory / HEAT_MAP, title)

    def make_agent(self, policy: Any) -> Agent:
        """Return an agent that acts by this policy. Its critics are those of TD3, if it learns."""
        td3 = self._plan.td3
        agent = TD3Agent(self._source, td3.config, seed=self.seed, num_envs=1, guard=self.guard)
        agent.env_name, agent.env_args, agent.preset = self.env_name, self.env_args, self.preset
        networks = {"actor": policy}
        for learner in self.illuminator.state.emitter:
            if isinstance(learner, LearnerState):
                networks["critic"] = learner.state.params.critic
        with_seed_axis = jax.tree.map(lambda leaf: jnp.copy(leaf)[None], networks)
        state = td3.set_weights(self._untrained.state, with_seed_axis)
        arrays = state_dict(self._untrained._replace(state=state))
        agent.load_snapshot(Snapshot(AgentPosition(), arrays, None), refill=True)
        return agent

    @cached_property
    def _untrained(self) -> LearnerState:
        """The state of an agent before it learns, with an axis of one seed."""
        td3, spec = self._plan.td3, self._plan.spec
        initial = partial(init_learner, td3, spec, 1)
        return jax.vmap(initial)(seed_keys(self.seed, 1, INITIALIZATION))


@final
class MAPElites(Illumination):
    """MAP-Elites with iso+line variation."""

    config_class, method = MAPElitesConfig, "map-elites"


@final
class PGAME(Illumination):
    """PGA-MAP-Elites: MAP-Elites with TD3's gradient."""

    config_class, method = PGAMEConfig, "pga-me"


METHODS: dict[str, type[Illumination]] = {one.method: one for one in (PGAME, MAPElites)}
