"""The wheel has the packages, their pages and type markers, and nothing else; it is built here without a network."""

import email
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_layers import ALLOWED

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = "from setuptools import build_meta; build_meta.build_wheel('dist')"
LOCKED = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
"""Lines NAME==VERSION."""


def requirements(*extras: str) -> set[Requirement]:
    """What the default installation needs, with the needs of some extras."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    return {Requirement(each) for lines in lists for each in lines}


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
    assert set(metadata.get_all("Provides-Extra", [])) == PROJECT["optional-dependencies"].keys()
    required = {Requirement(each) for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each}
    assert required == requirements(), "no library of the examples is in the default installation"
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    assert "compressive = commands:main" in wheel.read(entry_points).decode()
    assert any(name.endswith("/LICENSE") for name in wheel.namelist())


def test_the_lock_has_every_package_in_a_version_that_is_allowed() -> None:
    """Without local parts such as +cpu, which only some indices have."""
    versions = dict(line.split("==") for line in LOCKED)
    assert sorted(LOCKED) == LOCKED
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in LOCKED)
    for each in requirements("dev", "cluster", "s3", "docs"):
        assert each.specifier.contains(versions[canonicalize_name(each.name)]), each
    assert not {name for name in versions if name.startswith("nvidia-")}, "make chooses the build of torch"


def test_ranges_have_a_lowest_version() -> None:
    """Libraries that pin exactly cannot live beside others."""
    for each in requirements(*PROJECT["optional-dependencies"]):
        operators = {part.operator for part in each.specifier}
        assert ">=" in operators, each
        assert operators <= {">=", "<"}, each


def test_the_citation_is_of_this_version() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["title"], citation["version"]) == (PROJECT["name"], PROJECT["version"])
    assert citation["license"] == PROJECT["license"]
    cited = {reference["url"] for reference in citation["references"]}
    assert cited == {url for url in PROJECT["urls"].values() if "arxiv" in url}
