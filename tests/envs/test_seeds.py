"""Which seed starts which episode."""

from dataclasses import replace

from understudy.envs.seeds import EpisodeSeeds


def test_collectors_meet_the_episodes_of_one_process_and_their_successors_others():
    whole = EpisodeSeeds(seed=3, envs_per_seed=4, num_seeds=2)
    later = EpisodeSeeds(seed=3, envs_per_seed=2, num_seeds=2, first_env=2)
    for member in range(2):
        for env in range(2):
            row, place = member * 2 + env, member * 4 + 2 + env
            assert later(row, 5) == whole(place, 5)
    successor = replace(later, attempt=1)
    assert all(successor(row, 5) != later(row, 5) for row in range(4))
    assert successor(0, 0) != replace(later, attempt=2)(0, 0)
