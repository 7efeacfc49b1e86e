"""The sequence model: its softmaxes against literal ones, and the same numbers token by token."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from agent.core import CompressiveTransformer, LSTMConfig, make_core
from sequences.model import IGNORE, SequenceModel
from sequences.text.config import TextModelConfig
from sequences.text.modality import make_model
from tests.agent.tiny import SIZE, assert_same, config_of, normal, sum_losses

VOCABULARY = 11
KINDS = [((), True), ((), False), ((4, 7), True), ((4, 7), False)]


def make(cutoffs: tuple[int, ...] = (), tied: bool = True, **fields: object) -> SequenceModel:
    """A model that is always the same, in float64, with other fields of its core."""
    torch.manual_seed(0)
    model = SequenceModel(CompressiveTransformer(config_of(**fields)), VOCABULARY, cutoffs, divisor=2, tied=tied)
    with torch.no_grad():
        for parameter in model.parameters():  # biases start at 0: noise, so that a test can see them
            parameter += 0.3 * torch.randn_like(parameter)
    return model.double().eval()


def text(rows: int, steps: int, seed: int = 0) -> Tensor:
    """[rows, steps] random tokens."""
    return torch.randint(VOCABULARY, (rows, steps), generator=torch.Generator().manual_seed(seed))


def no_resets(tokens: Tensor) -> Tensor:
    return torch.zeros_like(tokens, dtype=torch.bool)


def literal(model: SequenceModel, feature: Tensor, token: int) -> float:
    """-log p(token) from its definition, one token and one number at a time."""
    table = model.embedding if model.outputs is None else model.outputs
    bounds = table.bounds

    def logit(cluster: int, index: int) -> float:
        vector = table.vectors[cluster][index]
        if cluster > 0:
            vector = vector @ table.projections[cluster - 1]
        first, _ = bounds[cluster]
        return (feature @ vector + model.softmax.bias[first + index]).item()

    # The head has the most frequent tokens, which are cluster 0, and after them one number for each other cluster.
    _, head_size = bounds[0]
    head = [logit(0, index) for index in range(head_size)]
    if model.softmax.clusters is not None:
        head += (model.softmax.clusters.weight @ feature + model.softmax.clusters.bias).tolist()
    head_sum = sum(map(math.exp, head))
    if token < head_size:
        return -math.log(math.exp(head[token]) / head_sum)

    # Any other token: the probability of its cluster, times its probability within the cluster.
    cluster = next(index for index, (begin, end) in enumerate(bounds) if begin <= token < end)
    begin, end = bounds[cluster]
    of_cluster = math.exp(head[head_size + cluster - 1]) / head_sum
    inside = [logit(cluster, index) for index in range(end - begin)]
    within_cluster = math.exp(inside[token - begin]) / sum(map(math.exp, inside))
    return -math.log(of_cluster * within_cluster)


@pytest.mark.parametrize(("cutoffs", "tied"), KINDS)
def test_softmax_is_the_literal_one(cutoffs: tuple[int, ...], tied: bool) -> None:
    model = make(cutoffs, tied)
    features = normal(VOCABULARY, SIZE)
    targets = torch.arange(VOCABULARY)
    table = model.embedding if tied else model.outputs
    nll = model.softmax.nll(features, targets, table)
    log_probs = model.softmax.log_probs(features, table)
    assert_same(log_probs.exp().sum(dim=-1), torch.ones(VOCABULARY, dtype=torch.float64))
    assert_same(nll, -log_probs.diagonal())
    for feature, target, value in zip(features, targets.tolist(), nll.tolist()):
        assert value == pytest.approx(literal(model, feature, target), abs=1e-12)


@pytest.mark.parametrize(("cutoffs", "tied"), KINDS)
def test_token_by_token_is_the_whole(cutoffs: tuple[int, ...], tied: bool) -> None:
    model = make(cutoffs, tied)
    tokens = text(2, 22)
    reset = no_resets(tokens)
    reset[1, 9] = True
    targets = tokens.roll(-1, dims=1)
    whole = model(tokens, reset, model.initial_state(2), targets)

    state = model.core.with_cache(model.initial_state(2))
    losses = []
    with torch.no_grad():
        for step in range(tokens.shape[1]):
            now = slice(step, step + 1)
            output = model(tokens[:, now], reset[:, now], state)
            state = output.state
            losses.append(-output.log_probs[:, 0].gather(1, targets[:, now]))
    assert_same(torch.cat(losses, dim=1), whole.nll)


def test_ignored_targets_have_no_loss_and_no_gradient() -> None:
    """The second row alone has the same losses and gradients as both rows with targets in the second alone."""
    model = make((4, 7))
    tokens = text(2, 8)
    targets = tokens.clone()
    targets[0] = IGNORE
    output = model(tokens, no_resets(tokens), model.initial_state(2), targets)
    assert output.log_probs is None
    assert (output.nll[0] == 0).all()

    second = tokens[1:]
    alone = model(second, no_resets(second), model.initial_state(1), second)
    assert_same(output.nll[1:], alone.nll)
    (gradient,) = torch.autograd.grad(output.nll.sum(), model.softmax.bias)
    (expected,) = torch.autograd.grad(alone.nll.sum(), model.softmax.bias)
    assert_same(gradient, expected)


def test_every_parameter_learns_whatever_tokens_come() -> None:
    """Learners that share a batch sum gradients by position: none may be missing where a cluster has no target."""
    model = make((4, 7), tied=False)
    tokens = torch.zeros(1, 24, dtype=torch.int64)
    output = model(tokens, no_resets(tokens), model.initial_state(1), tokens)
    (output.nll.mean() + sum_losses(output)).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_sizes_of_memory_may_change() -> None:
    model = make()
    larger = model.resized(memory_size=8, compressed_size=2)
    assert model.initial_state(1).memory[0].shape[1] == 4
    assert larger.initial_state(1).memory[0].shape[1] == 8

    tokens = text(1, 40)
    nll = model(tokens, no_resets(tokens), model.initial_state(1), tokens).nll
    nll_of_larger = larger(tokens, no_resets(tokens), larger.initial_state(1), tokens).nll
    assert not torch.equal(nll, nll_of_larger)


def test_cross_entropy_agrees_and_is_float32_under_autocast() -> None:
    model = make().float()
    tokens = text(2, 8)
    reset = no_resets(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(tokens, reset, model.initial_state(2), tokens)
    assert mixed.nll.dtype == torch.float32

    log_probs = model(tokens, reset, model.initial_state(2)).log_probs
    expected = F.cross_entropy(log_probs.flatten(0, 1), tokens.flatten(), reduction="none")
    nll = model(tokens, reset, model.initial_state(2), tokens).nll
    assert_same(nll.flatten(), expected, 1e-5)


def test_impossible_models_and_calls_are_refused() -> None:
    model = make()
    tokens = text(1, 4)
    with pytest.raises(ValueError, match=r"cutoffs: expected ascending numbers between 0 and 5, got \(3, 2\)"):
        SequenceModel(make_core(LSTMConfig(SIZE)), 5, cutoffs=(3, 2))
    with pytest.raises(ValueError, match="memory_size: expected a core with a memory, got LSTM"):
        SequenceModel(make_core(LSTMConfig(SIZE)), 5).resized(memory_size=8)
    with pytest.raises(ValueError, match=r"tokens: expected int64 \[B, T\], got torch.float32 \[1, 4\]"):
        model(tokens.float(), no_resets(tokens), model.initial_state(1))
    with pytest.raises(ValueError, match=r"targets: expected int64 \[1, 4\], got torch.int64 \[1, 3\]"):
        model(tokens, no_resets(tokens), model.initial_state(1), tokens[:, :3])


def test_a_text_model_is_made_as_configured() -> None:
    config = TextModelConfig(LSTMConfig(SIZE), cutoffs=(5, 9), divisor=2, tied=False, dropout=0.25)
    model = make_model(config, 12)
    expected = SequenceModel(make_core(config.core), 12, (5, 9), divisor=2, tied=False)
    shapes = [parameter.shape for parameter in model.parameters()]
    assert shapes == [parameter.shape for parameter in expected.parameters()]
    assert model.dropout == 0.25


def test_dropout_is_that_of_embeddings_and_features() -> None:
    """While training: of the core's inputs, and of its features before the softmax. The core has its own."""
    model = make().train()
    model.dropout = 0.5
    seen: dict[str, Tensor] = {}
    model.core.register_forward_pre_hook(lambda _, arguments: seen.update(inputs=arguments[0]))
    model.core.register_forward_hook(lambda *call: seen.update(features=call[-1].features))
    tokens = text(3, 8)
    embedded = model.embedding(tokens)
    log_probs = model(tokens, no_resets(tokens), model.initial_state(3)).log_probs
    kept = seen["inputs"] != 0
    assert 0.3 < kept.double().mean() < 0.7
    torch.testing.assert_close(seen["inputs"], 2 * embedded * kept)
    of_all_features = model.softmax.log_probs(seen["features"], model.embedding)
    assert not torch.allclose(log_probs, of_all_features)

    model.eval()
    model(tokens, no_resets(tokens), model.initial_state(3))
    assert torch.equal(seen["inputs"], embedded)
