"""The public face: `us.SAC(env).train(…)`, `act`, `evaluate`, `save`, and `us.load`."""

from understudy.agent.agent import Agent as Agent
from understudy.agent.agents import agent_class as agent_class
from understudy.agent.loading import load as load
