"""The pages for users of other libraries cannot rot: each counterpart in them exists here."""

import re
from pathlib import Path

import pytest

import understudy as us
from tests.contracts.test_names import resolve
from tests.envs.goal import Goal

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS / "coming_from.md", DOCS / "coming_from_rllib.md"]
LOG = "log: "
NO_PLACES = {"First questions", "Answers to old names", "Defaults that differ", "Habits"}

# What nobody who comes from there should miss.
EXPECTED = {
    "Stable-Baselines3": """
        learn total_timesteps learning_starts train_freq gradient_steps ent_coef VecNormalize
        EvalCallback CheckpointCallback save load predict tensorboard_log ep_rew_mean policy_kwargs
        exploration_fraction evaluate_policy SubprocVecEnv seed device
    """,
    "CleanRL": """
        track seed total timesteps episodic_return learning starts policy frequency autotune
        SPS capture video env id qf1_values alpha
    """,
    "RLlib": """
        environment num_env_runners num_learners lr train_batch_size_per_learner minibatch_size
        num_epochs clip_param replay_buffer_config evaluation_interval from_checkpoint Tuner
        episode_return_mean multi_agent
    """,
}


def rows() -> list[tuple[str, str, str, str]]:
    """(section, page and line, theirs, here) of the tables with counterparts."""
    found, section = [], ""
    for page in PAGES:
        for line, text in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
            if text.startswith("## "):
                section = text.removeprefix("## ")
            cells = [cell.strip() for cell in text.strip("|").split("|")]
            if section in NO_PLACES or not text.startswith("|") or set(text) == set("|-"):
                continue
            where = f"{page.name}, line {line}"
            assert len(cells) == 3, f"{where} has {len(cells)} cells"
            if cells != ["there", "here", "note"]:
                found.append((section, where, cells[0], cells[1]))
    return found


ROWS = rows()
PLACES = {
    place: where
    for _, where, _, here in ROWS
    if not here.startswith("none: ")
    for place in re.findall(r"`([^`]+)`", here)
}


@pytest.fixture(scope="module")
def logged() -> set[str]:
    """Every column that small runs of the algorithms write."""
    small = dict(hidden_sizes=(4,), batch_size=8, buffer_size=64, start_steps=9, min_buffer_size=9)
    run = us.RunConfig(log_every=200, evaluate_every=200, evaluation_episodes=1)
    agents = [
        us.SAC("jax:Pendulum-v1", us.SACConfig(**small)),
        us.PPO("jax:Pendulum-v1", us.PPOConfig(hidden_sizes=(4,), horizon=5, minibatches=1)),
        us.DDQN("jax:CartPole-v1", us.DDQNConfig(**small)),
        us.SAC(Goal, us.SACConfig(**small)),
    ]
    keys: set[str] = set()
    for agent in agents:
        for facts in agent.train(200, run=run, progress=False).history:
            keys |= facts.keys()
    return keys


@pytest.mark.parametrize("place", [place for place in PLACES if not place.startswith(LOG)])
def test_a_counterpart_exists(place):
    try:
        resolve(place)
    except LookupError as error:
        pytest.fail(f"{PLACES[place]}: {error}")


@pytest.mark.agents
@pytest.mark.parametrize("place", [place for place in PLACES if place.startswith(LOG)])
def test_a_column_is_logged(place, logged):
    assert place.removeprefix(LOG) in logged, PLACES[place]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_rows_are_complete(row):
    here = row[3]
    assert here.startswith("none: ") or re.fullmatch(r"`[^`]+`(, `[^`]+`)*", here), here


@pytest.mark.parametrize("system", EXPECTED)
def test_what_everybody_looks_for_is_there(system):
    listed = {
        word for section, _, theirs, _ in ROWS if section == system
        for word in re.findall(r"\w+", theirs)
    }  # fmt: skip
    assert set(EXPECTED[system].split()) - listed == set()


def test_first_questions_are_two_clicks_from_the_home_page():
    """One click leads to the page, the next one to the answer."""
    assert "](coming_from.md)" in (DOCS / "index.md").read_text(encoding="utf-8")
    page = (DOCS / "coming_from.md").read_text(encoding="utf-8")
    questions = page.partition("## First questions\n")[2].partition("\n## ")[0]
    rows = [row for row in questions.splitlines() if row.startswith("| ")][1:]
    assert len(rows) >= 10
    assert [row for row in rows if not re.search(r"\]\([^)\s]+\)", row)] == []
    wanted = """own environment VecEnv VecNormalize Atari policy_kwargs callbacks TensorBoard
        evaluate_policy save load predict schedule same"""
    assert [word for word in wanted.split() if word not in " ".join(rows)] == []
