"""TD3 and SAC once more, in NumPy and float64, with gradients by central differences.

Written from the papers, not from the package: networks are lists of arrays, in the order
weight, bias, weight, bias…, tanh after every layer but the last.
"""

import jax
import numpy as np


def numbers(tree):
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]


def network(weights, x):
    *hidden, weight, bias = weights
    for w, b in zip(hidden[::2], hidden[1::2], strict=True):
        x = np.tanh(x @ w + b)
    return x @ weight + bias


def q(weights, observation, action):
    return network(weights, np.concatenate([observation, action], -1))[:, 0]


def all_q(critics, observation, action):
    members = range(len(critics[0]))
    return np.stack([q([w[i] for w in critics], observation, action) for i in members])


def gaussian(actor, observation, noise):
    return squashed(network(actor, observation), noise)


def squashed(both, noise):
    """A squashed draw and its log-density, by the textbook's formulas."""
    mean, log_std = np.split(both, 2, -1)
    log_std = np.clip(log_std, -20, 2)
    u = mean + np.exp(log_std) * noise
    density = np.exp(-(noise**2) / 2) / (np.sqrt(2 * np.pi) * np.exp(log_std))
    return np.tanh(u), np.sum(np.log(density) - np.log(1 - np.tanh(u) ** 2), -1)


def td3_target(target_actor, target_critics, batch, sigma, bound, noise, opinion=np.min):
    smoothing = np.maximum(np.minimum(sigma * noise, bound), -bound)
    action = np.tanh(network(target_actor, batch.next_observation)) + smoothing
    action = np.maximum(np.minimum(action, 1), -1)
    next_q = opinion(all_q(target_critics, batch.next_observation, action), axis=0)
    return batch.reward + batch.discount * next_q


def td3_actor_loss(actor, critics, batch, opinion=lambda q, axis: q[0]):
    action = np.tanh(network(actor, batch.observation))
    return -np.mean(batch.weight * opinion(all_q(critics, batch.observation, action), axis=0))


def sac_target(actor, target_critics, batch, alpha, noise, opinion=np.min):
    action, log_prob = gaussian(actor, batch.next_observation, noise)
    next_q = opinion(all_q(target_critics, batch.next_observation, action), axis=0)
    return batch.reward + batch.discount * (next_q - alpha * log_prob)


def sac_actor_loss(actor, critics, batch, alpha, noise, opinion=np.min):
    action, log_prob = gaussian(actor, batch.observation, noise)
    judged = opinion(all_q(critics, batch.observation, action), axis=0)
    return np.mean(batch.weight * (alpha * log_prob - judged))


def squared_error(critics, batch, target):
    """Summed over critics, averaged over the batch; SAC's paper halves it, TD3's does not."""
    error = all_q(critics, batch.observation, batch.action) - target
    return np.sum(np.mean(batch.weight * error**2, axis=1))


def derivative(function, weights, step=1e-5):
    """Central differences, one weight at a time."""
    gradient = [np.zeros_like(w) for w in weights]
    for w, g in zip(weights, gradient, strict=True):
        for place in np.ndindex(w.shape):
            kept = w[place]
            w[place] = kept + step
            above = function(weights)
            w[place] = kept - step
            g[place] = (above - function(weights)) / (2 * step)
            w[place] = kept
    return gradient


def wide(batch):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), batch)
