"""Configurations of the cores. Nothing here imports torch, so that a command line can be read quickly."""

import ast
import re
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal, NamedTuple

from .fields import Checked, Decay, Layers, Range, Size, Slots

Sizes = Slots | tuple[Slots, ...]
"""One number for all layers, or one for each layer."""


class LayerSizes(NamedTuple):
    """Slots of a layer: segment n_s, memory n_m, compressed memory n_cm; and its compression rate c."""

    segment: int
    memory: int
    compressed: int
    rate: int

    @property
    def slots(self) -> int:
        """Number of slots that the last step of a segment can attend to."""
        return self.compressed + self.memory + self.segment

    @property
    def by_kind(self) -> tuple[int, int, int]:
        """Slots in their order in attention weights."""
        return self.compressed, self.memory, self.segment

    @property
    def stored(self) -> tuple[int, ...]:
        """Slots as the state has them."""
        return self.segment, self.memory, self.compressed

    @property
    def reach(self) -> int | None:
        """How many steps before the segment are visible to every step of it."""
        return self.memory + self.rate * self.compressed


class RoutedSizes(NamedTuple):
    """Slots of a layer: segment n_s, memory n_m; and routing groups G, clusters k and the window w of each cluster."""

    segment: int
    memory: int
    groups: int
    clusters: int
    window: int

    @property
    def older(self) -> int:
        """Number of slots that are older than memory."""
        return self.groups * self.clusters * self.window

    @property
    def slots(self) -> int:
        """Number of slots in the state; a head attends to those of one cluster of its group."""
        return self.older + self.memory + self.segment

    @property
    def by_kind(self) -> tuple[int, int, int]:
        """Slots in their order in attention weights."""
        return self.older, self.memory, self.segment

    @property
    def stored(self) -> tuple[int, ...]:
        """Slots as the state has them."""
        return tuple(self)

    @property
    def reach(self) -> int | None:
        """How many steps before the segment are visible to every step of it; None with clusters, whose members do not
        age."""
        if self.window:
            return None
        return self.memory


@dataclass(frozen=True)
class TransformerConfig(Checked):
    """Sizes and variants that all transformers with a memory share."""

    model_size: Size = 256
    """Features of inputs, outputs and memory slots (D)."""
    num_layers: Layers = 4
    """Layers (L)."""
    num_heads: Layers = 8
    """Attention heads of each layer (H); divides model_size."""
    mlp_size: Size = 1024
    """Hidden features of each layer's MLP."""
    segment_size: Size = 64
    """Steps processed in parallel before they enter memory (n_s)."""
    memory_size: Sizes = 64
    """Slots of uncompressed memory (n_m), one number or one for each layer."""
    _: KW_ONLY
    norm: Literal["pre", "post"] = "post"
    """Layer normalization before each sub-layer, or after the residual sum as in Algorithm 1."""
    gate: Literal["residual", "gru"] = "residual"
    """How a sub-layer's output joins the stream: sum, or GTrXL's GRU gate (Parisotto et al. 2019)."""
    dropout: Decay = 0.0
    """Dropout on the output of each sub-layer while training. Actors run without it. So the learner's policy differs
    from the behavior policy even at equal weights, and importance weights differ from 1 from the first update."""
    clock: bool = False
    """Add a sinusoidal encoding of the step's number in its episode, through a linear layer, to the inputs. Attention
    alone knows distances only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_size % self.num_heads:
            raise ValueError(f"model_size: expected a multiple of num_heads = {self.num_heads}, got {self.model_size}")
        if self.model_size % 2:
            raise ValueError(f"model_size: expected an even number (sines and cosines), got {self.model_size}")

    @property
    def layer_sizes(self) -> tuple["LayerSizes | RoutedSizes", ...]:
        """The sizes of each layer."""
        raise NotImplementedError

    def by_layer(self, name: str) -> tuple[int, ...]:
        """The values of a field that has one number, or one for each layer.

        Raises:
            ValueError: if there are several numbers, but not one for each layer.
        """
        value = getattr(self, name)
        if not isinstance(value, (tuple, list)):
            return (value,) * self.num_layers
        if len(value) != self.num_layers:
            raise ValueError(f"{name}: expected one number or {self.num_layers} (num_layers), got {tuple(value)}")
        return tuple(value)


@dataclass(frozen=True)
class CompressiveTransformerConfig(TransformerConfig):
    """Sizes and variants of a Compressive Transformer; `compressed_size = 0` makes it a Transformer-XL."""

    compressed_size: Sizes = 64
    """Slots of compressed memory (n_cm), one number or one for each layer; 0 for none."""
    compression_rate: Size | tuple[Size, ...] = 4
    """Evicted memories that become one compressed slot (c), one number or one for each layer; divides segment_size."""
    compression: Literal["convolution", "dilated", "mean", "max", "most-used"] = "convolution"
    """Compression function."""
    compression_loss: Literal["attention", "autoencoding", "bptt", "none"] = "attention"
    """How the compression function is trained: attention reconstruction (Algorithm 2), auto-encoding, the task's
    gradient through time (BPTT), or not at all. The losses of functions without parameters are only reported."""
    compressed_position: Literal["slot", "time"] = "slot"
    """A compressed slot counts as one position, or as the c steps that it summarizes."""
    attention: Literal["sdpa", "flex"] = "sdpa"
    """Attention over a segment: scaled_dot_product_attention (on a CPU its formula, which is faster there), or
    FlexAttention (inside torch.compile, on a GPU)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for sizes in self.layer_sizes:
            if sizes.compressed and sizes.segment % sizes.rate:
                expected = f"a divisor of segment_size = {self.segment_size}"
                raise ValueError(f"compression_rate: expected {expected}, got {sizes.rate}")
        if self.attention == "flex" and self.compression == "most-used":
            raise ValueError("attention: expected sdpa with most-used compression, which needs the weights, got 'flex'")

    @property
    def layer_sizes(self) -> tuple[LayerSizes, ...]:
        """The sizes of each layer."""
        memory = self.by_layer("memory_size")
        compressed = self.by_layer("compressed_size")
        rate = self.by_layer("compression_rate")
        sizes = []
        for layer in range(self.num_layers):
            sizes_of_layer = LayerSizes(self.segment_size, memory[layer], compressed[layer], rate[layer])
            sizes.append(sizes_of_layer)
        return tuple(sizes)


