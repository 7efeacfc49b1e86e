"""Tests that share what is expensive do run in one process: pytest 9.2.0 with pytest-xdist 3.8.0 loses the groups."""

import pytest


@pytest.mark.xdist_group("together")
def test_groups_are_known_to_who_distributes_the_tests(request: pytest.FixtureRequest) -> None:
    """pytest-xdist appends the group to the identifier by which it distributes a test."""
    if not hasattr(request.config, "workerinput") or not request.config.getoption("loadgroup"):
        pytest.skip("needs pytest -n N --dist loadgroup")
    assert request.node.nodeid.endswith("@together")
