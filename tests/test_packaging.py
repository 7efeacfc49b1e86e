"""The wheel has the packages, their pages and type markers, and nothing else; it is built here without a network."""

import email
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.test_layers import ALLOWED

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = "from setuptools import build_meta; build_meta.build_wheel('dist')"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, because a build writes beside the sources."""
    copy = tmp_path_factory.mktemp("sources") / "project"
    kept = [*ALLOWED, "tests", "examples", "benchmarks", "docs", "pretrained"]
    for folder in kept:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    subprocess.run([sys.executable, "-c", BUILD], cwd=copy, check=True, capture_output=True)
    (found,) = (copy / "dist").iterdir()
    return zipfile.ZipFile(found)


def test_the_wheel_has_the_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    expected = {
        str(path.relative_to(ROOT))
        for folder in ALLOWED
        for pattern in ("*.py", "*.html", "*.css", "*.js")
        for path in (ROOT / folder).rglob(pattern)
    }
    expected |= {f"{folder}/py.typed" for folder in ALLOWED}
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == expected


def test_the_wheel_describes_itself(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    assert (metadata["Name"], metadata["Version"]) == (PROJECT["name"], PROJECT["version"])
    assert metadata["Requires-Python"] == "<3.14,>=3.11"
    assert set(metadata.get_all("Provides-Extra")) == PROJECT["optional-dependencies"].keys()
    required = [each for each in metadata.get_all("Requires-Dist") if "extra ==" not in each]
    assert required == PROJECT["dependencies"], "no library of the examples is in the default installation"
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    assert "compressive = commands:main" in wheel.read(entry_points).decode()
    assert any(name.endswith("/LICENSE") for name in wheel.namelist())


def test_the_citation_is_of_this_version() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["title"], citation["version"]) == (PROJECT["name"], PROJECT["version"])
    assert citation["license"] == PROJECT["license"]
    cited = {reference["url"] for reference in citation["references"]}
    assert cited == {url for url in PROJECT["urls"].values() if "arxiv" in url}
