"""Observations of all spaces: images, vectors and words, against literal formulas, and what is refused."""

import logging
import math
import random
import re
import warnings
import zlib
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import envs
from envs import observations
from envs.gym import adapt
from envs.observations import MOST_WORDS, block_means, most_words, shown_as
from envs.outputs import MOST_NUMBERS, NUMERIC, leaves
from envs.processes import batch
from envs.words import BUCKETS, MOST_CHARACTERS, PAIR_VOCABULARY, beginning, explain_ids, hash_pairs, split_words
from tests.envs.generated import draw_space
from tests.envs.odd import Camera

FLOATS = spaces.Box(-2.0, 3.0, (2, 2), np.float64)
CAMERA = spaces.Box(0, 255, (4, 5, 3), np.uint8)
DEPTH = spaces.Box(0, 255, (6, 7), np.uint8)


class Shows(gymnasium.Env[Any, Any]):
    """Observations are samples of a space; `last` is the last."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = space
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.last = self.observation_space.sample()
        return self.last, {}


def shown(space: spaces.Space[Any], seed: int = 0) -> tuple[Any, Any, Any]:
    """The space that is shown, the first observation in it, and what the environment returned."""
    env = adapt(Shows(space))
    observation, _ = env.reset(seed=seed)
    assert env.observation_space.contains(observation)
    return env.observation_space, observation, env.unwrapped.last


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (spaces.Discrete(3, start=4), lambda x: np.eye(3)[x - 4]),
        (spaces.MultiDiscrete([2, 3]), lambda x: [*np.eye(2)[x[0]], *np.eye(3)[x[1]]]),
        (spaces.MultiBinary(3), lambda x: x),
        (FLOATS, lambda x: x.ravel()),
        (spaces.Box(0, 255, (4,), np.uint8), lambda x: x),
        (spaces.Box(0, 1, (4, 5), np.float32), lambda x: x.ravel()),
        (spaces.Box(-1, 1, (4, 5, 3), np.float32), lambda x: x.ravel()),
        (spaces.Box(0, 9, (4, 5, 3), np.int64), lambda x: x.ravel()),
        (spaces.Dict({"a": FLOATS, "b": spaces.Discrete(2)}), lambda x: [*x["a"].ravel(), *np.eye(2)[x["b"]]]),
    ],
)
def test_numbers_alone_become_one_vector(space: spaces.Space[Any], values: Any) -> None:
    for seed in range(5):
        vector, observation, last = shown(space, seed)
        assert observation.dtype == vector.dtype == np.float32
        np.testing.assert_allclose(observation, np.asarray(values(last), np.float32))


def test_bounds_beyond_float32_are_none_and_no_warning() -> None:
    most = np.finfo(np.float64).max
    space = spaces.Dict(a=spaces.Box(-most, most, (2,), np.float64), b=spaces.Box(0, 9, (1,), np.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vector = shown_as(space).space
    low = np.array([-np.inf, -np.inf, 0], np.float32)
    high = np.array([np.inf, np.inf, 9], np.float32)
    assert vector == spaces.Box(low, high, dtype=np.float32)


LIKE_IMAGES = {
    "channels last, around 0": (spaces.Box(-1, 1, (24, 32, 3), np.float32), True),
    "channels first": (spaces.Box(-1, 1, (1, 24, 32), np.float32), True),
    "frames": (spaces.Box(-np.inf, np.inf, (4, 24, 32, 3), np.float32), True),
    "in a nest": (spaces.Dict(eye=spaces.Box(-1, 1, (24, 32, 3), np.float32), arm=spaces.Discrete(2)), True),
    "images": (spaces.Box(0, 1, (24, 32, 3), np.float32), False),
    "symbols": (spaces.Box(0, 9, (24, 32, 3), np.int64), False),
    "planes": (spaces.Box(-1, 1, (24, 32, 9), np.float32), False),
    "a small cube": (spaces.Box(-1, 1, (5, 5, 3), np.float32), False),
}
"""Spaces of numbers, and whether they are probably images with other bounds."""


@pytest.mark.parametrize("name", LIKE_IMAGES)
def test_numbers_of_the_shape_of_an_image_are_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    observations._warn.cache_clear()
    space, is_told = LIKE_IMAGES[name]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            adapt(Shows(space))
    assert len(caplog.messages) == is_told
    if is_told:
        where = "observation['eye']" if name == "in a nest" else "observation"
        assert caplog.messages[0].startswith(f"{where} has the shape of an image, and agents see it as a vector of ")


def unchanged(image: np.ndarray) -> np.ndarray:
    return image


def joined(frames: np.ndarray) -> np.ndarray:
    """The channels of frames [K, H, W, C], those of the first frame first."""
    return np.concatenate(list(frames), axis=-1)


def to_bytes(most: int) -> Any:
    """The scaling of numbers from 0 to `most` to 0..255."""
    return lambda image: np.rint(image.astype(np.float64) * (255 / most))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(0, 255, (12, 16, 3), np.uint8), unchanged),
        (spaces.Box(0, 255, (12, 16), np.uint8), lambda x: x[..., None]),
        (spaces.Box(0, 255, (3, 12, 16), np.uint8), lambda x: np.moveaxis(x, 0, -1)),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), lambda x: np.stack(list(x), axis=-1)),
        (spaces.Box(0, 255, (4, 12, 16, 3), np.uint8), joined),
        (spaces.Box(0, 255, (4, 3, 12, 16), np.uint8), lambda x: joined(np.moveaxis(x, 1, -1))),
        (spaces.Box(0, 255, (4, 12, 16, 1), np.uint8), joined),
        # Of few pixels.
        (spaces.Box(0, 255, (1, 1, 3), np.uint8), unchanged),
        (spaces.Box(0, 255, (1, 1), np.uint8), lambda x: x[..., None]),
        (spaces.Box(0, 255, (1, 9, 1), np.uint8), unchanged),
        (spaces.Box(0, 255, (9, 1), np.uint8), lambda x: x[..., None]),
        (spaces.Box(0, 255, (5, 3, 9), np.uint8), unchanged),
        # Of many planes.
        (spaces.Box(0, 255, (8, 8, 119), np.uint8), unchanged),
        # Of other numbers.
        (spaces.Box(0, 15, (12, 16, 3), np.uint8), to_bytes(15)),
        (spaces.Box(0, 3, (7, 7), np.uint8), lambda x: to_bytes(3)(x)[..., None]),
        (spaces.Box(0, 1, (12, 16, 3), np.uint8), to_bytes(1)),
        (spaces.Box(0, 65535, (12, 16, 3), np.uint16), to_bytes(65535)),
        (spaces.Box(0, 9000, (12, 16), np.uint16), lambda x: to_bytes(9000)(x)[..., None]),
        (spaces.Box(0, 1, (12, 16, 3), np.float32), to_bytes(1)),
        (spaces.Box(0, 1, (3, 12, 16), np.float64), lambda x: np.moveaxis(to_bytes(1)(x), 0, -1)),
        (spaces.Box(0, 255, (12, 16, 3), np.float32), to_bytes(255)),
        (spaces.Box(0, 255, (12, 16, 3), np.int32), to_bytes(255)),
        (spaces.Box(0, 1, (10, 10, 4), np.bool_), to_bytes(1)),
    ],
)
def test_images_of_all_layouts_and_numbers(space: spaces.Box, expected: Any) -> None:
    image, observation, last = shown(space)
    wanted = expected(last)
    assert (image.shape, image.dtype) == (wanted.shape, np.uint8)
    assert observation.tolist() == wanted.tolist()


def test_channels_with_bounds_of_their_own_are_numbers() -> None:
    """Colors up to 255 beside a depth up to 1 have no common scale."""
    high = np.full((2, 2, 4), 255, np.float32)
    high[..., 3] = 1.0
    vector, observation, last = shown(spaces.Box(np.zeros_like(high), high, dtype=np.float32))
    assert vector.shape == (16,)
    assert observation.tolist() == last.ravel().tolist()


def test_values_beyond_the_bounds_of_an_image_are_clipped() -> None:
    env = adapt(Shows(spaces.Box(0, 1, (2, 2, 1), np.float32)))
    values = np.array([-0.5, 0.1, 1.0, 300.0], np.float32).reshape(2, 2, 1)
    assert env.observation(values).ravel().tolist() == [0, 26, 255, 255]  # type: ignore[attr-defined]


def test_small_numbers_beyond_the_bounds_of_an_image_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    observations._warn.cache_clear()
    for most, number in ((3, 0), (6, 0), (7, 1)):
        env: Any = adapt(Shows(spaces.Box(0, 3, (7, 7), np.uint8)))
        env.observation(np.full((7, 7), most, np.uint8))
        assert len(caplog.messages) == number
    assert "beyond 6 where the bounds of their space are 0..3" in caplog.text


@pytest.mark.parametrize(
    ("high", "values", "warning"),
    [
        (255, [0.0, 0.2, 0.7], "nearly black: their numbers are up to 1 where"),
        (1, [0.0, 7.0, 200.0], "white: their numbers are beyond 2 where"),
        (255, [0.0, 7.0, 200.0], ""),
        (1, [0.0, 0.2, 1.001], ""),
    ],
)
def test_images_that_do_not_fit_their_bounds_are_warned_of_once(
    high: float, values: list[float], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three images and two environments; a black image says nothing of the bounds."""
    image = np.array(values, np.float32).reshape(3, 1, 1)
    observations._warn.cache_clear()
    for brightness in (1.0, 0.9):
        env: Any = adapt(Shows(spaces.Box(0, high, (3, 1, 1), np.float32)))
        env.observation(np.zeros_like(image))
        for _ in range(2):
            env.observation(brightness * image)
    expected = 1 if warning else 0
    assert len(caplog.messages) == expected
    assert re.search(warning, caplog.text)


