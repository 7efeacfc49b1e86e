"""Acting on a device: equal to an actor's, whether operation by operation or as a graph, and resumable."""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
import torch

from actors.actor import Actor, Unroll
from actors.resident import ResidentActor
from agent import Agent, AgentConfig
from agent.core import LSTMConfig, leaves, matched_cores
from agent.core.fields import Precision
from agent.cuda_graphs import cuda_graph
from agent.policies import Numbers
from agent.trajectory import validate
from envs import make_device, make_vector
from tests.actors.counting import CountingAgent, DeviceCounting
from tests.capture import Capturable, EmulatedGraph

ROOMS = "rooms:small-recall,episode_frames=100"
RECALL = "diagnostic:recall,delay=5"
ROWS = 3
"""Environments of an actor."""
LENGTH = 16
"""Steps of an unroll."""
SIZES = {"model_size": 16, "num_layers": 2, "num_heads": 2, "mlp_size": 16, "segment_size": 8, "norm": "pre"}
CORES = matched_cores({**SIZES, "dropout": 0.5}, memory=8, compressed=4)


QUICK = {ROOMS: ("compressive", "gru"), RECALL: ("compressive", "lstm", "routing", "deltanet")}
EVERYWHERE = [
    pytest.param(core, env, marks=[] if core in QUICK[env] else [pytest.mark.slow])
    for core in CORES
    for env in (ROOMS, RECALL)
]
"""Every core in both environments; most are among the slow tests."""


SPACES: dict[str, tuple[tuple[int, ...], int]] = {ROOMS: ((12, 16, 3), 9), RECALL: ((5,), 4)}
"""Shape of observations and number of actions."""


def make_agent(core: str, env: str) -> Agent:
    """An agent that is new and always the same."""
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=8, core=CORES[core])
    observation_shape, num_actions = SPACES[env]
    return Agent(config, observation_shape, num_actions)


def resident(agent: Agent, env: str, capture: Any = None, device: str = "cpu", **options: Any) -> ResidentActor:
    """An actor with seed 7."""
    return ResidentActor(make_device(env, ROWS, device), agent, LENGTH, 7, env, capture=capture, **options)


def emulated(actor: ResidentActor) -> None:
    """Lets the actor replay its unrolls in an emulation of a CUDA graph, in which the environments are a kernel."""

    def capture(function: Callable[[], None]) -> Callable[[], None]:
        graph = EmulatedGraph()
        launch = actor.envs.launch
        if not actor.task.startswith("diagnostic"):
            actor.envs.launch = lambda: graph.call(launch)  # type: ignore[method-assign]
        before = [leaf.clone() for leaf in tensors_of(actor)]
        with graph:
            function()
        for leaf, old in zip(tensors_of(actor), before):
            leaf.copy_(old)  # a real capture executes nothing
        return graph.replay

    actor.capture = capture


def tensors_of(actor: ResidentActor) -> Iterator[torch.Tensor]:
    """All that an unroll changes."""
    own = (actor.score, actor.steps, actor.over, actor.finished)
    envs = actor.envs
    yield from leaves((*actor.trajectory, actor.core_state, *own))
    yield from (*envs.state.values(), envs.observation, envs.reward, envs.begin, envs.action)
    yield from (envs.terminated, envs.truncated)


def same(one: Any, other: Any) -> bool:
    """Whether all tensors of two trajectories are equal."""
    pairs = zip(leaves(tuple(one)), leaves(tuple(other)), strict=True)
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


def change(agent: Agent) -> None:
    """Other weights in the same place, and the mode of training, as an update leaves them."""
    agent.train()
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.mul_(1.1)


