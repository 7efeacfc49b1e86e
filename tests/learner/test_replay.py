"""The buffer of replayed rows against lists, burn-in against the whole unroll, and what replayed rows count for."""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agent.core import concatenate_states, index_state, leaves
from agent.precision import autocast
from agent.trajectory import EnvOutput, Trajectory, loss_mask, validate
from learner.config import LearnerConfig, ReplayConfig
from learner.learner import Learner, split
from learner.replay import Replay, burn_in, mark
from tests.agent import agents
from tests.capture import Capturable
from tests.learner.conftest import TinyAgent

ROWS = 6


def make_learner(agent: Any, **fields: Any) -> Learner:
    return Learner(agent, LearnerConfig(device="cpu", learning_rate=0.01), 1000, rows=ROWS, **fields)


@pytest.fixture
def batch(trajectory: Any) -> Callable[..., Trajectory]:
    """Makes rows that `actor_id` tells apart, over all batches."""

    def make(number: int, rows: int = ROWS) -> Trajectory:
        made = trajectory(rows, 3, seed=number)
        return made._replace(actor_id=torch.arange(rows) + number * rows, version=torch.full((rows,), number))

    return make


def equal(first: Any, second: Any) -> bool:
    return all(one.equal(other) for one, other in zip(leaves(first), leaves(second), strict=True))


@pytest.mark.parametrize(("share", "count"), [(0.25, 2), (0.5, 6), (0.75, 18)])
def test_batches_are_fresh_rows_and_some_of_the_newest(
    tiny_agent: Callable[..., TinyAgent], share: float, count: int, batch: Callable[..., Trajectory]
) -> None:
    """In a ring that is not a multiple of a batch; all fields of a row stay together."""
    learner = make_learner(tiny_agent())
    replay, batches = Replay(ReplayConfig(share), learner, 20, seed=0), [batch(number) for number in range(8)]
    for number, fresh in enumerate(batches):
        learner.version = number
        mixed, kept = replay.mix(fresh), list(range(number * ROWS))[-20:]
        if len(kept) < count:
            assert equal(mixed, fresh)
            assert mixed.replayed is None
            continue
        validate(mixed)
        again = mixed.replayed.nonzero()[:, 0]
        assert equal(index_state(mixed, ~mixed.replayed)._replace(replayed=None), fresh)
        chosen = mixed.actor_id[again].tolist()
        assert len(set(chosen)) == len(chosen) == count
        assert set(chosen) <= set(kept)
        assert equal(index_state(mixed, again)._replace(replayed=None), pick(batches, chosen))
        parts = [mixed.replayed[part] for part in split(len(mixed.replayed), ROWS)]
        assert len(parts) == replay.updates
        assert {len(part) for part in parts} <= {4, ROWS}
        assert max(abs(part.float().mean() - share) for part in parts) < 0.13
    assert {len(rows) for rows in replay.state_dict().values()} == {20}


