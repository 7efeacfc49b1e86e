"""Observations of all spaces in the forms that agents know: images, a vector, and the words of a text.

`shown_as` makes of any space one of

1. a Box: an image, uint8 [height, width, channels], or a vector, float32 [features];
2. a Tuple of at least two of these, if a nest has several images, or images and numbers. Each image is a part of its
   own; all numbers together are one vector, the last part;
3. a Dict of 1 or 2 as "image" and the words of all texts as "instruction", int64 [words], see `envs.words`.
"""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeGuard

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from numpy.typing import NDArray

from envs.masks import MASK
from envs.outputs import MOST_NUMBERS, NUMERIC, Place, at, expression, label, leaves, line
from envs.vectors import batch_flattener, flattener
from envs.words import PAIR_VOCABULARY, beginning, hash_pairs, split_words

logger = logging.getLogger(__name__)

Env = gymnasium.Env[Any, Any]
Convert = Callable[[Any], Any]
MOST_WORDS = 32
"""Most words of an instruction that are kept."""
NUMBERS_NAME = "numbers"
"""Name of the part that is a vector."""
LARGEST_SHRINK = 64
"""Images can be made smaller by up to so many times a side."""
MOST_NAMED = 32
"""Most elements of a vector that have names."""


IMAGE_CHANNELS = (1, 3, 4)
"""Numbers of channels that images usually have."""
SMALLEST_IMAGE = 12
"""Numbers with fewer a side are more often a grid of symbols than an image."""


class ObservationForm(NamedTuple):
    """How observations are shown.

    space: of what is shown.
    convert: from observations to what is shown; None if they are shown as they are.
    names: of the parts, if there are several images, or images and numbers.
    elements: names of the elements of the vector, if a nest has the numbers, and they are not too many.
    mask_at: the first element of the vector that is one of the mask of `envs.masks`; None if there is no mask.
    read: from the observation of one environment to its text, for people: all of its texts, up to the last word that
        agents get. None if there is no text.
    """

    space: spaces.Space[Any]
    convert: Convert | None
    names: tuple[str, ...] = ()
    elements: tuple[str, ...] = ()
    mask_at: int | None = None
    read: Callable[[Any], str] | None = None


class Instructed(TransformObservation):
    """An environment with texts in its observations, which agents get as numbers that cannot be turned back."""

    def __init__(self, env: Env, convert: Convert, read: Callable[[Any], str], space: spaces.Space[Any]) -> None:
        super().__init__(env, convert, space)
        self.read = read
        self.latest: Any = None

    def observation(self, observation: Any) -> Any:
        """What is shown of an observation."""
        self.latest = observation
        return super().observation(observation)

    @property
    def instruction(self) -> str:
        """The text of the latest observation."""
        return self.read(self.latest)


def adapt_observations(env: Env, shrink: int = 1) -> Env:
    """The environment with observations as `shown_as` says.

    `metadata["observation_names"]` has the parts' names, and `metadata["element_names"]` those of a vector's elements,
    if the environment does not name them itself; `metadata["action_mask_at"]` has `ObservationForm.mask_at`.

    Raises:
        ValueError: see `shown_as`; and for a `shrink` that is none, or without an image.
    """
    space = env.observation_space
    if type(shrink) is not int or not 1 <= shrink <= LARGEST_SHRINK:
        raise ValueError(f"shrink: expected an integer from 1 to {LARGEST_SHRINK}, got {shrink!r}")
    if shrink > 1 and not any(image_as(part) for _, part in leaves(space)):
        raise ValueError(f"shrink: expected observations with an image, got {line(space)}")
    shown = shown_as(space, shrink=shrink)
    for place, part in leaves(space):
        if _looks_like_an_image(part):
            _warn(_about_bounds(place, part))
    if shown.convert is None:
        return env
    adapted: Env
    if shown.read is None:
        adapted = TransformObservation(env, shown.convert, shown.space)
    else:
        adapted = Instructed(env, shown.convert, shown.read, shown.space)
    if shown.names:
        adapted.metadata = {**adapted.metadata, "observation_names": shown.names}
    if shown.elements:
        adapted.metadata = {"element_names": shown.elements, **adapted.metadata}
    if shown.mask_at is not None:
        adapted.metadata = {**adapted.metadata, "action_mask_at": shown.mask_at}
    return adapted


