"""The configurations that golden.py compares. They are tiny: they only have to execute the code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Definition:
    """One training. It holds JSON values only, under the names of the public API."""

    method: str
    """A class of the library, such as SAC or PGAME."""
    env: str
    """An environment id, or "own:NAME" for a class of golden_driver.py."""
    steps: int
    """Steps of a seed; for quality-diversity evaluations."""
    config: Settings
    """Fields of the method's config."""
    agent: Settings = field(default_factory=dict)
    """Keywords of the method's class."""
    cluster: Settings | None = None
    """Fields of us.Cluster; Ray is started for it."""
    schedules: Settings = field(default_factory=dict)
    """Setting -> [curve, argument …] for train(schedules=…)."""
    resume_at: int | None = None
    """Save at this step, load, and train on."""
    own_descriptor: bool = False
    """Use the descriptor of golden_driver.py."""


PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
NETWORKS = dict(hidden_sizes=(16, 16))
# The run overwrites the ring several times. A tenth of the steps is random.
REPLAY = dict(NETWORKS, batch_size=16, buffer_size=150, min_buffer_size=60)
# The run does not fill the ring. Learning begins at a given step.
ROOMY = dict(NETWORKS, batch_size=32, buffer_size=2_000, start_steps=40, min_buffer_size=50)
TARGETS = dict(target_update_interval=20, epsilon_decay_steps=200)  # of DDQN
SEQUENCES = dict(
    memory="gru",
    memory_size=8,
    hidden_sizes=(16,),
    batch_size=8,
    sequence_length=8,
    burn_in=4,
    buffer_size=150,
    start_steps=40,
    min_buffer_size=40,
    updates_per_step=0.25,
    update_every=4,
)
IMAGES = dict(REPLAY, **TARGETS, encoder_features=16, frame_stack=3, random_shift=1)
REPERTOIRE = dict(generation_size=8, hidden_sizes=(8,), iso_sigma=0.1, line_sigma=0.2)
GUIDED = dict(
    REPERTOIRE,
    critic_steps=4,
    policy_steps=5,
    critic_hidden_sizes=(16,),
    batch_size=16,
    buffer_size=600,
)
RAY = dict(collectors=2, mode="sync", fragment=10, cpus_each=0.5, patience=300.0)