def test_updates_may_have_fewer_rows_than_a_batch_has_fresh_ones(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    """So many updates are foreseen as are made, and each has its share of fresh rows."""
    learner = Learner(tiny_agent(), LearnerConfig(device="cpu"), 1000, rows=ROWS // 2)
    replay, batches = Replay(ReplayConfig(0.5), learner, 20, seed=0, fresh=ROWS), [batch(0), batch(1), batch(2)]
    for number, fresh in enumerate(batches):
        assert replay.updates == (2 if number == 0 else 4)
        before = learner.version
        mixed = replay.mix(fresh)
        learner.update(mixed)
        assert learner.version - before == (2 if number == 0 else 4)
        if number > 0:
            fresh_rows = [int((~mixed.replayed[part]).sum()) for part in split(2 * ROWS, ROWS // 2)]
            assert max(fresh_rows) - min(fresh_rows) <= 1


def pick(batches: list[Trajectory], rows: list[int]) -> Trajectory:
    return index_state(concatenate_states(batches), rows)


def test_rows_are_drawn_uniformly_and_anew(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    learner, counts = make_learner(tiny_agent()), collections.Counter[int]()
    replay = Replay(ReplayConfig(0.5), learner, 4 * ROWS, seed=0)
    for number in range(400):
        learner.version = number
        mixed = replay.mix(batch(number))
        if number:
            counts.update((number - mixed.actor_id[mixed.replayed] // ROWS).tolist())
    assert set(counts) == {1, 2, 3, 4}, "batches ago"
    assert all(abs(count - 400 * ROWS / 4) < 100 for count in counts.values())


@pytest.mark.parametrize(("count", "most", "sizes"), [(6, 6, [6]), (12, 6, [6, 6]), (8, 6, [4, 4]), (13, 6, [4, 4, 5])])
def test_parts_are_as_equal_as_possible(count: int, most: int, sizes: list[int]) -> None:
    parts = split(count, most)
    assert [part.stop - part.start for part in parts] == sizes
    assert [index for part in parts for index in range(count)[part]] == list(range(count))


def test_a_restored_buffer_continues_as_the_first(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory], trajectory: Callable[..., Trajectory]
) -> None:
    """Though its ring begins elsewhere; a smaller one has the newest rows, and rows of another length are forgotten."""
    learner = make_learner(tiny_agent())
    first, second, small, other = (Replay(ReplayConfig(0.5), learner, rows, seed=3) for rows in (20, 20, 12, 20))
    for number in range(5):
        first.mix(batch(number))
    saved = first.state_dict()
    for replay in (second, small, other):
        replay.load_state_dict(saved)
    assert all(value.equal(second.state_dict()[name]) for name, value in saved.items()), "before the first batch"
    for number in range(5, 9):
        learner.version = number
        fresh = batch(number)
        expected = first.mix(fresh)
        assert expected.replayed.sum() == ROWS
        assert equal(second.mix(fresh), expected)
        few = small.mix(fresh)
        assert few.actor_id.min() >= (number - 2) * ROWS
        assert (other.mix(trajectory(ROWS, 4)).replayed is None) == (number == 5)
    assert all(value.equal(second.state_dict()[name]) for name, value in first.state_dict().items())
    assert Replay(ReplayConfig(0.5), learner, 20, seed=3).state_dict() == {}


def test_a_damaged_state_is_an_empty_buffer(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    learner = make_learner(tiny_agent())
    replay = Replay(ReplayConfig(0.5), learner, 20, seed=3)
    replay.mix(batch(0))
    saved = replay.state_dict()
    replay.load_state_dict({**saved, "more": saved["0"], "1": saved["1"][:1]})
    assert replay.mix(batch(1)).replayed is None
    del saved["1"]
    replay.load_state_dict(saved)
    assert replay.mix(batch(2)).replayed is None


@pytest.mark.parametrize("core", agents.CORES)
def test_burn_in_is_a_shorter_unroll_from_the_middle(core: Any) -> None:
    """With the weights that acted: outputs and losses are those of the unroll from there on."""
    learner = make_learner(agents.make_agent(agents.CORES[core]))
    whole = agents.make_trajectory(3, 12, core=agents.CORES[core])
    burnt = burn_in(learner, whole, 4)
    assert validate(burnt) == (3, 12)
    assert not any(leaf.requires_grad for leaf in leaves(burnt))

    def play(trajectory: Trajectory) -> Any:
        now = trajectory.env_output
        return learner.agent(now.observation, now.last_action, now.reward, now.reset, trajectory.core_state)

    for part, full in zip(play(burnt)[:2], play(whole)[:2]):
        torch.testing.assert_close(part[:, :9], full[:, 4:])
    mask = loss_mask(burnt)
    assert mask[:, :8].equal(loss_mask(whole)[:, 4:])
    assert not mask[:, 8:].any()
    outputs = {name: leaf[:, 4:] for name, leaf in whole.env_output._asdict().items()}
    later = {"action": whole.action[:, 4:], "policy_parameters": whole.policy_parameters[:, 4:]}
    short = burnt._replace(**outputs, **later)
    full, part = (learner._compute_gradients(each, learner._settings()).sums for each in (short, burnt))
    names = "loss/policy", "loss/baseline", "loss/entropy", "importance/mean_rho", "value/target_mean", "steps"
    torch.testing.assert_close({name: part[name] for name in names}, {name: full[name] for name in names})


def test_burn_in_uses_the_present_weights(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    learner = make_learner(tiny_agent())
    replay, old = Replay(ReplayConfig(0.5, burn_in=2), learner, ROWS, seed=0), batch(0)
    replay.mix(old)
    before = burn_in(learner, old, 2)
    learner.update(old)
    mixed = replay.mix(batch(1))
    rows = index_state(mixed._replace(replayed=None), mixed.actor_id < ROWS)
    expected = burn_in(learner, index_state(old, rows.actor_id), 2)  # in this order, which changes rounding
    assert equal(rows, expected)
    assert not rows.core_state.hidden.allclose(before.core_state.hidden[rows.actor_id])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_burn_in_computes_as_an_actor_does(precision: str) -> None:
    """Without dropout, also between updates, which have it, and in the learner's precision."""
    core = dataclasses.replace(agents.CORES["compressive"], dropout=0.5)
    agent, whole = agents.make_agent(core), agents.make_trajectory(3, 12, core=core)
    learner = Learner(agent, LearnerConfig(device="cpu", precision=precision), 1000)
    modes = list[bool]()
    agent.register_forward_hook(lambda module, given, output: modes.append(module.training))
    learner.update(whole)
    states = [burn_in(learner, whole, 4).core_state for _ in range(2)]
    learner.update(whole._replace(core_state=states[0]))
    assert modes == [True, False, False, True]

    learner.load_state_dict(learner.state_dict() | {"weights": agents.make_agent(core).state_dict()})
    found = burn_in(learner, whole, 4).core_state
    begin = [leaf[:, :4] for leaf in (whole.observation, whole.last_action, whole.reward, whole.reset)]
    agent.eval()
    with torch.no_grad(), autocast(learner.device, precision):
        expected = agent(*begin, whole.core_state).state
    assert equal(found, expected)
    with torch.no_grad():
        exact = agent(*begin, whole.core_state).state
    assert equal(found, exact) == (precision == "float32")


def test_a_buffer_that_was_cleared_is_an_empty_one(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    """Also of rows that were restored and not yet added."""
    learner = make_learner(tiny_agent())
    for restored in (False, True):
        replay = Replay(ReplayConfig(0.5), learner, 20, seed=0)
        for number in range(2):
            assert replay.updates == 1 + number
            replay.mix(batch(number))
        if restored:
            replay.load_state_dict(replay.state_dict())
        replay.clear()
        assert replay.state_dict() == {}
        assert replay.updates == 1
        assert replay.mix(batch(2)).replayed is None
        mixed = replay.mix(batch(3))
        assert set((mixed.actor_id[mixed.replayed] // ROWS).tolist()) == {2}


def test_the_choice_depends_on_the_seed_and_the_version(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    learner, chosen = make_learner(tiny_agent()), dict[Any, list[int]]()
    for seed, version in ((0, 5), (1, 5), (0, 6), (0, 5)):
        replay = Replay(ReplayConfig(0.5), learner, 10 * ROWS, seed)
        for number in range(8):
            learner.version = version
            mixed = replay.mix(batch(number))
        rows = mixed.actor_id[mixed.replayed].tolist()
        assert chosen.setdefault((seed, version), rows) == rows
    assert len({tuple(rows) for rows in chosen.values()}) == 3


def test_replayed_rows_are_learned_from_and_not_counted(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    """Weights are those of the same rows unmarked."""
    first, second, fresh, old = make_learner(tiny_agent()), make_learner(tiny_agent()), batch(9, 2), batch(3, 4)
    for learner in (first, second):
        learner.version = 10
    plain = first.update(concatenate_states([fresh, old]))
    marked = concatenate_states([mark(fresh, False), mark(old, True)])
    metrics = second.update(marked)
    assert equal(tuple(first.weights().values()), tuple(second.weights().values()))
    assert (first.steps, second.steps) == (int(loss_mask(marked).sum()), int(loss_mask(fresh).sum()))
    assert plain["policy_lag/mean"] == pytest.approx((2 * 1 + 4 * 7) / 6)
    found = {name: metrics[name] for name in ("policy_lag/mean", "policy_lag/max", "replay/age", "replay/share")}
    assert found == pytest.approx({"policy_lag/mean": 1, "policy_lag/max": 1, "replay/age": 7, "replay/share": 2 / 3})
    assert plain.keys() == metrics.keys() - {"replay/age", "replay/share"}


def test_nothing_waits_for_the_device(tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]) -> None:
    learner = make_learner(tiny_agent(), unread=True)
    mixed = concatenate_states([mark(batch(0), False), mark(batch(1), True)])
    with Capturable() as mode:
        assert learner.update(mixed, read=False) == {}
    assert mode.forbidden == {}


def test_the_environments_part_is_the_first_fields_of_a_trajectory(batch: Callable[..., Trajectory]) -> None:
    """In this order, which checkpoints keep."""
    made = batch(0)
    assert Trajectory._fields[: len(EnvOutput._fields)] == EnvOutput._fields
    assert all(getattr(made.env_output, name) is getattr(made, name) for name in EnvOutput._fields)


def test_the_mark_is_checked(batch: Callable[..., Trajectory]) -> None:
    with pytest.raises(ValueError, match=r"replayed: expected torch.bool \[6\], got torch.int64 \[6\]"):
        validate(batch(0)._replace(replayed=torch.zeros(ROWS, dtype=torch.int64)))
