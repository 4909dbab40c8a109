"""Quality-diversity as users meet it: `us.PGAME` and `us.MAPElites`."""

import contextlib
import dataclasses
import math
import secrets
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

import understudy
from understudy.agent.agent import Agent
from understudy.agent.agents import TD3 as TD3Agent
from understudy.agent.drawing import draw_growth
from understudy.agent.loading import choose_cluster
from understudy.agent.manifest import Manifest, read
from understudy.agent.repertoire import Repertoire
from understudy.algorithms.config import shown_name, whole_number
from understudy.algorithms.td3 import TD3
from understudy.distributed.config import Cluster
from understudy.distributed.episode_runner import RemoteEpisodeRunner
from understudy.distributed.episode_runner import check as check_cluster
from understudy.envs.base import NativeEnv
from understudy.envs.descriptors import Descriptor, find_descriptor
from understudy.envs.fault_guard import DEFAULT_GUARD, Guard
from understudy.envs.make import EnvSource, resolve
from understudy.envs.names import refuse_foreign_module
from understudy.qd.config import MAPElitesConfig, PGAMEConfig, QDConfig
from understudy.qd.map_elites import Again, Illuminator, Plan
from understudy.qd.on_device import NativeIlluminator
from understudy.qd.on_host import HostIlluminator
from understudy.qd.run import Position, QDRun, QDRunConfig, QDSummary, capture, corrected, restore
from understudy.runs import checkpoint
from understudy.runs.run import Callback, check_callbacks
from understudy.runs.run_directory import Subject
from understudy.runs.watch import Counting, Watch
from understudy.state_dict import state_dict
from understudy.training.compilation import set_up_compilation
from understudy.training.devices import find_device
from understudy.training.episode_runner import EpisodeRunner, HostEpisodeRunner
from understudy.training.factory import Source, check_workers
from understudy.training.initialization import begin, metric_names
from understudy.training.seed_axis import INITIALIZATION, seed_keys
from understudy.training.snapshot import Position as AgentPosition
from understudy.training.snapshot import Snapshot
from understudy.training.update import LearnerState
from understudy.types import CheckpointError, ConfigError, EnvironmentError

HEAT_MAP = "heat_map.png"


