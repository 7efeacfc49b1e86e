"""A quick check of the contract, for cores that are not in this repository. The tests of its own cores are stricter."""

import importlib.util
import traceback
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch import Tensor

from .contract import Core, CoreOutput, Mean
from .state import State, leaves, map_state, offset_of

ROWS = 3
MOST_STEPS = 1024
"""Steps within which a segment has to end."""
ALL = slice(None)
TOLERANCE = 1e-3
"""Largest difference between features that should be equal, as a share of the largest feature."""


def describe_raised(error: BaseException, module: str) -> str:
    """The type and the text of an error, and its place in the file of a module, if it was there."""
    file = None
    with suppress(ImportError, ValueError):  # a module that cannot be found, or has no file
        source = importlib.util.find_spec(module)
        file = source.origin if source else None
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    place = f" ({file}, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"


def check_core(core: Core, model_size: int, segment_size: int = 1) -> None:
    """Plays a few random steps, and compares what the contract says is equal. It takes milliseconds.

    Args:
        core: on the CPU; neither its weights nor the random numbers of torch are changed.
        model_size: features of its inputs and outputs.
        segment_size: steps of a segment, if the core's state counts them; see `TransformerConfig`.

    Raises:
        ValueError: names the first promise that the core breaks, with what was expected and what came.
    """
    if not isinstance(core, Core):
        raise ValueError(f"core: expected an instance of agent.core.Core, got {type(core).__name__}")
    was_training = core.training
    core.eval()  # without dropout
    try:
        with torch.random.fork_rng([]):
            _Check(core, model_size, segment_size).run()
    finally:
        core.train(was_training)


