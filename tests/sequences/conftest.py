"""Fixtures: where the learners of a group are, as in the learner's own tests."""

from tests.learner.conftest import place

__all__ = ["place"]
