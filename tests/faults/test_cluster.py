"""Faults 39 to 45 of the training loop, on a real Ray: nobody is missed, nothing counted twice."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import understudy as us
from tests.distributed import cluster_cases as cases
from understudy.distributed import connect as connecting
from understudy.distributed import supervisor
from understudy.errors import ClusterError, ConfigError, UnderstudyError
from understudy.runs import checkpoint

pytestmark = pytest.mark.ray
STEPS = 200
DASHBOARDS = range(8265, 8316)  # the ports that Ray tries for one
DRIVER = """
from tests.distributed.cluster_cases import processes_of, sac
import understudy as us

def tell(facts):
    print(*processes_of(agent), flush=True)

agent = sac(num_envs=2)
run = us.RunConfig(log_every=60, evaluate_every=0, evaluation_episodes=1, checkpoint_every=60)
agent.train(100_000, run=run, run_dir={run!r}, callbacks=(tell,), progress=False)
"""


@pytest.fixture(scope="module")
def agent(ray):
    """With two collectors that many tests are hard on, one after the other."""
    agent = cases.sac(cases.Slow)
    yield agent
    agent.close()


def struck(agent, strike):
    """Train, with a blow in the middle; gives how many were replaced meanwhile."""
    steps, replaced = agent.steps, cases.supervisor_of(agent).replaced
    cases.train(agent, STEPS, cases.once_at(steps + STEPS // 2, strike))
    cases.assert_counted_once(agent, steps + STEPS)
    cases.everyone_is_back(agent)
    cases.assert_counted_once(agent, agent.steps)
    return cases.supervisor_of(agent).replaced - replaced


@pytest.mark.fault(39, "a killed collector is replaced; each transition counts once")
def test_a_killed_collector_is_replaced(agent):
    victims = []

    def strike():
        victims.append(cases.processes_of(agent)[0])
        cases.kill(*victims)

    assert struck(agent, strike) == 1
    assert victims[0] not in cases.processes_of(agent)


@pytest.mark.fault(39, "its delivered steps stay stored, and the open episode is cut")
def test_a_death_between_two_deliveries_cuts_the_lane(agent, ray):
    trainer, collectors = agent.trainer, agent.trainer.collectors

    def strike():
        """When one order of its two has been carried out, and nobody has looked yet."""
        slot = collectors.slots[0]
        process = cases.processes_of(agent)[0]
        trainer.take_in(collectors.deliveries())
        trainer.arrived.clear()  # all of them begin anew
        collectors.torn |= {0, 1}
        trainer.give_orders()
        first, second = slot.calls
        ray.wait([first])
        cases.kill(process)
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(second)

    assert struck(agent, strike) == 1


@pytest.mark.slow
@pytest.mark.fault(39, "all collectors killed at once: all are replaced")
def test_all_collectors_are_killed_at_once(agent):
    assert struck(agent, lambda: cases.kill(*cases.processes_of(agent))) == 2


@pytest.mark.fault(43, "a lost object: other steps are collected instead")
def test_a_delivery_is_lost(agent, ray, monkeypatch):
    get, lost, supervisor = ray.get, [], cases.supervisor_of(agent)

    def losing(reference, **others):
        if not lost and reference in supervisor.slots[0].calls:
            lost.append(reference)
            raise ray.exceptions.ObjectLostError(reference.hex(), "nobody", "")
        return get(reference, **others)

    before = supervisor.lost
    assert struck(agent, lambda: monkeypatch.setattr(ray, "get", losing)) == 0
    assert supervisor.lost == before + 1


@pytest.mark.slow
@pytest.mark.fault(
    42, "a collector that was unreachable is replaced; its late deliveries are ignored"
)
def test_a_collector_that_was_away_and_comes_back(ray, monkeypatch):
    agent = cases.sac(patience=2.0)
    sleepers = []

    def strike():
        sleepers.append(cases.processes_of(agent)[0])
        os.kill(sleepers[0], signal.SIGSTOP)

    monkeypatch.setattr(ray, "kill", lambda actor: None)  # it cannot be reached
    cases.train(agent, 100, cases.once_at(50, strike))
    while not cases.supervisor_of(agent).replaced:
        cases.train(agent, 50)
    os.kill(sleepers[0], signal.SIGCONT)
    cases.train(agent, 100)
    cases.everyone_is_back(agent)
    cases.assert_counted_once(agent, agent.steps)
    monkeypatch.undo()
    cases.kill(*sleepers)
    agent.close()


@pytest.mark.slow
@pytest.mark.fault(39, "in sync mode, the replacement completes the round")
def test_a_killed_collector_does_not_stop_the_round(ray):
    agent = cases.sac(mode="sync")
    assert struck(agent, lambda: cases.kill(cases.processes_of(agent)[1])) == 1
    agent.close()


@pytest.mark.slow
@pytest.mark.fault(39, "a gradient worker is killed during a run: its shard is computed again")
def test_a_killed_gradient_worker_costs_no_update(ray):
    agent = cases.sac(collectors=1, gradient_workers=2)
    supervisor = agent.trainer.workers.supervisor

    def strike():
        assert supervisor.started == 2
        cases.kill(supervisor.call_all("pid")[0])

    cases.train(agent, 100, cases.once_at(50, strike))
    cases.assert_counted_once(agent, 100)
    assert supervisor.replaced == 1
    agent.close()


@pytest.mark.slow
@pytest.mark.fault(40, "collectors that always die: a checkpoint, and a clear error")
def test_collectors_that_cannot_live(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "MAX_FAILURES", 2)
    agent = cases.sac(cases.DeadlyElsewhere(), collectors=1)
    with pytest.raises(ClusterError, match=r"failed 2 times in a row.*checkpoint is .*") as caught:
        cases.train(agent, STEPS, run_dir=tmp_path)
    assert str(tmp_path) in str(caught.value)
    agent.close()
    assert us.load(tmp_path, env="Pendulum-v1").steps == 0


@pytest.mark.slow
@pytest.mark.fault(40, "no collector answers in time: a checkpoint, and a clear error")
def test_collectors_that_all_fall_silent(ray, tmp_path):
    agent = cases.sac(patience=2.0)
    sleepers = []

    def strike():
        sleepers.extend(cases.processes_of(agent))
        for process in sleepers:
            os.kill(process, signal.SIGSTOP)

    with pytest.raises(ClusterError, match=r"no collector has answered .* has 4 cores.*checkpo"):
        cases.train(agent, STEPS, cases.once_at(100, strike), run_dir=tmp_path)
    agent.close()
    cases.kill(*sleepers)
    resumed = us.load(tmp_path)
    assert 100 <= resumed.steps < STEPS
    cases.train(resumed, STEPS - resumed.steps)
    cases.assert_counted_once(resumed, STEPS)
    resumed.close()


@pytest.mark.slow
@pytest.mark.fault(41, "the driver is killed: its collectors end, and the run resumes exactly")
@pytest.mark.fault(45, "the dashboard of a Ray started here is not reachable from outside")
def test_the_driver_is_killed_and_the_run_goes_on(ray, tmp_path):
    script = DRIVER.format(run=str(tmp_path / "run"))
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    collectors = []
    while not checkpoint.candidates(tmp_path / "run"):
        collectors = [int(process) for process in driver.stdout.readline().split()]
    listening = _listening_everywhere()
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert listening.isdisjoint(DASHBOARDS)
    assert len(collectors) == 2
    while any(map(_attempts, collectors)):
        time.sleep(0.1)
    resumed = us.load(tmp_path / "run")
    before = resumed.steps
    assert before >= 60
    cases.train(resumed, STEPS)
    cases.assert_counted_once(resumed, before + STEPS)
    resumed.close()


def _listening_everywhere():
    """Ports that are open to all networks."""
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            address, port = line.split()[1].split(":")
            if line.split()[3] == "0A" and not address.strip("0"):  # it listens
                ports.add(int(port, 16))
    return ports


def _attempts(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.fault(
    44, "steps of a stale policy are dropped and counted; others are collected instead"
)
def test_a_policy_that_is_too_old(ray):
    agent = cases.sac(max_staleness=1, in_flight=4)
    history = cases.train(agent, STEPS).history
    assert history[-1]["cluster/transitions_dropped"] > 0
    assert max(row["cluster/staleness_max"] for row in history) > 1
    cases.assert_counted_once(agent, STEPS)
    agent.close()


@pytest.mark.fault(45, "no Ray: one line says how to install it")
def test_ray_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'needs Ray: pip install "understudy\[ray\]"'):
        cases.train(cases.sac(), STEPS)


@pytest.fixture
def not_joined(monkeypatch):
    """As if this process had not joined a Ray yet; nor will it. What Ray would be told."""
    import ray

    told = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **settings: told.append(settings | dict(os.environ)))
    return told


@pytest.mark.fault(45, "a Ray that is too old: one line names the required version")
def test_ray_is_too_old(not_joined, monkeypatch):
    monkeypatch.setattr("ray.__version__", "2.53.9")
    with pytest.raises(ConfigError, match=r"needs Ray 2\.54 or newer, this is 2\.53\.9: pip"):
        cases.train(cases.sac(), STEPS)
    assert not not_joined


@contextlib.contextmanager
def _listener(calls):
    """Never says a word; after that many calls it takes no more."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(calls):
            stack.enter_context(socket.create_connection(address, 1.0))
        yield "{}:{}".format(*address)


