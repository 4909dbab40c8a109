"""The agents of the library's algorithms: `us.SAC(…)` and its siblings."""

from typing import final

from understudy.agent.agent import Agent
from understudy.algorithms import a2c, ddpg, ddqn, find, mpo, ppo, pqn, reppo, sac, td3


@final
class A2C(Agent):
    """Advantage Actor-Critic, synchronous, for discrete, multi-discrete and continuous actions."""

    algorithm_class = a2c.A2C


@final
class DDPG(Agent):
    """Deep Deterministic Policy Gradient, for continuous actions."""

    algorithm_class = ddpg.DDPG


@final
class DDQN(Agent):
    """Double deep Q-learning, for discrete actions."""

    algorithm_class = ddqn.DDQN


@final
class MPO(Agent):
    """Maximum a Posteriori Policy Optimization, for continuous and for discrete actions."""

    algorithm_class = mpo.MPO


@final
class PPO(Agent):
    """Proximal Policy Optimization, for discrete, multi-discrete and continuous actions."""

    algorithm_class = ppo.PPO


@final
class PQN(Agent):
    """Parallelized Q-network, for discrete actions, without replay and target networks."""

    algorithm_class = pqn.PQN


@final
class REPPO(Agent):
    """Relative Entropy Pathwise Policy Optimization, for continuous and for discrete actions."""

    algorithm_class = reppo.REPPO


@final
class SAC(Agent):
    """Soft Actor-Critic, for continuous and for discrete actions."""

    algorithm_class = sac.SAC


@final
class TD3(Agent):
    """Twin Delayed DDPG, for continuous actions."""

    algorithm_class = td3.TD3


AGENTS: dict[str, type[Agent]] = {
    agent.algorithm_class.name: agent for agent in (A2C, DDPG, DDQN, MPO, PPO, PQN, REPPO, SAC, TD3)
}


def agent_class(name: str) -> type[Agent]:
    """The agent of the algorithm of that name, in any case."""
    return AGENTS[find(name).name]
