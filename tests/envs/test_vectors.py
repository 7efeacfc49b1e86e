"""Vectors of observations are those of gymnasium's `flatten`, for values of drawn spaces."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envs.outputs import NUMERIC, conformer, leaves
from envs.vectors import flattener
from tests.envs.generated import draw_space


def drawn(first: Any, last: Any) -> Iterator[Any]:
    """Spaces of numbers out of those that the cases draw."""
    for case in range(first, last):
        space = draw_space(random.Random(case))
        parts = [part for _, part in leaves(space)]
        if all(isinstance(part, NUMERIC) for part in parts) and 1 <= spaces.flatdim(space) <= 1000:
            space.seed(case)
            yield space


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_choices_of_a_small_dtype_have_their_place_behind_many_numbers(dtype: type) -> None:
    for start in (0, 3):
        choice = spaces.Discrete(4, start=start, dtype=dtype)
        space = spaces.Tuple([spaces.Box(-1, 1, (300,), np.float32), choice])
        numbers = np.zeros(300, np.float32)
        value = conformer(space, "it")((numbers, dtype(start + 2)))
        assert np.flatnonzero(flattener(space)(value)).tolist() == [302]


@pytest.mark.parametrize("first", [0, 100])
def test_it_is_gymnasiums_flatten(first: int) -> None:
    found = list(drawn(first, first + 100))
    assert {type(space).__name__ for space in found} >= {"Box", "Discrete", "MultiDiscrete", "Dict", "Tuple"}
    for space in found:
        flatten = flattener(space)
        for _ in range(3):
            value = space.sample()
            vector = flatten(value)
            assert vector.dtype == np.float32
            assert np.array_equal(vector, spaces.flatten(space, value).astype(np.float32)), space