@pytest.mark.fault(45, "no answer, a silent or a busy address: an error within 30 s")
def test_ray_is_unreachable(not_joined, monkeypatch):
    assert connecting.SECONDS_TO_ANSWER <= 10
    monkeypatch.setattr(connecting, "SECONDS_TO_ANSWER", 0.5)
    with _listener(0) as deaf, _listener(1) as busy:
        for address in ("127.0.0.1:1", deaf, busy):
            with pytest.raises(UnderstudyError, match=f"does not answer at '{address}'"):
                connecting.connect(address, 1)
    with pytest.raises(ConfigError, match='address is "auto" or "host:port"'):
        connecting.connect("nowhere", 1)
    assert not not_joined


@pytest.fixture
def address(ray):
    return ray.get_runtime_context().gcs_address


@pytest.mark.fault(
    45, "an address that answers but may not be a Ray is tried once instead of twenty times"
)
def test_a_ray_that_answers_is_joined(address, not_joined):
    connecting.connect(address, 1)
    assert [(told["address"], told[connecting.TRIES]) for told in not_joined] == [(address, "1")]
    assert connecting.TRIES not in os.environ


@pytest.mark.fault(45, "another Ray than the one in use: an error at once; nothing is started")
def test_another_ray_than_the_one_that_was_joined(ray):
    joined = ray.get_runtime_context().gcs_address
    assert connecting.connect(joined, 1) is ray and connecting.connect("auto", 1) is ray
    with pytest.raises(UnderstudyError, match="does not answer"):
        connecting.connect("127.0.0.1:1", 1)
    other = joined.replace("127.0.0.1", "localhost") if "127.0.0.1" in joined else None
    if other:
        with pytest.raises(ConfigError, match="already"):
            connecting.connect(other, 1)
