"""Precision: what "auto" becomes, and agents that compute in bfloat16 beside the same agents in float32."""

import copy
from typing import Any

import pytest
import torch

from actors import Actor
from agent import actor_critic
from agent.core import leaves
from agent.policies import Categorical
from agent.precision import autocast, bfloat16_hardware, describe_precision, resolve_precision
from envs import make_vector
from learner.config import LearnerConfig
from learner.learner import Learner
from tests.agent import agents

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("found", "name"),
    [({"amx_bf16": True, "avx512_bf16": True}, "AMX"), ({"avx512_bf16": True}, "AVX512-BF16"), ({"avx2": True}, "")],
)
def test_auto_is_bfloat16_where_the_processor_computes_it(
    found: dict[str, bool], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    assert bfloat16_hardware(CPU) == name
    assert resolve_precision("auto", CPU) == ("bfloat16" if name else "float32")
    assert resolve_precision("float32", CPU) == "float32"
    assert resolve_precision("bfloat16", CPU) == "bfloat16"
    remark = name or "slow here, because this cpu does not support it"
    assert describe_precision("bfloat16", CPU) == f"bfloat16 ({remark})"
    assert describe_precision("float32", CPU) == "float32"
    assert describe_precision("auto", CPU) == "what each device computes fast"


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("core", agents.CORES)
def test_an_agent_in_bfloat16_is_near_the_same_in_float32(
    core: str, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torso and, if it is wide, core compute in bfloat16; heads, losses, state and gradients are float32."""
    monkeypatch.setattr(actor_critic, "WIDE", 16 if wide else 17)  # the cores have 16 features
    agent = agents.make_agent(agents.CORES[core], reconstruction_cost=1.0).train()
    inputs = agents.agent_inputs(3, 12)

    # The dtypes in which the torso and the layers of the core compute.
    watched = {"torso": agent.vision}
    if hasattr(agent.core, "layers"):
        watched["core"] = agent.core.layers[0].mlp
    assert ("core" in watched) == (core not in ("lstm", "memoryless"))
    seen: dict[str, torch.dtype] = {}

    def watch(name: str) -> Any:
        def hook(module: Any, given: Any, output: torch.Tensor) -> None:
            seen[name] = output.dtype

        return hook

    for name, module in watched.items():
        module.register_forward_hook(watch(name))

    def learn(precision: str) -> tuple[Any, torch.Tensor]:
        """The output, and all gradients as one vector."""
        agent.zero_grad()
        seen.clear()
        with autocast(CPU, precision):
            output = agent(**inputs, state=agent.initial_state(3))
        reconstruction = output.losses["reconstruction"].value
        (output.policy_parameters.square().sum() + output.value.sum() + reconstruction).backward()
        grads = [parameter.grad.flatten() for parameter in agent.parameters() if parameter.grad is not None]
        return output, torch.cat(grads)

    expected, expected_gradient = learn("float32")
    assert seen == dict.fromkeys(watched, torch.float32)
    output, gradient = learn("bfloat16")
    assert seen["torso"] == torch.bfloat16
    if "core" in watched:
        assert seen["core"] == (torch.bfloat16 if wide else torch.float32)

    # All that is returned is in float32; counts are integers.
    losses = [part for mean in output.losses.values() for part in mean]
    returned = [output.policy_parameters, output.value, gradient, *losses, *leaves(output.state)]
    assert {leaf.dtype for leaf in returned} <= {torch.float32, torch.int64}
    torch.testing.assert_close(output.value, expected.value, rtol=0, atol=2e-3)
    assert (gradient - expected_gradient).norm() < 0.05 * expected_gradient.norm()


@pytest.mark.parametrize(("wide", "dtype"), [(16, torch.bfloat16), (17, torch.float32)])
def test_a_wide_core_keeps_its_cache_in_bfloat16(
    wide: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wide` is the number of features from which a core is wide; this one has 16."""
    monkeypatch.setattr(actor_critic, "WIDE", wide)
    agent = agents.make_agent()
    with torch.no_grad(), autocast(CPU, "bfloat16"):
        state = agent.with_cache(agent.initial_state(2))
        after = agent(**agents.agent_inputs(2, 1), state=state).state
    assert {cache.keys.dtype for cache in after.cache} == {dtype}


def make_learner(**changes: Any) -> Learner:
    return Learner(agents.make_agent(), LearnerConfig(**{"device": "cpu", **changes}), 1000)


def test_a_learner_in_bfloat16_learns_what_one_in_float32_learns() -> None:
    """Weights, statistics of the optimizer and metrics are float32; the updates are alike."""
    full = make_learner(learning_rate=1e-3, precision="float32")
    mixed = make_learner(learning_rate=1e-3, precision="bfloat16")
    start = full.weights()
    seen: list[torch.dtype] = []
    for learner in (full, mixed):
        learner.agent.vision.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    for seed in range(5):
        batch = agents.make_trajectory(4, 8, seed)
        expected = full.update(batch)
        metrics = mixed.update(batch)
        assert metrics["loss/total"] == pytest.approx(expected["loss/total"], rel=0.02)
        assert metrics["loss/total"] != expected["loss/total"]
    assert seen == [torch.float32, torch.bfloat16] * 5
    assert {weight.dtype for weight in mixed.weights().values()} == {torch.float32}
    statistics = mixed.state_dict()["optimizer"]["state"].values()
    assert {leaf.dtype for of_parameter in statistics for leaf in of_parameter.values()} == {torch.float32}

    def change(learner: Learner) -> torch.Tensor:
        """What all updates changed of the weights, as one vector."""
        return torch.cat([(weight - start[name]).flatten() for name, weight in learner.weights().items()])

    assert torch.nn.functional.cosine_similarity(change(full), change(mixed), dim=0) > 0.9


@pytest.mark.slow
@pytest.mark.xdist_group("compiler")
def test_a_compiled_torso_learns_the_same() -> None:
    plain = make_learner(compile=False)
    compiled = make_learner(compile=True)
    for seed in range(2):
        batch = agents.make_trajectory(4, 8, seed)
        assert compiled.update(batch) == pytest.approx(plain.update(batch), rel=1e-3, abs=1e-4)
    assert compiled.agent.vision._compiled_call_impl is not None
    assert copy.deepcopy(compiled.agent).vision._compiled_call_impl is None  # evaluations are not compiled


def test_an_actor_in_bfloat16_acts_like_one_in_float32() -> None:
    def policy_parameters(precision: str) -> torch.Tensor:
        # An agent for the nine actions of the environment, whose policy is not nearly uniform.
        agent = agents.make_agent(shape=(24, 32, 3))
        agent.policy = torch.nn.Linear(16, 9)
        agent.distribution = Categorical(9)
        agent.joint = torch.nn.Linear(16 + 9 + 1, 16)
        torch.manual_seed(1)
        torch.nn.init.normal_(agent.policy.weight, std=0.1)
        torch.nn.init.normal_(agent.joint.weight, std=0.1)
        actor = Actor(make_vector("rooms:small", 3), agent, 0, seed=0, precision=precision)
        return actor.unroll(4).trajectory.policy_parameters

    full = policy_parameters("float32")
    mixed = policy_parameters("bfloat16")
    assert mixed.dtype == torch.float32
    assert not full.equal(mixed)
    # Later steps follow different actions.
    torch.testing.assert_close(mixed[:, 0], full[:, 0], rtol=0, atol=0.02)
