"""Measures against hand-computed examples, and analyses against sums over what they split up."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agent.core import CompressiveTransformerConfig, CoreOutput, LSTMConfig, make_core
from sequences.config import SequenceLearnerConfig
from sequences.learner import Total, evaluate
from sequences.model import IGNORE, SequenceModel
from sequences.streams import count_tokens, one_pass
from sequences.text import evaluation
from sequences.text.tokenization import Bytes, Words
from sequences.text.tokens import Split

VOCABULARY = 7
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 400).astype(np.uint8)
STARTS = np.array([0, 90, 200])
SPLIT = Split(TOKENS, STARTS, 397, 50)
SLOTS = [1] * 6 + [2] * 6 + [1, 1, 2, 1, 1, 2]
"""Slots of each bucket of attention: there are 6 of compressed memory, 12 of memory and 8 of the segment."""


def make_model(core: Any = None, **fields: Any) -> SequenceModel:
    """A model that is always the same, with another core or with other fields of the usual one."""
    torch.manual_seed(0)
    sizes = {"segment_size": 8, "memory_size": 12, "compressed_size": 6, "compression_rate": 2}
    config = core or CompressiveTransformerConfig(8, 2, 2, 8, **{**sizes, **fields})
    return SequenceModel(make_core(config), VOCABULARY)


class TestArithmetic:
    def test_perplexity_is_normalized_by_the_words_of_the_data_set(self) -> None:
        """PG-19's 33.6 on test is a loss of ln(33.6) x 6,966,499 nats, whatever the number of subwords."""
        assert evaluation.perplexity(math.log(33.6) * 6_966_499, 6_966_499) == pytest.approx(33.6)
        assert evaluation.bits_per_character(100 * math.log(4), 100) == pytest.approx(2.0), "a uniform model of 4"

    @pytest.mark.parametrize(
        ("tokenizer", "prescribed", "perplexity"),
        [(Bytes(), False, 16.0), (Words(["<eos>", "<unk>"]), False, 4.0), (Words(["<eos>", "<unk>"]), True, 16.0)],
    )
    def test_summary(self, tokenizer: Any, prescribed: bool, perplexity: float) -> None:
        """Six targets of 2 ln 2 nats are 12 bits: 1.5 for each of 8 bytes. Perplexity is 2^(12 / words).

        Words are the 3 of the text if their number is published or tokens are bytes, else the 6 targets.
        """
        split = SPLIT._replace(bytes=8, words=3, prescribed=prescribed)
        found = evaluation.summary(Total(12 * math.log(2), 6), split, tokenizer)
        assert found["nats_per_token"] == pytest.approx(2 * math.log(2))
        assert found["word_perplexity"] == pytest.approx(perplexity)
        bits_per_byte = 1.5 if isinstance(tokenizer, Bytes) else None
        assert found.get("bits_per_byte") == bits_per_byte

    def test_a_summary_of_text_without_words_or_bytes_is_finite(self) -> None:
        found = evaluation.summary(Total(2.0, 2), SPLIT._replace(bytes=0, words=0), Bytes())
        assert found["word_perplexity"] == pytest.approx(math.exp(2.0))
        assert math.isfinite(found["bits_per_byte"])

    def test_the_first_tokens_of_a_split(self) -> None:
        """A quarter of the 400 tokens has a quarter of the bytes and words."""
        first = SPLIT.first(100)
        assert len(first.tokens) == 100
        assert first.starts.tolist() == [0, 90]
        assert first.bytes == round(397 / 4)
        assert first.words == round(50 / 4)
        assert SPLIT.first(None) is SPLIT.first(400) is SPLIT


class Uniform(torch.nn.Module):
    """A core without features: the model's softmax is uniform."""

    config = LSTMConfig(4)

    def initial_state(self, batch_size: int) -> tuple[Tensor]:
        return (torch.zeros(batch_size, 1),)

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        return CoreOutput(torch.zeros_like(inputs), state, {})

    def with_cache(self, state: Any) -> Any:
        return state


def test_a_uniform_model_has_the_size_of_the_vocabulary_as_perplexity() -> None:
    model = SequenceModel(Uniform(), VOCABULARY)
    total = evaluate(model, one_pass(TOKENS, 3, 16))
    assert total.count == 399
    assert evaluation.perplexity(total.nll, total.count) == pytest.approx(VOCABULARY)