DEFINITIONS: dict[str, Definition] = {
    # Every algorithm in the host loop.
    "sac": Definition("SAC", PENDULUM, 500, REPLAY),
    "td3": Definition("TD3", PENDULUM, 500, REPLAY),
    "ddpg": Definition("DDPG", PENDULUM, 500, REPLAY),
    "ddpg-ou": Definition("DDPG", PENDULUM, 500, dict(ROOMY, noise="ornstein_uhlenbeck")),
    "mpo": Definition("MPO", PENDULUM, 500, dict(REPLAY, sample_action_num=4)),
    "mpo-penalty": Definition(
        "MPO", PENDULUM, 450, dict(ROOMY, sample_action_num=4, penalise_actions=True)
    ),
    "ddqn": Definition("DDQN", CARTPOLE, 500, dict(REPLAY, **TARGETS)),
    "a2c": Definition("A2C", CARTPOLE, 600, NETWORKS),
    "sac-discrete": Definition("SAC", CARTPOLE, 500, REPLAY),
    "mpo-discrete": Definition("MPO", CARTPOLE, 500, REPLAY),
    "a2c-continuous": Definition("A2C", PENDULUM, 500, NETWORKS, dict(num_envs=2)),
    "a2c-gsde": Definition(
        "A2C",
        PENDULUM,
        500,
        dict(NETWORKS, state_dependent_exploration=True, gae_lambda=0.9, horizon=8),
        dict(num_envs=2),
    ),
    "a2c-minibatches": Definition(
        "A2C",
        CARTPOLE,
        640,
        dict(
            NETWORKS,
            horizon=8,
            minibatches=4,
            normalise_advantages=True,
            share_encoder=True,
            entropy_coeff=0.01,
            optimiser="adam",
        ),
        dict(num_envs=4),
    ),
    # Replay.
    "ddqn-prioritised": Definition(
        "DDQN", CARTPOLE, 500, dict(REPLAY, **TARGETS, prioritised=True)
    ),
    "ddqn-prioritised-nstep": Definition(
        "DDQN",
        CARTPOLE,
        600,
        dict(REPLAY, **TARGETS, prioritised=True, n_step=3, dueling=True),
        dict(num_envs=2),
    ),
    "sac-nstep": Definition("SAC", PENDULUM, 500, dict(REPLAY, n_step=3, entropy_coeff=0.2)),
    "sac-host-replay": Definition("SAC", PENDULUM, 500, dict(REPLAY, replay_storage="host")),
    # Memory.
    "sac-gru-device": Definition("SAC", "jax:Pendulum-P-v1", 500, SEQUENCES, dict(num_envs=2)),
    "ddqn-gru": Definition("DDQN", CARTPOLE, 400, dict(SEQUENCES, **TARGETS)),
    "ddqn-gru-prioritised-device": Definition(
        "DDQN", "jax:CartPole-P-v1", 400, dict(SEQUENCES, **TARGETS, prioritised=True)
    ),
    "td3-lstm": Definition("TD3", PENDULUM, 450, dict(SEQUENCES, memory="lstm")),
    "a2c-gru": Definition(
        "A2C",
        CARTPOLE,
        480,
        dict(memory="gru", memory_size=8, hidden_sizes=(16,), horizon=8),
        dict(num_envs=2),
    ),
    # Images.
    "ddqn-images": Definition("DDQN", "own:Picture", 400, IMAGES, dict(num_envs=2)),
    "ddqn-images-host-replay": Definition(
        "DDQN", "own:Picture", 300, dict(IMAGES, replay_storage="host")
    ),
    "ddqn-images-device": Definition(
        "DDQN",
        "jax:MinAtar-Breakout-v1",
        400,
        dict(REPLAY, **TARGETS, encoder_features=16),
        dict(num_envs=2),
    ),
    "sac-dict": Definition("SAC", "own:Both", 300, dict(REPLAY, encoder_features=16)),
    # The device loop.
    "sac-device": Definition("SAC", "jax:Pendulum-v1", 1_000, REPLAY, dict(num_envs=4)),
    "ddqn-device": Definition("DDQN", "jax:CartPole-v1", 500, dict(ROOMY, **TARGETS)),
    "a2c-device": Definition("A2C", "jax:CartPole-v1", 640, NETWORKS),
    # Several seeds.
    "sac-seeds": Definition("SAC", PENDULUM, 450, REPLAY, dict(num_seeds=3)),
    "ddqn-seeds-device": Definition(
        "DDQN", "jax:CartPole-v1", 500, dict(REPLAY, **TARGETS), dict(num_seeds=3, num_envs=2)
    ),
    # Statistics and schedules.
    "sac-normalised": Definition(
        "SAC", PENDULUM, 450, dict(ROOMY, normalise_observations=True, normalise_rewards=True)
    ),
    "a2c-normalised-device": Definition(
        "A2C",
        "jax:Pendulum-v1",
        960,
        dict(NETWORKS, normalise_observations=True, normalise_rewards=True),
        dict(num_envs=4),
    ),
    "sac-annealed": Definition("SAC", PENDULUM, 450, dict(ROOMY, anneal_learning_rate=True)),
    "td3-schedules-device": Definition(
        "TD3",
        "jax:Pendulum-v1",
        450,
        ROOMY,
        schedules=dict(exploration_noise=["linear", 0.5, 0.0], learning_rate=["cosine", 1e-3, 0.0]),
    ),
    # Other processes, and a second training.
    "ddqn-workers": Definition(
        "DDQN", CARTPOLE, 600, dict(REPLAY, **TARGETS), dict(num_envs=4, env_workers=2)
    ),
    "sac-ray": Definition("SAC", PENDULUM, 500, ROOMY, cluster=RAY),
    "sac-resume": Definition("SAC", PENDULUM, 500, dict(REPLAY, n_step=2), resume_at=250),
    "ddqn-resume-device": Definition(
        "DDQN", "jax:CartPole-v1", 400, dict(REPLAY, **TARGETS, prioritised=True), resume_at=200
    ),
    # Quality-diversity.
    "pga-me-device": Definition("PGAME", "jax:PointNavigation-v0", 48, dict(GUIDED, cells=32)),
    "pga-me": Definition(
        "PGAME",
        PENDULUM,
        48,
        dict(GUIDED, grid=(6, 6), episode_length=40),
        own_descriptor=True,
    ),
    "map-elites-device": Definition(
        "MAPElites", "jax:PointNavigation-v0", 48, dict(REPERTOIRE, grid=(6, 6))
    ),
}
