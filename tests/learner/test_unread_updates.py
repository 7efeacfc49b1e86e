"""Updates that are not read: nothing waits for the device, and nothing else differs from updates that are read."""

import contextlib
import dataclasses
import math
import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch

from agent import Trajectory
from agent.core import CORES, state_to
from learner import learner as learner_module
from learner.communicator import Communicator
from learner.config import LearnerConfig
from learner.errors import NotFinite
from learner.learner import WARM_UP, Learner
from tests.agent import agents, cores
from tests.capture import Capturable
from tests.learner.conftest import TinyAgent
from tests.learner.test_group import make_agent, make_batches, shard, together

CPU = LearnerConfig(device="cpu", learning_rate=0.01)
CASES = {name: config for name, config in cores.CASES.items() if name.partition("/")[0] in CORES}


def make(agent: Any, unread: bool | None = True, **changes: Any) -> Learner:
    """A learner whose updates may stay unread."""
    return Learner(agent, dataclasses.replace(CPU, **changes), 1000, unread=unread)


def assert_same(first: Learner, second: Learner, **tolerance: float) -> None:
    """Weights, statistics, numbers of steps, and counters."""
    states = []
    for learner in (first, second):
        state = learner.state_dict()
        states.append({**state, "optimizer": state["optimizer"]["state"]})
    torch.testing.assert_close(*states, **(tolerance or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("config", cores.cases(CASES, takes_seconds=True))
def test_nothing_waits_for_the_device(config: Any) -> None:
    learner = make(agents.make_agent(config, reconstruction_cost=0.1), reward_clipping="soft_asymmetric")
    batch = agents.make_trajectory(2, 12, core=config)
    with Capturable() as mode:
        assert learner.update(batch, read=False) == learner.update(batch, read=False) == {}
    assert mode.forbidden == {}
    with Capturable() as mode:
        learner.update(batch)
    (found,) = mode.forbidden
    assert found.startswith("tolist in learner/learner.py:")


def test_every_core_is_tested() -> None:
    assert {name.partition("/")[0] for name in CASES} == {*CORES}


@pytest.mark.parametrize("case", ["compressive/post", "lstm/one-layer"])
def test_nothing_is_copied_to_the_device(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device, which is not the CPU and holds no values."""
    # It lacks autocast and is not among the devices of fused kernels.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    monkeypatch.setattr(torch, "autocast", lambda *args, **options: contextlib.nullcontext())
    monkeypatch.setattr(import_module("torch.optim.adam"), "_device_dtype_check_for_fused", lambda parameter: None)
    monkeypatch.setattr(learner_module, "resolve_device", torch.device)
    learner = make(agents.make_agent(CASES[case], reconstruction_cost=0.1), device="meta")
    batch = state_to(agents.make_trajectory(2, 12, core=CASES[case]), "meta")
    with Capturable() as mode:
        learner.update(batch, read=False)
        learner.update(batch, read=False)
    assert mode.forbidden == {}


def test_all_is_as_if_every_update_were_read(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
) -> None:
    """Weights, statistics, metrics and steps are equal bit by bit; a constant schedule, because others use `steps`."""
    learner = make(tiny_agent(), max_gradient_norm=0.05)
    twin = make(tiny_agent(), max_gradient_norm=0.05)
    batches = [trajectory(3, 5, seed=seed) for seed in range(5)]
    metrics = [twin.update(batch) for batch in batches]

    # Two updates stay unread. The third is read, and with it all before it.
    assert learner.update(batches[0], read=False) == {}
    assert learner.update(batches[1], read=False) == {}
    assert learner.version == 2
    assert learner.steps == 0, "not read yet"
    assert learner.update(batches[2]) == metrics[2]

    # Two more stay unread until they are settled, which happens once.
    assert learner.update(batches[3], read=False) == {}
    assert learner.update(batches[4], read=False) == {}
    assert learner.settle() == metrics[4]
    assert learner.settle() == {}
    assert learner.counters == twin.counters
    assert_same(learner, twin)


def test_a_single_unread_update_is_settled(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
) -> None:
    learner = make(tiny_agent())
    twin = make(tiny_agent())
    batch = trajectory(3, 5)
    assert learner.update(batch, read=False) == {}
    assert learner.settle() == twin.update(batch)
    assert_same(learner, twin)


MESSAGES = {
    "reward": "loss/policy = nan",
    "gradient": "gradient/norm = nan",
    "compression": "loss/compression",
}
"""What an update that is not finite names first, by what was broken."""


@pytest.mark.parametrize("skipped", [{0}, {1}, {3}, {1, 2}])
@pytest.mark.parametrize("broken", MESSAGES)
def test_an_update_that_is_not_finite_is_skipped(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory], skipped: set[int], broken: str
) -> None:
    """Of four updates, of which the last is read; `twin` makes those that are finite."""
    agent = tiny_agent()
    learner = make(agent)
    twin = make(tiny_agent())
    factor = 1.0
    agent.policy.weight.register_hook(lambda gradient: gradient * factor)
    for index in range(4):
        batch = trajectory(3, 5, seed=index)
        factor = 1.0
        agent.compression_scale = 1.0
        if index not in skipped:
            twin.update(batch)
        elif broken == "reward":
            batch = batch._replace(reward=torch.full_like(batch.reward, math.nan))
        elif broken == "gradient":
            factor = math.nan
        else:
            agent.compression_scale = math.inf
        if index < 3:
            learner.update(batch, read=False)

    # The update that is read raises an error that names the first one that was skipped.
    first = min(skipped) + 1
    with pytest.raises(NotFinite, match=f"^update {first} is not finite: {MESSAGES[broken]}") as error:
        learner.update(batch)
    assert error.value.number == first
    assert str(error.value).endswith(f"Skipped: {len(skipped)} of 4 updates.")
    received = pickle.loads(pickle.dumps(error.value))  # as Ray does
    assert str(received) == str(error.value)
    assert received.number == first
    assert_same(learner, twin)


def test_the_error_can_be_pickled_and_extended() -> None:
    """Ray pickles it, and a trainer adds where it kept the batch."""
    error = NotFinite("Bad.", 3, ["reward"])
    assert error.from_environments
    for sent, message in ((error, "Bad."), (error.extended(" Kept."), "Bad. Kept.")):
        received = pickle.loads(pickle.dumps(sent))
        assert str(received) == message
        assert received.number == 3
        assert received.from_environments


@pytest.mark.parametrize("read", [True, False])
def test_updates_after_a_skipped_one_are_made(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory], read: bool
) -> None:
    """Also those that are read, of which the optimizer is not told to skip any."""
    learner = make(tiny_agent())
    twin = make(tiny_agent())
    good = trajectory(3, 5, seed=1)
    bad = trajectory(3, 5, seed=2)
    bad.reward[0, 2] = math.nan
    learner.update(bad, read=False)
    with pytest.raises(NotFinite, match="update 1 is"):
        learner.settle()

    for _ in range(2):
        learner.update(good, read)
        twin.update(good)
    learner.settle()
    assert_same(learner, twin)
    weights = learner.weights()
    for name, before in make(tiny_agent()).weights().items():
        assert weights[name].ne(before).any(), name


def test_saving_reads_updates(tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]) -> None:
    """States and counters are exact, so they need the updates that were not read; loading a state forgets these."""
    learner = make(tiny_agent())
    batch = trajectory(3, 5)
    saved = learner.state_dict()
    bad = batch._replace(reward=torch.full_like(batch.reward, math.inf))
    for read in (learner.state_dict, lambda: learner.counters):
        learner.update(bad, read=False)
        with pytest.raises(NotFinite, match="update 1 is"):
            read()
    assert learner.state_dict()["version"] == 0, "after the error the state can be read"
    learner.update(bad, read=False)
    learner.load_state_dict(saved)
    assert learner.settle() == {}


def test_the_optimizer_is_torchs_adam(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
) -> None:
    """Its fused kernel is the plain one to rounding; and a state of either can be loaded into the other."""
    close = {"rtol": 1e-4, "atol": 1e-6}
    learner = make(tiny_agent())
    plain = make(tiny_agent())
    groups = plain._optimization.optimizer.param_groups
    for group in groups:
        group["fused"] = None
    batches = [trajectory(3, 5, seed=seed) for seed in (1, 2)]
    for batch in batches:
        learner.update(batch)
        plain.update(batch)
        assert_same(learner, plain, **close)
    assert learner.state_dict()["weights"]["policy.weight"].ne(tiny_agent().policy.weight).all()
    assert [group["fused"] for group in groups] == [None] * len(groups)

    # Each loads the state of the other, and keeps its own kernel.
    state = learner.state_dict()
    state_of_plain = plain.state_dict()
    plain.load_state_dict(state)
    learner.load_state_dict(state_of_plain)
    assert same_tensors(plain.state_dict()["weights"], state["weights"])
    assert same_tensors(learner.state_dict()["weights"], state_of_plain["weights"])
    assert learner.state_dict()["optimizer"]["param_groups"][0]["fused"] is True
    assert plain.state_dict()["optimizer"]["param_groups"][0]["fused"] is None

    learner.update(batches[0])
    plain.update(batches[0])
    assert_same(learner, plain, **close)


def same_tensors(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_statistics_from_a_file_are_stored_as_their_parameters(device: str) -> None:
    """Convolutions are stored channels last and files are not; a GPU's fused Adam refuses the difference."""
    saved = make(agents.make_agent(), device=device)
    resumed = make(agents.make_agent(), device=device)
    batches = [agents.make_trajectory(2, 12, seed=seed) for seed in (1, 2)]
    saved.update(batches[0])

    # As a file has it.
    state = saved.state_dict()
    for statistics in state["optimizer"]["state"].values():
        for name, values in statistics.items():
            statistics[name] = values.contiguous()
    resumed.load_state_dict(state)

    channels_last = 0
    for parameter, statistics in resumed._optimization.optimizer.state.items():
        if not parameter.is_contiguous():
            channels_last += 1
        for name in ("exp_avg", "exp_avg_sq"):
            assert statistics[name].stride() == parameter.stride()
    assert channels_last > 0

    saved.update(batches[1])
    resumed.update(batches[1])
    tolerance = {} if device == "cpu" else {"rtol": 1e-4, "atol": 1e-6}
    assert_same(resumed, saved, **tolerance)


def test_updates_must_be_read_without_adam_or_a_gpu(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
) -> None:
    for learner in (make(tiny_agent(), None), make(tiny_agent(), None, optimizer="rmsprop")):
        with pytest.raises(ValueError, match="read: expected true, because updates must be read here"):
            learner.update(trajectory(3, 5), read=False)
        assert learner.version == 0
    with pytest.raises(ValueError, match="unread: expected false for rmsprop"):
        make(tiny_agent(), optimizer="rmsprop")


def test_learners_that_share_batches_skip_together() -> None:
    good, other, last = make_batches("compressive", 3)
    bad = other._replace(reward=other.reward.clone())
    bad.reward[-1, 3] = math.nan  # in the second learner's shard
    models = [make_agent("compressive") for _ in range(2)]

    def learn(comm: Communicator, rank: int) -> tuple[Learner, str]:
        learner = Learner(models[rank], CPU, 1000, comm, unread=True)
        for batch in (good, bad):
            learner.update(shard(batch, rank), read=False)
        with pytest.raises(NotFinite, match=r"^update 2 is") as error:
            learner.update(shard(last, rank))
        return learner, str(error.value)

    (first, message), (second, other_message) = together(learn)
    assert message == other_message
    assert_same(first, second)

    alone = make(make_agent("compressive"))
    alone.update(good)
    alone.update(last)
    assert_same(first, alone, rtol=1e-5, atol=1e-7)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("updates", [1, WARM_UP + 1])
def test_nothing_waits_for_a_gpu(precision: str, updates: int) -> None:
    """Neither operations one by one, nor those that are replayed as a graph."""
    learner = make(agents.make_agent(reconstruction_cost=0.1), unread=None, device="cuda", precision=precision)
    batch = state_to(agents.make_trajectory(2, 12), "cuda")
    for _ in range(updates):
        learner.update(batch, read=False)
    assert (learner._graph is not None) == (updates > WARM_UP)
    broken = batch._replace(reward=batch.reward * math.nan)
    before = learner.weights()
    torch.cuda.set_sync_debug_mode("error")
    try:
        learner.update(broken, read=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(learner.weights(), before, rtol=0, atol=0)
    with pytest.raises(NotFinite, match=f"update {updates + 1} is not finite"):
        learner.settle()
    assert learner.version == updates