def shown_as(space: spaces.Space[Any], rows: int | None = None, shrink: int = 1) -> ObservationForm:
    """How observations of a space are shown; see the module.

    Args:
        space: of one environment.
        rows: None if observations of one environment are converted. Else those of so many: arrays [rows, ...] at every
            leaf of a nest, and a sequence of texts.
        shrink: images are means over blocks of so many pixels a side; see `block_means`.

    Raises:
        ValueError: for OneOf, Sequence, Graph and spaces of other libraries, for nests without numbers and texts, and
            for more than `MOST_NUMBERS` numbers in the vector.
    """
    images: dict[Place, ObservationForm] = {}
    numbers: dict[Place, spaces.Space[Any]] = {}
    texts: dict[Place, spaces.Text] = {}
    for place, part in leaves(space):
        image = image_as(part)
        if image is not None:
            images[place] = _shrunk(image, shrink)
        elif isinstance(part, spaces.Text):
            texts[place] = part
        elif isinstance(part, NUMERIC):
            numbers[place] = part
        else:
            kinds = "Box, Discrete, MultiDiscrete, MultiBinary, Text, or a Tuple or Dict of them"
            where = expression(place, "observation")
            raise ValueError(f"observation space: expected {kinds}, got {line(part)} as {where}")

    # Images and numbers: one part, or several.
    parts: list[tuple[str, ObservationForm]] = []
    for place, image in images.items():
        parts.append((label(place, "observation"), _inner(image, place)))
    if numbers:
        nothing_else = not images and not texts
        vector = _vector(space, rows) if nothing_else else _joined_vector(numbers, rows)
        parts.append((NUMBERS_NAME, vector))
    seen = _together(parts, rows)._replace(elements=_element_names(numbers), mask_at=_mask_at(numbers))
    if not texts:
        return seen
    return _with_texts(seen, texts, rows)


def _with_texts(seen: ObservationForm, texts: dict[Place, spaces.Text], rows: int | None) -> ObservationForm:
    """A Dict of what is seen and of the words of the texts, which are joined in the order of their places."""
    length = min(MOST_WORDS, sum(most_words(text) for text in texts.values()))
    places = tuple(texts)
    convert = seen.convert or _unchanged

    def texts_of(observation: Any) -> list[Any]:
        """At each place a text or, of several rows, a sequence of texts."""
        return [at(observation, place) for place in places]

    def read(observation: Any) -> str:
        whole = " ".join(texts_of(observation))
        return beginning(whole, length)

    def numbered(texts_of_row: Sequence[str]) -> NDArray[np.int64]:
        words = split_words(" ".join(texts_of_row))
        return _numbered(words, length)

    def show(observation: Any) -> dict[str, Any]:
        by_place = texts_of(observation)
        if rows is None:
            instruction = numbered(by_place)
        else:
            by_row = zip(*by_place, strict=True)
            instruction = np.stack([numbered(texts_of_row) for texts_of_row in by_row])
        return {"image": convert(observation), "instruction": instruction}

    space = spaces.Dict(image=seen.space, instruction=words_space(length))
    return ObservationForm(space, show, seen.names, seen.elements, seen.mask_at, read)


def _mask_at(numbers: dict[Place, spaces.Space[Any]]) -> int | None:
    """Where in the vector of the numbers of a nest the mask begins; None if there is none."""
    first = 0
    for place, space in numbers.items():
        if place == (MASK,):
            return first
        first += spaces.flatdim(space)
    return None


def _element_names(numbers: dict[Place, spaces.Space[Any]]) -> tuple[str, ...]:
    """Names of the elements of the vector that has the numbers of a nest; none if they are many, or not in a nest."""
    if () in numbers or sum(spaces.flatdim(space) for space in numbers.values()) > MOST_NAMED:
        return ()
    names: list[str] = []
    for place, space in numbers.items():
        name = label(place, "observation")
        size = spaces.flatdim(space)
        if isinstance(space, spaces.Discrete):  # one-hot
            names += [f"{name} = {space.start + index}" for index in range(size)]
        elif size == 1:
            names.append(name)
        else:
            names += [f"{name}[{index}]" for index in range(size)]
    return tuple(names)


