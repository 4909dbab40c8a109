# %% [markdown]
# # A map of behaviors
#
# A maze has a wall between start and goal. Walking straight up ends under the wall, where greedy
# learners stay. Quality-diversity looks for the best policy for *every* final position. The result
# is a repertoire: a map of the maze with a policy in each cell.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import understudy as us
from understudy.envs.native import PointNavigation

shared = {
    "generation_size": 64,
    "cells": 256,
    "hidden_sizes": (32,),
    "score_offset": -110.0,
}
config = us.PGAMEConfig(critic_steps=20, policy_steps=10, **shared)
maze = us.PGAME("jax:PointNavigation-v0", config, seed=0)
run = us.QDRunConfig(log_every=5)
history = maze.illuminate(10_000, run=run, progress=False).history
print({name: round(value, 3) for name, value in maze.repertoire.metrics.items()})

# %% [markdown]
# ## Mutations alone
#
# PGA-MAP-Elites makes half of its offspring with the gradient of a critic. MAP-Elites has mutations
# alone. Both begin with random policies, and both are run with one seed here: this picture shows
# the curves, it does not rank the methods.

# %%
plain = us.MAPElites("jax:PointNavigation-v0", us.MAPElitesConfig(**shared), seed=0)
plain_history = plain.illuminate(10_000, run=run, progress=False).history
figure, axes = plt.subplots(1, 2, figsize=(8, 3))
for name, rows in {"PGA-MAP-Elites": history, "MAP-Elites": plain_history}.items():
    rows = [row for row in rows if "qd/coverage" in row]
    evaluations = [row["time/evaluations"] for row in rows]
    axes[0].plot(
        evaluations, [100 * row["qd/coverage"] for row in rows], label=name
    )
    axes[1].plot(evaluations, [row["qd/max_fitness"] for row in rows])
axes[0].set(xlabel="evaluations", ylabel="filled cells, %")
axes[1].set(xlabel="evaluations", ylabel="best fitness")
axes[0].legend()
figure.tight_layout()

# %% [markdown]
# ## The map
#
# A point is the final position of a policy of the repertoire. Its color is the fitness: minus the
# distance to the goal, summed over an episode.

# %%
env, repertoire = PointNavigation(), maze.repertoire


def draw_maze(axes):
    axes.plot(
        [env.wall_left, env.wall_right],
        [env.wall_height] * 2,
        color="black",
        linewidth=4,
    )
    axes.plot(*env.start, "ks", *env.goal, "k*", markersize=9)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")


figure, axes = plt.subplots(figsize=(5, 4))
draw_maze(axes)
points = axes.scatter(
    *repertoire.descriptors.T, c=repertoire.fitness, cmap="viridis", s=28
)
figure.colorbar(points, label="fitness")
axes.set(title=f"{len(repertoire)} policies in 256 cells")

# %% [markdown]
# ## Choose a behavior
#
# `select` returns the policy that ends nearest to a position, as an agent.


# %%
def path_of(agent):
    """Return the positions of an episode."""
    key = jax.random.PRNGKey(0)
    state, observation = env.reset(key)
    positions = [state.position]
    for _ in range(env.max_steps):
        after = jax.jit(env.step)(state, agent.act(observation), key)
        state, observation = after.state, after.observation
        positions.append(state.position)
    return np.array(positions)


figure, axes = plt.subplots(figsize=(5, 4))
draw_maze(axes)
for place in ([0.1, 0.9], [0.9, 0.9], [0.5, 0.45], [0.5, 0.87]):
    path = path_of(repertoire.select(place))
    axes.plot(*path.T, label=f"to ({place[0]}, {place[1]})", linewidth=2)
axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

# %% [markdown]
# A selected agent is like any other: it can be evaluated, trained and exported.

# %%
agent = repertoire.select([0.1, 0.9])
print(agent)
print(agent.evaluate(episodes=5, descriptor="position")["descriptor"])
print(agent.export("corner.safetensors"))
