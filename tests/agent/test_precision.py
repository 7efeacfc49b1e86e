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
    assert [resolve_precision(given, CPU) for given in ("float32", "bfloat16")] == ["float32", "bfloat16"]
    slow = "slow here, because this cpu does not support it"
    assert describe_precision("bfloat16", CPU) == f"bfloat16 ({name or slow})"
    assert describe_precision("float32", CPU) == "float32"


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("core", agents.CORES)
def test_an_agent_in_bfloat16_is_near_the_same_in_float32(
    core: str, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torso and, if it is wide, core compute in bfloat16; heads, losses, state and gradients are float32."""
    monkeypatch.setattr(actor_critic, "WIDE", 16 if wide else 17)
    agent = agents.make_agent(agents.CORES[core], reconstruction_cost=1.0).train()
    inputs = agents.agent_inputs(3, 12)
    seen: dict[str, torch.dtype] = {}
    watched = {"torso": agent.vision} | ({"core": agent.core.layers[0].mlp} if hasattr(agent.core, "layers") else {})

    def watch(name: str) -> Any:
        def hook(module: Any, given: Any, output: torch.Tensor) -> None:
            seen[name] = output.dtype

        return hook

    for name, module in watched.items():
        module.register_forward_hook(watch(name))

    def learn(precision: str) -> tuple[Any, torch.Tensor]:
        agent.zero_grad()
        seen.clear()
        with autocast(CPU, precision):
            output = agent(**inputs, state=agent.initial_state(3))
        (
            output.policy_parameters.square().sum() + output.value.sum() + output.losses["reconstruction"].value
        ).backward()
        return output, torch.cat([p.grad.flatten() for p in agent.parameters() if p.grad is not None])

    expected, expected_gradient = learn("float32")
    assert seen == dict.fromkeys(watched, torch.float32)
    output, gradient = learn("bfloat16")
    assert seen["torso"] == torch.bfloat16
    mixed = torch.bfloat16 if wide or core in ("lstm", "memoryless") else torch.float32
    assert seen.get("core", torch.bfloat16) == mixed
    losses = [part for mean in output.losses.values() for part in mean]
    floats = [output.policy_parameters, output.value, gradient, *losses, *leaves(output.state)]
    assert {leaf.dtype for leaf in floats} <= {torch.float32, torch.int64}
    torch.testing.assert_close(output.value, expected.value, rtol=0, atol=2e-3)
    assert (gradient - expected_gradient).norm() < 0.05 * expected_gradient.norm()


def test_a_wide_core_keeps_its_cache_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agents.make_agent()
    for least, dtype in ((16, torch.bfloat16), (17, torch.float32)):
        monkeypatch.setattr(actor_critic, "WIDE", least)
        with torch.no_grad(), autocast(CPU, "bfloat16"):
            state = agent.with_cache(agent.initial_state(2))
            inputs = agents.agent_inputs(2, 1)
            after = agent(**inputs, state=state).state
        assert {cache.keys.dtype for cache in after.cache} == {dtype}


def test_a_learner_in_bfloat16_learns_what_one_in_float32_learns() -> None:
    """Weights, statistics of the optimizer and metrics are float32; the updates are alike."""
    learners = [
        Learner(agents.make_agent(), LearnerConfig(device="cpu", learning_rate=1e-3, precision=precision), 1000)
        for precision in ("float32", "bfloat16")
    ]
    start = learners[0].weights()
    seen: list[torch.dtype] = []
    for learner in learners:
        learner.agent.vision.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    for seed in range(5):
        expected, metrics = (learner.update(agents.make_trajectory(4, 8, seed)) for learner in learners)
        assert metrics["loss/total"] == pytest.approx(expected["loss/total"], rel=0.02)
        assert metrics["loss/total"] != expected["loss/total"]
    assert seen == [torch.float32, torch.bfloat16] * 5
    full, mixed = ({name: w - start[name] for name, w in learner.weights().items()} for learner in learners)
    assert {leaf.dtype for leaf in mixed.values()} == {torch.float32}
    cosine = torch.nn.functional.cosine_similarity
    changes = [torch.cat([change.flatten() for change in each.values()]) for each in (full, mixed)]
    assert cosine(*changes, dim=0) > 0.9


@pytest.mark.slow
@pytest.mark.xdist_group("compiler")
def test_a_compiled_torso_learns_the_same() -> None:
    configs = [LearnerConfig(device="cpu", compile=compile) for compile in (False, True)]
    learners = [Learner(agents.make_agent(), config, 1000) for config in configs]
    for seed in range(2):
        expected, metrics = (learner.update(agents.make_trajectory(4, 8, seed)) for learner in learners)
        assert metrics == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert learners[1].agent.vision._compiled_call_impl is not None
    assert copy.deepcopy(learners[1].agent).vision._compiled_call_impl is None  # evaluations are not compiled


def test_an_actor_in_bfloat16_acts_like_one_in_float32() -> None:
    unrolls = []
    for precision in ("float32", "bfloat16"):
        agent = agents.make_agent(shape=(24, 32, 3))
        agent.policy, agent.distribution = torch.nn.Linear(16, 9), Categorical(9)
        agent.joint = torch.nn.Linear(16 + 9 + 1, 16)
        torch.manual_seed(1)
        torch.nn.init.normal_(agent.policy.weight, std=0.1)
        torch.nn.init.normal_(agent.joint.weight, std=0.1)
        actor = Actor(make_vector("rooms:small", 3), agent, 0, seed=0, precision=precision)
        unrolls.append(actor.unroll(4).trajectory)
    first, second = (unroll.policy_parameters for unroll in unrolls)
    assert second.dtype == torch.float32
    assert not first.equal(second)
    torch.testing.assert_close(second[:, 0], first[:, 0], rtol=0, atol=0.02)