@given(height=st.integers(1, 9), width=st.integers(1, 9), k=st.integers(2, 5), rows=st.integers(1, 2))
def test_smaller_images_are_means_of_blocks(height: int, width: int, k: int, rows: int) -> None:
    """Halves are rounded up, as by floor(x + 1/2); the last blocks are smaller where k does not divide a side."""
    images = np.random.default_rng(height + 9 * width).integers(0, 256, (rows, height, width, 3)).astype(np.uint8)
    smaller = block_means(images, k)
    assert smaller.dtype == np.uint8
    assert smaller.shape == (rows, math.ceil(height / k), math.ceil(width / k), 3)
    for index in np.ndindex(smaller.shape):
        row, top, left, channel = index
        block = images[row, k * top : k * top + k, k * left : k * left + k, channel]
        assert smaller[index] == math.floor(Fraction(int(block.sum()), block.size) + Fraction(1, 2))


def test_all_images_of_an_environment_are_made_smaller() -> None:
    """Of frames after their channels are joined; numbers and texts stay as they are."""
    space = spaces.Dict(at=FLOATS, eye=CAMERA, frames=spaces.Box(0, 255, (2, 8, 9), np.uint8), told=WORDS)
    plain, smaller = Shows(space), Shows(space)
    (eye, frames, numbers), words = adapt(plain).reset(seed=0)[0].values()
    env: Any = adapt(smaller, shrink=4)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert [part.tolist() for part in observation["image"]] == [
        block_means(eye, 4).tolist(),
        block_means(frames, 4).tolist(),
        numbers.tolist(),
    ]
    assert observation["instruction"].tolist() == words.tolist()
    assert env.instruction