class Illumination:
    """A method, its environments and the repertoire it has found. Abstract: `us.PGAME` and
    `us.MAPElites` differ only in their config."""

    config_class: ClassVar[type[QDConfig]]
    method: ClassVar[str]

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
    ):
        """`env` as for agents; its actions must be continuous. `descriptor` says what tells
        behaviors apart: the name of one that the environment has (None: its usual one), or a
        `us.Descriptor` of your own. Without a config, the preset for the environment is used. The
        collectors of a `cluster` play the episodes."""
        seed = whole_number("seed", seed, 0)
        set_up_compilation()
        self._device, self._env_workers, self._guard = find_device(device), env_workers, guard
        self._source: Source = resolve(env)
        check_workers(env_workers, self._source)
        self.env_name = env if isinstance(env, str) else None
        self.preset = "given"
        if config is None:
            config, self.preset = self.config_class.for_environment(self.env_name)
        if not isinstance(config, self.config_class):
            wanted, got = self.config_class.__name__, type(config).__name__
            raise ConfigError(f"{self.name} takes a {wanted}, got a {got}")
        self.config, self.seed, self._cluster = config, seed, cluster
        if cluster is not None and cluster.remote:
            native = isinstance(self._source, NativeEnv)
            check_cluster(cluster, config.generation_size, native, env_workers)
        td3 = TD3(config.td3())
        td3.check(self._source.spec)
        if len(self._source.spec.observation.shape) != 1 or self._source.spec.observation.in_bytes:
            raise EnvironmentError(f"{self.name} needs observations that are vectors of floats")
        known = self._source.descriptors
        self.descriptor = find_descriptor(known, descriptor, self.env_name)
        self._descriptor_name = next(
            (name for name, one in known.items() if one is self.descriptor), None
        )
        self._plan = Plan(td3, self._source.spec, self.descriptor, config, seed)
        if config.grid is not None:
            self._plan.cells()  # one that does not fit is refused now
        self._illuminator: Illuminator | None = None
        self._position = Position()
        self._whole = True  # nothing that illumination needs was left out of a checkpoint
        self._run = secrets.token_hex(8)  # which run a directory belongs to

    # -- what everybody uses ----------------------------------------------------------------

    def illuminate(
        self,
        evaluations: int,
        *,
        run: QDRunConfig | None = None,
        run_dir: str | Path | None = None,
        logger: Any = None,
        callbacks: tuple[Callback, ...] = (),
        progress: bool = True,
        observers: Any = None,
    ) -> QDSummary:
        """Evaluate that many policies more (in whole generations), and keep the best of each kind.

        With a `run_dir` everything is kept there: the log (progress.csv), the map (heat_map.png),
        curves and checkpoints. SIGINT and SIGTERM end it after a generation, with a checkpoint.
        """
        evaluations = whole_number("evaluations", evaluations, 1)
        callbacks = check_callbacks(callbacks, observers)
        if not self._whole:
            raise CheckpointError(
                "this checkpoint holds a repertoire to use, but not the experience to go on from"
            )
        run = run or QDRunConfig()
        generations = math.ceil(evaluations / self.config.generation_size)
        with self._on_device(), contextlib.ExitStack() as stack:
            illuminator, position = self.illuminator, self._position
            total = (position.generations + generations) * self.config.generation_size
            facts = {"run_config": dataclasses.asdict(run), "total_steps": total}
            about, title = self._about() | facts, f"{self.name} on {self._where}"
            counting = Counting(self.evaluations, position.logged, "evaluations")
            watch = Watch(stack, counting, about, title, None if run_dir is None else Path(run_dir))
            subject = Subject(self._capture, None, self._draw)
            records = watch.records(subject, run.keep_checkpoints)
            watchers = [*watch.trackers(logger), *watch.progress(progress), *callbacks]
            everybody = [*records, *watchers]
            return QDRun(illuminator, position, everybody, run, *records).illuminate(generations)

    @property
    def repertoire(self) -> Repertoire:
        """What was found so far."""
        with self._on_device():
            state = self.illuminator.state
            # A copy: the next generation is computed where this one lies.
            cells = jax.tree.map(jnp.copy, state.repertoire)
            return Repertoire(cells, self.descriptor, float(state.offset), self._embody)

    def reevaluate(self, episodes: int = 10) -> tuple[Repertoire, Again]:
        """The repertoire as it would be if every policy had been judged by its mean over fresh
        episodes; and what they did there, in the order of `repertoire.filled`."""
        found = self.repertoire
        found._refuse_empty()
        again = self.play(found.filled, episodes)
        with self._on_device():
            cells = corrected(found.cells, found.filled, again)
            return Repertoire(cells, self.descriptor, found.offset, self._embody), again

    def play(self, cells: Sequence[int] | np.ndarray, episodes: int = 10) -> Again:
        """Play the policies of these cells in fresh episodes."""
        if episodes < 1:
            raise ConfigError(f"episodes must be at least 1, got {episodes}")
        with self._on_device():
            return self.illuminator.reevaluate(self._filled(cells), episodes)

    def replay(self, cells: Sequence[int] | np.ndarray) -> Again:
        """Play the policies of these cells once more in the very episodes they were found in."""
        with self._on_device():
            return self.illuminator.replay(self._filled(cells))

    def save(self, path: str | Path, experience: bool = True) -> Path:
        """Write a checkpoint directory. It holds arrays and JSON only; loading runs no code."""
        with self._on_device():
            return checkpoint.write(path, *self._capture(experience))

    def close(self) -> None:
        """Release environments and their processes."""
        if self._illuminator is not None:
            self._illuminator.close()

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
    ) -> Any:
        """Restore a run, to go on with it bit for bit or to use its repertoire. An environment or
        a descriptor of your own is handed in again. Without a `cluster` it has the one it had;
        `us.Cluster()` is this process alone. An environment "module:Id" is made only where that
        module is imported already, or with `trust_environment`."""
        stored, manifest = read(path, cls.method)
        about, place = manifest.about, stored.place
        handed = {"env": env, "descriptor": descriptor}
        missing = [name for name, own in handed.items() if own is None and about[name] is None]
        if missing:
            raise CheckpointError(
                f"{place} needs what cannot be stored in it: give load(…) its {', '.join(missing)}"
            )
        if env is None and not trust_environment:
            refuse_foreign_module(about["env"])
        found = cls(
            about["env"] if env is None else env,
            manifest.config,
            descriptor=about["descriptor"] if descriptor is None else descriptor,
            seed=about["seed"],
            env_workers=about["env_workers"],
            guard=manifest.guard,
            cluster=choose_cluster(place, manifest.cluster, cluster),
            device=device,
        )
        found._become(stored, manifest)
        return found

    def _become(self, stored: checkpoint.Stored, manifest: Manifest) -> None:
        about = manifest.about
        if self._source.spec != manifest.spec:
            raise CheckpointError(
                f"{stored.place} was made on another environment: it expects {manifest.spec}, this "
                f"one has {self._source.spec}"
            )
        over = about["described_by"].get("over")
        if self.descriptor.over != over:
            raise CheckpointError(
                f'{stored.place} tells behaviors apart by a descriptor over "{over}", not '
                f'"{self.descriptor.over}"'
            )
        with self._on_device():
            self._whole = restore(self.illuminator, stored)
        self._position = manifest.position
        self.preset, self._run = about["preset"], about["run"]

    @property
    def name(self) -> str:
        return shown_name(self.method)

    @property
    def evaluations(self) -> int:
        """Policies evaluated so far."""
        return self._position.generations * self.config.generation_size

    def __repr__(self) -> str:
        return f"{self.name}({self.env_name or 'environment'}, {self.evaluations} evaluations)"

    # -- inside -----------------------------------------------------------------------------

    def _filled(self, cells: Sequence[int] | np.ndarray) -> np.ndarray:
        wanted, known = np.asarray(cells), self.repertoire.filled
        if not len(wanted) or not np.isin(wanted, known).all():
            raise ConfigError(f"these cells are not among the {len(known)} filled ones: {wanted}")
        return wanted

    @property
    def illuminator(self) -> Illuminator:
        """What evaluates generations; it is made when it is first asked for."""
        if self._illuminator is None:
            if isinstance(self._source, NativeEnv):
                self._illuminator = NativeIlluminator(self._plan, self._source)
            else:
                self._illuminator = HostIlluminator(self._plan, self._make_runner(self._source))
        return self._illuminator

    def _make_runner(self, source: EnvSource) -> EpisodeRunner:
        plan = self._plan.episode_plan
        if self._cluster is not None and self._cluster.collectors:
            return RemoteEpisodeRunner(self._cluster, plan, source, self._guard)
        return HostEpisodeRunner(plan, source, self._env_workers, self._guard)

    def _about(self) -> dict[str, Any]:
        """What this is, for files; `load` makes it again from this."""
        return {
            "understudy": understudy.__version__,
            "algorithm": self.method,
            "env": self.env_name,
            "descriptor": self._descriptor_name,
            "described_by": {
                "low": self.descriptor.low,
                "high": self.descriptor.high,
                "over": self.descriptor.over,
                "names": self.descriptor.axis_names,
            },
            "preset": self.preset,
            "seed": self.seed,
            "env_workers": self._env_workers,
            "guard": dataclasses.asdict(self._guard),
            "cluster": None if self._cluster is None else dataclasses.asdict(self._cluster),
            "run": self._run,
            "config": dataclasses.asdict(self.config),
            "spec": dataclasses.asdict(self._plan.spec),
        }

    def _capture(self, world: bool) -> tuple[Any, Any]:
        groups, manifest = capture(self.illuminator, self._position, world)
        return groups, self._about() | manifest

    def _draw(self, directory: Path, title: str) -> None:
        draw_growth(directory)
        if len(self.repertoire):
            self.repertoire.draw(directory / HEAT_MAP, title)

    def _embody(self, policy: Any) -> Agent:
        """An agent that acts by this policy; TD3's critics, where there are any, are its own."""
        agent = TD3Agent(
            self._source, self._plan.td3.config, seed=self.seed, num_envs=1, guard=self._guard
        )
        agent.env_name, agent.preset = self.env_name, self.preset
        state = self._blank.state
        networks = {"actor": policy} | self._critics()
        alone = jax.tree.map(lambda leaf: jnp.copy(leaf)[None], networks)
        learner = self._blank._replace(state=self._plan.td3.set_weights(state, alone))
        snapshot = Snapshot(AgentPosition(), state_dict(learner), None)
        agent._take(snapshot, refill=True)
        return agent

    @cached_property
    def _blank(self) -> LearnerState:
        """What an agent has before it learns, with an axis of one seed."""
        td3, spec = self._plan.td3, self._plan.spec
        initial = partial(begin, td3, spec, 1, len(metric_names(td3, spec, 1)))
        return jax.vmap(initial)(seed_keys(self.seed, 1, INITIALIZATION))

    def _critics(self) -> dict[str, Any]:
        learners = self.illuminator.state.emitter
        taught = [one.state.params.critic for one in learners if isinstance(one, LearnerState)]
        return {"critic": taught[0]} if taught else {}

    @property
    def _where(self) -> str:
        return self.env_name or "your environment"

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        return jax.default_device(self._device) if self._device else contextlib.nullcontext()


@final
class MAPElites(Illumination):
    """MAP-Elites with iso+line variation."""

    config_class, method = MAPElitesConfig, "map-elites"


@final
class PGAME(Illumination):
    """PGA-MAP-Elites: MAP-Elites with TD3's gradient."""

    config_class, method = PGAMEConfig, "pga-me"


METHODS: dict[str, type[Illumination]] = {one.method: one for one in (PGAME, MAPElites)}