@pytest.mark.parametrize(("core", "env"), EVERYWHERE)
def test_it_acts_as_an_actor_with_the_same_random_numbers(core: str, env: str) -> None:
    """Acting leaves out the dropout of the learner's agent, which stays in the mode of training."""
    agent = make_agent(core, env)
    local = Actor(make_vector(env, ROWS), make_agent(core, env), 0, 7, task=env)
    pool = resident(agent, env)
    for version in range(4):
        local.set_weights(agent.state_dict(), version)
        pool.publish({}, version)
        ours = pool.get()
        theirs = local.unroll(LENGTH)
        validate(ours.trajectory)
        assert same(ours.trajectory, theirs.trajectory)
        assert ours == Unroll(ours.trajectory, theirs.episodes, version, ROWS)
        assert all(module.training for module in agent.modules())
        change(agent)
    assert theirs.episodes, "some ended"


@pytest.mark.parametrize("core", CORES)
def test_it_acts_in_an_actors_precision(core: str) -> None:
    logits: dict[Precision, list[torch.Tensor]] = {}
    for precision in get_args(Precision):
        local = Actor(make_vector(RECALL, ROWS), make_agent(core, RECALL), 0, 7, precision=precision)
        pool = resident(make_agent(core, RECALL), RECALL, precision=precision)
        ours = pool.get().trajectory
        theirs = local.unroll(LENGTH).trajectory
        assert same(ours, theirs)
        logits[precision] = ours.policy_parameters
    assert not same(logits["float32"], logits["bfloat16"])


@pytest.mark.parametrize(("core", "env"), EVERYWHERE)
def test_a_graph_of_an_unroll_does_what_its_operations_do(core: str, env: str) -> None:
    """With resets and changes of weights between unrolls. Both resume from an earlier state after the fourth."""
    agent = make_agent(core, env)
    other = make_agent(core, env)
    eager = resident(agent, env)
    graph = resident(other, env)
    emulated(graph)
    places = [leaf.data_ptr() for leaf in tensors_of(graph)]
    for turn in range(5):
        eager.unroll()
        graph.unroll()
        assert (graph.replay is not None) == (turn > 0)
        assert same(eager.trajectory, graph.trajectory)
        assert eager.episodes() == graph.episodes()
        change(agent)
        change(other)
        if turn == 2:
            saved = eager.state_dict()
        if turn == 3:
            eager.load_state_dict(saved)
            graph.load_state_dict(saved)
    assert places == [leaf.data_ptr() for leaf in tensors_of(graph)]


@pytest.mark.parametrize("core", CORES)
def test_acting_does_nothing_that_a_graph_cannot_hold(core: str) -> None:
    actor = resident(make_agent(core, RECALL), RECALL)
    actor.unroll()
    with Capturable() as mode:
        actor._act()
    assert not mode.forbidden
    with Capturable() as mode:
        actor.episodes()
    assert mode.forbidden, "it reads values"


