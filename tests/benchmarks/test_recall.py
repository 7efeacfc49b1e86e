"""The task of benchmarks/recall.py: the answer is in one step, which is in a core's reach or not."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks import recall


@pytest.mark.parametrize("draw", [recall.training_streams, recall.measured_streams])
def test_oracle_finds_the_answer_exactly_a_delay_back(draw: Callable[..., Any]) -> None:
    """A cue is a tag and a symbol in one token; a question, at steps with a delay, is the tag alone."""
    streams = 64
    tokens, delays, answers = draw(streams, torch.Generator().manual_seed(0))
    rows, steps = delays.nonzero(as_tuple=True)
    assert len(rows) > streams * recall.TAGS

    cues = tokens[rows, steps - delays[rows, steps]]
    assert torch.equal(tokens[rows, steps], recall.TAGS * recall.SYMBOLS + cues // recall.SYMBOLS)
    assert torch.equal(answers[rows, steps], cues % recall.SYMBOLS)
    for tag in range(recall.TAGS):
        is_cue = tokens // recall.SYMBOLS == tag
        assert is_cue.sum(dim=1).max() == 1, "a tag has one symbol in a stream"


def test_measured_streams_ask_after_known_delays() -> None:
    delays = recall.measured_streams(64, torch.Generator().manual_seed(0)).delays
    assert set(delays.unique().tolist()) == {0, *recall.DELAYS.tolist()}


def test_streams_of_longer_delays_are_longer() -> None:
    tokens, delays, _ = recall.measured_streams(64, torch.Generator().manual_seed(0), torch.tensor([8, 320]))
    assert tokens.shape == (64, 352)
    assert set(delays.unique().tolist()) == {0, 8, 320}


@pytest.mark.parametrize("name", recall.RATES | recall.COMPRESSIONS)
def test_a_cue_is_seen_within_the_reach_and_nowhere_else(name: str) -> None:
    """Two streams differ in the token of one step."""
    config = recall.VARIANTS[name]
    assert config.layer_sizes[0].slots == 48, "all variants attend to equally many slots"
    torch.manual_seed(0)
    network = recall.Recaller(config).double().eval()
    cue = 5
    stream = recall.measured_streams(1, torch.Generator().manual_seed(3)).tokens
    tokens = torch.cat([stream, stream])
    tokens[:, cue] = torch.tensor([0, 1])
    with torch.no_grad():
        first, second = network(tokens)[0]
    changed = (first - second).abs().amax(dim=-1) > 1e-12

    # Memory moves on at the end of a segment: later steps of a segment reach further back.
    steps = torch.arange(len(changed))
    furthest = recall.reach(config) + steps % config.segment_size
    seen = (steps >= cue) & (steps - cue <= furthest)
    assert not (changed & ~seen).any()
    if "most-used" not in name:  # that function may drop it
        assert changed[seen].all()


def test_a_step_attends_to_as_many_routed_slots() -> None:
    for name, config in recall.VARIANTS.items():
        if "routing" in name:
            (sizes,) = config.layer_sizes
            assert sizes.memory + sizes.window == 32
    (stored,) = recall.VARIANTS["transformer-xl, 144 slots"].layer_sizes
    (routed,) = recall.VARIANTS["routing, k = 8"].layer_sizes
    assert stored.slots == routed.slots


def test_training_gets_better_than_chance_and_recall_is_by_delay() -> None:
    # Two long segments, all of which fits into memory: the task in the least time.
    config = dataclasses.replace(recall.core_config(), segment_size=96, memory_size=96)
    network, losses = recall.train(config, seed=0, updates=50)
    chance = math.log(recall.SYMBOLS)
    assert sum(losses[-5:]) / 5 < chance - 0.2

    by_delay = recall.recall(network, seed=0, rows=16, batches=2)
    assert list(by_delay) == recall.DELAYS.tolist()
    assert sum(by_delay.values()) / len(recall.DELAYS) > 2 * recall.CHANCE
    other_delays = recall.recall(network, seed=0, rows=16, batches=1, delays=torch.tensor([8, 320]))
    assert list(other_delays) == [8, 320]
