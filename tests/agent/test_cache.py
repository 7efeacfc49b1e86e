"""States with a cache: only new steps are projected, and segments are shared without harm."""

import torch

from agent.core import index_state, leaves
from tests.agent.tiny import SIZE, config_of, normal, remembered, resets


def test_states_with_a_cache_share_tensors_and_yet_each_may_go_on_more_than_once(build) -> None:
    """Their segments are written in place by the newest of them; every other line of states copies first."""
    core, reset = build(config_of()), resets(3, 12)
    inputs, others = normal(3, 12, SIZE), normal(3, 12, SIZE) + 1
    begin = remembered(core, inputs, reset)

    def steps(state, source, first, last):
        for t in range(first, last):
            state = core(source[:, t : t + 1], reset[:, t : t + 1], state).state
        return state

    def same(cached, *parts, rows=slice(None)):
        expected = index_state(begin, rows)
        for source, first, last in parts:
            expected = core(source[rows, first:last], reset[rows, first:last], expected).state
        for actual, wanted in zip(leaves(core.without_cache(cached)), leaves(expected), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-12)

    with torch.no_grad():
        first = steps(core.with_cache(begin), inputs, 0, 1)
        second = steps(first, inputs, 1, 2)
        assert second.segment[0] is first.segment[0], "not copied"
        branch = steps(first, others, 1, 3)
        assert branch.segment[0] is not first.segment[0]
        part = index_state(second, slice(0, 2))
        for t in range(2, 6):  # both at once, over the turn of the segment
            second, branch = steps(second, inputs, t, t + 1), steps(branch, others, t + 1, t + 2)
        part = core(others[:2, 2:3], reset[:2, 2:3], part).state
        same(first, (inputs, 0, 1))
        same(second, (inputs, 0, 6))
        same(branch, (inputs, 0, 1), (others, 1, 7))
        same(part, (inputs, 0, 2), (others, 2, 3), rows=slice(0, 2))
    learned = core(inputs[:, 1:3], reset[:, 1:3], first)
    assert learned.state.segment[0] is not first.segment[0], "learning never writes into what it was given"


def test_a_cache_means_that_only_new_steps_are_projected(build) -> None:
    core, inputs, reset = build(config_of()), normal(1, 12, SIZE), resets(1, 12)
    projected, attention = [], core.layers[0].attention
    project = attention.project
    attention.project = lambda slots, *norm: (projected.append(slots.shape[1]), project(slots, *norm))[1]
    with torch.no_grad():
        state = core.with_cache(remembered(core, inputs, reset))
        for t in range(8):
            projected.clear()
            state = core(inputs[:, t : t + 1], reset[:, t : t + 1], state).state
            # When a full segment enters memory, only the newly compressed slots are new.
            assert projected == ([1] if t % 4 != 3 else [1, 2])
        projected.clear()
        core(inputs, reset, core.without_cache(state))
        # All that came in, and each segment with what was compressed before it; what the last one leaves is not needed.
        assert projected == [8, 4, 2, 4, 2, 4]
