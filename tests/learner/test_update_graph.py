"""Updates as a CUDA graph, in an emulation on the CPU: what is recorded once does what the operations do."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from agent import Trajectory
from agent.core import state_to
from learner.config import LearnerConfig
from learner.errors import NotFinite
from learner.learner import WARM_UP, Learner
from learner.replay import mark
from tests.agent import agents
from tests.agent.cores import cases
from tests.capture import EmulatedGraph
from tests.learner.test_unread_updates import CASES, assert_same

RATE = 2**-7
"""A learning rate that float32 represents exactly."""


def tensors_of(learner: Learner) -> Iterator[torch.Tensor]:
    """All that an update changes."""
    yield from learner.agent.state_dict().values()
    for statistics in learner._optimization.optimizer.state.values():
        yield from statistics.values()


def make(agent: Any, recorded: bool, total_steps: int = 1000, **changes: Any) -> Learner:
    """A learner whose updates are recorded, or one like it whose updates are not.

    `learner.graphs` has every recording of the first one.
    """
    config = LearnerConfig(**{"device": "cpu", "learning_rate": RATE, **changes})
    if not recorded:
        return Learner(agent, config, total_steps, unread=True)

    graphs: list[EmulatedGraph] = []

    def capture(function: Callable[[], None]) -> Callable[[], None]:
        before = [tensor.clone() for tensor in tensors_of(learner)]
        graph = EmulatedGraph()
        with graph:
            function()
        assert graph.forbidden == {}
        for tensor, old in zip(tensors_of(learner), before, strict=True):
            tensor.copy_(old)  # a real capture executes nothing
        graphs.append(graph)
        return graph.replay

    learner = Learner(agent, config, total_steps, unread=True, capture=capture)
    learner.graphs = graphs  # type: ignore[attr-defined]
    return learner


def both(core: Any = agents.CORES["compressive"], total_steps: int = 1000, **changes: Any) -> tuple[Learner, Learner]:
    """Two equal learners, of which the first one's updates are recorded."""
    learners = []
    for recorded in (True, False):
        agent = agents.make_agent(core, reconstruction_cost=0.1)
        learners.append(make(agent, recorded, total_steps, **changes))
    first, second = learners
    return first, second


def batches(number: int, **options: Any) -> list[Trajectory]:
    """Different trajectories of one form."""
    return [agents.make_trajectory(2, 12, seed=seed, **options) for seed in range(number)]


@pytest.mark.parametrize("config", cases(CASES, takes_seconds=True))
def test_a_replay_does_what_the_operations_do(config: Any) -> None:
    """Weights, statistics and metrics, bit by bit; read or not."""
    recorded, plain = both(core=config)
    for number, batch in enumerate(batches(WARM_UP + 3, core=config)):
        read = number % 3 != 1
        assert recorded.update(batch, read) == plain.update(batch, read)
        expected_graphs = 1 if number >= WARM_UP else 0
        assert len(recorded.graphs) == expected_graphs  # type: ignore[attr-defined]
    assert_same(recorded, plain)
    for options in recorded.state_dict()["optimizer"]["param_groups"]:
        # What is saved is as without a graph.
        assert type(options["lr"]) is float
        assert options["capturable"] is False


def test_schedules_and_versions_change_in_replays() -> None:
    """The graph reads rates, costs and the policy's lag from tensors, which are numbers of the host otherwise."""
    changing = {"learning_rate_schedule": "linear", "entropy_cost": 0.5, "entropy_cost_end": 0.0, "total_steps": 200}
    recorded, plain = both(**changing)
    rates = set()
    for batch in batches(WARM_UP + 5):
        found = recorded.update(batch)
        assert found == pytest.approx(plain.update(batch), rel=1e-4, abs=1e-6)
        rates.add(found["learning_rate"])
    assert len(rates) == WARM_UP + 5
    assert_same(recorded, plain, rtol=1e-4, atol=1e-6)


def test_replays_update_running_statistics() -> None:
    """Those of PopArt, and those of observations."""
    learners = []
    for is_recorded in (True, False):
        torch.manual_seed(0)
        config = agents.AgentConfig(torso="small", torso_size=16, core=agents.CORES["lstm"], standardize=True)
        agent = agents.Agent(config, (3,), agents.ACTIONS, popart_tasks=2)
        learners.append(make(agent, is_recorded, popart=True, normalize_advantages=True, trust=0.2))
    recorded, plain = learners
    for number, batch in enumerate(batches(WARM_UP + 6, core=agents.CORES["lstm"])):
        torch.manual_seed(number)
        batch = batch._replace(observation=5 * torch.randn(2, 13, 3))
        assert recorded.update(batch) == plain.update(batch)
        expected_graphs = 1 if number >= WARM_UP else 0
        assert len(recorded.graphs) == expected_graphs  # type: ignore[attr-defined]
    assert_same(recorded, plain)
    assert recorded.agent.value.mean.ne(0).all()
    assert recorded.agent.standardization.batches == WARM_UP + 6


def test_a_batch_that_is_not_finite_is_skipped_and_named() -> None:
    recorded, plain = both()
    good = batches(WARM_UP + 3)
    for batch in good[: WARM_UP + 1]:
        assert recorded.update(batch) == plain.update(batch)
    bad = good[0]._replace(reward=torch.full_like(good[0].reward, math.nan))
    messages = []
    for learner in (recorded, plain):
        with pytest.raises(NotFinite, match="fields of the trajectory that are not finite: reward") as error:
            learner.update(bad)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert_same(recorded, plain)
    for batch in good[WARM_UP + 1 :]:
        assert recorded.update(batch) == plain.update(batch)

    # Unread, it is one of several.
    for learner in (recorded, plain):
        learner.update(bad, read=False)
        with pytest.raises(NotFinite, match="Skipped: 1 of 2 updates"):
            learner.update(good[0])
    assert_same(recorded, plain)


