"""Fixtures: the tiny agent of the learner's tests, whose state is saved here."""

from tests.learner.conftest import tiny_agent, trajectory

__all__ = ["tiny_agent", "trajectory"]