@dataclass(frozen=True)
class TransformerXLConfig(CompressiveTransformerConfig):
    """Transformer-XL: more memory in place of compressed memory. The compression fields keep their defaults."""

    memory_size: Sizes = 128
    """Slots of memory (n_m), one number or one for each layer."""
    compressed_size: Sizes = 0
    """Always 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("compressed_size", "compression", "compression_loss", "compression_rate", "compressed_position"):
            default = getattr(TransformerXLConfig, name)
            value = getattr(self, name)
            # One number for all layers, or one for each.
            values = [value]
            if isinstance(value, tuple | list):
                values = list(value)
            if any(each != default for each in values):
                expected = f"{default!r} for Transformer-XL, which compresses nothing"
                raise ValueError(f"{name}: expected {expected}, got {value!r}")


@dataclass(frozen=True)
class GatedTransformerXLConfig(TransformerXLConfig):
    """GTrXL (Parisotto et al. 2019): Transformer-XL with the norm at the input of each sub-layer, and GRU gates."""

    norm: Literal["pre", "post"] = "pre"
    """Layer normalization before each sub-layer, as in GTrXL, or after it."""
    gate: Literal["gru"] = "gru"
    """Always gru."""


@dataclass(frozen=True)
class RoutingTransformerConfig(TransformerConfig):
    """A causal Routing Transformer: what leaves memory is filed by content. docs/routing.md explains it.

    Give each head at least three features (model_size / num_heads). Layer norm leaves two different unit vectors of two
    features, and one of one feature: no more clusters than these would be used.
    """

    window: Sizes = 64
    """Slots of each cluster (w), one number or one for each layer; 0 for none, which is a layer of Transformer-XL."""
    clusters: Size | tuple[Size, ...] = 8
    """Clusters of each group (k), one number or one for each layer. A step attends to one of them."""
    groups: Size = 1
    """Groups of heads that choose a cluster each (G); divides num_heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_heads % self.groups:
            raise ValueError(f"groups: expected a divisor of num_heads = {self.num_heads}, got {self.groups}")
        _ = self.layer_sizes  # raises a ValueError for numbers of another length than the layers

    @property
    def layer_sizes(self) -> tuple[RoutedSizes, ...]:
        """The sizes of each layer."""
        memory = self.by_layer("memory_size")
        clusters = self.by_layer("clusters")
        window = self.by_layer("window")
        return tuple(
            RoutedSizes(self.segment_size, memory[layer], self.groups, clusters[layer], window[layer])
            for layer in range(self.num_layers)
        )


@dataclass(frozen=True)
class LSTMConfig(Checked):
    """An LSTM with residual connections between its layers."""

    model_size: Size = 256
    """Features of inputs, outputs and of each layer's state."""
    num_layers: Layers = 1
    """Layers."""
    keep_bias: Annotated[float, Range(-100, 100)] = 1.0
    """Added to the first bias of the gate that keeps the state: sigmoid(1) = 73 % of it a step, as IMPALA's LSTM. With
    more it begins with a longer memory."""


