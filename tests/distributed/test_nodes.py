"""Two nodes, each with its own Ray daemon, on one machine: one of them goes."""

import warnings

import pytest

from tests.distributed import cluster_cases as cases
from understudy.distributed.connect import load_ray

pytestmark = [pytest.mark.slow, pytest.mark.ray]
STEPS = 200
DAEMON = dict(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False)


@pytest.fixture
def nodes(without_ray):
    """The driver's own node, and another that has room for a second collector."""
    ray = load_ray()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args=DAEMON)
        other = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    yield ray, cluster, other
    ray.shutdown()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster.shutdown()


@pytest.mark.fault(39, "collectors of a lost machine are replaced on another one")
def test_a_node_is_removed_in_mid_run(nodes):
    ray, cluster, other = nodes
    agent = cases.sac(cases.Slow, cpus_each=1.0)

    def where():
        actors = ray._private.state.actors().values()
        return {actor["Address"]["NodeID"] for actor in actors if actor["State"] == "ALIVE"}

    before = []

    def strike():
        before.append(where())
        cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
        cluster.remove_node(other, allow_graceful=False)

    cases.everyone_is_back(agent)  # from nowhere
    begun = agent.steps
    cases.train(agent, STEPS, cases.once_at(begun + STEPS // 2, strike))
    cases.assert_counted_once(agent, begun + STEPS)
    assert len(before[0]) == 2  # they had been spread
    cases.everyone_is_back(agent)
    assert cases.supervisor_of(agent).replaced == 1
    assert other.node_id not in where()
    cases.assert_counted_once(agent, agent.steps)
    agent.close()