def test_targets_are_counted_by_token() -> None:
    counts = count_tokens(TOKENS[1:], VOCABULARY, block=64)
    assert counts.tolist() == np.bincount(TOKENS[1:], minlength=VOCABULARY).tolist()


def test_losses_by_frequency_have_the_buckets_of_the_paper() -> None:
    """The frequencies in training are those at the bounds of the buckets; two tokens are in each but the first."""
    model = SequenceModel(Uniform(), VOCABULARY)
    in_training = np.array([5, 99, 100, 999, 1000, 10_000, 10_001])
    buckets = evaluation.by_frequency(model, one_pass(TOKENS, 3, 16), in_training)
    assert list(buckets) == ["> 10000", "1000 to 10000", "100 to 999", "< 100"], "the paper's first is more than 10,000"
    counts = np.bincount(TOKENS[1:], minlength=VOCABULARY)
    expected = [counts[6], counts[4] + counts[5], counts[2] + counts[3], counts[0] + counts[1]]
    assert [bucket.count for bucket in buckets.values()] == expected
    for bucket in buckets.values():
        assert bucket.mean == pytest.approx(math.log(VOCABULARY))


class TestParts:
    """The parts of an analysis against loops over all steps."""

    @pytest.mark.parametrize("starts", [None, STARTS])
    def test_by_position(self, starts: Any) -> None:
        """Positions are counted from the start of a document or, without documents, of a row; they begin at 1.

        A part has the positions from `begin` to 2 begin - 1.
        """
        spans = [200, 199] if starts is None else [90, 110, 199]
        for begin, part in evaluation.by_position(make_model(), one_pass(TOKENS, 2, 16, starts)):
            expected = 0
            for span in spans:
                last = min(span, 2 * begin - 1)
                expected += max(0, last - begin + 1)
            assert part.count == expected

    @pytest.mark.parametrize("starts", [None, STARTS])
    def test_attention_is_that_of_real_steps(self, starts: Any) -> None:
        """Of three rows one ends before the others. What follows its end does not count."""
        model = make_model().eval()
        expected = []
        batches = list(one_pass(TOKENS, 3, 8, starts))
        state = model.initial_state(len(batches[0].tokens))
        for batch in batches:
            with torch.no_grad():
                output = model(batch.tokens, batch.reset, state, return_attention=True)
            state = output.state
            weights = torch.stack(output.attention).mean(dim=(0, 2))  # over layers and heads
            for row, targets in zip(weights, batch.targets):
                real_steps = row[targets != IGNORE]
                if len(real_steps) > 0:
                    by_slot = real_steps.mean(dim=0).double()
                    by_bucket = [bucket.sum() for bucket in by_slot.split(SLOTS)]
                    expected.append(torch.stack(by_bucket).numpy())
        found = evaluation.attention(model, one_pass(TOKENS, 3, 8, starts))
        assert found["mean"] == pytest.approx(np.mean(expected, axis=0))
        assert found["error"] == pytest.approx(np.std(expected, axis=0, ddof=1) / len(expected) ** 0.5)
        assert found["kinds"] == ["compressed"] * 6 + ["memory"] * 6 + ["segment"] * 6

    def test_attention_over_one_segment_has_no_error(self) -> None:
        found = evaluation.attention(make_model().eval(), one_pass(TOKENS[:6], 1, 8))
        assert found["error"] == [None] * 18

    def test_without_memory_all_attention_is_on_the_segment(self) -> None:
        alone = evaluation.attention(make_model(memory_size=0, compressed_size=0), one_pass(TOKENS, 1, 8))
        assert sum(alone["mean"][12:]) == pytest.approx(1.0)


def test_compression_loss_by_layer_is_the_cores_own() -> None:
    """A mean over the batches that begin with full memories, by a plain loop."""
    model = make_model().eval()
    full_after = 12 + 2 * 6  # memory, and compressed memory of two tokens a slot
    expected = []
    seen = 0
    state = model.initial_state(1)
    for batch in one_pass(TOKENS, 1, 8):
        output = model(batch.tokens, batch.reset, state, batch.targets)
        state = output.state
        seen += 8
        if seen > full_after:
            expected.append([float(loss.value.detach()) for loss in output.losses.values()])
    found = evaluation.compression_loss(model, one_pass(TOKENS, 1, 8))
    assert list(found) == ["compression/layer_0", "compression/layer_1"]
    assert list(found.values()) == pytest.approx(np.mean(expected, axis=0).tolist())


