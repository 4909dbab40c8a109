"""What can go wrong between two steps of a real run."""

import multiprocessing
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from tests.faults.resume_cases import CONFIGS, STEADY, make
from understudy.reports.report import report
from understudy.runs import checkpoint
from understudy.runs.csv_log import read_csv
from understudy.types import UnderstudyError

pytestmark = pytest.mark.agents

ENV = "jax:Pendulum-v1"
SCRIPT = """
from tests.faults.resume_cases import QUICK, make
print(make("A2C", "CartPole-v1").train(60, run=QUICK, progress=False).steps)
"""


@pytest.mark.fault(
    20, "non-finite updates are discarded and counted; the run stops after ten in a row"
)
def test_a_loss_that_is_no_number(tmp_path):
    def poison(actor, batch, key):
        return jnp.nan * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(actor)), {}

    config = us.SACConfig(**(CONFIGS["SAC"] | dict(min_buffer_size=60)))
    agent = us.SAC(ENV, config, loss_addons=(poison,))
    before = agent.get_weights()
    with pytest.raises(UnderstudyError, match=r"not finite.*last good checkpoint is .*0000000000"):
        agent.train(400, run=STEADY, run_dir=tmp_path, progress=False)
    newest = us.load(tmp_path, loss_addons=(poison,))
    for one, other in zip(
        jax.tree.leaves(before["actor"]),
        jax.tree.leaves(newest.get_weights()["actor"]),
        strict=True,
    ):
        assert (one == other).all()  # not a single update of the actor was good


@pytest.mark.fault(20, "one seed that diverges is frozen and reported; the others continue")
def test_one_seed_that_diverges_leaves_the_others_alone(tmp_path, caplog):
    rates = {"seeds": [1e-3, 1e30, 1e-3], "sound": [1e-3, 1e-3, 1e-3]}
    agents = {}
    for name, rate in rates.items():
        agent = agents[name] = us.SAC(ENV, us.SACConfig(**CONFIGS["SAC"]), seed=5, num_seeds=3)
        agent.set(learning_rate=rate)
        summary = agent.train(200, run=STEADY, run_dir=tmp_path / name, progress=False)
        assert summary.steps == 200 and summary.diverged == ((1,) if name == "seeds" else ())
    told = [record.getMessage() for record in caplog.records if "diverged" in record.getMessage()]
    assert len(told) == 1 and told[0].startswith("seed 6 diverged before step ")
    for leaf, sound in zip(
        *(jax.tree.leaves(a.get_weights()) for a in agents.values()), strict=True
    ):
        assert (leaf[[0, 2]] == sound[[0, 2]]).all() and np.isfinite(leaf).all()
    log = read_csv(tmp_path / "seeds" / "progress.csv")
    assert log["train/diverged_seeds"][-1] == 1 and log["train/diverged/seed1"][-1] == 1
    assert np.isfinite(log["train/critic_loss"][-1])
    report(tmp_path / "seeds")
    assert "train/diverged_seeds" in (tmp_path / "seeds" / "report.html").read_text()
    broken = agents["seeds"]
    assert np.isfinite(broken.evaluate(2)["returns"]).all() and np.isnan(broken.evaluator.scores[1])
    assert broken.best.seed in (5, 7)
    again = us.load(tmp_path / "seeds")  # it stays frozen
    frozen = [leaf[1] for leaf in jax.tree.leaves(again.get_weights())]
    again.set(learning_rate=1e-3)
    assert again.train(20, run=STEADY, progress=False).diverged == (1,)
    for before, leaf in zip(frozen, jax.tree.leaves(again.get_weights()), strict=True):
        assert (before == leaf[1]).all()


@pytest.mark.fault(23, "out of memory: one line with the sizes, and the last checkpoint is intact")
def test_out_of_memory(tmp_path):
    agent = make("TD3", ENV)
    trainer = agent.trainer
    advance = trainer.advance

    def too_much(iterations):
        if trainer.steps >= 80:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating")
        advance(iterations)

    trainer.advance = too_much
    with pytest.raises(UnderstudyError, match=r"out of memory \(batch_size 8, buffer_size 64"):
        agent.train(400, run=STEADY, run_dir=tmp_path, progress=False)
    assert us.load(tmp_path).steps == 80


@pytest.mark.fault(36, "a callback that raises: a checkpoint, then its own traceback")
def test_a_callback_that_raises(tmp_path):
    def broken(facts):
        if facts["time/total_steps"] == 90:
            raise ZeroDivisionError("mine")

    agent = make("A2C", "jax:CartPole-v1")
    with pytest.raises(ZeroDivisionError, match="mine"):
        agent.train(400, run=STEADY, run_dir=tmp_path, callbacks=(broken,), progress=False)
    assert us.load(tmp_path).steps == 90
    assert checkpoint.numbered(tmp_path)[-1].name == "000000000090"


@pytest.mark.processes
@pytest.mark.fault(38, "spawned and forked processes train")
@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_in_a_process_of_another(method):
    """Forked before JAX has started, as every library that uses threads asks for."""
    assert method in multiprocessing.get_all_start_methods()
    outer = (
        "import multiprocessing\n"
        f"inner = {SCRIPT!r}\n"
        "if __name__ == '__main__':\n"
        f"    child = multiprocessing.get_context({method!r}).Process(target=exec, args=(inner,))\n"
        "    child.start(); child.join(); raise SystemExit(child.exitcode)\n"
    )
    done = subprocess.run([sys.executable, "-c", outer], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split() == ["60"], done.stderr


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.fault(38, "in a notebook: a running event loop, no terminal, output without a file")
def test_in_a_notebook():
    inner = SCRIPT.replace("progress=False", "progress=True")
    outer = (
        "import asyncio, io, sys\n"
        "class Cell(io.StringIO):\n    def fileno(self): raise io.UnsupportedOperation\n"
        "real, sys.stdout, sys.stderr = sys.stdout, Cell(), Cell()\n"
        f"async def cell(): exec({inner!r}, {{}})\n"
        "asyncio.run(cell())\n"
        "real.write(sys.stdout.getvalue()); real.flush()\n"
    )
    done = subprocess.run([sys.executable, "-c", outer], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split() == ["60"], done.stderr