@dataclass(frozen=True)
class GRUConfig(LSTMConfig):
    """A GRU with residual connections between its layers."""


@dataclass(frozen=True)
class BlocksConfig(Checked):
    """Sizes of cores of MLP blocks as in a transformer, with or without a recurrence between them."""

    model_size: Size = 256
    """Features of inputs and outputs."""
    num_layers: Layers = 2
    """Layers."""
    mlp_size: Size = 1024
    """Hidden features of each layer's MLP."""


@dataclass(frozen=True)
class MemorylessConfig(BlocksConfig):
    """A residual MLP that sees one step at a time."""


@dataclass(frozen=True)
class MinGRUConfig(BlocksConfig):
    """minGRU layers between the transformer's MLP blocks: a recurrence that is computed for all steps at once."""

    keep_bias: Annotated[float, Range(-100, 100)] = 1.0
    """Added to the first bias of the gate that keeps the state: sigmoid(1) = 73 % of it a step."""


@dataclass(frozen=True)
class LRUConfig(BlocksConfig):
    """Linear recurrent units (Orvieto et al. 2023) between MLP blocks: each feature forgets at a rate of its own."""

    least_decay: Annotated[float, Range(0, 0.99999)] = 0.9
    """Least absolute value of the first decays, a step."""
    most_decay: Annotated[float, Range(0, 0.99999)] = 0.999
    """Greatest absolute value of the first decays, a step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least_decay >= self.most_decay:
            expected = f"more than least_decay = {self.least_decay}"
            raise ValueError(f"most_decay: expected {expected}, got {self.most_decay}")


@dataclass(frozen=True)
class FFMConfig(BlocksConfig):
    """Fast and Forgetful Memory (Morad et al. 2023) between MLP blocks: sums of the past that fade and turn."""

    num_layers: Layers = 1
    """Layers."""
    traces: Size = 32
    """Sums of the past in each layer (m), each of which fades at a rate of its own."""
    contexts: Size = 4
    """Angles by which each of them turns (c), so that it is known when something was."""
    span: Annotated[int, Range(2, 2**24)] = 1024
    """Steps after which the slowest trace has faded to 1 %, and the slowest turn is complete, at the beginning."""
    spacing: Literal["geometric", "even"] = "geometric"
    """How the first rates of fading and periods of turning are spaced: with equal ratios, so that there are as many
    short as long ones, or evenly, as in the authors' code."""


