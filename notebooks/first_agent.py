# %% [markdown]
# # SAC on a pendulum
#
# SAC learns to swing up a pendulum and to hold it there. Then we look at what it has learned: the
# torque for every state, and an episode. The environment is native (`jax:`), so everything runs in
# one compiled program, also without a GPU.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import understudy as us
from understudy.envs.native import Pendulum

agent = us.SAC("jax:Pendulum-v1", seed=0)
run = us.RunConfig(evaluate_every=1_000, evaluation_episodes=10)
summary = agent.train(10_000, run=run, progress=False)
print(agent, agent.preset)

# %% [markdown]
# `train` returns the rows of the log. An evaluation plays ten episodes without exploration noise.

# %%
rows = [row for row in summary.history if "eval/mean_reward" in row]
steps = [row["time/total_steps"] for row in rows]
figure, axes = plt.subplots(figsize=(7, 3))
axes.plot(steps, [row["eval/mean_reward"] for row in rows], marker="o")
axes.set(xlabel="environment steps", ylabel="mean return", title="One run: seed 0")
axes.grid(alpha=0.3)

# %% [markdown]
# New episodes, which had no part in training:

# %%
result = agent.evaluate(episodes=50, seed=1_000)
low, high = result["ci95"]
print(f"mean {result['mean']:.0f}, 95 % interval {low:.0f} … {high:.0f}")

# %% [markdown]
# ## The policy
#
# `act` takes one observation or a batch of them. Angle 0 is upright. Hanging down, at ±π, the
# policy pushes in the direction of the motion; near the balance point it brakes.

# %%
angles, speeds = np.meshgrid(
    np.linspace(-np.pi, np.pi, 181), np.linspace(-8, 8, 121)
)
states = np.stack([np.cos(angles), np.sin(angles), speeds], axis=-1)
torques = agent.act(states.reshape(-1, 3)).reshape(angles.shape)
figure, axes = plt.subplots(figsize=(7, 3.4))
image = axes.pcolormesh(
    angles, speeds, torques, cmap="RdBu", vmin=-2, vmax=2, rasterized=True
)
figure.colorbar(image, label="torque")
axes.set(
    xlabel="angle", ylabel="angular velocity", title="The action in every state"
)

# %% [markdown]
# ## An episode
#
# A native environment is a set of pure functions. `reset` and `step` take a random key.

# %%
env = Pendulum()
key = jax.random.PRNGKey(3)
state, observation = env.reset(key)
seen, actions = [], []
for _ in range(env.max_steps):
    action = agent.act(observation)
    after = jax.jit(env.step)(state, action, key)
    seen.append(observation)
    actions.append(float(action[0]))
    state, observation = after.state, after.observation
cosine, sine, _ = np.array(seen).T
figure, axes = plt.subplots(2, sharex=True, figsize=(7, 3.6))
angle = np.unwrap(np.arctan2(sine, cosine))
axes[0].plot(angle)
axes[0].set(ylabel="angle", title="An episode")
axes[1].plot(actions, color="C1")
axes[1].set(xlabel="step", ylabel="torque")
print(f"largest angle in the last 100 steps: {np.abs(angle[-100:]).max():.2f}")

# %% [markdown]
# ## Keep it
#
# `save` writes a checkpoint that can continue training. `export` writes the policy alone, for NumPy
# or ONNX.

# %%
agent.save("pendulum")
agent.export("pendulum.safetensors")
again = us.load("pendulum")
print(again.steps, np.array_equal(again.act(observation), agent.act(observation)))