def image_as(space: spaces.Space[Any]) -> ObservationForm | None:
    """How an image or a batch is shown, uint8 [..., height, width, channels]; None for spaces that are not of images.

    Images are uint8 and uint16 of two to four axes, and Boxes of another dtype of three or four axes with bounds of
    0..1 or 0..255 everywhere. Two axes are height and width. Of three, the channels are the first or the last one; see
    `_planes_first`. Four are a stack of frames, whose channels are joined, those of the first frame first. The upper
    bound of the space becomes 255.
    """
    if not _is_of_images(space):
        return None
    shape = space.shape
    high = float(space.high.max())

    # Height and width come first; frames and channels become one axis.
    order = _height_first(shape)
    batch_order = (0, *(axis + 1 for axis in order))  # a batch has its rows as the first axis
    height = shape[order[0]]
    width = shape[order[1]]
    num_channels = int(np.prod(shape)) // (height * width)
    result = (height, width, num_channels)

    # Bytes stay as they are if their upper bound is 255, or if all of them are 0.
    keeps_values = space.dtype == np.uint8 and high in (0.0, 255.0)
    if keeps_values and result == shape and order == (0, 1, 2):
        return ObservationForm(space, None)
    factor = 255.0 / high if high > 0 else 1.0
    rescales = not keeps_values and factor != 1.0

    def show(image: NDArray[Any]) -> NDArray[np.uint8]:
        if rescales:
            image = image * np.float32(factor)
        if image.dtype != np.uint8:
            image = np.rint(image).clip(0, 255).astype(np.uint8)
        if image.ndim == len(shape):
            return image.transpose(order).reshape(result)
        return image.transpose(batch_order).reshape(-1, *result)

    shown = spaces.Box(0, 255, result, np.uint8)
    if keeps_values:
        return ObservationForm(shown, show)
    return ObservationForm(shown, _watched(show, high))


def _is_of_images(space: spaces.Space[Any]) -> TypeGuard[spaces.Box[Any]]:
    """Whether the values of a space are images; see `image_as`."""
    if not isinstance(space, spaces.Box):
        return False
    num_axes = len(space.shape)
    if not 2 <= num_axes <= 4 or 0 in space.shape:
        return False
    if space.dtype in (np.uint8, np.uint16):
        return True

    # Other numbers are those of pixels if their bounds say so. With two axes they may be any matrix.
    low = float(space.low.min())
    high = float(space.high.max())
    same_everywhere = low == space.low.max() and high == space.high.min()
    return num_axes > 2 and same_everywhere and (low, high) in ((0.0, 1.0), (0.0, 255.0))


def _looks_like_an_image(space: spaces.Space[Any]) -> bool:
    """Whether numbers have the shape of an image, or of a stack of frames, whose bounds are those of none."""
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or len(space.shape) not in (3, 4):
        return False
    if _is_of_images(space):
        return False
    height, width, channels = space.shape[-3:]
    if _planes_first(space.shape[-3:]):
        channels, height, width = space.shape[-3:]
    return channels in IMAGE_CHANNELS and min(height, width) >= SMALLEST_IMAGE


def _about_bounds(place: Place, space: Any) -> str:
    """Why numbers of the shape of an image are seen as a vector, and what would change that."""
    seen = f"agents see it as a vector of {math.prod(space.shape):,} numbers"
    bounds = f"its bounds are {space.low.min():g}..{space.high.max():g}"
    return (
        f"{expression(place, 'observation')} has the shape of an image, and {seen}: {bounds}, and those of images "
        "0..1 or 0..255; a wrapper with such a space, such as gymnasium's TransformObservation, makes it one"
    )


