"""Learning from streams: the paper's schedule, what batches hold, and evaluation in one pass."""

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from agent.core import (
    CompressiveTransformerConfig,
    LSTMConfig,
    RoutingTransformerConfig,
    detach_state,
    index_state,
    make_core,
)
from learner.communicator import Communicator
from sequences.config import SequenceLearnerConfig
from sequences.learner import SequenceLearner, evaluate, score
from sequences.model import IGNORE, SequenceModel
from sequences.streams import Streams, one_pass
from tests.learner.test_group import together

VOCABULARY = 9
CORE = CompressiveTransformerConfig(8, 2, 2, 8, segment_size=4, memory_size=4, compressed_size=4, compression_rate=2)
CONFIG = SequenceLearnerConfig(
    batch_size=4, sequence_length=8, steps=12, learning_rate=1e-2, warmup_steps=2, decay_steps=10, late_start=None
)
WHOLE = dataclasses.replace(CONFIG, max_gradient_norm=None)
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 301).astype(np.uint8)
STARTS = np.array([0, 40, 41, 150, 211])


def make_model(core: Any = CORE, dtype: torch.dtype = torch.float32) -> SequenceModel:
    """A model that is new and always the same."""
    torch.manual_seed(0)
    return SequenceModel(make_core(core), VOCABULARY, cutoffs=(3,)).to(dtype)


def make_learner(**changes: Any) -> SequenceLearner:
    """A learner of `TOKENS` with other options."""
    source = Streams(TOKENS, 4, 8, STARTS)
    return SequenceLearner(make_model(), source, dataclasses.replace(CONFIG, **changes))


def weights(model: SequenceModel) -> torch.Tensor:
    """All weights as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_rows_of_streams_are_contiguous_from_step_to_step() -> None:
    source = Streams(TOKENS, rows=3, steps=7, starts=STARTS)
    batches = [source.next(step) for step in range(50)]
    for row, begin in enumerate((0, 100, 200)):
        tokens = torch.cat([batch.tokens[row] for batch in batches])
        targets = torch.cat([batch.targets[row] for batch in batches])
        reset = torch.cat([batch.reset[row] for batch in batches])

        # The row reads all tokens cyclically.
        expected = torch.from_numpy(np.resize(np.roll(TOKENS, -begin), 350).astype(np.int64))
        assert torch.equal(tokens, expected)
        assert torch.equal(targets[:-1], expected[1:])
        starts = (np.flatnonzero(reset) + begin) % len(TOKENS)
        assert set(starts) == set(STARTS)


def test_two_learners_have_the_rows_of_one() -> None:
    whole = Streams(TOKENS, 4, 7, STARTS).next(5)
    first = Streams(TOKENS, 4, 7, STARTS, (0, 2)).next(5)
    second = Streams(TOKENS, 4, 7, STARTS, (1, 2)).next(5)
    assert torch.equal(torch.cat([first.tokens, second.tokens]), whole.tokens)
    assert torch.equal(torch.cat([first.targets, second.targets]), whole.targets)
    assert torch.equal(torch.cat([first.reset, second.reset]), whole.reset)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("starts", [None, STARTS])
def test_one_pass_has_each_target_once(rows: int, starts: Any) -> None:
    kept = torch.cat([batch.targets for batch in one_pass(TOKENS, rows, 7, starts)], dim=1)
    found = torch.cat([row[row != IGNORE] for row in kept])
    assert torch.equal(found, torch.from_numpy(TOKENS[1:].astype(np.int64)))


def test_warm_up_and_cosine() -> None:
    """The paper's schedule: 4,000 steps of warm-up, and then 100,000 from the greatest rate to the least."""
    least = 1e-6
    greatest = 3e-4
    middle = (least + greatest) / 2
    rates = {0: least, 2_000: middle, 4_000: greatest, 54_000: middle, 104_000: least, 10**6: least}
    for step, rate in rates.items():
        assert SequenceLearnerConfig().learning_rate_at(step) == pytest.approx(rate)


def test_a_cosine_over_all_that_is_left() -> None:
    config = SequenceLearnerConfig(steps=300, warmup_steps=100, decay_steps=None, least_learning_rate=0.0)
    rates = [config.learning_rate_at(step) for step in (50, 100, 200, 300)]
    assert rates == pytest.approx([1.5e-4, 3e-4, 1.5e-4, 0.0])
    # Fewer steps than the warm-up has.
    assert SequenceLearnerConfig(steps=40, warmup_steps=100, decay_steps=None).learning_rate_at(40) < 3e-4


def test_updates_become_rarer() -> None:
    """From step 3 on an update has four steps; the last one has what is left of twelve."""
    learner = make_learner(late_start=3, late_accumulation_steps=4)
    taken = []
    while learner.step < 12:
        metrics = learner.update()
        taken.append(int(metrics["update/steps"]))
    assert taken == [1, 1, 1, 4, 4, 1]
    assert learner.tokens == 12 * 4 * 8


