"""Names of Stable-Baselines3, CleanRL and earlier versions, and the names here.

Python and the command line read one table: keyword arguments, flags, methods and classes. Each name
here is plain. `explain` shows it as the caller writes it: 'num_envs', --envs or us.A2C. Free of
JAX. docs/coming_from.md has the whole mapping.
"""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

# How a name is written outside its own place, for example an argument of `train` that was given
# to the constructor.
_PLACES = {
    "us.SAC(env, {}=…)": (
        "seed num_seeds num_envs env_args networks loss_addons env_workers guard cluster device"
    ),
    "agent.train({}=…)": "steps schedules run_dir logger callbacks progress",
    "agent.evaluate({}=…)": "episodes",
    "us.RunConfig({}=…)": (
        "log_every evaluate_every evaluation_episodes checkpoint_every keep_checkpoints "
        "log_episodes"
    ),
    "us.SAC({}) or understudy train ALGO ENV": "env",
}
PLACES = {name: place.format(name) for place, names in _PLACES.items() for name in names.split()}

_NETWORKS = "the networks follow from the spaces; hidden_sizes, activation and encoder change them"
_ON_POLICY = "an on-policy algorithm here"
_TENSORBOARD = 'the value "tensorboard"'

# Old name -> the names here, each with a note. An empty name: there is none, and the note says why.
ALIASES: dict[str, dict[str, str]] = {
    # Algorithms and functions.
    "RecurrentPPO": {"PPO": 'memory="lstm"'},
    "MaskablePPO": {"PPO": "it has no action masks"},
    "TRPO": {"MPO": "it bounds each step of the policy"},
    "REINFORCE": {"A2C": _ON_POLICY},
    "A3C": {"A2C": "the synchronous version"},
    "DQN": {"DDQN": "double Q-learning"},
    "QRDQN": {"DDQN": 'with critic_head="quantile" and drop_quantiles=0'},
    "C51": {"DDQN": 'with critic_head="categorical"'},
    "RAINBOW": {"DDQN": 'with recipe="rainbow-lite"'},
    "REDQ": {"SAC": 'with recipe="redq"'},
    "DROQ": {"SAC": 'with recipe="droq"'},
    "TQC": {"SAC": 'with recipe="tqc"'},
    "CROSSQ": {"SAC": 'with recipe="crossq"'},
    "D4PG": {"DDPG": 'with critic_head="categorical"'},
    "HER": {"": "goals are not relabeled in this version; SAC, TD3 and DDPG have plain replay"},
    "HerReplayBuffer": {"": "goals are not relabeled in this version"},
    "make_vec_env": {"num_envs": ""},
    "DummyVecEnv": {"num_envs": ""},
    "SubprocVecEnv": {"env_workers": ""},
    "VecNormalize": {"": "normalize_observations and normalize_rewards are settings"},
    "VecFrameStack": {"": "frame_stack is a setting"},
    "Monitor": {"": "the library counts episodes itself"},
    "EvalCallback": {"evaluate_every": "every run evaluates"},
    "CheckpointCallback": {"checkpoint_every": "every run directory has checkpoints"},
    "BaseCallback": {"Callback": "a hook that returns True ends training"},
    "CallbackList": {"callbacks": "a list"},
    "EveryNTimesteps": {"callbacks": "on_log, with log_every"},
    "ProgressBarCallback": {"progress": ""},
    "StopTrainingOnRewardThreshold": {"callbacks": "us.callbacks.StopAtReturn"},
    "StopTrainingOnNoModelImprovement": {"callbacks": "us.callbacks.EarlyStopping"},
    "WandbCallback": {"callbacks": "us.callbacks.WandbArtifacts"},
    "evaluate_policy": {"episodes": ""},
    # Methods of agents.
    "learn": {"train": "for that many more steps"},
    "predict": {"act": "it returns the action alone; deterministic by default"},
    "get_parameters": {"get_weights": ""},
    "set_parameters": {"set_weights": ""},
    "save_replay_buffer": {"save": "it includes the replay buffer"},
    "load_replay_buffer": {"load": "it includes the replay buffer"},
    "num_timesteps": {"steps": ""},
    "get_env": {"envs": "set_attr, call and get_attr"},
    "env_method": {"envs": "agent.envs.call"},
    "set_attr": {"envs": "agent.envs.set_attr"},
    "get_attr": {"envs": "agent.envs.get_attr"},
    # Arguments: the environment, the run and its log.
    "policy": {"": _NETWORKS},
    "policy_kwargs": {"": _NETWORKS},
    "env_id": {"env": ""},
    "algo": {"": "it is the first word: understudy train ALGO ENV"},
    "n_envs": {"num_envs": "", "envs": ""},
    "num_env": {"num_envs": "", "envs": ""},
    "num_envs": {"num_envs": "", "envs": ""},
    "num_seeds": {"num_seeds": "", "seeds": ""},
    "env_kwargs": {"env_args": "", "env_arg": "NAME=VALUE"},
    "cuda": {"device": 'the value "gpu"'},
    "verbose": {"progress": "", "quiet": ""},
    "progress_bar": {"progress": "", "quiet": ""},
    "progress": {"progress": "", "quiet": ""},
    "tensorboard": {"logger": _TENSORBOARD},
    "tensorboard_log": {"logger": _TENSORBOARD},
    "tb_log_name": {"run_dir": "", "run": ""},
    "track": {"logger": 'the value "wandb"'},
    "wandb_project_name": {"logger": "understudy.runs.loggers.WandB(project=…)"},
    "wandb_entity": {"logger": "understudy.runs.loggers.WandB(entity=…)"},
    "exp_name": {"run_dir": "", "run": ""},
    "run_dir": {"run_dir": "", "run": ""},
    "save_model": {"run_dir": "a run saves checkpoints", "run": "a run saves checkpoints"},
    "capture_video": {"": "understudy eval RUN --video FILE records one after training"},
    "torch_deterministic": {"": "the same seed gives the same bits on one machine and the CPU"},
    "total_timesteps": {"steps": ""},
    "n_timesteps": {"steps": ""},
    "timesteps": {"steps": ""},
    "reset_num_timesteps": {"": "train always continues"},
    "callback": {"callbacks": ""},
    "observers": {"callbacks": ""},
    "log_interval": {"log_every": "in steps"},
    "eval_freq": {"evaluate_every": "in steps of a seed"},
    "eval_env": {"": "evaluation makes its own environments"},
    "n_eval_episodes": {"evaluation_episodes": "", "episodes": ""},
    "save_freq": {"checkpoint_every": "in steps of a seed"},
    "stats_window_size": {"": "means are over the episodes since the last row of the log"},
    # Settings of all algorithms.
    "lr": {"learning_rate": ""},
    "policy_lr": {"actor_learning_rate": ""},
    "q_lr": {"critic_learning_rate": ""},
    "anneal_lr": {"anneal_learning_rate": ""},
    "net_arch": {"hidden_sizes": ""},
    "activation_fn": {"activation": "a word such as relu"},
    "ortho_init": {"initialization": ""},
    "n_critics": {"num_critics": ""},
    "n_quantiles": {"num_quantiles": ""},
    "top_quantiles_to_drop_per_net": {"drop_quantiles": ""},
    "n_atoms": {"num_atoms": ""},
    "v_min": {"min_return": ""},
    "v_max": {"max_return": ""},
    "features_extractor_class": {"networks": ""},
    "share_features_extractor": {"share_encoder": ""},
    "optimizer_class": {"optimizer": "adam, adamw or rmsprop"},
    "lstm_hidden_size": {"memory_size": 'with memory="lstm"'},
    # Settings of replay.
    "learning_starts": {
        "start_steps": "random actions",
        "min_buffer_size": "transitions before the first update",
    },
    "train_freq": {"update_every": "in transitions"},
    "train_frequency": {"update_every": "in transitions", "updates_per_step": "a ratio"},
    "gradient_steps": {"updates_per_step": "a ratio per transition; -1 is 1 here"},
    "replay_buffer_class": {"prioritized": ""},
    "optimize_memory_usage": {"": "replay stores each frame once"},
    "handle_timeout_termination": {"": "a truncated episode always bootstraps"},
    "action_noise": {"exploration_noise": "in units of [-1, 1]"},
    "target_policy_noise": {"policy_noise": ""},
    "target_noise_clip": {"noise_clip": ""},
    "policy_frequency": {"policy_delay": ""},
    "target_network_frequency": {"target_update_interval": "in updates"},
    "exploration_fraction": {"epsilon_decay_steps": "in steps"},
    "exploration_initial_eps": {"initial_epsilon": ""},
    "exploration_final_eps": {"final_epsilon": ""},
    "start_e": {"initial_epsilon": ""},
    "end_e": {"final_epsilon": ""},
    "ent_coef": {"temperature": "a number fixes it, none learns it", "entropy_coeff": ""},
    "alpha": {"temperature": "a number fixes it, none learns it"},
    "autotune": {"temperature": "a number fixes it, none learns it"},
    # Settings of rollouts.
    "n_steps": {"horizon": "", "n_step": ""},
    "num_steps": {"horizon": "", "n_step": ""},
    "vf_coef": {"value_coeff": ""},
    "normalize_advantage": {"normalize_advantages": ""},
    "norm_adv": {"normalize_advantages": ""},
    "num_minibatches": {"minibatches": ""},
    "use_sde": {"state_dependent_exploration": ""},
    "sde_sample_freq": {"noise_reset_interval": ""},
    "log_std_init": {"initial_log_std": "", "initial_std": ""},
    "use_rms_prop": {"optimizer": 'the value "rmsprop"'},
    "rms_prop_eps": {"optimizer_epsilon": ""},
    "n_epochs": {"epochs": ""},
    "update_epochs": {"epochs": ""},
    "clip_coef": {"clip_range": ""},
    "clip_range_vf": {"value_clip_range": ""},
    "clip_vloss": {"value_clip_range": "a number, or none"},
    # Arguments of agents and presets, given to a config.
    "recipe": {"": "us.SAC(…, recipe=…) and us.SACConfig.preset(…, recipe=…) take one"},
    # Settings of earlier versions (docs/migration.md).
    "rmsprop_epsilon": {"optimizer_epsilon": ""},
    "entropy_coeff": {"temperature": "a number fixes it, none learns it"},
    "initial_entropy_coeff": {"initial_temperature": ""},
    "entropy_learning_rate": {"temperature_learning_rate": ""},
    "use_log_entropy": {"use_log_temperature": ""},
    "fragment": {"collector_chunk_steps": ""},
}  # fmt: skip

POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy", "MlpLstmPolicy", "CnnLstmPolicy",
            "MultiInputLstmPolicy")  # fmt: skip
VALUES = {"cuda": "gpu", "cuda:0": "gpu"}  # of settings


def explain(
    name: str,
    known: Collection[str],
    spell: Callable[[str], str] = "'{}'".format,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> str | None:
    """Say which of the `known` names to use instead of this one, where it belongs, or why it is
    `refused`. Return None for a name that the table does not have."""
    targets = ALIASES.get(name, {name: ""} if name in PLACES else {})
    here = {spell(new): why for new, why in targets.items() if new in known}
    reasons = [refused[one] for one in (name, *targets) if one in refused]
    if not here and (reasons or "" in targets):
        return f"there is no {spell(name)} here: {reasons[0] if reasons else targets['']}"
    here = here or {PLACES[new]: why for new, why in targets.items() if new in PLACES}
    if here:
        words = (new + f" ({why})" * bool(why) for new, why in here.items())
        return f"instead of {spell(name)} use {' and '.join(words)}"
    if targets:
        return f"there is no {spell(name)} here; other algorithms have {' and '.join(targets)}"
    return None
