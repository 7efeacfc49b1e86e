"""Actions of drawn spaces: what a row of the vector becomes, by a literal table of its parts; and what is refused."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

import envs
from envs import guard
from envs.actions import ActionVector, ChoiceColumn, NumberColumns, action_vector
from envs.guard import OutputError
from envs.gym import adapt
from envs.processes import batch

FLOATS = (np.float16, np.float32, np.float64)
WHOLE = (np.uint8, np.int8, np.int32, np.int64)
INFINITE = float("inf")


@st.composite
def boxes_of_floats(draw: Any) -> spaces.Box:
    """Boxes, some of whose numbers have no bounds."""
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    size = int(np.prod(shape))
    lows = draw(st.lists(st.floats(-100, 100, width=16), min_size=size, max_size=size))
    widths = draw(st.lists(st.sampled_from([0.5, 2.0, 1000.0, None]), min_size=size, max_size=size))
    dtype = draw(st.sampled_from(FLOATS))
    low = np.array(lows, dtype)
    high = np.array(lows, dtype)
    for index, width in enumerate(widths):
        if width is None:
            low[index] = -INFINITE
            high[index] = INFINITE
        else:
            high[index] = lows[index] + width
    return spaces.Box(low.reshape(shape), high.reshape(shape), shape, dtype)


@st.composite
def boxes_of_whole_numbers(draw: Any) -> spaces.Box:
    """Boxes at the ends of the range of their type, or from 0 on."""
    dtype = draw(st.sampled_from(WHOLE))
    least = int(np.iinfo(dtype).min)
    most = int(np.iinfo(dtype).max)
    low = draw(st.sampled_from([least, 0, most - 200]))
    width = draw(st.sampled_from([1, 7, 200]))
    shape = draw(st.sampled_from([(), (2,), (1, 3)]))
    return spaces.Box(low, min(low + width, most), shape, dtype)


LEAVES = st.one_of(
    boxes_of_floats(),
    boxes_of_whole_numbers(),
    st.builds(spaces.Discrete, st.integers(2, 9), start=st.integers(-5, 5)),
    st.builds(spaces.MultiBinary, st.sampled_from([1, 3, (2, 2)])),
    st.lists(st.integers(2, 5), min_size=1, max_size=3).map(lambda sizes: spaces.MultiDiscrete(sizes, start=sizes)),
    st.just(spaces.Box(0, 1, (2,), np.bool_)),
    st.just(spaces.MultiDiscrete([[2, 3], [4, 5]])),  # type: ignore[list-item]
)
NESTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from(["arm", "hand", "legs"]), inner, min_size=1).map(spaces.Dict),
    ),
    max_leaves=6,
)


class Element(NamedTuple):
    """A number in a value of a space, and its bounds."""

    low: Any
    high: Any
    value: Any


def elements(space: Any, value: Any) -> Iterator[Element]:
    """Every number in a value of a space, in the order of the columns; literally."""
    if isinstance(space, spaces.Dict):
        for key in space.spaces:
            yield from elements(space[key], value[key])
        return
    if isinstance(space, spaces.Tuple):
        for part, item in zip(space.spaces, value, strict=True):
            yield from elements(part, item)
        return

    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, spaces.MultiBinary):
        low, high = 0, 1
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    else:
        low, high = space.start, space.start + space.n - 1
    lows = np.broadcast_to(low, space.shape).ravel().tolist()
    highs = np.broadcast_to(high, space.shape).ravel().tolist()
    values = np.asarray(value).ravel().tolist()
    for number, lowest, highest in zip(values, lows, highs, strict=True):
        yield Element(lowest, highest, number)


@given(NESTS, st.integers(0, 2**31))
def test_columns_are_the_elements_of_the_action(space: Any, seed: int) -> None:
    """The inverse of the conversion, written literally, gives the row back."""
    vector, convert = action_vector(space)
    vector.seed(seed)
    for _ in range(3):
        row = vector.sample()
        assert vector.contains(row)
        action = convert(row)
        assert space.contains(action)
        for column, is_choice, element in zip(row, vector.is_choice, elements(space, action), strict=True):
            low, high, value = element
            if is_choice:
                assert value == int(low) + column
            elif np.isfinite(low):
                expected = low + (column + 1) / 2 * (high - low)
                tolerance = 1e-3 * max(abs(low), abs(high))  # of float16
                assert value == pytest.approx(expected, abs=tolerance)
            else:
                assert value == pytest.approx(column, rel=1e-3)


@given(NESTS)
def test_the_ends_of_the_columns_are_those_of_the_space(space: Any) -> None:
    """Numbers beyond the bounds are clipped to them; those without bounds are 0 here."""
    vector, convert = action_vector(space)
    is_free = ~np.isfinite(vector.low)
    for end, bound in (("low", vector.low), ("high", vector.high)):
        row = np.where(is_free, 0.0, bound).astype(np.float32)
        beyond = np.where(is_free | vector.is_choice, row, 3 * row)
        action = convert(beyond)
        assert space.contains(action)
        for free, element in zip(is_free, elements(space, action), strict=True):
            expected = 0 if free else getattr(element, end)
            assert element.value == expected


NEST = spaces.Dict(
    arm=spaces.Box(-2, 2, (2,), np.float32),
    gripper=spaces.Discrete(3, start=-1),
    legs=spaces.Tuple([spaces.MultiBinary(2), spaces.Box(-np.inf, np.inf, (1,), np.float64)]),
)
PARTS = (
    NumberColumns("arm", (-2.0, -2.0), (2.0, 2.0)),
    ChoiceColumn("gripper", 3, -1),
    ChoiceColumn("legs[0][0]", 2),
    ChoiceColumn("legs[0][1]", 2),
    NumberColumns("legs[1]", (-INFINITE,), (INFINITE,)),
)


def test_parts_and_columns_have_names() -> None:
    vector, convert = action_vector(NEST)
    assert vector.parts == PARTS
    assert vector.column_names == ("arm[0]", "arm[1]", "gripper", "legs[0][0]", "legs[0][1]", "legs[1]")
    action = convert(np.array([0.5, -1, 2, 1, 0, 7.5], np.float32))
    assert action["arm"].tolist() == [1.0, -2.0]
    assert action["gripper"] == 1
    assert [part.tolist() for part in action["legs"]] == [[1, 0], [7.5]]


def test_samples_are_uniform_and_standard_normal_without_bounds() -> None:
    vector, _ = action_vector(NEST)
    vector.seed(0)
    rows = np.stack([vector.sample() for _ in range(4000)])
    assert rows.dtype == np.float32
    *bounded, gripper, _, _, unbounded = rows.T
    for column in bounded:
        assert (column.min(), column.max()) == pytest.approx((-1, 1), abs=0.01)
        assert (column.mean(), column.var()) == pytest.approx((0, 1 / 3), abs=0.05)
    assert len(bounded) == 2
    assert np.bincount(gripper.astype(int)) / 4000 == pytest.approx([1 / 3] * 3, abs=0.05)
    assert (unbounded.mean(), unbounded.std()) == pytest.approx((0, 1), abs=0.05)
    assert abs(unbounded).max() > 2.5


def test_a_batch_of_vectors_keeps_its_parts() -> None:
    vector, _ = action_vector(NEST)
    rows = batch_space(vector, 3)
    assert isinstance(rows, ActionVector)
    assert rows.shape == (3, 6)
    assert rows.parts == PARTS
    assert rows.contains(rows.sample())
    assert rows == batch_space(vector, 3)
    assert rows != vector
    for space in (vector, rows):
        assert pickle.loads(pickle.dumps(space)) == copy.deepcopy(space) == space


def test_vectors_with_other_parts_or_no_parts_are_not_equal() -> None:
    """Three choices and numbers in 0..2 have the same bounds."""
    vector = ActionVector([ChoiceColumn("a", 3)])
    plain = spaces.Box(vector.low, vector.high, dtype=np.float32)
    for other in (ActionVector([ChoiceColumn("b", 3)]), plain):
        assert vector != other
        assert other != vector
    assert not vector.contains(np.array([0.5], np.float32))
    assert plain.contains(np.array([0.5], np.float32))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ([0, np.nan, 0, 0, 0, 0], r"expected finite numbers \(float32\), got nan at \[1\], 1 of 6"),
        ([0, 0, 0, 0, 0, np.inf], r"expected finite numbers \(float32\), got inf at \[5\], 1 of 6"),
        ([0, 0, 3, 0, 0, 0], r"expected choices from 0 to \[2, 1, 1\], got \[3.0, 0.0, 0.0\]"),
        ([0, 0, 0, -1, 0, 0], r"expected choices from 0 to \[2, 1, 1\], got \[0.0, -1.0, 0.0\]"),
        ([0, 0, 0.5, 0, 0, 0], r"expected choices from 0 to \[2, 1, 1\], got \[0.5, 0.0, 0.0\]"),
        ([0, 0], r"expected float32 \[6\] as in its space, got float32 \[2\] \[0.0, 0.0\]"),
    ],
)
def test_rows_that_are_no_action_are_named(row: list[float], problem: str) -> None:
    _, convert = action_vector(NEST)
    with pytest.raises(OutputError, match=f"^step: action: {problem}$"):
        convert(np.array(row, np.float32))


HALF = np.array([np.inf, 1, 1], np.float32)
"""Bounds that make the first number of a box bounded on one side only."""
TWO = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        (
            spaces.Dict(arm=spaces.Box(-1, HALF, (3,), np.float32)),
            r"bounds that are both finite or both infinite, got -1 to inf at index 0 of Box\(.* as action\['arm'\]$",
        ),
        (spaces.Box(-HALF, 2, (3,), np.float64), r"bounds that .*, got -inf to 2 at index 0 of Box"),
        (spaces.Box(1, 1, (2,), np.float32), "a lower bound below the upper bound, got 1 to 1 at index 0 of Box"),
        (spaces.Box(-1, 1, (0,), np.float32), r"at least one dimension, got Box\("),
        (spaces.Box(-1, 1, (3, 0, 2), np.float32), r"at least one dimension, got Box\("),
        (spaces.Tuple([TWO, spaces.Dict({})]), r"Box, Discrete, .*, got Dict\(\) as action\[1\]$"),
        (spaces.Tuple([]), r"Box, Discrete, .*, got Tuple\(\)$"),
        (spaces.MultiDiscrete([3, 1]), r"at least 2 choices, got 1 in MultiDiscrete\(\[3 1\]\)$"),
        (spaces.Dict(a=TWO, b=spaces.Discrete(1)), r"at least 2 choices, got 1 in Discrete\(1\) as action\['b'\]$"),
        (spaces.Box(5, 5, (2,), np.int32), "at least 2 choices, got 1 in Box"),
        (spaces.Box(0, 2**40, (2,), np.int64), "at most 1,000,000 choices, got 2,199,023,255,554 in Box"),
        (spaces.Box(-1, 1, (1001, 1000), np.float32), "at most 1,000,000 dimensions, got Box"),
        (spaces.Tuple([spaces.Discrete(600_000)] * 2), "1 to 1,000,000 choices and numbers, got 1,200,000 in Tuple"),
        (spaces.Discrete(10**12), r"at most 1,000,000 actions, got Discrete\(10+\)$"),
        *(
            (spaces.Dict(a=TWO, b=other), rf"Box, .* of them, got {type(other).__name__}.* as action\['b'\]$")
            for other in (spaces.Text(5), spaces.OneOf([TWO]), spaces.Sequence(TWO), spaces.Graph(TWO, None))
        ),
    ],
)
def test_spaces_without_a_vector_are_refused_by_name(space: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^action space: expected {problem}") as caught:
        adapt(Remembers(space))
    assert "\n" not in str(caught.value)


def test_of_a_long_space_errors_show_both_ends() -> None:
    space = spaces.Dict({f"part {index}": spaces.Discrete(1 + index) for index in range(1000)})
    with pytest.raises(ValueError, match=r"as action\['part 0'\]$"):
        action_vector(space)
    many = spaces.Dict({f"part {index}": spaces.Discrete(10_000) for index in range(1000)})
    with pytest.raises(
        ValueError, match="expected 1 to 1,000,000 choices and numbers, got 10,000,000 in Dict"
    ) as raised:
        action_vector(many)
    message = str(raised.value)
    assert len(message) < 400
    assert "'part 0': Discrete(10000)" in message
    assert message.endswith("'part 999': Discrete(10000))")


def test_wide_bounds_do_not_overflow() -> None:
    for dtype in FLOATS:
        most = dtype(min(float(np.finfo(dtype).max), 9e9))
        _, convert = action_vector(spaces.Box(-most, most, (1,), dtype))
        for column, expected in ((-1, -most), (0, 0), (1, most)):
            assert convert(np.array([column], np.float32)).item() == expected


@pytest.mark.parametrize("most", [1e10, float(np.finfo(np.float32).max), np.inf])
def test_bounds_that_stand_for_none_are_none(most: float) -> None:
    """MuJoCo's without limits are 1e10, and others write the greatest float: -1..1 would be stretched to these."""
    vector, convert = action_vector(spaces.Box(-most, most, (2,), np.float32))
    (columns,) = vector.parts
    assert (columns.low, columns.high) == ((-np.inf, -np.inf), (np.inf, np.inf))  # type: ignore[union-attr]
    assert convert(np.array([-0.25, 3.0], np.float32)).tolist() == [-0.25, 3.0]
    with pytest.raises(ValueError, match="both finite or both infinite"):
        action_vector(spaces.Box(-1.0, most, (1,), np.float32))