@pytest.mark.parametrize("shrink", [0, 65, 1.5, True, "half"])
def test_impossible_sizes_of_images(shrink: Any) -> None:
    with pytest.raises(ValueError, match=f"^shrink: expected an integer from 1 to 64, got {shrink!r}$"):
        adapt(Shows(CAMERA), shrink)
    with pytest.raises(ValueError, match=r"^shrink: expected observations with an image, got Box\("):
        adapt(Shows(FLOATS), 2)


def test_an_image_that_fits_is_not_wrapped() -> None:
    env = Shows(spaces.Box(0, 255, (12, 16, 3), np.uint8))
    assert adapt(env) is env


def test_images_and_numbers_are_parts_of_their_own() -> None:
    space = spaces.Dict(
        arm=FLOATS,
        eyes=spaces.Tuple([CAMERA, spaces.Box(0, 255, (3, 8, 8), np.uint8)]),
        depth=DEPTH,
        held=spaces.Discrete(3),
    )
    env = adapt(Shows(space))
    assert env.metadata["observation_names"] == ("eyes[0]", "eyes[1]", "depth", "numbers")
    assert [part.shape for part in env.observation_space] == [(4, 5, 3), (8, 8, 3), (6, 7, 1), (7,)]
    (first, second, depth, numbers), _ = env.reset(seed=3)
    last = env.unwrapped.last
    assert np.array_equal(depth[..., 0], last["depth"])
    assert np.array_equal(first, last["eyes"][0])
    assert np.array_equal(second, np.moveaxis(last["eyes"][1], 0, -1))
    assert (numbers.dtype, env.observation_space[3].dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(numbers, [*last["arm"].ravel(), *np.eye(3)[last["held"]]], rtol=1e-6)


def test_elements_of_vectors_have_names() -> None:
    """Those of their places in a nest, unless the environment has its own; none without a nest, or if they are many."""
    space = spaces.Dict(arm=FLOATS, held=spaces.Discrete(2, start=4), open=spaces.Box(0, 1, (1,)), eye=CAMERA)
    names = ("arm[0]", "arm[1]", "arm[2]", "arm[3]", "held = 4", "held = 5", "open")
    env: Any = adapt(Shows(space))
    assert env.metadata["element_names"] == names
    _, vector = env.observation_space
    assert vector.shape == (len(names),)

    own = Shows(spaces.Dict(arm=FLOATS))
    own.metadata = {"element_names": ("w", "x", "y", "z")}
    assert adapt(own).metadata["element_names"] == ("w", "x", "y", "z")

    many = spaces.Dict(arm=spaces.Box(0, 1, (33,)))
    for unnamed in (FLOATS, many):
        assert "element_names" not in adapt(Shows(unnamed)).metadata


def test_one_image_in_a_nest_is_that_image() -> None:
    image, observation, last = shown(spaces.Dict(eye=spaces.Tuple([CAMERA])))
    assert image == CAMERA
    assert np.array_equal(observation, last["eye"][0])


WORDS = spaces.Text(40, charset="ab ,")


@pytest.mark.parametrize(
    ("space", "image"),
    [
        (WORDS, lambda x: np.zeros(1)),
        (spaces.Dict(eye=CAMERA, told=WORDS), lambda x: x["eye"]),
        (spaces.Dict(at=FLOATS, told=WORDS), lambda x: x["at"].ravel()),
    ],
)
def test_texts_become_words_beside_what_is_seen(space: spaces.Space[Any], image: Any) -> None:
    both, observation, last = shown(space)
    assert list(both) == ["image", "instruction"]
    assert both["instruction"] == spaces.Box(0, PAIR_VOCABULARY - 1, (2 * MOST_WORDS,), np.int64)
    np.testing.assert_allclose(observation["image"], image(last), rtol=1e-6)
    text = last if isinstance(last, str) else last["told"]
    words = text.replace(",", " , ").split()
    assert len(words) > 3
    padding = [0] * (2 * MOST_WORDS - 2 * len(words))
    assert observation["instruction"].tolist() == [*hash_pairs(words, len(words)), *padding]


def test_several_texts_are_joined_and_long_ones_cut() -> None:
    space = spaces.Tuple([CAMERA, DEPTH, spaces.Text(3), spaces.Dict(told=spaces.Text(1000, charset="ab "))])
    env = adapt(Shows(space))
    assert env.metadata["observation_names"] == ("observation[0]", "observation[1]")
    assert env.observation_space["image"] == spaces.Tuple([CAMERA, spaces.Box(0, 255, (6, 7, 1), np.uint8)])

    # The agent gets the first words of both texts.
    observation, _ = env.reset(seed=2)
    *_, first, other = env.unwrapped.last
    words = [*split_words(first), *split_words(other["told"])]
    assert len(words) > MOST_WORDS
    assert observation["instruction"].tolist() == hash_pairs(words, MOST_WORDS).tolist()
    assert env.observation_space.contains(observation)

    # People read the beginning of the text that has these words.
    assert env.instruction.endswith(" …")
    read = env.instruction.removesuffix(" …")
    assert f"{first} {other['told']}".startswith(read)
    assert split_words(read) == words[:MOST_WORDS]


def test_different_words_have_different_numbers() -> None:
    """A pair each; with one number, "wall" and "floor" had the same."""
    pieces = ("king", "queen", "rook", "bishop", "knight", "pawn")
    squares = [f"{column}{row}" for column in "abcdefgh" for row in range(1, 9)]
    numbers = [str(number) for number in range(100)]
    words = ["wall", "floor", "six", "ten", "dog", "house", "ball", "fetch", *pieces, *squares, *numbers]
    pairs = hash_pairs(words, len(words)).reshape(-1, 2)
    assert len(np.unique(pairs, axis=0)) == len(words)
    many = hash_pairs([str(number) for number in range(10_000)], 10_000)
    assert (many.min(), many.max()) == (1, BUCKETS)
    assert hash_pairs(["wall"], 3)[2:].tolist() == [0] * 4


def test_who_follows_the_explanation_has_the_ids_that_agents_are_given() -> None:
    said = explain_ids(PAIR_VOCABULARY, 40)
    for part in ("40 ids, two a word", "(the word's UTF-8) modulo 1048576", "1 + h // 1024 and 1 + h modulo 1024"):
        assert part in said
    pattern = re.search(r"regular expression (\S+)\)", said)
    assert pattern is not None

    # In the words of the explanation.
    text = "Go to the RED ball, then stop."
    ids = []
    for word in re.findall(pattern.group(1), text.lower()):
        h = zlib.crc32(word.encode()) % 1048576
        ids += [1 + h // 1024, 1 + h % 1024]
    ids += [0] * (40 - len(ids))

    form = shown_as(spaces.Text(40))
    assert form.convert is not None
    assert form.convert(text)["instruction"].tolist() == ids
    with pytest.raises(ValueError, match="vocabulary: expected 1001 or 1025 ids, got 9"):
        explain_ids(9, 40)


def test_words_are_without_capitals_and_punctuation_is_apart() -> None:
    assert split_words("Go to the  red_ball, then\nstop!") == ["go", "to", "the", "red_ball", ",", "then", "stop", "!"]
    assert split_words("") == []


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.Text(4, charset="0123456789+?"), "3+4?"),
        (spaces.Text(3, charset="a()"), "(a)"),
        (spaces.Text(5, charset="ab "), "a b a"),
    ],
)
def test_every_word_that_fits_in_a_text_is_kept(space: spaces.Text, text: str) -> None:
    """Letters and digits have something between their words, punctuation nothing."""
    assert most_words(space) == len(split_words(text))


