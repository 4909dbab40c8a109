"""Run one contestant of the speed comparison in its own process.

    python contestants.py understudy|sbx|sb3|cleanrl CONTEST [--torch-threads N] [--warm-up N]
    python contestants.py numpy|torch matrix

A trainer warms up (compilation, a buffer past the random phase), prints that it is ready, and then
waits for commands, one JSON object per line: the answer to {"do": "steps", "count": 500} is the
number of seconds of these training steps. It computes nothing while it waits. The file imports only
what the contestant needs, so it runs in the environment of the other libraries and in ours.
"""

import argparse
import importlib.metadata
import json
import os
import runpy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, final

from contests import (
    BUFFER_SIZE,
    CONTESTS,
    EPSILON,
    EXPLORATION_NOISE,
    LIBRARIES,
    TARGET_INTERVAL,
    Contest,
)

PACKAGES = ("jax", "torch", "numpy", "gymnasium", "mujoco")
DISTRIBUTIONS = {"understudy": "understudy", "sbx": "sbx-rl", "sb3": "stable-baselines3",
                 "cleanrl": "torch"}  # fmt: skip


class Conversation:
    """JSON lines with the driver. What libraries print goes to stderr instead."""

    def __init__(self) -> None:
        self._replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def reply(self, facts: dict[str, Any]) -> None:
        self._replies.write(json.dumps(facts) + "\n")

    def request(self) -> dict[str, Any] | None:
        """The next command; nothing once the driver has hung up."""
        line = sys.stdin.readline()
        return json.loads(line) if line.strip() else None


def versions(library: str) -> dict[str, str]:
    found = {}
    for package in (DISTRIBUTIONS[library], *PACKAGES):
        if package == "torch" and library == "understudy":
            continue
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


# -- Understudy ---------------------------------------------------------------------------------


def our_settings(contest: Contest) -> dict[str, Any]:
    """The config's fields, by the contest's numbers."""
    shared = dict(hidden_sizes=contest.hidden_sizes)
    if contest.algorithm == "ppo":
        shared |= dict(epochs=contest.epochs, minibatches=contest.minibatches)
    if contest.batch_size is None:
        return shared | dict(horizon=contest.horizon)
    shared |= dict(
        start_steps=contest.start_steps,
        min_buffer_size=contest.start_steps,
        buffer_size=BUFFER_SIZE,
        batch_size=contest.batch_size,
    )
    exploration = dict(exploration_noise=EXPLORATION_NOISE)
    own = {
        "td3": exploration,
        "ddpg": exploration,
        "ddqn": dict(
            initial_epsilon=EPSILON, final_epsilon=EPSILON, target_update_interval=TARGET_INTERVAL
        ),
    }
    return shared | own.get(contest.algorithm, {})


