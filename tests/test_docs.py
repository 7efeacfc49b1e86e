"""The documentation is true where a test can tell: its links, anchors, paths, names, commands, tests and Python code.

tests/test_extending.py runs the example of docs/extending.md.
"""

import argparse
import ast
import functools
import importlib
import re
import runpy
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tyro

from commands import COMMANDS
from commands.options import OPTIONS
from commands.parsing import option_names, parse_command, parse_train
from envs.registry import diagnostic_task, rooms_config
from envs.specs import parse_spec
from reports.scoreboard import as_files, scoreboard
from reports.scores import joined, planned, read_scores
from training.config import RunConfig
from training.grid import make_suite, make_trials
from training.suites import SUITES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
PRESENT = [page for page in PAGES if page.name not in ("CHANGELOG.md", "log.md")]
"""Pages about the project as it is; the others also name what was there once."""
CODE = re.compile(r"^```.*?^```|^(?: {4}|\t).*?$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
FOLDERS = "agent|envs|actors|learner|storage|training|sequences|reports|commands|benchmarks|tests|docker|docs|examples"
STAND_INS = {"CORE": "lstm", "DIR": "folder", "N": "2", "S": "0", "STEPS": "1M", "URL": "s3://bucket/run"}
"""Values in place of the words in capitals that a reader replaces; others, such as NAME, are values already."""


def by_page(pages: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


@functools.cache
def project_files() -> tuple[Path, ...]:
    """Files of the project; not those of runs, virtual environments and caches."""
    places = [ROOT.glob("*.*"), *((ROOT / folder).rglob("*.*") for folder in FOLDERS.split("|"))]
    return tuple(path for place in places for path in place if "__pycache__" not in path.parts)


@functools.cache
def source() -> str:
    """The text of all modules, in which the names of files that the program writes are found."""
    return "".join(path.read_text() for path in project_files() if path.suffix == ".py" and path != Path(__file__))


def anchors(page: Path) -> set[str]:
    """The anchors that MkDocs and GitHub give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@by_page(PAGES)
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
    """The log of experiments is in no menu: pages that quote it link to it."""
    settings = (ROOT / "mkdocs.yml").read_text()
    menu = re.findall(r"^ +- .*: (\S+\.md)$", settings, re.MULTILINE)
    assert "\nnot_in_nav: log.md" in settings
    assert sorted([*menu, "log.md"]) == sorted(str(page.relative_to(DOCS)) for page in PAGES if DOCS in page.parents)


def test_the_home_page_lists_every_page() -> None:
    linked = set(re.findall(r"\]\((\w+\.md)\)", (DOCS / "index.md").read_text()))
    assert linked == {page.name for page in DOCS.glob("*.md")} - {"index.md"}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_package_has_an_api_page() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks", "examples"}
    assert {path.stem for path in (DOCS / "api").glob("*.md")} == packages


@by_page(PAGES)
def test_paths_make_targets_and_commands_exist(page: Path) -> None:
    text = page.read_text()
    paths = re.findall(rf"(?:`|python |-f )((?:{FOLDERS})/[\w./-]*\w)", text)
    assert not [path for path in paths if not (ROOT / path).exists()]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", text, re.MULTILINE)) <= targets
    assert set(re.findall(r"(?:`|^ {4}|bin/)compressive ([a-z]+)", text, re.MULTILINE)) <= set(COMMANDS)


@by_page(PAGES)
def test_options_in_command_lines_exist(page: Path) -> None:
    text = page.read_text().replace("\\\n", " ")
    for line in re.findall(r"^ {4,}compressive (.+?)(?: +#.*)?$", text, re.MULTILINE):
        words = line.split()
        command = next((name for name in (" ".join(words[:2]), words[0]) if name in OPTIONS), "")
        trains = [name for name in OPTIONS if command == "compare" and name.rpartition(" ")[2] in ("launch", "train")]
        known = {"help"}.union(*(option_names(OPTIONS[name]) for name in [command, *trains] if name))
        groups = {name.rpartition(".")[0] for name in known}
        given = {word.strip("-").partition("=")[0] for word in words if command and word.startswith("--")}
        assert given <= known | groups, line


def test_the_map_names_every_folder() -> None:
    text = (ROOT / "README.md").read_text()
    folders = set(re.findall(r"^ {4}([a-z/ ]+?/)(?= {2})", text[text.index("## Map") :], re.MULTILINE))
    named = {name for folder in folders for name in folder.split()}
    there = {f"{path.name}/" for path in ROOT.iterdir() if re.fullmatch(FOLDERS, path.name)}
    assert there <= named


@by_page(PRESENT)
def test_files_without_a_folder_exist(page: Path) -> None:
    """They are files of the project or have names that the program uses; those with words in capitals are patterns."""
    names = set(re.findall(r"`([a-z][\w-]*\.(?:py|md|ya?ml|toml|json|html|css|js|svg|png))`", page.read_text()))
    there = {path.name for path in project_files()} | {"gpt.py", "monobeast.py"}  # of code bases beside ours
    assert not [name for name in names - there if not re.search(r"[A-Z]", name) and name not in source()]


@by_page(PRESENT)
def test_names_are_in_the_files_that_are_named_with_them(page: Path) -> None:
    """`NAME` in `path.py`, `NAME` (`path.py`)."""
    pairs = re.findall(r"`(\w+)`(?: there)?,? (?:in\s+|\()`((?:\w+/)+\w+\.py)`", " ".join(page.read_text().split()))
    assert not [(name, path) for name, path in pairs if not re.search(rf"\b{name}\b", (ROOT / path).read_text())]


@by_page(PRESENT)
def test_classes_exist(page: Path) -> None:
    """Names such as `LocalPool`; those of other libraries are in the code, too, but for a few."""
    others = {"AdaptiveLogSoftmaxWithLoss", "AuthenticationError", "MemoryChain", "UmbrellaChain"}
    names = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]*)+)`", page.read_text()))
    assert not [name for name in names - others if not re.search(rf"\b{name}\b", source())]


@by_page(PRESENT)
def test_dotted_names_can_be_imported(page: Path) -> None:
    for name in set(re.findall(rf"`((?:{FOLDERS})(?:\.\w+)+)(?:\(.*?\))?`", page.read_text())):
        if (ROOT / name).exists() or name in known_options():
            continue
        found: Any = importlib.import_module(name.partition(".")[0])
        for depth, part in enumerate(name.split(".")[1:], 2):
            module = ".".join(name.split(".")[:depth])
            is_module = (ROOT / f"{module.replace('.', '/')}.py").exists() or (ROOT / module.replace(".", "/")).is_dir()
            found = importlib.import_module(module) if is_module else getattr(found, part)


@functools.cache
def known_options() -> frozenset[str]:
    """The options of all commands, without dashes before them, and the groups that they are in."""
    names = {name for options in OPTIONS.values() for name in option_names(options)}
    return frozenset(names | {name.rpartition(".")[0] for name in names} | {"help", "version"})


FOREIGN = """min-worker-port max-worker-port node-manager-port object-manager-port runtime-env-agent-port port
    dashboard-host dashboard-port dashboard-agent-grpc-port dashboard-agent-listen-port metrics-export-port
    ray-client-server-port object-store-memory runtime-env-json shm-size build-arg tyro-print-completion"""
"""Options of Ray, Docker and tyro that pages name."""


@by_page(PRESENT)
def test_options_in_sentences_exist(page: Path) -> None:
    scripts = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").glob("*.py")]
    fields = set(re.findall(r"^    (\w+): ", "".join(path.read_text() for path in scripts), re.MULTILINE))
    known = known_options() | set(FOREIGN.split()) | {name.replace("_", "-") for name in fields}
    options = set(re.findall(r"`--([a-z][\w.-]*)", page.read_text()))
    assert {re.sub(r"(^|\.)no-", r"\1", option) for option in options} <= known


def command_lines(page: Path, program: str) -> set[str]:
    """What follows a program, in lines of their own and in sentences, without comments and the dots of an excerpt."""
    text = page.read_text().replace("\\\n", " ")
    found = re.findall(rf"^ {{4,}}{program} (.+?)(?: +#.*| {{3,}}.*)?$", text, re.MULTILINE)
    found += re.findall(rf"`{program} ([^`]+)`", " ".join(text.split()))
    return {line.removesuffix("...").strip() for line in found}


@functools.cache
def check_command(line: str) -> None:
    """Parses the words after `compressive`. Runs that it names are not there, so what is read from them is left out."""
    words = [STAND_INS.get(word, word) for word in shlex.split(line)]
    for option in {"--resume", "--from-run", "--like"} & set(words):
        at = words.index(option)
        del words[at : at + 2]
    name, *rest = words
    options, *others = parse_command(name, rest)
    if name == "compare":
        preset = [] if options.preset is None else ["--preset", options.preset]
        parse_train("launch" if options.kind == "agent" else options.kind, [*preset, *others[0]])


@by_page(PRESENT)
def test_commands_can_be_parsed(page: Path) -> None:
    for line in command_lines(page, r"(?:\.venv/bin/compressive|compressive|python -m commands)"):
        named = line in OPTIONS or line in COMMANDS  # a command's name in a sentence
        if not named and "--help" not in line and "mycore" not in line and not line.startswith(("-", "COMMAND")):
            check_command(line)


@by_page(PRESENT)
def test_environments_that_need_nothing_else_exist(page: Path) -> None:
    specs = re.findall(r"\b(?:rooms|diagnostic):\w[\w-]*(?:,\w+=[\w.+]*\w)*", page.read_text())
    for spec in map(parse_spec, specs):
        if spec.kind == "rooms":
            rooms_config(spec.name, spec.overrides)
        else:
            task, fields = diagnostic_task(spec.name, spec.overrides)
            task(1, **fields)


def test_the_leaderboard_shows_the_results() -> None:
    """Tables and files are those of the runs that `--beside` reads."""
    page = (DOCS / "leaderboard.md").read_text()
    found = sorted((ROOT / "results").glob("*-scores.json"))
    assert found
    for path in found:
        suite = path.name.removesuffix("-scores.json")
        files = as_files(scoreboard(read_scores(path)))
        assert files["scoreboard.csv"] == path.with_name(f"{suite}.csv").read_bytes()
        assert files["scoreboard.json"] == path.with_name(f"{suite}.json").read_bytes()
        missing = [line for line in files["scoreboard.md"].decode().splitlines() if line not in page]
        assert not missing


SCORES = sorted((ROOT / "results").glob("*-scores.json"))


@pytest.mark.parametrize("path", SCORES, ids=[path.stem for path in SCORES])
def test_results_are_of_settings_as_suites_have_them_today(path: Path) -> None:
    """So what readers add with `--beside` is in the same columns. Needs the packages of the suite's environments."""
    rows = read_scores(path)
    cores = list(dict.fromkeys(row.variant for row in rows))

    def make(words: list[str]) -> dict[str, RunConfig]:
        return make_trials(RunConfig, parse_launch, "general", cores, (), (0,), (), words, fewest=1)

    trials = make_suite(SUITES[path.name.removesuffix("-scores.json")], make, [])
    try:
        own = planned(list(trials.values()))
    except ImportError as error:
        pytest.skip(str(error))
    together, different = joined(own, rows, path.name)
    assert not different
    assert {row.variant for row in together} == {*cores}


def parse_launch(words: list[str]) -> RunConfig:
    config: RunConfig = parse_train("launch", words).config
    return config


class Parsed(BaseException):
    """Ends a program that has read its options."""


@by_page(PRESENT)
def test_command_lines_of_benchmarks_and_examples_can_be_parsed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(parse: Any) -> Any:
        def parse_and_stop(*arguments: Any, **options: Any) -> None:
            parse(*arguments, **options)
            raise Parsed

        return parse_and_stop

    monkeypatch.setattr(tyro, "cli", stop(tyro.cli))
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop(argparse.ArgumentParser.parse_args))
    for line in command_lines(page, r"python -m(?= (?:benchmarks|examples)\.)"):
        module, *words = (STAND_INS.get(word, word) for word in shlex.split(line))
        if not words or "..." in words:  # a name in a sentence, an excerpt
            continue
        monkeypatch.setattr(sys, "argv", [module, *words])
        monkeypatch.delitem(sys.modules, module, raising=False)
        try:
            runpy.run_module(module, run_name="__main__")
        except ModuleNotFoundError as error:  # the library of an example
            if str(error.name).partition(".")[0] in FOLDERS.split("|"):
                raise
        except Parsed:
            continue
        except SystemExit:
            pytest.fail(line)


@by_page(PAGES)
def test_extras_exist(page: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"(?:'\.|compressive-impala)\[(\w+)\]", page.read_text())) <= extras.keys()


def is_python(block: str) -> bool:
    """Whether a block is Python with at least one import, definition or call; formulas and output are not."""
    try:
        tree = ast.parse(block)
    except SyntaxError:
        return False
    return any(
        isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef | ast.Assign)
        for node in tree.body
    )


@by_page(PRESENT)
def test_python_code_runs(page: Path) -> None:
    """Python stands between ```python and ```, each block complete. docs/extending.md has a test of its own."""
    text = page.read_text()
    fenced = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    indented = re.findall(r"(?:^(?: {4}.*)?\n)+", fenced.sub("", text), re.MULTILINE)
    excerpts = page.name == "decisions.md"  # of files, beside those of other code bases
    assert excerpts or not [block for block in indented if is_python(textwrap.dedent(block))]
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks or page.name != "README.md"
    for block in blocks if page.name != "extending.md" else []:
        exec(compile(block, page.name, "exec"), {})


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