def test_people_read_the_text_of_the_words_that_agents_get() -> None:
    """The beginning of a text by its number of words, and at most so many characters of one word."""
    assert beginning("Go to  the ball, then\nstop!\n", 8) == "Go to  the ball, then\nstop!\n"
    assert beginning("Go to  the ball, then\nstop!\n", 7) == "Go to  the ball, then\nstop …"
    assert beginning("", 1) == ""
    assert beginning("a" * (MOST_CHARACTERS + 1), 2) == "a" * MOST_CHARACTERS + " …"


def test_a_batch_of_parts_is_the_same_in_processes() -> None:
    """Observations are copied: the environment may write the next ones into the same arrays."""
    actions = np.zeros(3, np.int64)

    def play(processes: int) -> list[tuple[np.ndarray, ...]]:
        """Six observations of three environments, of several parts each."""
        env = envs.make_vector(f"gym:tests.envs.odd:Camera-v0,processes={processes}", 3)
        steps = [env.reset(seed=0)[0], *[env.step(actions)[0] for _ in range(5)]]
        for step in steps:
            assert env.observation_space.contains(step)
        env.close()
        return steps

    here = play(processes=0)
    there = play(processes=2)
    for found, expected in zip(there, here, strict=True):
        assert [part.tolist() for part in found] == [part.tolist() for part in expected]
    cameras = [image[0, 0, 0, 0] for image, *_ in here]
    assert cameras == [0, 0, 1, 2, 3, 0]