def run_understudy(contest: Contest, warm_up: int, talk: Conversation) -> None:
    from host_parts import HostParts, begin, settle

    from understudy.agent import agent_class
    from understudy.training.devices import configure_process

    kind = agent_class(contest.algorithm)
    config = kind.algorithm_class.config_class(**our_settings(contest))
    configure_process(kind.algorithm_class(config).needs)  # as the command line does
    agent = kind(contest.environment, config, num_envs=contest.num_envs)
    trainer = begin(agent)

    def take_steps(count: int) -> None:
        trainer.advance(count // contest.num_envs)

    def update_only(count: int) -> None:
        """The `learn` program back to back, on the step that arrived last."""
        parts = HostParts(trainer)
        for _ in range(count // contest.num_envs):
            parts.learn()

    take_steps(contest.start_steps + contest.steps(warm_up))
    settle(trainer)
    replay = None
    if contest.batch_size is not None:
        replay = trainer.buffer.nbytes
    talk.reply({"versions": versions("understudy"), "replay_bytes": replay})
    work = {"steps": take_steps, "updates": update_only}
    while request := talk.request():
        updates = trainer.position.updates
        began = time.perf_counter()
        work[request["do"]](request["count"])
        settle(trainer)
        seconds = time.perf_counter() - began
        updates = (trainer.position.updates - updates) // (contest.epochs * contest.minibatches)
        talk.reply({"seconds": seconds, "updates": updates})
    agent.close()


# -- The peers ----------------------------------------------------------------------------------


class Slices:
    """A callback that cuts one long `learn` into timed slices, and waits between them.

    It is called at the same place of every step (after `env.step`), so a slice of n steps is
    exactly n times storing, updating, acting and stepping; what `learn` sets up is not counted.
    SBX fetches its losses after each update and PyTorch on the CPU is synchronous, so nothing is
    left running when the clock stops.
    """

    def __init__(
        self, model: Any, until: int, ready: dict[str, Any], talk: Conversation, epochs: int = 1
    ):
        self._model, self._until, self._ready, self._talk = model, until, ready, talk
        self._epochs = epochs  # that the model counts as updates
        self._began = self._updates = 0.0

    def __call__(self, _locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        if self._model.num_timesteps < self._until:
            return True
        seconds = time.perf_counter() - self._began
        updates = (self._model._n_updates - self._updates) // self._epochs
        measured = {"seconds": seconds, "updates": updates}
        self._talk.reply(self._ready or measured)
        self._ready = {}
        request = self._talk.request()
        if request is None:
            return False
        self._until = self._model.num_timesteps + request["count"]
        self._updates = self._model._n_updates
        self._began = time.perf_counter()
        return True


def peer_settings(contest: Contest) -> dict[str, Any]:
    """The constructor's arguments, by the contest's numbers; both peers call them the same."""
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise

    if contest.algorithm == "ppo":
        rows = contest.steps_per_update // contest.minibatches
        return dict(n_steps=contest.horizon, batch_size=rows, n_epochs=contest.epochs)
    if contest.batch_size is None:
        return dict(n_steps=contest.horizon)
    shared = dict(
        learning_starts=contest.start_steps,
        buffer_size=BUFFER_SIZE,
        batch_size=contest.batch_size,
        train_freq=1,
        gradient_steps=1,
    )
    exploration = dict(action_noise=NormalActionNoise(np.zeros(6), np.full(6, EXPLORATION_NOISE)))
    own = {
        "td3": exploration,
        "ddpg": exploration,
        "dqn": dict(
            exploration_initial_eps=EPSILON,
            exploration_final_eps=EPSILON,
            target_update_interval=TARGET_INTERVAL,
        ),
    }
    return shared | own.get(contest.peers_algorithm, {})


def run_peer(
    library: str, contest: Contest, warm_up: int, torch_threads: int | None, talk: Conversation
) -> None:
    import numpy as np
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    if torch_threads:
        torch.set_num_threads(torch_threads)
    if library == "sbx":
        import sbx as peer
    else:
        import stable_baselines3 as peer
    kind = getattr(peer, contest.peers_algorithm.upper())
    model = kind(
        "MlpPolicy",
        make_vec_env(contest.environment, contest.num_envs),  # in this process, like ours
        policy_kwargs={"net_arch": list(contest.hidden_sizes)},
        seed=0,
        device="cpu",
        **peer_settings(contest),
    )
    replay = None
    if contest.batch_size is not None:
        stores = [x for x in vars(model.replay_buffer).values() if isinstance(x, np.ndarray)]
        replay = sum(store.nbytes for store in stores)
    ready = {
        "versions": versions(library),
        "torch_threads": torch.get_num_threads(),
        "replay_bytes": replay,
    }
    until = contest.start_steps + contest.steps(warm_up)
    slices = Slices(model, until, ready, talk, contest.epochs)
    model.learn(10**9, callback=slices, log_interval=None)


@final
class Counter:
    """What `Slices` reads of a model, for a script that has none."""

    def __init__(self, contest: Contest):
        self.num_timesteps, self._contest = 0, contest

    @property
    def _n_updates(self) -> int:
        """Epochs: the steps of a rollout are followed by its updates."""
        return self.num_timesteps // self._contest.steps_per_update * self._contest.epochs


def run_cleanrl(
    contest: Contest, warm_up: int, torch_threads: int | None, talk: Conversation
) -> None:
    """Run CleanRL's script, whose environments cut it into slices. UNDERSTUDY_CLEANRL is its path:
    cleanrl/ppo.py of a clone, since CleanRL is no package."""
    import gymnasium
    import torch

    if torch_threads:
        torch.set_num_threads(torch_threads)
    ready = {"versions": versions("cleanrl"), "torch_threads": torch.get_num_threads(),
             "replay_bytes": None}  # fmt: skip
    counter = Counter(contest)
    slices = Slices(counter, contest.steps(warm_up), ready, talk, contest.epochs)
    step = gymnasium.vector.SyncVectorEnv.step

    def step_and_count(envs: Any, action: Any) -> Any:
        result = step(envs, action)
        counter.num_timesteps += contest.num_envs
        if not slices({}, {}):
            raise SystemExit
        return result

    gymnasium.vector.SyncVectorEnv.step = step_and_count
    settings = {
        "env-id": contest.environment,
        "total-timesteps": 10**9,
        "num-envs": contest.num_envs,
        "num-steps": contest.horizon,
        "update-epochs": contest.epochs,
        "num-minibatches": contest.minibatches,
    }
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    script = Path(os.environ["UNDERSTUDY_CLEANRL"]).resolve()
    sys.argv = [str(script), *flags, "--no-cuda"]
    with tempfile.TemporaryDirectory() as folder:  # it writes logs where it runs
        os.chdir(folder)
        runpy.run_path(str(script), run_name="__main__")


# -- The machine --------------------------------------------------------------------------------


def matrix_rate(library: str, talk: Conversation, repeats: int = 400) -> None:
    """The best float32 GFLOP/s of square products of two sizes, with the default threads."""
    import numpy as np

    rates = {}
    for size in (256, 512):
        left = np.random.default_rng(0).standard_normal((size, size), np.float32)
        right, product = left.T.copy(), np.empty_like(left)
        multiply: Any = np.matmul
        if library == "torch":
            import torch

            left, right, product = map(torch.from_numpy, (left, right, product))
            multiply = torch.mm
        best = float("inf")
        for _ in range(repeats):
            began = time.perf_counter()
            multiply(left, right, out=product)
            best = min(best, time.perf_counter() - began)
        rates[str(size)] = 2e-9 * size**3 / best
    talk.reply({"gflops": rates})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=(*LIBRARIES, "numpy", "torch"))
    parser.add_argument("contest", choices=(*CONTESTS, "matrix"))
    parser.add_argument("--torch-threads", type=int)
    parser.add_argument("--warm-up", type=int, default=500, help="steps after the random ones")
    options = parser.parse_args()
    talk = Conversation()
    if options.contest == "matrix":
        matrix_rate(options.library, talk)
    elif options.library == "understudy":
        run_understudy(CONTESTS[options.contest], options.warm_up, talk)
    else:
        contest = CONTESTS[options.contest]
        if options.library == "cleanrl":
            run_cleanrl(contest, options.warm_up, options.torch_threads, talk)
        else:
            run_peer(options.library, contest, options.warm_up, options.torch_threads, talk)


if __name__ == "__main__":
    main()