class _Check:
    """Random inputs [B, T, D], and what the core makes of them.

    The second row has a reset in the middle, where a segment begins, and the third one a step later, where none does.
    """

    def __init__(self, core: Core, model_size: int, segment_size: int) -> None:
        torch.manual_seed(0)
        self.core = core
        self.segment_size = segment_size
        self.middle = max(3, segment_size)
        self.steps = 2 * self.middle
        self.inputs = torch.randn(ROWS, self.steps, model_size)
        self.reset = torch.zeros(ROWS, self.steps, dtype=torch.bool)
        self.resets = {1: self.middle, 2: self.middle + 1}
        for row, step in self.resets.items():
            self.reset[row, step] = True

    def run(self) -> None:
        """Raises a ValueError for the first broken promise."""
        begin = self._initial_state()
        kept = map_state(torch.clone, begin)
        output = self._call(self.inputs, self.reset, begin)
        self._require_form(output, begin)
        for before, after in zip(leaves(kept), leaves(begin), strict=True):
            if not torch.equal(before, after):
                self._refuse("expected a call to leave its state as it was, and it was changed in place")

        features = output.features
        self._require_gradient(features)
        with torch.no_grad():
            self._require_segments(begin)
            stepped = self._step_by_step()
            self._require_equal(stepped, features, "in one call as in calls of one step each")
            self._require_state(output)

            # The last step reaches nothing before it.
            changed = self._features_with_other(ALL, slice(-1, None))
            self._require_equal(changed[:, :-1], features[:, :-1], "at steps before an input that changes")

            # A row reaches no other, and needs none beside it.
            for row in range(ROWS):
                changed = self._features_with_other(row, ALL)
                others = torch.arange(ROWS) != row
                self._require_equal(changed[others], features[others], "in rows beside one that changes")
            alone = self._call(self.inputs[:1], self.reset[:1], self.core.initial_state(1)).features
            self._require_equal(alone, features[:1], "in a row alone as beside others")

            # What was before a reset reaches nothing after it.
            for row, since in self.resets.items():
                changed = self._features_with_other(row, slice(since))
                where = "after a reset, when what was before it changes"
                self._require_equal(changed[row, since:], features[row, since:], where)

    def _initial_state(self) -> State:
        try:
            state = self.core.initial_state(ROWS)
        except Exception as error:
            self._refuse(f"initial_state: expected a state of {ROWS} rows, got {self._describe(error)}", error)
        if not hasattr(state, "_fields"):
            self._refuse(f"initial_state: expected a NamedTuple of tensors, got {type(state).__name__}")
        try:
            map_state(lambda leaf: leaf, state)
        except TypeError as error:
            self._refuse(f"initial_state: {error}")
        for leaf in leaves(state):
            if leaf.ndim == 0 or len(leaf) != ROWS:
                self._refuse(f"initial_state: expected tensors of {ROWS} rows, got one of {list(leaf.shape)}")
        return state

    def _call(self, inputs: Tensor, reset: Tensor, state: State) -> CoreOutput:
        """Calls the core as an agent does, with all four arguments."""
        try:
            return self.core(inputs, reset, state, False)
        except Exception as error:
            form = f"inputs {list(inputs.shape)}, resets, a state and return_attention"
            self._refuse(f"forward: expected a result for {form}, got {self._describe(error)}", error)

    def _describe(self, error: Exception) -> str:
        """An error that the core has raised, with its place in the core's own file."""
        return describe_raised(error, type(self.core).__module__)

    def _require_form(self, output: Any, begin: State) -> None:
        """The types, shapes and dtypes of what a call returns."""
        if not isinstance(output, CoreOutput):
            self._refuse(f"forward: expected a CoreOutput, got {type(output).__name__}")
        features = output.features
        if features.shape != self.inputs.shape or features.dtype != self.inputs.dtype:
            expected = f"{self.inputs.dtype} {list(self.inputs.shape)}"
            self._refuse(f"features: expected {expected}, got {features.dtype} {list(features.shape)}")
        if not features.isfinite().all():
            self._refuse("features: expected finite numbers, got others")
        expected = self._form(begin)
        if self._form(output.state) != expected:
            got = self._form(output.state)
            self._refuse(f"state: expected the form of the initial state {expected}, got {got}")
        losses = output.losses
        if not isinstance(losses, dict) or not all(isinstance(loss, Mean) for loss in losses.values()):
            self._refuse(f"losses: expected a dict of agent.core.Mean, empty for none, got {losses!r:.80}")

    def _form(self, state: State) -> str:
        """The type of a state and those of its tensors, in words."""
        tensors = [f"{leaf.dtype} {list(leaf.shape)}" for leaf in leaves(state)]
        return f"{type(state).__name__} of {', '.join(tensors) or 'nothing'}"

    def _require_gradient(self, features: Tensor) -> None:
        """Features depend on weights, if there are any that learn."""
        learns = any(parameter.requires_grad for parameter in self.core.parameters())
        if learns and not features.requires_grad:
            self._refuse("features: expected a gradient of the core's parameters, got none")

    def _step_by_step(self) -> Tensor:
        """The features of calls of one step each, as an agent acts."""
        state = self.core.with_cache(self.core.initial_state(ROWS))
        found = []
        for step in range(self.steps):
            now = slice(step, step + 1)
            output = self._call(self.inputs[:, now], self.reset[:, now], state)
            found.append(output.features)
            state = output.state
        return torch.cat(found, dim=1)

    def _require_segments(self, begin: State) -> None:
        """The state counts the steps of a segment up to its size, if it counts steps."""
        first = self._offset(begin)
        if first is None:
            return
        if first != 0:
            self._refuse(f"initial_state: expected the offset 0 into the segment, got {first}")
        state = begin
        steps = 0
        is_at_begin = False
        while not is_at_begin and steps < MOST_STEPS:
            state = self._call(self.inputs[:, :1], self.reset[:, :1], state).state
            steps += 1
            is_at_begin = self._offset(state) == 0
        if steps != self.segment_size:
            number = str(steps) if is_at_begin else "as many steps"
            hint = f"agent.core.arguments: segment_size={number}"
            self._refuse(f"segment_size: expected {number}, as in its state, got {self.segment_size} ({hint})")

    def _offset(self, state: State) -> int | None:
        """The steps that a state counts, None if it counts none."""
        try:
            return offset_of(state)
        except ValueError as error:
            self._refuse(str(error), error)

    def _require_state(self, whole: CoreOutput) -> None:
        """The state after several steps is what later calls go on from: as after two calls of half as many."""
        middle = self.middle
        first = self._call(self.inputs[:, :middle], self.reset[:, :middle], self.core.initial_state(ROWS))
        second = self._call(self.inputs[:, middle:], self.reset[:, middle:], first.state)
        features = torch.cat([first.features, second.features], dim=1)
        self._require_equal(features, whole.features, "in one call as in two")
        for one, two in zip(leaves(whole.state), leaves(second.state), strict=True):
            if one.numel():
                self._require_equal(two.double(), one.double(), "in one call as in two", what="state")

    def _features_with_other(self, rows: int | slice, steps: slice) -> Tensor:
        """The features in one call, if the inputs of these rows at these steps were others."""
        inputs = self.inputs.clone()
        inputs[rows, steps] *= -3
        return self._call(inputs, self.reset, self.core.initial_state(ROWS)).features

    def _require_equal(self, actual: Tensor, expected: Tensor, where: str, what: str = "features") -> None:
        """Raises a ValueError for features, or a state, that differ and should not; `where` says in which case."""
        largest = expected.abs().max().clamp(min=1e-6)
        difference = float((actual - expected).abs().max() / largest)
        if not difference <= TOLERANCE:
            got = f"a difference of {difference:.2g} times the largest"
            self._refuse(f"expected the same {what} {where}, got {got}")

    def _refuse(self, what: str, cause: Exception | None = None) -> NoReturn:
        name = type(self.core).__name__
        raise ValueError(f"core {name}: {what}; docs/core.md lists what a core promises") from cause