class Remembers(gymnasium.Env[Any, Any]):
    """Remembers the actions that it received."""

    observation_space = TWO
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, space: Any, names: tuple[str, ...] = ()) -> None:
        self.action_space = space
        self.metadata = {"action_names": names} if names else {}
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.taken.append(action)
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_a_discrete_space_begins_at_0() -> None:
    env = adapt(Remembers(spaces.Discrete(3, start=5)))
    assert env.action_space == spaces.Discrete(3)
    assert env.metadata["action_names"] == ("5", "6", "7")
    env.step(np.int64(2))
    (taken,) = env.unwrapped.taken
    assert taken == 7
    assert env.unwrapped.action_space.contains(taken)


def test_an_environment_may_name_its_columns() -> None:
    """Of two columns: other numbers of names are not taken."""
    by_place = ("action[0]", "action[1]")
    for names, expected in ((("left", "right"), ("left", "right")), (("left",), by_place), ((), by_place)):
        assert adapt(Remembers(TWO, names)).metadata["action_names"] == expected


def test_a_batch_gives_each_environment_its_own_row() -> None:
    env = batch(lambda: adapt(Remembers(NEST)), 3)
    env.action_space.seed(0)
    env.reset(seed=0)
    actions = env.action_space.sample()
    env.step(actions)
    _, convert = action_vector(NEST)
    for row, each in zip(actions, env.envs, strict=True):
        (taken,) = each.unwrapped.taken
        assert NEST.contains(taken)
        assert taken["arm"].tolist() == convert(row)["arm"].tolist()
        assert taken["gripper"] == convert(row)["gripper"]


def test_a_number_that_is_nan_is_one_line_with_the_environment() -> None:
    spec = "gym:Pendulum-v1,processes=0"
    env = envs.make_vector(spec, 2)
    env.reset(seed=0)
    expected = rf"^environment {spec}, step: action: expected finite numbers \(float32\), got nan at \[0\], 1 of 1$"
    with pytest.raises(envs.WrongOutput, match=expected), guard.calling(spec, "in step"):
        env.step(np.array([[0.0], [np.nan]], np.float32))