def test_the_optimizer_is_adam_as_it_is_configured() -> None:
    """Of other decays, and another epsilon, each: two updates end at weights of their own."""

    def trained(**changes: float) -> torch.Tensor:
        learner = make_learner(**changes)
        learner.update()
        learner.update()
        return weights(learner.model)

    usual = trained()
    assert torch.equal(trained(adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8), usual)
    for name, value in {"adam_beta1": 0.5, "adam_beta2": 0.9, "adam_epsilon": 1e-3}.items():
        assert not torch.allclose(trained(**{name: value}), usual), name


def test_an_update_of_several_steps_is_the_mean_of_their_gradients() -> None:
    """The literal algorithm: gradients of each step's loss at equal weights, averaged and clipped, and Adam."""
    learner = make_learner(accumulation_steps=3)
    literal = make_model()
    optimizer = torch.optim.Adam(literal.parameters(), lr=learner.config.learning_rate_at(2))
    state = literal.initial_state(4)
    for step in range(3):
        tokens, targets, reset = learner.source.next(step)
        output = literal(tokens, reset, state, targets)
        state = detach_state(output.state)  # the next step continues with this memory
        loss = output.nll.mean() + sum(own.value for own in output.losses.values())
        (loss / 3).backward()

    # Gradients of compression are clipped apart from all others.
    of_compression = list(literal.compression_parameters())
    ids = {id(parameter) for parameter in of_compression}
    others = [parameter for parameter in literal.parameters() if id(parameter) not in ids]
    torch.nn.utils.clip_grad_norm_(of_compression, 0.1)
    torch.nn.utils.clip_grad_norm_(others, 0.1)
    optimizer.step()

    learner.update()
    torch.testing.assert_close(weights(learner.model), weights(literal), rtol=0, atol=2e-5)


def literal_gradients(learner: SequenceLearner, parts: int = 1) -> dict[str, torch.Tensor]:
    """Of the learner's next batch: sums over the parts, each divided by the number of terms of the whole batch."""
    model = copy.deepcopy(learner.model)
    batch = learner.source.next(learner.step)
    model.zero_grad()
    outputs = []
    for rows in torch.arange(len(batch.tokens)).chunk(parts):
        tokens, targets, reset = index_state(batch, rows)
        outputs.append(model(tokens, reset, index_state(learner.state, rows), targets))
    loss = torch.cat([output.nll for output in outputs]).mean()
    for name in outputs[0].losses:
        own = [output.losses[name] for output in outputs]
        total = torch.stack([each.total for each in own]).sum(dim=0)
        count = torch.stack([each.count for each in own]).sum(dim=0)
        loss = loss + (total / count.clamp(min=1)).mean()
    loss.backward()
    return gradients(model)


