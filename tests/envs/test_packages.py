"""Packages that register gymnasium's ids: imported by themselves if they are installed, else named with a command."""

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import envs

SOURCE = """
import gymnasium

gymnasium.register("MiniWorld-Made-v0", entry_point="tests.envs.test_packages:Plain")
"""


class Plain(gymnasium.Env):
    """Does not say whether it can be drawn, and cannot."""

    metadata = {}  # noqa: RUF012
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        return np.zeros(2, np.float32), {}


@pytest.fixture
def miniworld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of this name, in a folder that is on the path; it makes the file "executed"."""
    (tmp_path / "miniworld.py").write_text(f"{SOURCE}\nopen(__file__ + '.executed', 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("miniworld", None)
    gymnasium.registry.pop("MiniWorld-Made-v0", None)


@pytest.mark.parametrize("spec", ["gym:MiniWorld-Made-v0", "gym:miniworld:MiniWorld-Made-v0"])
def test_an_installed_package_is_imported_without_permission(spec: str, miniworld: Path) -> None:
    assert not envs.foreign_code(spec)
    assert envs.make_vector(spec, 1).single_observation_space.shape == (2,)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("spec", ["gym:MiniWorld-Made-v0", "gym:miniworld:MiniWorld-Made-v0"])
def test_the_working_directory_is_not_where_packages_are_installed(
    spec: str, linked: bool, miniworld: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may be of another person, and Python finds modules there."""
    if linked:
        there = tmp_path / "elsewhere"
        there.mkdir()
        (miniworld / "miniworld.py").rename(there / "miniworld.py")
        (miniworld / "miniworld.py").symlink_to(there / "miniworld.py")
    monkeypatch.chdir(miniworld)
    with pytest.raises(ImportError, match=r"needs miniworld, .* not in the working directory: pip install miniworld"):
        envs.make_vector(spec, 1)
    assert not list(tmp_path.rglob("*.executed"))


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`hidden(package, module)`: the package is not installed, and the module that needs it not imported yet."""

    def hide(package: str, module: str) -> None:
        monkeypatch.setitem(sys.modules, package, None)
        for name in [name for name in sys.modules if name.startswith(module)]:
            monkeypatch.delitem(sys.modules, name)

    return hide


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize(
    ("name", "package", "module"),
    [
        ("LunarLander-v3", "Box2D", "gymnasium.envs.box2d"),
        ("Ant-v5", "mujoco", "gymnasium.envs.mujoco"),
    ],
)
def test_gymnasiums_own_environments_say_what_to_install(
    name: str, package: str, module: str, processes: int, hidden: Callable[..., Any]
) -> None:
    if processes and importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed, and the process finds it")
    hidden(package, module)
    with pytest.raises(ImportError, match=rf"(?i)^gym:{name}: {package} is not installed, .* `pip install"):
        envs.make_vector(f"gym:{name},processes={processes}", 1)


def test_a_package_may_be_missing_only_when_an_episode_begins() -> None:
    gymnasium.register("Late-v0", entry_point=Late)
    batch = envs.make_vector("gym:Late-v0", 1)
    with pytest.raises(ImportError, match=r"^environment gym:Late-v0: pygame is not installed$"):
        envs.prepare("gym:Late-v0")
    batch.close()
    del gymnasium.registry["Late-v0"]


class Late(Plain):
    """As gymnasium's CarRacing."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed")


def test_pictures_are_asked_for_without_a_warning() -> None:
    gymnasium.register("Plain-v0", entry_point=Plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert envs.drawing("gym:Plain-v0") == "gym:Plain-v0"
    del gymnasium.registry["Plain-v0"]