def test_a_text_that_is_none_is_named() -> None:
    """None in the place of a text of the space."""

    class Mute(Camera):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Dict(told=spaces.Tuple([spaces.Text(5)]))

        def _look(self) -> Any:
            return {"told": (None,)}

    gymnasium.register("Mute-v0", Mute)
    with pytest.raises(
        envs.WrongOutput,
        match=r"^environment gym:Mute-v0, reset: observation\['told'\]\[0\]: expected a text, got None$",
    ):
        envs.prepare("gym:Mute-v0")
    del gymnasium.registry["Mute-v0"]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(10**12), r"expected 1 to 1,000,000 numbers .*, got 1,000,000,000,000 in Discrete"),
        (spaces.Dict(eye=CAMERA, far=spaces.Discrete(10**12)), r"expected 1 to 1,000,000 numbers .*, got 1,0{3},"),
        (spaces.Box(0, 1, (0,)), r"expected 1 to 1,000,000 numbers .*, got 0 in Box"),
        (spaces.Box(0, 255, (0, 8, 3), np.uint8), r"expected 1 to 1,000,000 numbers .*, got 0 in Box"),
        (spaces.Tuple([FLOATS, spaces.Dict({})]), r"expected Box, .*, got Dict\(\) as observation\[1\]"),
    ],
)
def test_spaces_of_no_numbers_or_too_many_are_refused(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^observation space: {message}"):
        adapt(Shows(space))


@pytest.mark.parametrize("other", [spaces.OneOf([FLOATS, FLOATS]), spaces.Sequence(FLOATS), spaces.Graph(FLOATS, None)])
def test_other_spaces_are_refused_by_name_wherever_they_are(other: spaces.Space[Any]) -> None:
    nests = {
        "observation": other,
        r"observation\['told'\]": spaces.Dict({"seen": FLOATS, "told": other}),
        r"observation\[0\]\['told'\]\[1\]": spaces.Tuple([spaces.Dict(told=spaces.Tuple([FLOATS, other]))]),
    }
    for place, space in nests.items():
        with pytest.raises(
            ValueError, match=rf"^observation space: expected Box, .* got {type(other).__name__}.* as {place}$"
        ):
            adapt(Shows(space))


@pytest.mark.parametrize("first", [0, 100])
def test_drawn_nests_are_shown_or_refused(first: int) -> None:
    """The forms that agents know, in batches; no number and no pixel is lost."""
    image = ("uint8", 3)
    vector = ("float32", 1)
    forms = set()
    for case in range(first, first + 100):
        space = draw_space(random.Random(case))
        if not isinstance(space, spaces.Space):
            continue

        # Spaces that agents do not know are refused.
        parts = [part for _, part in leaves(space)]
        size = sum(spaces.flatdim(part) for part in parts if isinstance(part, NUMERIC))
        is_known = all(isinstance(part, (*NUMERIC, spaces.Text)) for part in parts)
        if not is_known or size > MOST_NUMBERS:
            with pytest.raises(ValueError, match=r"^observation space: expected"):
                adapt(Shows(space))
            continue

        # Others are shown as images, after which there may be a vector.
        env = batch(lambda space=space: adapt(Shows(space)), 2)
        observation, _ = env.reset(seed=case)
        assert env.observation_space.contains(observation)
        seen = env.single_observation_space
        if isinstance(seen, spaces.Dict):
            seen = seen["image"]
        shown_parts = list(seen) if isinstance(seen, spaces.Tuple) else [seen]
        *kinds, last_kind = [(str(part.dtype), len(part.shape)) for part in shown_parts]
        assert all(kind == image for kind in kinds)
        assert last_kind in (image, vector)
        if size:
            assert sum(int(np.prod(part.shape)) for part in shown_parts) == size
        forms.add((type(env.single_observation_space).__name__, len(shown_parts)))
    assert forms >= {("Box", 1), ("Tuple", 2)}