def gradients(model: SequenceModel) -> dict[str, torch.Tensor]:
    """By the names of the parameters that have one."""
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_equal_gradients(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Also of the parameters that only the core's own losses train."""
    assert any("compress" in name or "router" in name for name in expected)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


ROUTING = RoutingTransformerConfig(8, 2, 2, 8, segment_size=4, memory_size=4, window=4, clusters=3)
OWN_LOSSES = {
    "attention": CORE,
    "autoencoding": dataclasses.replace(CORE, compression_loss="autoencoding"),
    "routing": ROUTING,
}
UNEVEN = np.array([0, 3, 6, 14, 21, 80, 85, 230])
"""Documents that begin inside of rows: the first of four rows has compressed less than the others."""


@pytest.mark.parametrize("core", OWN_LOSSES.values(), ids=OWN_LOSSES)
@pytest.mark.parametrize("learners", [1, 2])
def test_microbatches_have_the_gradients_of_the_whole_batch(core: Any, learners: int) -> None:
    """Also where a core's own losses have other numbers of terms in each part, and with several learners."""
    whole = SequenceLearner(make_model(core, torch.float64), Streams(TOKENS, 4, 8, UNEVEN), WHOLE)
    expected = []
    metrics = []
    for _ in range(3):
        expected.append(literal_gradients(whole))
        metrics.append(whole.update())
        assert_equal_gradients(gradients(whole.model), expected[-1])

    models = [
        make_model(core, torch.float64) for _ in range(learners)
    ]  # before the threads, which share random numbers

    def learn(comm: Communicator, rank: int) -> None:
        source = Streams(TOKENS, 4, 8, UNEVEN, (rank, comm.size))
        learner = SequenceLearner(models[rank], source, dataclasses.replace(WHOLE, microbatches=2), comm)
        for each, numbers in zip(expected, metrics):
            assert learner.update() == pytest.approx(numbers, abs=1e-9)
            assert_equal_gradients(gradients(learner.model), each)

    if learners == 1:
        learn(Communicator(), 0)
    else:
        together(learn)


def test_microbatches_count_with_the_dropout_that_they_learn_with() -> None:
    """Dropout decides which steps have terms in the losses of routing, so both passes draw the same masks."""
    core = dataclasses.replace(ROUTING, dropout=0.5)
    config = dataclasses.replace(WHOLE, microbatches=2)
    learner = SequenceLearner(make_model(core, torch.float64), Streams(TOKENS, 4, 8, UNEVEN), config)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = literal_gradients(learner, parts=2)
        torch.manual_seed(seed)
        learner.update()
        assert_equal_gradients(gradients(learner.model), expected)


def test_bfloat16_changes_little() -> None:
    plain = make_learner()
    mixed = make_learner(precision="bfloat16")
    for _ in range(4):
        expected = plain.update()["loss/nll"]
        assert mixed.update()["loss/nll"] == pytest.approx(expected, abs=0.05)


def test_what_is_not_finite_changes_nothing() -> None:
    learner = make_learner()
    learner.update()
    before = weights(learner.model)
    memory = learner.state
    with torch.no_grad():
        learner.model.softmax.bias[0] = math.nan
    with pytest.raises(FloatingPointError, match=r"step 2 is not finite: loss/nll = nan"):
        learner.update()
    assert learner.step == 1
    assert learner.state is memory
    assert (weights(learner.model) != before).sum() == 1, "the number that was set to NaN"


@pytest.mark.parametrize("core", [CORE, LSTMConfig(8)], ids=["compressive", "lstm"])
def test_a_streamed_evaluation_is_that_of_the_whole_text(core: Any) -> None:
    """Segments of any length, cached keys and values: the loss of one call over the whole text."""
    model = make_model(core, torch.float64)
    tokens = torch.from_numpy(TOKENS.astype(np.int64))[None]
    reset = torch.zeros(1, len(TOKENS), dtype=torch.bool)
    with torch.no_grad():
        whole = model(tokens[:, :-1], reset[:, :-1], model.initial_state(1), tokens[:, 1:]).nll.sum()
    for steps in (1, 4, 7, 300):
        total = evaluate(model, one_pass(TOKENS, 1, steps))
        assert total.count == len(TOKENS) - 1
        assert total.nll == pytest.approx(float(whole), abs=1e-9)


def test_the_loss_of_a_document_does_not_depend_on_its_row() -> None:
    model = make_model(dtype=torch.float64)

    def losses(rows: int) -> torch.Tensor:
        """The losses of all tokens in their order, however many rows they were read in."""
        targets = []
        found = []
        for batch, nll in score(model, one_pass(TOKENS, rows, 8, STARTS)):
            targets.append(batch.targets)
            found.append(nll)
        is_target = torch.cat(targets, dim=1) != IGNORE
        return torch.cat(found, dim=1)[is_target]  # row after row

    for rows in (2, 5):
        torch.testing.assert_close(losses(rows), losses(1), rtol=0, atol=1e-10)


def test_evaluation_leaves_the_model_and_random_numbers_alone() -> None:
    model = make_model(dataclasses.replace(CORE, dropout=0.5)).train()
    before = torch.get_rng_state()
    first = evaluate(model, one_pass(TOKENS, 2, 8))
    second = evaluate(model, one_pass(TOKENS, 2, 8))
    assert first == second
    assert model.training
    assert torch.equal(before, torch.get_rng_state())


def test_two_learners_are_one() -> None:
    """And one learner resumes from the state of two."""
    config = dataclasses.replace(CONFIG, late_start=3, late_accumulation_steps=2, max_gradient_norm=0.5)
    models = [make_model(dtype=torch.float64) for _ in range(2)]

    def learn(comm: Communicator, rank: int) -> tuple[list[dict[str, float]], dict[str, Any]]:
        learner = SequenceLearner(models[rank], Streams(TOKENS, 4, 8, STARTS, (rank, 2)), config, comm)
        return [learner.update() for _ in range(6)], learner.state_dict()

    whole = Streams(TOKENS, 4, 8, STARTS)
    alone = SequenceLearner(make_model(dtype=torch.float64), whole, config)
    expected = [alone.update() for _ in range(6)]
    for metrics, state in together(learn):
        assert metrics == [pytest.approx(each, abs=1e-9) for each in expected]
        torch.testing.assert_close(state["weights"], alone.weights(), rtol=0, atol=1e-9)

    resumed = SequenceLearner(make_model(dtype=torch.float64), whole, config)
    resumed.load_state_dict(state)
    assert resumed.update() == pytest.approx(alone.update(), abs=1e-9)


def test_a_least_rate_above_the_rate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"least_learning_rate: expected 0 to learning_rate, got 1\.0"):
        dataclasses.replace(CONFIG, least_learning_rate=1.0)


def test_sources_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"expected more than the 4 x 8 of one batch \(batch size x sequence length\), got 32"
    ):
        Streams(TOKENS[:32], 4, 8)
    with pytest.raises(ValueError, match="rows: expected a multiple of the 3 learners, got 4"):
        Streams(TOKENS, 4, 8, shard=(0, 3))