@dataclass(frozen=True)
class DeltaNetConfig(BlocksConfig):
    """Gated DeltaNet (Yang et al. 2024) between MLP blocks: a matrix of associations for each head."""

    num_heads: Size = 4
    """Heads (H); divides model_size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_size % self.num_heads:
            raise ValueError(f"num_heads: expected a divisor of model_size = {self.model_size}, got {self.num_heads}")


@dataclass(frozen=True)
class WaveNetConfig(Checked):
    """WaveNet, a baseline for waveforms: stacks of layers whose dilations double, 1, 2, 4, ..., and again from 1."""

    model_size: Size = 64
    """Features of inputs, outputs and of the residual stream (D)."""
    num_layers: Layers = 30
    """Layers (N)."""
    stack_layers: Layers = 10
    """Layers until the dilation begins at 1 again (n): layer i has dilation 2^(i mod n)."""
    kernel_size: Annotated[int, Range(1, 64)] = 2
    """Taps of each layer: the present step and earlier ones at distances of `dilation`."""
    gate_size: Size = 64
    """Features of each layer's tanh, and as many of its sigmoid."""
    skip_size: Size = 256
    """Features of the sum over layers, from which the output is computed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.receptive_field > 2**24:
            got = f"{self.num_layers} layers in stacks of {self.stack_layers}"
            raise ValueError(f"stack_layers: expected a receptive field of at most 2^24 steps, got {got}")

    @property
    def dilations(self) -> tuple[int, ...]:
        """The dilation of each layer."""
        return tuple(2 ** (layer % self.stack_layers) for layer in range(self.num_layers))

    @property
    def receptive_field(self) -> int:
        """Steps that an output depends on, its own included."""
        return 1 + (self.kernel_size - 1) * sum(self.dilations)


CoreConfig = (
    CompressiveTransformerConfig
    | TransformerXLConfig
    | GatedTransformerXLConfig
    | RoutingTransformerConfig
    | LSTMConfig
    | GRUConfig
    | MinGRUConfig
    | LRUConfig
    | FFMConfig
    | DeltaNetConfig
    | MemorylessConfig
)
"""The configuration of any core in `CORES`."""

CORES: dict[str, type[CoreConfig]] = {
    "compressive": CompressiveTransformerConfig,
    "transformer-xl": TransformerXLConfig,
    "gated-transformer-xl": GatedTransformerXLConfig,
    "routing": RoutingTransformerConfig,
    "lstm": LSTMConfig,
    "gru": GRUConfig,
    "mingru": MinGRUConfig,
    "lru": LRUConfig,
    "ffm": FFMConfig,
    "deltanet": DeltaNetConfig,
    "memoryless": MemorylessConfig,
}
"""The cores of agents and sequence models by name, as the type of their configuration; `cores.py` has the classes."""


@dataclass(frozen=True)
class CustomCoreConfig(Checked):
    """A core that is not in this package: a class of the user's, made as `Class(model_size=SIZE, NAME=VALUE, ...)`."""

    name: str
    """Where the class is, MODULE:CLASS."""
    model_size: Size = 256
    """Features of inputs and outputs (D)."""
    arguments: tuple[str, ...] = ()
    """Other arguments of the class, NAME=VALUE each; values are written as in Python, and all else is text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", self.name):
            raise ValueError(f"name: expected MODULE:CLASS, got {self.name!r}")
        names = ["model_size"]
        for argument in self.arguments:
            name, equals, _ = argument.partition("=")
            if not equals or not name.isidentifier():
                raise ValueError(f"arguments: expected NAME=VALUE, got {argument!r}")
            if name in names:
                raise ValueError(f"arguments: expected each name once, and no model_size, got {argument!r}")
            names.append(name)
        if type(self.segment_size) is not int or self.segment_size < 1:
            raise ValueError(f"arguments: expected a segment_size of 1 or more steps, got {self.segment_size!r}")

    @property
    def module(self) -> str:
        """The module of the class."""
        module, _, _ = self.name.partition(":")
        return module

    @property
    def keywords(self) -> dict[str, Any]:
        """What the class is called with: values as in Python, true and false also in small letters, else text."""
        found: dict[str, Any] = {"model_size": self.model_size}
        for argument in self.arguments:
            name, _, text = argument.partition("=")
            found[name] = text
            if text in ("true", "false"):
                text = text.capitalize()
            # The last two errors are those of very deep nesting.
            with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                found[name] = ast.literal_eval(text)
        return found

    @property
    def segment_size(self) -> int:
        """Steps of a segment, of which unrolls have a multiple: the argument of this name, 1 if there is none."""
        return self.keywords.get("segment_size", 1)


AgentCoreConfig = CoreConfig | CustomCoreConfig
"""The configuration of any core of an agent."""


def is_custom(core: str) -> bool:
    """Whether the name of a core is that of a class outside of this package, MODULE:CLASS."""
    return ":" in core


def matched_cores(
    transformer: dict[str, Any],
    memory: int,
    compressed: int,
    rate: int = 4,
    baseline: int | None = None,
    recurrent_layers: int = 1,
) -> dict[str, CoreConfig]:
    """Every core at one size, by name, for presets that compare them.

    Args:
        transformer: sizes of the transformers; model_size, num_layers and mlp_size are those of the other cores too.
        memory, compressed, rate: of the Compressive Transformer.
        baseline: slots of Transformer-XL; if None, memory + compressed, which has the same attention cost.
        recurrent_layers: of LSTM, GRU and FFM.
    """
    size = transformer["model_size"]
    layers = transformer["num_layers"]
    mlp = transformer["mlp_size"]
    attended = memory + compressed
    slots = attended if baseline is None else baseline
    # A window of a half recalls no more than one of a quarter, and stores twice as many slots: docs/routing.md.
    window = max(1, attended // 4)
    return {
        "compressive": CompressiveTransformerConfig(
            **transformer, memory_size=memory, compressed_size=compressed, compression_rate=rate
        ),
        "transformer-xl": TransformerXLConfig(**transformer, memory_size=slots),
        "gated-transformer-xl": GatedTransformerXLConfig(**{**transformer, "norm": "pre"}, memory_size=slots),
        "routing": RoutingTransformerConfig(**transformer, memory_size=attended - window, window=window),
        "lstm": LSTMConfig(size, recurrent_layers),
        "gru": GRUConfig(size, recurrent_layers),
        "mingru": MinGRUConfig(size, layers, mlp),
        "lru": LRUConfig(size, layers, mlp),
        "ffm": FFMConfig(size, recurrent_layers, mlp),
        "deltanet": DeltaNetConfig(size, layers, mlp, transformer["num_heads"]),
        "memoryless": MemorylessConfig(size, layers, mlp),
    }
