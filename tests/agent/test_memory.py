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

    # None leaves a size as it was.
    changes = {}
    if n_m is not None:
        changes["memory_size"] = n_m
    if n_cm is not None:
        changes["compressed_size"] = n_cm
    built = build(dataclasses.replace(before, **changes), seed=1)
    built.load_state_dict(trained.state_dict(), strict=True)
    assert core.config == built.config

    inputs = normal(2, 30, SIZE)
    reset = resets(2, 30, (1, 13))
    core.eval()
    actual = core(inputs, reset, core.initial_state(2))
    expected = built(inputs, reset, built.initial_state(2))
    assert_same(actual.features, expected.features, 0)
    torch.testing.assert_close(actual.losses, expected.losses, rtol=0, atol=0)

    # The core that was resized keeps its weights and its config.
    for parameter in core.parameters():
        parameter.data.zero_()
    assert all(parameter.any() for parameter in trained.parameters())
    assert trained.config == before


@pytest.mark.parametrize("n_cm", [4, (0, 4), (0, 0)])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_layers_keep_or_lack_a_compressed_memory(build: Callable[..., Any], n_cm: Any, compression: str) -> None:
    """Because the weights of a compression exist in layers with a compressed memory only."""
    core = build(config_of(4, 4, (4, 0), compression=compression, compressed_position="time"))
    with pytest.raises(ValueError, match="compressed_size: expected 0 exactly where it was 0 before"):
        core.resized(compressed_size=n_cm)


@pytest.mark.parametrize("n_m", [0, 1, 3, 6])
@pytest.mark.parametrize("c", [1, 2, 4])
def test_slot_ages_are_those_of_the_steps_in_the_slots(build: Callable[..., Any], n_m: int, c: int) -> None:
    """All inputs differ, so the slots of layer 0 tell which steps they are made of."""
    n_s, n_cm = 4, 5
    core = build(config_of(n_s, (n_m, 2), (n_cm, 3), (c, 4), compression="mean"))
    inputs = normal(1, 40, SIZE)
    state = core.initial_state(1)
    traced = 0
    for t in range(40):
        ages = core.slot_ages(0, state)[0]
        slots = torch.cat([state.compressed[0], state.memory[0], state.segment[0]], dim=1)[0]
        valid = torch.cat(validity(core, state), dim=1)[0]
        assert ages.shape == (len(slots), 2)

        # The step itself, which is not in the state yet.
        own_slot = n_cm + n_m + t % n_s
        slots[own_slot] = inputs[0, t]
        valid[own_slot] = True

        for slot, (oldest, newest), present in zip(slots, ages.tolist(), valid.tolist()):
            assert present == (0 <= newest <= t)
            if oldest <= t and newest >= 0:
                steps = inputs[0, t - oldest : t - newest + 1]
                assert_same(slot, steps.mean(dim=0))
                traced += 1
        with torch.no_grad():
            state = core(inputs[:, t : t + 1], resets(1, 1), state).state
    assert traced > 200
    assert core.slot_ages(1, state).shape == (1, 3 + 2 + n_s, 2)


@pytest.mark.parametrize("n_m", [0, 3, 6])
@pytest.mark.parametrize("c", [1, 2, 4])
def test_slot_ages_of_most_used_compression_are_those_of_the_state(build: Callable[..., Any], n_m: int, c: int) -> None:
    """Each compressed slot is one step, as old as the state says."""
    n_s, n_cm = 4, 5
    core = build(config_of(n_s, n_m, n_cm, c, compression="most-used"))
    inputs = normal(2, 40, SIZE)
    state = core.initial_state(2)
    sources = set()
    for t in range(n_s, 40):
        steps_of_segment = t % n_s
        begin = t - steps_of_segment
        if steps_of_segment == 0:
            with torch.no_grad():
                state = core(inputs[:, begin - n_s : begin], resets(2, n_s), state).state
        ages = core.slot_ages(0, state._replace(offset=steps_of_segment))
        assert ages.shape == (2, n_cm + n_m + n_s, 2)
        assert torch.equal(ages[..., 0], ages[..., 1])

        slots = torch.cat([state.compressed[0], state.memory[0], inputs[:, begin : begin + n_s]], dim=1)
        valid = torch.cat(validity(core, state), dim=1)
        valid[:, n_cm + n_m :] = True
        for row in range(2):
            for slot, (age, _), present in zip(slots[row], ages[row].tolist(), valid[row].tolist()):
                if present:
                    assert_same(slot, inputs[row, t - age], 0)
        sources |= set(state.source[0][valid[:, :n_cm]].tolist())
    # Where a choice is made, it is not always the same.
    assert c == 1 or len(sources) > n_s // c
