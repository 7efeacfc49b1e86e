"""The language model's configuration. The network itself is `agent.language_model`, its core any of `agent.core`."""

from dataclasses import dataclass, field

from agent.core import CompressiveTransformerConfig, CoreConfig, make_core
from agent.fields import Checked, Decay, Size
from agent.language_model import SequenceModel
from agent.memory_check import build_network


@dataclass(frozen=True)
class TextModelConfig(Checked):
    """The network, apart from what the tokenizer decides (the vocabulary)."""

    core: CoreConfig = field(default_factory=CompressiveTransformerConfig)
    """The recurrent core."""
    cutoffs: tuple[Size, ...] = ()
    """Adaptive input and softmax: where clusters of rarer tokens begin (20000,40000,200000 for WikiText-103); none for
    one full softmax."""
    divisor: Size = 4
    """How much narrower the vectors of each cluster are than those of the one before."""
    tied: bool = True
    """One table of vectors for input and softmax."""
    dropout: Decay = 0.0
    """Dropout on embeddings and on the core's features while training; the core has its own."""


def make_model(config: TextModelConfig, vocabulary: int) -> SequenceModel:
    """The network for a vocabulary.

    Raises:
        ValueError: if the configuration is impossible for it.
    """
    sizes = vocabulary, config.cutoffs, config.divisor, config.tied, config.dropout
    return build_network(lambda: SequenceModel(make_core(config.core), *sizes), config)
