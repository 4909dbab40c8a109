"""The public interface: `us.SAC(env).train(…)`, `act`, `evaluate`, `save`, and `us.load`."""

from understudy.agent.agent import Agent as Agent
from understudy.agent.agents import agent_class as agent_class

load = Agent.load
