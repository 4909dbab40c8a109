# %% [markdown]
# # Eight seeds
#
# One run says little: with another seed the same algorithm can learn faster, slower or not at all.
# Here eight seeds of PPO train in one compiled program, first with one setting, then with another.

# %%
import matplotlib.pyplot as plt
import numpy as np

import understudy as us

SEEDS = 8
agents = us.PPO("jax:CartPole-v1", seed=0, num_seeds=SEEDS)
run = us.RunConfig(evaluate_every=2_000, evaluation_episodes=10)
history = agents.train(40_000, run=run, progress=False).history
print(agents)
print(agents.preset, agents.config.learning_rate)

# %% [markdown]
# A row of the log with an evaluation has a mean for each seed.


# %%
def curves(history):
    """Return the steps of the evaluations, and the mean returns [evaluations, seeds]."""
    rows = [row for row in history if "eval/mean_reward_per_seed" in row]
    steps = [row["time/total_steps"] for row in rows]
    return np.array(steps), np.array(
        [row["eval/mean_reward_per_seed"] for row in rows]
    )


steps, returns = curves(history)
figure, axes = plt.subplots(figsize=(7, 3.2))
axes.plot(steps, returns, color="C0", alpha=0.35, linewidth=1)
axes.plot(
    steps, returns.mean(axis=1), color="C0", linewidth=2.5, label="mean of 8 seeds"
)
axes.set(
    xlabel="environment steps of each seed",
    ylabel="mean return",
    title="PPO on CartPole",
)
axes.legend()

# %% [markdown]
# ## How much a seed matters
#
# The settings are the same, and yet the seeds differ. The interval is a bootstrap over the seeds,
# not over their episodes: episodes of one seed say nothing about the next seed.

# %%
for index in (0, len(steps) // 2, -1):
    now = np.sort(returns[index])
    print(
        f"step {steps[index]:>6,}: worst seed {now[0]:5.0f}, best seed {now[-1]:5.0f}"
    )
result = agents.evaluate(episodes=20)
low, high = result["ci95"]
print(
    f"at the end: mean {result['mean']:.0f}, 95 % interval {low:.0f} … {high:.0f}"
)

# %% [markdown]
# ## Two settings, the same seeds
#
# Half the learning rate, with the same eight seeds. The bands hold the middle half of the seeds.
# Two single runs, one of each setting, can say the opposite of the means: the last line counts
# such pairs.

# %%
lower = us.PPO("jax:CartPole-v1", seed=0, num_seeds=SEEDS, learning_rate=5e-4)
_, lower_returns = curves(lower.train(40_000, run=run, progress=False).history)
figure, axes = plt.subplots(figsize=(7, 3.2))
for label, found in {"1e-3, the preset": returns, "5e-4": lower_returns}.items():
    (line,) = axes.plot(steps, found.mean(axis=1), label=f"learning rate {label}")
    quartiles = np.quantile(found, [0.25, 0.75], axis=1)
    axes.fill_between(steps, *quartiles, color=line.get_color(), alpha=0.2)
axes.set(xlabel="environment steps of each seed", ylabel="mean return")
axes.legend()
print(
    f"means at the end: {returns[-1].mean():.0f} and {lower_returns[-1].mean():.0f}"
)
opposite = lower_returns[-1][:, None] > returns[-1][None, :]
print(f"5e-4 is ahead in {opposite.sum()} of the {opposite.size} pairs of runs")

# %% [markdown]
# ## One of them
#
# A seed of many is an agent of its own.

# %%
print(agents[3])  # the run with seed 3
print(agents.best)  # the best by the last evaluation