def _height_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of an image of two to four axes in the order height, width, frames, channels; those that there are."""
    if len(shape) == 2:
        return (0, 1)
    *frames, first, middle, last = range(len(shape))
    if _planes_first(shape[-3:]):
        return (middle, last, *frames, first)
    return (first, middle, *frames, last)


def _shrunk(image: ObservationForm, k: int) -> ObservationForm:
    """How an image is shown at a kth of its size."""
    if k == 1:
        return image
    height, width, channels = image.space.shape or ()
    # The last blocks of a side may be smaller: the number of blocks is rounded up.
    size = (math.ceil(height / k), math.ceil(width / k), channels)
    smaller = spaces.Box(0, 255, size, np.uint8)
    convert = image.convert or _unchanged

    def show(observation: Any) -> NDArray[np.uint8]:
        return block_means(convert(observation), k)

    return ObservationForm(smaller, show)


def block_means(image: NDArray[np.uint8], k: int) -> NDArray[np.uint8]:
    """Means over blocks of k x k pixels of images [..., height, width, channels], halves rounded up.

    The last blocks of a side that is no multiple of k are smaller.
    """
    if k == 1:
        return np.array(image)
    height, width = image.shape[-3:-1]
    rows = np.arange(0, height, k)
    columns = np.arange(0, width, k)
    sums = np.add.reduceat(image, rows, axis=-3, dtype=np.uint32)
    sums = np.add.reduceat(sums, columns, axis=-2)
    rows_of_blocks = np.diff(rows, append=height)
    columns_of_blocks = np.diff(columns, append=width)
    pixels = np.multiply.outer(rows_of_blocks, columns_of_blocks)[..., None].astype(np.uint32)

    # In whole numbers: sums / pixels + 1/2, rounded down.
    rounded = (2 * sums + pixels) // (2 * pixels)
    return rounded.astype(np.uint8)


def _watched(show: Convert, high: float) -> Convert:
    """`show`, which warns if the numbers of the first image that is not black are not of the bounds 0..high."""
    is_pending = True

    def watched(image: NDArray[Any]) -> NDArray[np.uint8]:
        nonlocal is_pending
        if is_pending:
            brightest = float(image.max())
            is_pending = brightest == 0.0
            if brightest > 2 * high > 0:
                limits = f"beyond {2 * high:g} where the bounds of their space are 0..{high:g}"
                _warn(f"images are white: their numbers are {limits}")
            elif high == 255.0 and 0.0 < brightest <= 1.0 and image.dtype.kind == "f":
                _warn("images are nearly black: their numbers are up to 1 where the bounds of their space are 0..255")
        return show(image)

    return watched


@functools.cache
def _warn(message: str) -> None:
    """Warns once in a process, however many environments there are."""
    logger.warning("%s", message)


def _planes_first(shape: Sequence[int]) -> bool:
    """Whether of three axes the first has the channels.

    Channels are the last axis, unless it is longer than one of the others. Then they are the last one if the first two
    are equal, the first one if it is not longer than the others, and else the last one.
    """
    first, middle, last = shape
    if last <= min(first, middle) or first == middle:
        return False
    return first <= min(middle, last)


def most_words(text: spaces.Text) -> int:
    """How many words of a space of texts are kept: as many as fit in its characters, up to `MOST_WORDS`.

    Words of letters have something between them; a punctuation mark is a word, and needs nothing.
    """
    has_marks = any(len(split_words(f"a{mark}a")) == 3 for mark in text.character_set)
    most = text.max_length if has_marks else (text.max_length + 1) // 2
    return max(1, min(MOST_WORDS, most))


def words_space(length: int) -> spaces.Box:
    """The space of the ids of words, two a word."""
    return spaces.Box(0, PAIR_VOCABULARY - 1, (2 * length,), np.int64)


def _numbered(words: Sequence[str], length: int) -> NDArray[np.int64]:
    """The ids of the first words; warns if there are more."""
    if len(words) > length:
        _say_cut(length)
    return hash_pairs(words, length)


@functools.cache
def _say_cut(length: int) -> None:
    """Warns once that texts are longer than what agents get of them."""
    logger.warning("a text has more than %d words, and agents are given the first %d of it", length, length)


def _vector(space: spaces.Space[Any], rows: int | None) -> ObservationForm:
    """How numbers of any kind are shown: float32 [features], in which whole numbers are one-hot."""
    size = spaces.flatdim(space)
    if not 1 <= size <= MOST_NUMBERS:
        expected = f"1 to {MOST_NUMBERS:,} numbers (whole numbers are one-hot)"
        raise ValueError(f"observation space: expected {expected}, got {size:,} in {line(space)}")
    flat: Any = spaces.flatten_space(space)
    with np.errstate(over="ignore"):  # some write "without bounds" as the greatest float64, which becomes infinite
        low = flat.low.astype(np.float32)
        high = flat.high.astype(np.float32)
    vector = spaces.Box(low, high, dtype=np.float32)
    if rows is None:
        return ObservationForm(vector, flattener(space))
    return ObservationForm(vector, batch_flattener(space))


def _joined_vector(numbers: dict[Place, spaces.Space[Any]], rows: int | None) -> ObservationForm:
    """The vector of the numbers in a nest that has other things as well."""
    vector = _vector(spaces.Tuple(list(numbers.values())), rows)
    flatten = vector.convert or _unchanged
    places = tuple(numbers)
    return ObservationForm(vector.space, lambda observation: flatten([at(observation, place) for place in places]))


def _together(parts: list[tuple[str, ObservationForm]], rows: int | None) -> ObservationForm:
    """Several parts as a Tuple; one as it is; and a vector of one 0 if there is none, as where all is text."""
    if not parts:
        shape = (1,) if rows is None else (rows, 1)
        nothing = np.zeros(shape, np.float32)
        return ObservationForm(spaces.Box(0, 1, (1,), np.float32), lambda observation: nothing)
    if len(parts) == 1:
        _, only = parts[0]
        return only

    names = tuple(name for name, _ in parts)
    space = spaces.Tuple([shown.space for _, shown in parts])
    converts = [shown.convert or _unchanged for _, shown in parts]

    def show(observation: Any) -> tuple[Any, ...]:
        return tuple([convert(observation) for convert in converts])

    return ObservationForm(space, show, names)


def _inner(shown: ObservationForm, place: Place) -> ObservationForm:
    """The same for an observation that has the part at a place."""
    if not place:
        return shown
    convert = shown.convert or _unchanged
    return ObservationForm(shown.space, lambda observation: convert(at(observation, place)))


def _unchanged(observation: Any) -> Any:
    return observation
