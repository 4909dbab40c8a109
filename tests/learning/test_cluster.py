"""Agents learn on a cluster what they learn in one process. Slow."""

import numpy as np
import pytest

import understudy as us

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.usefixtures("ray")]
RUN = us.RunConfig(log_every=5_000, evaluate_every=0, evaluation_episodes=1)
CASES = [  # with the lines of the single process
    ("SAC", "Pendulum-v1", 20_000, -170, us.Cluster(2, cpus_each=0.5)),
    ("DDQN", "CartPole-v1", 50_000, 475, us.Cluster(2, gradient_workers=2, cpus_each=0.5)),
]


@pytest.mark.parametrize(("kind", "env", "steps", "line", "cluster"), CASES)
def test_the_lines_on_three_seeds(kind, env, steps, line, cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    means = []
    for seed in range(3):
        agent = getattr(us, kind)(env, seed=seed, cluster=cluster)
        assert agent.preset == env
        agent.train(steps, run=RUN, progress=False)
        assert agent.steps == steps
        means.append(agent.evaluate(20)["mean"])
        agent.close()
    assert np.mean(means) >= line, means
