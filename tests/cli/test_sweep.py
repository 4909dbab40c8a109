"""`understudy sweep`: what a newcomer types, and one line for each thing that can be wrong."""

import shlex

import pytest

pytestmark = pytest.mark.agents

ON = "sweep sac jax:Pendulum-v1"


@pytest.mark.slow
def test_a_sweep_ends_with_a_command_that_repeats_its_best(run, tiny, tmp_path):
    vary = ["--vary", "learning_rate=1e-3..1e-2:log", "--vary", "gamma=0.9,0.99"]
    words = [*ON.split(), *vary, "--members", "4", "--repeats", "2", "--steps", "60"]
    code, out, err = run(*words, "--seed", "3", "--run", "found", *tiny)
    assert code == 0 and err == ""
    first, header, best, second, table, picture, command = out.splitlines()
    assert first == "SAC on jax:Pendulum-v1, 60 steps each, preset: Pendulum-v1 and your flags"
    assert header.split() == ["rank", "learning_rate", "gamma", "mean", "std"]
    assert [best.split()[0], second.split()[0]] == ["1", "2"]
    assert table.split()[1] == "found/sweep.csv" and picture.split()[1] == "found/sweep.png"
    assert all((tmp_path / line.split()[1]).is_file() for line in (table, picture))

    typed = shlex.split(command.removeprefix("best"))
    assert typed[:2] == ["understudy", "train"]
    code, out, err = run(*typed[1:], "--evaluation-episodes", "2", "--quiet", "--run", "again")
    assert code == 0, err
    mean = float(best.split()[3])
    assert f"return over 2 episodes per seed: mean {mean:,.0f}"[:-1] in out


@pytest.mark.slow
def test_a_search_goes_on_and_says_so(run, tiny, tmp_path):
    vary = ["--vary", "n-step=1..2", "--vary", "activation=relu,tanh"]
    words = [*ON.split(), *vary, "--optuna", "study.db", "--steps", "40", *tiny]
    code, out, err = run(*words, "--trials", "1")
    assert code == 0 and err == "" and out.startswith("trial 0: n_step ")
    code, out, err = run(*words, "--trials", "2")
    assert code == 0 and out.startswith("trial 1: n_step ") and "trial 0" not in out
    assert "best            understudy train sac jax:Pendulum-v1 --steps 40" in out
    assert (tmp_path / "study.csv").is_file() and (tmp_path / "study.png").is_file()


WRONG = {
    "nothing": (ON, "what varies?"),
    "no environment": ("sweep sac", "ENV"),
    "a field that cannot": (f"{ON} --vary batch_size=8,16", "batch_size cannot", "learning_rate"),
    "misspelt": (f"{ON} --vary gama=0.9,0.99", "did you mean 'gamma'"),
    "a field of the other": (f"{ON} --vary policy_noise=1,2", "unknown field 'policy_noise'"),
    "no values": (f"{ON} --vary gamma", "FIELD=lo..hi"),
    "half a range": (f"{ON} --vary gamma=0.9..x", "lo..hi"),
    "falling": (f"{ON} --vary gamma=0.9..0.8", "a range must rise"),
    "logarithm": (f"{ON} --vary tau=0..1:log", "must be above 0"),
    "out of bounds": (f"{ON} --vary gamma=0.9,1.1", "gamma must be at most 1"),
    "words": (f"{ON} --vary gamma=high,low", "gamma must be a number"),
    "twice": (f"{ON} --vary gamma=0.9,0.99 --vary gamma=0.5,0.6", "given twice"),
    "fixed as well": (f"{ON} --vary gamma=0.9,0.99 --gamma 0.9", "gamma cannot vary and be 0.9"),
    "grid": (f"{ON} --vary gamma=0.9,0.99 --members 5", "a grid of 2 settings"),
    "repeats": (f"{ON} --vary gamma=0.9..0.99 --members 5 --repeats 2", "multiple of repeats"),
    "trials alone": (f"{ON} --vary gamma=0.9,0.99 --trials 5", "--optuna"),
    "a study alone": (f"{ON} --vary gamma=0.9,0.99 --optuna a.db", "--trials"),
    "both kinds": (
        f"{ON} --vary gamma=0.9,0.99 --optuna a.db --trials 2 --members 2 --run x",
        "--members are those of one program",
        "there is no --run",
    ),
    "a cluster alone": (
        f"{ON} --vary gamma=0.9,0.99 --address auto --at-once 2",
        "--address is",
        "--at-once is",
    ),
    "nobody answers": (
        f"{ON} --vary gamma=0.9,0.99 --optuna a.db --trials 1 --address 127.0.0.1:1",
        "Ray does not answer at '127.0.0.1:1'",
    ),
    "no such environment": ("sweep sac Pendulm-v1 --vary gamma=0.9,0.99", "Pendulum-v1"),
    "no such environment, searched": (
        "sweep sac Pendulm-v1 --vary gamma=0.9,0.99 --optuna a.db --trials 1",
        "Pendulum-v1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_answered_in_one_line(refused, case):
    command, *expected = WRONG[case]
    line = refused(*command.split())
    for words in expected:
        assert words in line


def test_a_directory_in_use_is_not_touched(refused, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    words = f"{ON} --vary gamma=0.9,0.99 --run thesis".split()
    assert "thesis is not empty" in refused(*words)
    words = f"{ON} --vary gamma=0.9,0.99 --run thesis/chapter1.tex".split()
    assert "chapter1.tex" in refused(*words)
