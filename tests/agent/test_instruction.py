"""The instruction encoder against a loop over the words, and an agent that reads beside one that does not."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agent import Agent, AgentConfig, Observation, Trajectory
from agent.core import CompressiveTransformerConfig, concatenate_states, index_state, leaves
from agent.encoders import EMBEDDING_SIZE, INSTRUCTION_SIZE, InstructionEncoder
from agent.trajectory import image_of, validate
from learner.learner import Learner, LearnerConfig

IMAGE, ACTIONS, VOCABULARY, WORDS = (12, 16, 3), 5, 11, 6
CORE = CompressiveTransformerConfig(16, 1, 2, 16, segment_size=4, memory_size=4, compressed_size=4)


def make_encoder() -> InstructionEncoder:
    torch.manual_seed(0)
    return InstructionEncoder(VOCABULARY).double()


def make_agent(instruction: bool = True) -> Agent:
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=16, core=CORE, instruction=instruction)
    return Agent(config, IMAGE, ACTIONS, VOCABULARY if instruction else 0).eval()


def random_words(*shape: int, seed: int = 0) -> Tensor:
    """Instructions of any length from none to all words."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, VOCABULARY, (*shape, WORDS), generator=generator)
    length = torch.randint(0, WORDS + 1, (*shape, 1), generator=generator)
    return words.masked_fill(torch.arange(WORDS) >= length, 0)


def make_trajectory(rows: int, steps: int, seed: int = 0) -> Trajectory:
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (rows, steps + 1, *IMAGE), generator=generator, dtype=torch.uint8)
    action = torch.randint(0, ACTIONS, (rows, steps), generator=generator)
    return Trajectory(
        observation=Observation(image, random_words(rows, steps + 1, seed=seed)),
        last_action=torch.cat([torch.full((rows, 1), -1), action], dim=1),
        reward=torch.randn(rows, steps + 1, generator=generator),
        discount=torch.ones(rows, steps + 1),
        reset=torch.zeros(rows, steps + 1, dtype=torch.bool),
        action=action,
        policy_logits=torch.zeros(rows, steps, ACTIONS),
        core_state=make_agent().initial_state(rows),
        actor_id=torch.arange(rows),
        version=torch.zeros(rows, dtype=torch.int64),
    )


def literal(encoder: InstructionEncoder, words: Tensor) -> Tensor:
    """One instruction [W] at a time, one word at a time."""
    cell = nn.LSTMCell(EMBEDDING_SIZE, INSTRUCTION_SIZE).double()
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in encoder.lstm.state_dict().items()})
    hidden = memory = torch.zeros(1, INSTRUCTION_SIZE).double()
    for word in words[words > 0]:
        hidden, memory = cell(encoder.embedding.weight[word][None], (hidden, memory))
    return hidden[0]


def test_it_is_an_lstm_over_the_words_that_there_are() -> None:
    encoder, words = make_encoder(), random_words(40)
    features = encoder(words)
    assert features.shape == (40, INSTRUCTION_SIZE)
    for row in range(40):
        torch.testing.assert_close(features[row], literal(encoder, words[row]), rtol=0, atol=1e-12)
    assert not encoder(torch.zeros(3, WORDS, dtype=torch.int64)).any(), "no words, no features"


def test_order_matters_and_padding_does_not() -> None:
    encoder, words = make_encoder(), torch.tensor([[3, 7, 2, 0, 0, 0], [2, 7, 3, 0, 0, 0], [3, 7, 0, 0, 0, 0]])
    features = encoder(words)
    assert not torch.allclose(features[0], features[1])
    assert not torch.allclose(features[0], features[2])
    torch.testing.assert_close(encoder(words[:, :3]), features, rtol=0, atol=1e-12)


def test_words_that_were_read_learn_and_no_others() -> None:
    encoder = make_encoder()
    encoder(torch.tensor([[3, 7, 0, 0, 0, 0], [3, 9, 0, 0, 0, 0], [3, 7, 0, 0, 0, 0]])).sum().backward()
    learned = encoder.embedding.weight.grad.abs().sum(dim=1).nonzero().flatten()
    assert learned.tolist() == [3, 7, 9]


