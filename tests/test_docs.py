"""The documentation is true where a test can tell: its links, anchors, paths, commands, tests and Python code."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import COMMANDS
from commands.options import OPTIONS
from commands.parsing import option_names

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
CODE = re.compile(r"^```.*?^```|^(?: {4}|\t).*?$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
FOLDERS = "agent|envs|actors|learner|training|text|speech|images|reports|commands|benchmarks|tests|docker|docs|examples"


def anchors(page: Path) -> set[str]:
    """The anchors that MkDocs and GitHub give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_anchors_that_exist(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        inside = page.parent != DOCS or target.is_relative_to(DOCS)  # else the site lacks it
        if not (inside and target.is_file() and (not anchor or anchor in anchors(target))):
            broken.append(link)
    assert not broken


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(menu) == sorted(str(page.relative_to(DOCS)) for page in PAGES if DOCS in page.parents)


def test_every_package_has_an_api_page() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks", "examples"}
    assert {path.stem for path in (DOCS / "api").glob("*.md")} == packages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_make_targets_and_commands_exist(page: Path) -> None:
    text = page.read_text()
    paths = re.findall(rf"(?:`|python |-f )((?:{FOLDERS})/[\w./-]*\w)", text)
    assert not [path for path in paths if not (ROOT / path).exists()]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", text, re.MULTILINE)) <= targets
    assert set(re.findall(r"(?:`|^ {4}|bin/)compressive ([a-z]+)", text, re.MULTILINE)) <= set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_in_command_lines_exist(page: Path) -> None:
    text = page.read_text().replace("\\\n", " ")
    for line in re.findall(r"^ {4,}compressive (.+?)(?: +#.*)?$", text, re.MULTILINE):
        words = line.split()
        command = next((name for name in (" ".join(words[:2]), words[0]) if name in OPTIONS), "")
        trains = [name for name in OPTIONS if command == "compare" and name.rpartition(" ")[2] in ("launch", "train")]
        known = {"help"}.union(*(option_names(OPTIONS[name]) for name in [command, *trains] if name))
        groups = {name.rpartition(".")[0] for name in known}
        given = {word.strip("-").partition("=")[0].rstrip("_") for word in words if command and word.startswith("--")}
        assert given <= known | groups, line


def test_the_map_names_every_folder() -> None:
    text = (ROOT / "README.md").read_text()
    folders = set(re.findall(r"^ {4}([a-z/ ]+?/)(?= {2})", text[text.index("## Map") :], re.MULTILINE))
    named = {name for folder in folders for name in folder.split()}
    there = {f"{path.name}/" for path in ROOT.iterdir() if re.fullmatch(FOLDERS, path.name)}
    assert there <= named


def test_python_blocks_of_the_readme_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def named_tests() -> Iterator[tuple[str, str]]:
    """File and function of each test that the tables of docs/faults.md name."""
    for row in (DOCS / "faults.md").read_text().splitlines():
        if row.startswith("| ") and not row.startswith("| event "):
            cells = row.split("|")
            assert len(cells) == 5, row
            for test in cells[3].split(","):
                path, *_, name = test.strip().split("::")
                yield path, name


def test_rows_of_the_tables_of_faults_name_tests_that_exist() -> None:
    tests = list(named_tests())
    assert len(tests) > 60
    sources = {path: file.read_text() if (file := ROOT / "tests" / path).exists() else "" for path, _ in tests}
    assert not [f"{path}::{name}" for path, name in tests if f"def {name}(" not in sources[path]]
