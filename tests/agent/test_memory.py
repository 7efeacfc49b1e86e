"""Sizes of memory, episode starts within a segment, and the steps that a slot came from."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agent.core.compression import COMPRESSIONS
from tests.agent.tiny import SIZE, assert_same, config_of, normal, resets, validity


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(("n_m", "n_cm"), [(11, (2, 0)), ((3, 5), None), (None, (9, 0))])
def test_resized_equals_a_core_built_with_these_sizes(
    build: Callable[..., Any], n_m: int | tuple[int, int] | None, n_cm: tuple[int, int] | None, compression: str
) -> None:
    before = config_of(4, 4, (4, 0), compression=compression, compressed_position="time")
    trained = build(before).train()
    random = torch.get_rng_state()
    core = trained.resized(memory_size=n_m, compressed_size=n_cm)
    assert torch.equal(torch.get_rng_state(), random)
    assert core.training
    changes = {"memory_size": n_m, "compressed_size": n_cm}
    config = dataclasses.replace(before, **{name: size for name, size in changes.items() if size is not None})
    built = build(config, seed=1)
    built.load_state_dict(trained.state_dict(), strict=True)
    assert core.config == built.config
    inputs, reset = normal(2, 30, SIZE), resets(2, 30, (1, 13))
    actual, expected = (c.eval()(inputs, reset, c.initial_state(2)) for c in (core, built))
    assert_same(actual.features, expected.features, 0)
    torch.testing.assert_close(actual.losses, expected.losses, rtol=0, atol=0)
    for parameter in core.parameters():
        parameter.data.zero_()
    assert all(parameter.any() for parameter in trained.parameters()), "they share nothing"
    assert trained.config == before
    for size in (4, (0, 4), (0, 0)):
        with pytest.raises(ValueError, match="compressed_size: expected 0 exactly where it was 0 before"):
            core.resized(compressed_size=size)


@pytest.mark.parametrize("n_m", [0, 1, 3, 6])
@pytest.mark.parametrize("c", [1, 2, 4])
def test_slot_ages_are_those_of_the_steps_in_the_slots(build: Callable[..., Any], n_m: int, c: int) -> None:
    """All inputs differ, so the slots of layer 0 tell which steps they are made of."""
    core = build(config_of(4, (n_m, 2), (5, 3), (c, 4), compression="mean"))
    inputs, state, traced = normal(1, 40, SIZE), core.initial_state(1), 0
    for t in range(40):
        phase, ages = t % 4, core.slot_ages(0, state)[0]
        slots = torch.cat([state.compressed[0], state.memory[0], state.segment[0]], dim=1)[0]
        slots[5 + n_m + phase] = inputs[0, t]
        assert ages.shape == (len(slots), 2)
        valid = torch.cat(validity(core, state), dim=1)[0]
        valid[5 + n_m + phase] = True
        for slot, (oldest, newest), present in zip(slots, ages.tolist(), valid.tolist()):
            assert present == (0 <= newest <= t)
            if oldest <= t and newest >= 0:
                assert_same(slot, inputs[0, t - oldest : t - newest + 1].mean(dim=0))
                traced += 1
        with torch.no_grad():
            state = core(inputs[:, t : t + 1], resets(1, 1), state).state
    assert traced > 200
    assert core.slot_ages(1, state).shape == (1, 3 + 2 + 4, 2)


@pytest.mark.parametrize("n_m", [0, 3, 6])
@pytest.mark.parametrize("c", [1, 2, 4])
def test_slot_ages_of_most_used_compression_are_those_of_the_state(build: Callable[..., Any], n_m: int, c: int) -> None:
    core = build(config_of(4, n_m, 5, c, compression="most-used"))
    inputs, before, sources = normal(2, 40, SIZE), core.initial_state(2), set()
    for t in range(4, 40):
        begin, phase = t - t % 4, t % 4
        if phase == 0:
            with torch.no_grad():
                before = core(inputs[:, begin - 4 : begin], resets(2, 4), before).state
        ages = core.slot_ages(0, before._replace(offset=phase))
        assert ages.shape == (2, 5 + n_m + 4, 2)
        assert torch.equal(ages[..., 0], ages[..., 1])
        slots = torch.cat([before.compressed[0], before.memory[0], inputs[:, begin : begin + 4]], dim=1)
        valid = torch.cat(validity(core, before), dim=1)
        valid[:, 5 + n_m :] = True
        for row in range(2):
            for slot, (age, _), present in zip(slots[row], ages[row].tolist(), valid[row].tolist()):
                if present:
                    assert_same(slot, inputs[row, t - age], 0)
        sources |= set(before.source[0][valid[:, :5]].tolist())
    assert c == 1 or len(sources) > 4 // c  # or it would always have kept the same