def test_an_agent_with_a_teacher_is_recorded() -> None:
    costs = {"teacher_cost": 1.0, "teacher_cost_end": 0.5}
    recorded = make(agents.make_taught(), True, **costs)
    plain = make(agents.make_taught(), False, **costs)
    for batch in batches(WARM_UP + 3):
        views = (batch.observation, 255 - batch.observation)
        batch = batch._replace(observation=views, core_state=recorded.agent.initial_state(2))
        assert recorded.update(batch) == plain.update(batch)
    assert len(recorded.graphs) == 1  # type: ignore[attr-defined]
    assert_same(recorded, plain)


def test_batches_of_another_form_are_not_replayed() -> None:
    recorded, plain = both()
    usual = batches(WARM_UP + 3)
    other = agents.make_trajectory(3, 8, seed=7)
    for batch in [*usual[:-1], other, usual[-1]]:
        assert recorded.update(batch) == plain.update(batch)
    assert_same(recorded, plain)


def test_it_is_recorded_anew_when_the_form_changes_for_good() -> None:
    """As when replay begins, after updates of fresh rows alone."""
    recorded, plain = both()
    fresh = batches(2 * WARM_UP + 3)
    for number, batch in enumerate(fresh):
        if number > WARM_UP:
            batch = mark(batch, False)
        assert recorded.update(batch) == plain.update(batch)
    assert len(recorded.graphs) == 2  # type: ignore[attr-defined]
    assert recorded._queued == 0
    assert_same(recorded, plain)


def test_without_memory_for_a_graph_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(function: Callable[[], None]) -> Callable[[], None]:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    recorded, plain = both()
    recorded._capture = refuse
    for batch in batches(WARM_UP + 3):
        assert recorded.update(batch) == plain.update(batch)
    assert_same(recorded, plain)
    (message,) = caplog.messages  # there is no other attempt
    assert message.endswith("slower: tried to allocate 2 GiB")


def test_a_resumed_learner_equals_one_that_was_not_stopped() -> None:
    """Its first updates are made operation by operation, where the other one replays its graph, in single precision."""
    options = {"learning_rate": 1e-4, "entropy_cost": 2e-3}
    straight = make(agents.make_agent(), True, **options)
    resumed = make(agents.make_agent(), True, **options)
    data = batches(2 * WARM_UP + 3)
    for batch in data[: WARM_UP + 2]:
        straight.update(batch)
    resumed.load_state_dict(straight.state_dict())
    for batch in data[WARM_UP + 2 :]:
        assert straight.update(batch) == resumed.update(batch)
    assert len(straight.graphs) == len(resumed.graphs) == 1  # type: ignore[attr-defined]
    assert_same(straight, resumed)


def test_forms_that_alternate_early_are_not_recorded() -> None:
    recorded, plain = both()
    usual = batches(2 * WARM_UP)
    for number, batch in enumerate(usual):
        if number % 2:
            batch = mark(batch, False)
        assert recorded.update(batch) == plain.update(batch)
    assert recorded.graphs == []  # type: ignore[attr-defined]


def test_it_is_recorded_anew_for_a_restored_state() -> None:
    """The optimizer's restored statistics are other tensors."""
    recorded, plain = both()
    saved = plain.state_dict()
    for turn in range(2):
        for batch in batches(WARM_UP + 2):
            assert recorded.update(batch) == plain.update(batch)
        assert len(recorded.graphs) == turn + 1  # type: ignore[attr-defined]
        for learner in (recorded, plain):
            learner.load_state_dict(saved)
        assert_same(recorded, plain)


def test_which_learners_record() -> None:
    """A single learner whose updates may stay unread, unless the configuration forbids it or instructions are read."""
    recorded = make(agents.make_agent(), True)
    forbidden = make(agents.make_agent(), True, cuda_graph=False)
    always_read = Learner(agents.make_agent(), recorded.config, 1000, capture=recorded._capture)
    with_instructions = make(agents.make_agent(instruction=True), True)
    assert recorded._capture is not None
    for learner in (forbidden, always_read, with_instructions):
        assert learner._capture is None


GPU_CASES = {name: (config, "float32") for name, config in CASES.items()}
GPU_CASES["bfloat16"] = (CASES["compressive/post"], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize(("config", "precision"), GPU_CASES.values(), ids=GPU_CASES)
def test_a_graph_of_a_gpu_does_what_its_operations_do(
    config: Any, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to rounding, which Adam enlarges: the gradients of pooling and of chosen rows add in no fixed order."""
    # Otherwise the gradients of convolutions would add in no fixed order, either.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    learners = []
    for graph in (True, False):
        agent = agents.make_agent(core=config, reconstruction_cost=0.1)
        options = LearnerConfig(device="cuda", learning_rate=RATE, max_gradient_norm=0.5, precision=precision)
        learners.append(Learner(agent, dataclasses.replace(options, cuda_graph=graph), 1000))
    recorded, plain = learners
    before = weights_of(plain)
    for batch in batches(WARM_UP + 5, core=config):
        rows = state_to(batch, "cuda")
        assert recorded.update(rows) == pytest.approx(plain.update(rows), rel=0.02, abs=1e-3)
    assert recorded._graph is not None
    assert plain._graph is None

    moved = (weights_of(plain) - before).norm()
    apart = (weights_of(recorded) - weights_of(plain)).norm()
    assert apart < 0.02 * moved


def weights_of(learner: Learner) -> torch.Tensor:
    """All weights as one vector."""
    return torch.cat([weight.flatten() for weight in learner.weights().values()])