def test_compression_loss_is_not_that_of_empty_segments() -> None:
    """Documents of five segments compress three times: memory has room for a segment and a half."""
    model = make_model().eval()
    tokens = np.concatenate([TOKENS[:40]] * 20)
    starts = np.arange(20) * 40
    found = evaluation.compression_loss(model, one_pass(tokens, 1, 8, starts))

    values = []
    state = model.initial_state(1)
    for number, batch in enumerate(one_pass(tokens, 1, 8, starts)):
        output = model(batch.tokens, batch.reset, state, batch.targets)
        state = output.state
        losses = list(output.losses.values())
        if number >= 3 and losses[0].count.sum():
            totals = [float(loss.total.sum().detach()) for loss in losses]
            values.append([*totals, float(losses[0].count.sum())])
        if number >= 3 and number % 5 == 0:
            assert not losses[0].count.sum(), "nothing to compress at the start of a document"
    first, second, terms = np.sum(values, axis=0)
    assert list(found.values()) == pytest.approx([first / terms, second / terms])


@pytest.mark.parametrize("analysis", [evaluation.compression_loss, evaluation.attention])
def test_cores_without_attention_are_refused(analysis: Any) -> None:
    with pytest.raises(ValueError, match="core: expected one with attention, got LSTM"):
        analysis(make_model(LSTMConfig(8)), one_pass(TOKENS, 1, 8))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_analyses_add_up_in_the_precision_of_the_whole(precision: str) -> None:
    model = make_model()

    def batches() -> Any:
        return one_pass(TOKENS, 2, 16)

    total = evaluate(model, batches(), precision)
    is_default = total == evaluate(model, batches())
    assert is_default == (precision == "float32")

    counts = np.array([1, 10, 500, 2000, 50_000, 3, 700])
    frequencies = evaluation.by_frequency(model, batches(), counts, precision).values()
    assert sum(part.nll for part in frequencies) == pytest.approx(total.nll, rel=1e-12)
    assert sum(part.count for part in frequencies) == total.count

    positions = evaluation.by_position(model, batches(), precision)
    assert sum(part.nll for _, part in positions) == pytest.approx(total.nll, rel=1e-12)

    config = SequenceLearnerConfig(precision=precision)
    still = evaluation.dynamic(model, batches(), config, 1e-30)
    assert still.nll == pytest.approx(total.nll, rel=1e-7)


def test_dynamic_evaluation_scores_before_it_learns() -> None:
    """With a rate near 0 it is plain evaluation. With a larger rate a text that repeats itself becomes easy."""
    config = SequenceLearnerConfig(batch_size=2, sequence_length=8, max_gradient_norm=None)
    text = np.resize(np.array([1, 2, 3, 4], np.uint8), 200)

    def batches() -> Any:
        return one_pass(text, 2, 8)

    still = evaluation.dynamic(make_model(dropout=0.3), batches(), config, 1e-30)
    assert still.nll == pytest.approx(evaluate(make_model(dropout=0.3), batches()).nll, rel=1e-5)
    moving = evaluation.dynamic(make_model(), batches(), config, 3e-2)
    assert moving.count == still.count == 199
    assert moving.mean < 0.8 * still.mean


@pytest.mark.parametrize(
    "changes", [{"accumulation_steps": 2}, {"late_start": 0, "late_accumulation_steps": 2}, {"microbatches": 2}]
)
def test_dynamic_evaluation_learns_from_each_batch_alone(changes: Any) -> None:
    """However the model was trained: with several batches an update it would learn from what it has not scored yet."""
    config = SequenceLearnerConfig(batch_size=2, sequence_length=8, max_gradient_norm=None)
    text = np.resize(np.array([1, 2, 3, 4], np.uint8), 200)

    def measured(config: SequenceLearnerConfig) -> float:
        return evaluation.dynamic(make_model(), one_pass(text, 2, 8), config, 3e-2).nll

    assert measured(dataclasses.replace(config, **changes)) == pytest.approx(measured(config), rel=1e-4)
