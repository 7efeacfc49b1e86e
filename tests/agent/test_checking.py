"""`check_core`, and the making of cores that are in no list."""

import re
from typing import Any

import pytest
import torch

from agent.core import CORES, Core, CustomCoreConfig, check_core, make_core, matched_cores
from agent.core.matching import bytes_of_state, with_state_of
from tests.custom_cores import BROKEN, Average, Phase, Wide, Wrapped

HERE = "tests.custom_cores"
SIZES = {"model_size": 8, "num_layers": 2, "num_heads": 2, "mlp_size": 8, "segment_size": 4}


@pytest.mark.parametrize("name", CORES)
def test_our_own_cores_pass(name: str) -> None:
    config = matched_cores(SIZES, memory=4, compressed=4)[name]
    check_core(make_core(config), 8, getattr(config, "segment_size", 1))


@pytest.mark.parametrize("kind", [Phase, Wrapped])
def test_cores_that_count_steps_in_their_own_way_pass(kind: type[Core]) -> None:
    check_core(kind(8), 8, segment_size=4)


def test_other_modules_are_no_cores() -> None:
    other: Any = torch.nn.Linear(8, 8)
    with pytest.raises(ValueError, match=r"core: expected an instance of agent.core.Core, got Linear"):
        check_core(other, 8)


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_promise_is_named(kind: type[Core]) -> None:
    with pytest.raises(ValueError, match=f"core {kind.__name__}: .*{BROKEN[kind]}") as raised:
        check_core(kind(8), 8)
    assert "docs/core.md" in str(raised.value)


@pytest.mark.parametrize(("segment_size", "wrong"), [(4, 1), (4, 3), (4, 8), (1100, 1)])
def test_the_steps_of_a_segment_are_those_that_the_core_counts(segment_size: int, wrong: int) -> None:
    """An exported agent ends segments by this number, and so do learners."""
    core = Wide(8, segment_size)
    known = str(segment_size) if segment_size < 1024 else "as many steps"
    words = re.escape(f"segment_size: expected {known}, as in its state, got {wrong} (agent.core.arguments")
    with pytest.raises(ValueError, match=f"core Wide: {words}"):
        check_core(core, 8, wrong)


def test_checking_leaves_no_trace() -> None:
    core = Wide(8)
    weights = [weight.clone() for weight in core.parameters()]
    core.train()
    before = torch.get_rng_state()
    check_core(core, 8, 4)
    assert core.training
    assert torch.equal(torch.get_rng_state(), before)
    for weight, kept in zip(core.parameters(), weights, strict=True):
        assert torch.equal(weight, kept)
        assert weight.grad is None


class Rounded(Average):
    """Calls of several steps differ in the fifth digit from those of one."""

    def forward(self, inputs: Any, *arguments: Any) -> Any:
        output = super().forward(inputs, *arguments)
        return output._replace(features=output.features * (1 + 1e-5 * inputs.shape[1]))


def test_rounding_is_no_broken_promise() -> None:
    check_core(Rounded(8), 8)


def test_a_custom_core_gets_its_arguments() -> None:
    core = make_core(CustomCoreConfig(f"{HERE}:Average", 8, ("keep=0.5",)))
    assert isinstance(core, Average)
    assert core.keep == 0.5
    assert core.initial_state(3).average.shape == (3, 8)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("True", True),
        ("true", True),
        ("false", False),
        ("(1, 2)", (1, 2)),
        ("mean", "mean"),
        ("a=b", "a=b"),
        ("", ""),
        ("((", "(("),
    ],
)
def test_values_are_written_as_in_python(text: str, value: object) -> None:
    keywords = CustomCoreConfig("a:B", 8, (f"x={text}",)).keywords
    assert keywords == {"model_size": 8, "x": value}
    assert type(keywords["x"]) is type(value)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("average", (), "name: expected MODULE:CLASS, got 'average'"),
        ("a b:C", (), "name: expected MODULE:CLASS"),
        ("a:b:C", (), "name: expected MODULE:CLASS"),
        ("a:B", ("keep",), "arguments: expected NAME=VALUE, got 'keep'"),
        ("a:B", ("2=1",), "arguments: expected NAME=VALUE"),
        ("a:B", ("x=1", "x=2"), "arguments: expected each name once, and no model_size, got 'x=2'"),
        ("a:B", ("model_size=4",), "arguments: expected each name once, and no model_size"),
        ("a:B", ("segment_size=0",), "arguments: expected a segment_size of 1 or more steps, got 0"),
        ("a:B", ("segment_size=four",), "arguments: expected a segment_size of 1 or more steps, got 'four'"),
    ],
)
def test_an_impossible_custom_core_is_refused(name: str, arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        CustomCoreConfig(name, 8, arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("Nothing", (), "expected a subclass of agent.core.Core, got nothing of this name"),
        ("torch", (), "expected a subclass of agent.core.Core, got "),
        ("AverageState", (), "expected a subclass of agent.core.Core, got "),
        (
            "Average",
            ("size=3",),
            "expected arguments of the class (model_size, keep), got model_size, size: got an unexpected keyword",
        ),
    ],
)
def test_a_class_that_is_no_core_is_refused(name: str, arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"core {HERE}:{name}: {expected}")):
        make_core(CustomCoreConfig(f"{HERE}:{name}", 8, arguments))


class RaisesWhenMade(Average):
    """Its class takes the argument, and cannot use it."""

    def __init__(self, model_size: int, kind: str = "") -> None:
        super().__init__(model_size)
        self.keep = {"slow": 0.9}[kind]


class RaisesInState(Average):
    """It has a state of something that it lacks."""

    def initial_state(self, batch_size: int) -> Any:
        return self.missing.new_zeros(batch_size)  # type: ignore[operator]


def test_errors_of_a_custom_cores_own_code_are_one_line_with_their_place() -> None:
    place = rf" \({re.escape(__file__)}, line \d+\)"
    name = f"{__name__}:RaisesWhenMade"
    expected = rf"^core {name}: expected an instance of the class, got KeyError: 'fast'{place}$"
    with pytest.raises(ValueError, match=expected):
        make_core(CustomCoreConfig(name, 8, ("kind=fast",)))

    expected = "core RaisesInState: initial_state: expected a state of 3 rows, got AttributeError: .*'missing'"
    with pytest.raises(ValueError, match=expected + place):
        check_core(RaisesInState(8), 8)


def test_a_segment_is_an_argument() -> None:
    assert CustomCoreConfig(f"{HERE}:Average", 8).segment_size == 1
    assert CustomCoreConfig(f"{HERE}:Wide", 8, ("segment_size=16",)).segment_size == 16


class ReadsItsTensors(Average):
    """It looks at a number when it is made, which the meta device does not have."""

    def __init__(self, model_size: int) -> None:
        super().__init__(model_size, float(torch.ones(1).sum()))


def test_states_of_custom_cores_have_bytes() -> None:
    config = CustomCoreConfig(f"{HERE}:Average", 8)
    assert bytes_of_state(config) == 32
    assert with_state_of(config, 100).model_size == 25
    reads = CustomCoreConfig(f"{__name__}:ReadsItsTensors", 8)
    before = torch.get_rng_state()
    assert bytes_of_state(reads) == 32
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ValueError, match="state_bytes: expected a core that can be made on torch's meta device"):
        with_state_of(reads, 100)