def test_without_memory_for_a_graph_it_acts_operation_by_operation(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(function: Callable[[], None]) -> Callable[[], None]:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    agent = make_agent("gru", RECALL)
    plain = resident(agent, RECALL)
    refused = resident(agent, RECALL, capture=refuse)
    for _ in range(3):
        plain.unroll()
        refused.unroll()
        for ours, theirs in zip(leaves(plain.trajectory), leaves(refused.trajectory), strict=True):
            assert torch.equal(ours, theirs)
    assert len(caplog.messages) == 1, "there is no other attempt"


def test_it_resumes_exactly_and_keeps_the_learners_weights() -> None:
    agent = make_agent("compressive", ROOMS)
    first = resident(agent, ROOMS)
    second = resident(agent, ROOMS)
    for mine, theirs in zip(first.agent.parameters(), agent.parameters(), strict=True):
        assert mine is theirs
    first.unroll()
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        first.unroll()
        second.unroll()
        assert same(first.trajectory, second.trajectory)
        assert first.episodes() == second.episodes()


def test_a_saved_state_stays_as_it_was() -> None:
    agent = make_agent("compressive", RECALL)
    actor = resident(agent, RECALL)
    actor.unroll()
    saved = actor.state_dict()
    before = {name: tensor.clone() for name, tensor in saved.items()}
    actor.unroll()
    assert all(saved[name].equal(tensor) for name, tensor in before.items())
    assert any(not tensor.equal(before[name]) for name, tensor in actor.state_dict().items())


def test_it_resumes_after_any_step() -> None:
    """Also between the end of an episode, terminated or truncated, and the step that begins the next."""
    agent: Any = CountingAgent()
    first = ResidentActor(DeviceCounting(ROWS), agent, length=1, seed=7)
    ends: set[tuple[bool, bool]] = set()
    for _ in range(30):
        first.unroll()
        second = ResidentActor(DeviceCounting(ROWS), agent, length=1, seed=8)
        second.load_state_dict(first.state_dict())
        ends |= set(zip(first.envs.terminated.tolist(), first.envs.truncated.tolist()))

        first.unroll()
        second.unroll()
        assert same(first.trajectory, second.trajectory)
        assert first.episodes() == second.episodes()
        assert not second.trajectory.policy_parameters.any(), "a wrong state"
    assert ends == {(False, False), (True, False), (False, True)}


@pytest.mark.gpu
@pytest.mark.parametrize("env", [ROOMS, RECALL])
@pytest.mark.parametrize("core", CORES)
def test_a_graph_of_a_gpu_does_what_its_operations_do(core: str, env: str) -> None:
    """A real graph, with changes of weights between unrolls. It resumes each time from the state of the other."""
    agent = make_agent(core, env).to("cuda")
    other = make_agent(core, env).to("cuda")
    eager = resident(agent, env, device="cuda")
    graph = resident(other, env, device="cuda", capture=cuda_graph(torch.device("cuda")))
    for turn in range(4):
        eager.unroll()
        graph.unroll()
        assert (graph.replay is not None) == (turn > 0)
        for ours, theirs in zip(leaves(tuple(graph.trajectory)), leaves(tuple(eager.trajectory)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        assert eager.episodes() == graph.episodes()
        graph.load_state_dict(eager.state_dict())
        change(agent)
        change(other)


ONE_NUMBER = (Numbers((True,)),)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("env", "shape", "actions"), [("rooms:small", (24, 32, 3), 9), ("gym:Pendulum-v1", (3,), ONE_NUMBER)]
)
def test_an_actor_on_a_gpu_hands_out_what_one_on_the_cpu_does(env: str, shape: Any, actions: Any) -> None:
    def unrolls(device: str) -> list[torch.Tensor]:
        """All tensors of two unrolls."""
        torch.manual_seed(0)
        agent = Agent(AgentConfig(torso="small", torso_size=16, core=LSTMConfig(16)), shape, actions)
        actor = Actor(make_vector(env, 2), agent, 0, 0, device=device)
        return [*leaves(actor.unroll(4).trajectory), *leaves(actor.unroll(4).trajectory)]

    for here, there in zip(unrolls("cpu"), unrolls("cuda")):
        assert there.device.type == "cpu"
        torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-3)


def test_actors_need_nothing_of_the_network_to_choose_actions() -> None:
    """Its tensors may be on a GPU, and actions are chosen and brought within their bounds on the CPU."""
    agent = Agent(AgentConfig(torso="small", torso_size=16, core=LSTMConfig(16)), (3,), ONE_NUMBER)
    actor = Actor(make_vector("gym:Pendulum-v1", 2), agent, 0, 0)
    (block,) = agent.distribution.blocks
    block.squashed = block.squashed.to("meta")
    actions = actor.unroll(4).trajectory.action
    assert actions.shape == (2, 4, 1)
    assert actions.isfinite().all()


def test_actors_act_without_dropout() -> None:
    """Also if the network that they are given was in training."""
    agent = Agent(AgentConfig(torso="small", torso_size=16, core=LSTMConfig(16)), (3,), ONE_NUMBER).train()
    assert not Actor(make_vector("gym:Pendulum-v1", 2), agent, 0, 0).agent.training
