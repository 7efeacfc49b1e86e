"""benchmarks/environment.py: what is counted as a step."""

from benchmarks.environment import ROWS, step
from envs import make_vector


def test_all_rows_of_a_batch_are_counted_whatever_their_actions_are() -> None:
    envs = make_vector("gym:tests.envs.odd:Many", ROWS)
    work = step(envs)
    assert work() == ROWS
    envs.close()
