"""Small agents of every kind, and what it takes to compare two of them to the bit."""

import gymnasium
import numpy as np

import understudy as us
from understudy.runs import checkpoint

REPLAY = dict(hidden_sizes=(8,), batch_size=8, buffer_size=64, start_steps=10, min_buffer_size=16)
CONFIGS = {
    "A2C": dict(hidden_sizes=(8,), horizon=5, normalize_observations=True),
    "DDQN": REPLAY | dict(target_update_interval=7, anneal_learning_rate=True),
    "DDPG": REPLAY | dict(noise="ornstein_uhlenbeck"),
    "TD3": REPLAY | dict(normalize_observations=True, normalize_rewards=True),
    "SAC": REPLAY | dict(n_step=3, update_every=2),
    "MPO": REPLAY | dict(sample_action_num=4),
    "PPO": dict(
        hidden_sizes=(8,),
        horizon=7,
        minibatches=1,
        epochs=3,
        normalize_observations=True,
        normalize_rewards=True,
        target_kl=1e-3,
    ),
    "PQN": dict(hidden_sizes=(8,), horizon=5, minibatches=1, epsilon_decay_steps=100),
    "REPPO": dict(hidden_sizes=(8,), horizon=7, minibatches=1, epochs=3, num_atoms=11),
}
QUICK = us.RunConfig(log_every=30, evaluate_every=60, evaluation_episodes=2)
STEADY = us.RunConfig(log_every=30, evaluate_every=60, evaluation_episodes=1, checkpoint_every=40)
STEPS, STOP = 240, 120


class Walk(gymnasium.Env):
    """A plain environment of a user's: its own random numbers, episodes of 3 to 40 steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(np.array([-1.0, 0.5]), np.array([3.0, 0.75]), dtype=float)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.left = np.zeros(2), int(self.np_random.integers(3, 40))
        return self.place, {}

    def step(self, action):
        self.left -= 1
        self.place = self.place + action + self.np_random.normal(size=2)
        return self.place, float(-abs(self.place[0])), False, self.left == 0, {}


def make(kind, env, *, num_seeds=1, num_envs=1, seed=3, env_workers=0, **settings):
    """`settings` change the config of that kind of agent."""
    config = getattr(us, f"{kind}Config")(**(CONFIGS[kind] | settings))
    counts = dict(num_seeds=num_seeds, num_envs=num_envs, env_workers=env_workers)
    return getattr(us, kind)(env, config, seed=seed, **counts)


def stop_at(steps):
    return lambda facts: facts["time/total_steps"] >= steps


def arrays_of(agent, path):
    """Every array of an agent and where it stands, by way of a checkpoint."""
    agent.save(path)
    stored = checkpoint.read(path)
    position = dict(stored.manifest["position"])
    del position["seconds"]
    return stored.groups, position


def assert_same_to_the_bit(one, other, directory):
    (groups, position), (other_groups, other_position) = (
        arrays_of(one, directory / "one"),
        arrays_of(other, directory / "other"),
    )
    assert position == other_position
    for group, arrays in groups.items():
        assert arrays.keys() == other_groups[group].keys()
        for name, array in arrays.items():
            other_array = other_groups[group][name]
            assert array.shape == other_array.shape, name
            assert array.tobytes() == other_array.tobytes(), f"{group}: {name}"


def stopped_and_resumed(agent, directory, steps, *, until, env=None, **training):
    """Train to `until` of `steps`, save, load and go on to the end."""
    agent.train(steps, callbacks=(stop_at(until),), progress=False, run=QUICK, **training)
    assert agent.steps == until
    agent.save(directory / "stopped")
    agent.close()
    loaded = us.load(directory / "stopped", env=env)
    loaded.train(steps - until, progress=False, run=QUICK)
    return loaded


def compare(tmp_path, kind, env, *, again=None, schedules=None, **settings):
    """A whole run against one that was stopped half-way, in the middle of an episode."""
    whole = make(kind, env, **settings)
    whole.train(STEPS, progress=False, run=QUICK, schedules=schedules)
    resumed = stopped_and_resumed(
        make(kind, env, **settings), tmp_path, STEPS, until=STOP, env=again, schedules=schedules
    )
    assert_same_to_the_bit(whole, resumed, tmp_path)
    assert whole.evaluate(2) == resumed.evaluate(2)  # as many episodes as in training
    whole.close()
    resumed.close()