def test_acting_step_by_step_equals_the_unroll() -> None:
    agent, seen = make_agent(), make_trajectory(2, 11)
    reset = seen.reset | (torch.arange(12) % 5 == 0)
    with torch.no_grad():
        whole = agent(seen.observation, seen.last_action, seen.reward, reset, agent.initial_state(2))
        state, values = agent.core.with_cache(agent.initial_state(2)), []
        for t in range(12):
            step = slice(t, t + 1)
            observation = Observation(*(part[:, step] for part in seen.observation))
            now = agent(observation, seen.last_action[:, step], seen.reward[:, step], reset[:, step], state)
            state = now.state
            values.append(now.value)
    torch.testing.assert_close(torch.cat(values, dim=1), whole.value, rtol=0, atol=1e-5)


def test_what_is_said_matters() -> None:
    agent, seen = make_agent(), make_trajectory(2, 7)
    spoken = [random_words(2, 8, seed=seed) for seed in (0, 1)]
    arguments = (seen.last_action, seen.reward, seen.reset, agent.initial_state(2))
    one, other = (agent(Observation(image_of(seen.observation), words), *arguments).value for words in spoken)
    assert (one != other).any()


def test_an_agent_that_does_not_read_is_what_it_was() -> None:
    reader, other = make_agent(True), make_agent(False)
    names = {name for name, _ in reader.named_parameters()} - {name for name, _ in other.named_parameters()}
    assert names
    assert all(name.startswith("instruction.") for name in names)
    assert AgentConfig().instruction is False
    assert reader.joint.in_features - other.joint.in_features == INSTRUCTION_SIZE


@pytest.mark.parametrize(
    ("instruction", "vocabulary", "message"),
    [
        (True, 0, "instruction: expected False in an environment without any, got True"),
        (False, VOCABULARY, "instruction: expected True in an environment with instructions, got False"),
    ],
)
def test_agents_that_do_not_fit_the_environment(instruction, vocabulary, message) -> None:
    with pytest.raises(ValueError, match=message):
        Agent(AgentConfig(torso="small", core=CORE, instruction=instruction), IMAGE, ACTIONS, vocabulary)


def test_observations_that_do_not_fit_the_agent() -> None:
    seen = make_trajectory(2, 7)
    rest: list[Any] = [seen.last_action, seen.reward, seen.reset, make_agent().initial_state(2)]
    with pytest.raises(ValueError, match="observation: expected an Observation with instructions, got Tensor"):
        make_agent(True)(image_of(seen.observation), *rest)
    with pytest.raises(ValueError, match="observation: expected images alone, got Observation"):
        make_agent(False)(seen.observation, *rest)


def test_trajectories_with_instructions() -> None:
    parts = [make_trajectory(rows, 4, seed) for rows, seed in ((2, 0), (1, 1))]
    joined = concatenate_states(parts)
    assert validate(joined) == (3, 4)
    for actual, expected in zip(leaves(index_state(joined, slice(2, 3))), leaves(parts[1]), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda words: words[:, :-1], "instruction: expected int64 [2, 5, W], got torch.int64 [2, 4, 6]"),
        (lambda words: words.int(), "instruction: expected int64 [2, 5, W], got torch.int32 [2, 5, 6]"),
        (lambda words: words[..., 0], "instruction: expected int64 [2, 5, W], got torch.int64 [2, 5]"),
    ],
)
def test_bad_instructions_are_named(change, message) -> None:
    good = make_trajectory(2, 4)
    bad = good.observation._replace(instruction=change(good.observation.instruction))
    with pytest.raises(ValueError, match=re.escape(message)):
        validate(good._replace(observation=bad))


def test_the_learner_trains_the_encoder() -> None:
    agent = make_agent()
    before = {name: parameter.clone() for name, parameter in agent.instruction.named_parameters()}
    metrics = Learner(agent, LearnerConfig(device="cpu"), 1000).update(make_trajectory(2, 8))
    assert metrics["gradient/norm"] > 0
    assert all((parameter != before[name]).any() for name, parameter in agent.instruction.named_parameters())
