"""Mutation testing: bugs of one line are planted in copies of the source files, and the tests should notice each.

    python -m benchmarks.mutation --files learner/replay.py agent/popart.py --count 20 --seed 0

A mutant is a file with one expression or statement changed: a comparison, an operator, a constant, an argument, a slice
bound, a removed statement or call such as `detach`. A sample of a file takes at most one mutant a line. Each is written
into a temporary copy of the tree, where the tests run that TESTS names for the file, in processes of their own, until
one fails or takes too long. Every result is appended to `output` at once: a benchmark that was interrupted goes on
there. A mutant is run again if its file has changed, or if it survived and its tests have changed.

"survivors" lists what no test noticed. Mutants that change nothing that could be noticed are argued in ARGUED. "failed"
says if fewer than 95 % of the others were caught.
"""

import ast
import contextlib
import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from benchmarks.common import require_least, run

ROOT = Path(__file__).parents[1]
LEAST = 0.95
"""The share of mutants that the tests are expected to catch."""
SLOWER = 5.0
"""Tests that take so many times as long as without a mutant, and a minute, have caught it."""

TESTS: dict[str, list[str]] = {
    "actors/causes.py": ["tests/actors/test_causes.py"],
    "actors/interface.py": ["tests/actors/test_interface.py", "tests/envs/test_contract.py"],
    "actors/intervals.py": ["tests/actors/test_intervals.py"],
    "actors/recorder.py": ["tests/actors/test_recording.py"],
    "actors/resident.py": [
        "tests/actors/test_resident.py",
        "tests/actors/test_pools.py",
        "tests/training/test_resident.py",
    ],
    "agent/core/linear.py": ["tests/agent/test_recurrent.py", "tests/agent/test_core_contract.py"],
    "agent/core/matching.py": ["tests/agent/test_matching.py"],
    "agent/core/routing.py": ["tests/agent/test_routing.py", "tests/agent/test_core_contract.py"],
    "agent/encoders.py": ["tests/agent/test_encoders.py", "tests/agent/test_agent.py"],
    "agent/moments.py": ["tests/agent/test_moments.py"],
    "agent/policies.py": ["tests/agent/test_policies.py", "tests/agent/test_agent.py"],
    "agent/popart.py": ["tests/agent/test_popart.py", "tests/learner/test_popart.py"],
    "agent/prediction.py": ["tests/agent/test_prediction.py"],
    "agent/teaching.py": ["tests/agent/test_teaching.py"],
    "envs/actions.py": ["tests/envs/test_actions.py"],
    "envs/observations.py": ["tests/envs/test_observations.py"],
    "envs/outputs.py": ["tests/envs/test_outputs.py", "tests/envs/test_vectors.py", "tests/envs/test_observations.py"],
    "envs/retention.py": ["tests/envs/test_retention.py"],
    "envs/rewriting.py": ["tests/envs/test_retention.py"],
    "envs/rooms/level.py": ["tests/envs/test_level.py", "tests/envs/test_rounds.py", "tests/envs/test_motion.py"],
    "envs/scores.py": ["tests/envs/test_scores.py"],
    "learner/config.py": ["tests/learner/test_learner.py"],
    "learner/diagnostics.py": ["tests/learner/test_diagnostics.py"],
    "learner/group.py": ["tests/learner/test_learner_group.py", "tests/sequences/test_group.py"],
    "learner/impala.py": [
        "tests/learner/test_learner.py",
        "tests/learner/test_popart.py",
        "tests/learner/test_group.py",
    ],
    "learner/learner.py": [
        "tests/learner/test_unread_updates.py",
        "tests/learner/test_learner.py",
        "tests/learner/test_replay.py",
        "tests/learner/test_learner_group.py",
    ],
    "learner/losses.py": ["tests/learner/test_losses.py", "tests/learner/test_learner.py"],
    "learner/optimization.py": [
        "tests/learner/test_learner.py",
        "tests/learner/test_group.py",
        "tests/learner/test_unread_updates.py",
    ],
    "learner/remote_learner.py": ["tests/learner/test_learner_group.py", "tests/sequences/test_group.py"],
    "learner/replay.py": ["tests/learner/test_replay.py", "tests/training/test_replay.py"],
    "learner/vtrace.py": ["tests/learner/test_vtrace.py"],
    "reports/probes.py": ["tests/commands/test_probes.py"],
    "reports/scoreboard.py": ["tests/commands/test_suites.py"],
    "reports/statistics.py": ["tests/commands/test_statistics.py"],
    "reports/tables.py": [
        "tests/commands/test_statistics.py",
        "tests/commands/test_status.py",
        "tests/commands/test_tasks.py",
        "tests/commands/test_pages.py",
    ],
    "sequences/learner.py": ["tests/sequences/test_learner.py", "tests/sequences/test_group.py"],
    "storage/exchange.py": ["tests/storage/test_exchange.py"],
    "training/curriculum.py": ["tests/training/test_curriculum.py", "tests/training/test_trainer.py"],
    "training/feeds.py": [
        "tests/training/test_feeds.py",
        "tests/training/test_replay.py",
        "tests/training/test_resident.py",
        "tests/training/test_trainer.py",
    ],
    "training/inheritance.py": ["tests/training/test_inheritance.py", "tests/training/test_teaching.py"],
    "training/progress.py": ["tests/training/test_console.py"],
    "training/resident.py": ["tests/training/test_resident.py", "tests/actors/test_resident.py"],
    "training/schedules.py": ["tests/training/test_trainer.py"],
}
"""The test files of each source file, those first that notice most."""

ARGUED: dict[tuple[str, str], str] = {
    ("actors/intervals.py", "1 -> 0"): "a block of one resample draws the same numbers, only slower",
    (
        "learner/impala.py",
        "self._popart is not None and forward.task is not None -> self._popart is not None or forward.task is not None",
    ): "an agent has both or neither",
    ("agent/popart.py", "self.weight.double() -> self.weight"): "the other factor is float64, so the product is, too",
    (
        "agent/policies.py",
        "torch.zeros(parameters.shape[:-1], device=parameters.device) -> torch.zeros(parameters.shape[:-1])",
    ): "the tests that run without a GPU have one device",
    (
        "agent/teaching.py",
        "1 -> 2",
    ): "means over features and then steps are those over steps and then features",
}
"""Reasons why nothing can notice a mutant, by its file and change (as in "survivors", without the line)."""


class Mutant(NamedTuple):
    """A change of the bytes begin:end of a file into `text`; `change` says it as "before -> after"."""

    file: str
    line: int
    change: str
    begin: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.begin] + self.text.encode() + source[self.end :]


COMPARISONS: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.Gt],
    ast.LtE: [ast.Lt, ast.GtE],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt, ast.LtE],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
PAIRS = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("sum", "mean"),
    ("any", "all"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("floor", "ceil"),
    ("logical_and", "logical_or"),
    ("sin", "cos"),
)
NAMES = {
    **dict(PAIRS),
    **{second: first for first, second in PAIRS},
    "float32": "bfloat16",
    "float64": "float32",
    "bfloat16": "float32",
}
"""Functions, methods and types that are taken for another."""
DROPPED_METHODS = {"detach", "clone", "copy", "eval", "float", "double", "abs", "clamp", "sqrt", "exp", "log"}
"""Methods whose call is replaced by its object."""
COMMUTATIVE = {"min", "max", "minimum", "maximum", "add", "logical_and", "logical_or", "equal", "isclose"}
"""Functions whose arguments may be swapped."""
DROPPED_CONTEXTS = {"no_grad", "inference_mode", "enable_grad", "autocast"}
"""Contexts and decorators without which the code runs with gradients, or in another precision."""


def name_of(node: ast.AST) -> str:
    """The last part of a dotted name; empty if it is another expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def changed(node: Any, **fields: Any) -> Any:
    """A copy of a node with other fields."""
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})


def without(items: Sequence[Any], index: int) -> list[Any]:
    return [*items[:index], *items[index + 1 :]]


def negated(condition: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), condition)


def parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def constants(value: object) -> list[bool | int | float]:
    """Other values of a constant; texts and None have none, since most are words for people."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        if value == 0:
            return [1]
        return [0, 2] if value == 1 else [2 * value, -value]
    return []


def alternatives_of_call(call: ast.Call) -> Iterator[ast.AST]:
    """An argument removed, two swapped, or the call itself removed."""
    for index, keyword in enumerate(call.keywords):
        if keyword.arg != "strict":  # of zip: an assertion
            yield changed(call, keywords=without(call.keywords, index))
    if len(call.args) > 1:
        yield changed(call, args=call.args[:-1])
    for index in range(len(call.args) - 1):
        if name_of(call.func) in COMMUTATIVE:
            break
        first, second = call.args[index : index + 2]
        yield changed(call, args=[*call.args[:index], second, first, *call.args[index + 2 :]])
    if isinstance(call.func, ast.Attribute) and call.func.attr in DROPPED_METHODS:
        yield call.func.value
    if name_of(call.func) in DROPPED_CONTEXTS:
        yield parsed("__import__('contextlib').nullcontext()")


def alternatives_of_operator(node: ast.AST) -> Iterator[ast.AST]:
    """Another operator, or none."""
    match node:
        case ast.Compare(ops=[operator]):
            for other in COMPARISONS[type(operator)]:
                yield changed(node, ops=[other()])
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in OPERATORS:
            yield changed(node, op=OPERATORS[type(operator)]())
        case ast.BoolOp(op=ast.And()):
            yield changed(node, op=ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield changed(node, op=ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield operand


def alternatives_of_value(node: ast.AST) -> Iterator[ast.AST]:
    """Another constant, name, bound or branch, or a comprehension without its condition."""
    match node:
        case ast.Constant(value=value):
            for constant in constants(value):
                yield ast.Constant(constant)
        case ast.Name(id=name, ctx=ast.Load()) if name in NAMES:
            yield changed(node, id=NAMES[name])
        case ast.Attribute(attr=name, ctx=ast.Load()) if name in NAMES:
            yield changed(node, attr=NAMES[name])
        case ast.Slice(lower=lower, upper=upper):
            for name, bound in (("lower", lower), ("upper", upper)):
                if bound is not None:
                    moved = ast.BinOp(bound, ast.Add(), ast.Constant(1))
                    yield changed(node, **{name: moved})
        case ast.IfExp(body=body, orelse=other):
            yield changed(node, body=other, orelse=body)
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            first, *others = node.generators
            if first.ifs:
                yield changed(node, generators=[changed(first, ifs=[]), *others])


def alternatives_of_statement(node: ast.AST) -> Iterator[ast.AST]:
    """Another value returned, or no statement at all."""
    match node:
        case ast.Return(value=ast.Compare() | ast.BoolOp() as value):
            yield ast.Return(negated(value))
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Delete() | ast.Break() | ast.Continue() | ast.AugAssign():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            if name in {name_of(each) for each in ast.walk(value)}:
                yield ast.Pass()


def alternatives(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of a node."""
    yield from alternatives_of_operator(node)
    yield from alternatives_of_value(node)
    yield from alternatives_of_statement(node)
    if isinstance(node, ast.Call):
        yield from alternatives_of_call(node)


def is_unmutated(node: ast.AST) -> bool:
    """Whether a node and all in it stay: texts for people, assertions for the type checker, imports for types."""
    if isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.If):
        return name_of(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and name_of(node.func.value) == "logger"


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes in a node that may be mutated: no type annotations, and no messages of exceptions."""
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        values = value if isinstance(value, list) else [value]
        for each in values:
            if isinstance(each, ast.AST):
                yield each


def mutants(file: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, in order."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []

    def add(node: Any, other: ast.AST, before: str = "") -> None:
        after = ast.unparse(other)
        text = after
        if isinstance(other, ast.expr) and not isinstance(other, ast.Slice):
            text = f"({after})"
        begin = starts[node.lineno - 1] + node.col_offset  # columns are counted in bytes
        end = starts[node.end_lineno - 1] + node.end_col_offset
        found.append(Mutant(file, node.lineno, f"{before or ast.unparse(node)} -> {after}", begin, end, text))

    def visit(node: ast.AST) -> None:
        if is_unmutated(node):
            return
        if isinstance(node, ast.If | ast.While):
            add(node.test, negated(node.test), f"{type(node).__name__.lower()} {ast.unparse(node.test)}")
        for decorator in getattr(node, "decorator_list", []):
            if isinstance(decorator, ast.Call) and name_of(decorator.func) in DROPPED_CONTEXTS:
                add(decorator, parsed("lambda function: function"), f"@{ast.unparse(decorator)}")
        for other in alternatives(node):
            add(node, other)
        for child in children(node):
            visit(child)

    visit(ast.parse(source))
    return found


def sample(file: str, source: bytes, count: int, seed: int) -> list[Mutant]:
    """Up to `count` mutants of a file on as many lines, drawn at random: first a line, then one of its mutants."""
    lines: dict[int, list[Mutant]] = {}
    for mutant in mutants(file, source):
        lines.setdefault(mutant.line, []).append(mutant)
    generator = random.Random(f"{seed} {file}")
    drawn: list[Mutant] = []
    for line in generator.sample(sorted(lines), len(lines)):
        mutant = generator.choice(lines[line])
        if len(drawn) < count and differs(source, mutant.applied(source)):
            drawn.append(mutant)
    return drawn


def differs(source: bytes, other: bytes) -> bool:
    """Whether a text is a program, and another one than the source."""
    try:
        return ast.dump(ast.parse(other)) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def digest(*paths: Path) -> str:
    """A short digest of the contents of files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


@dataclass
class Result:
    """What the tests said to a mutant, or to the file itself, whose change is empty.

    caught: the test that failed; empty if none did. source, tests: digests of the file and of its tests.
    """

    file: str
    line: int
    change: str
    caught: str
    seconds: float
    source: str
    tests: str


def run_tests(root: Path, tests: Sequence[str], marks: str, timeout: float | None) -> str:
    """Runs the tests in a tree until one fails; returns the one that failed, or an empty text.

    All processes that the tests start end with them.
    """
    words = ["-x", "-q", "-m", marks, "-p", "no:cacheprovider", *tests]
    variables = {**os.environ, "PYTHONPATH": str(root)}  # before an installed copy of the packages
    with tempfile.TemporaryFile("w+") as screen:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words],
            cwd=root,
            env=variables,
            stdout=screen,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return f"takes longer than {timeout:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        screen.seek(0)
        lines = screen.read().splitlines()
    if status == 0:
        return ""
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return (failed or lines[-1:] or [f"exit status {status}"])[0][:200]


class Trees:
    """Copies of a working tree, one for each worker, in which mutants are tested; a context manager."""

    def __init__(self, root: Path, number: int) -> None:
        self.root = root
        self.number = number
        self.free: SimpleQueue[Path] = SimpleQueue()

    def __enter__(self) -> "Trees":
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        files = subprocess.run(listed, cwd=self.root, check=True, capture_output=True, text=True).stdout
        self.folder = tempfile.TemporaryDirectory(prefix="mutation", ignore_cleanup_errors=True)
        for index in range(self.number):
            copy = Path(self.folder.name) / str(index)
            for name in filter(None, files.split("\0")):
                if (self.root / name).is_file():  # otherwise it is removed, but not yet from the index
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(self.root / name, copy / name)
            for folder in {(copy / name).parent for name in files.split("\0") if name.endswith(".py")}:
                compiled = self.root / folder.relative_to(copy) / "__pycache__"  # fits files with the same time
                if compiled.is_dir():
                    shutil.copytree(compiled, folder / "__pycache__", ignore_dangling_symlinks=True)
            self.free.put(copy)
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.cleanup()

    def test(
        self, file: str, content: bytes, tests: Sequence[str], marks: str, timeout: float | None
    ) -> tuple[str, float]:
        """Runs tests with another content of a file; returns the one that failed, if any, and seconds."""
        copy = self.free.get()
        path = copy / file
        original = path.read_bytes()
        begin = time.monotonic()
        try:
            path.write_bytes(content)
            forget_compiled(path)
            return run_tests(copy, tests, marks, timeout), time.monotonic() - begin
        finally:
            path.write_bytes(original)
            forget_compiled(path)
            self.free.put(copy)


def forget_compiled(path: Path) -> None:
    """Removes the bytecode of a module: its time stamp has seconds only."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


class Log:
    """Results in a file of lines, to which they are appended as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.results = [Result(**json.loads(line)) for line in lines]

    def find(self, file: str, change: str, line: int, source: str, tests: str) -> Result | None:
        """The result of a mutant that need not be run again."""
        for result in reversed(self.results):
            same = (result.file, result.change, result.line, result.source) == (file, change, line, source)
            if same and (result.tests == tests or (change and result.caught)):
                return result
        return None

    def add(self, result: Result) -> None:
        self.results.append(result)
        with self.path.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(result)) + "\n")


@dataclass
class Options:
    files: list[str] = field(default_factory=lambda: list(TESTS))
    """Source files, from the root of the repository."""
    count: int = 10
    """Mutants of each file."""
    seed: int = 0
    workers: int = 1
    """Mutants that are tested at the same time."""
    marks: str = "not slow"
    """Tests that are run, as for `pytest -m`."""
    output: Path = Path("mutants.jsonl")
    """Results are appended to this file, and those in it are not made again."""


def measure(
    options: Options, root: Path, tests: Mapping[str, list[str]], argued: Mapping[tuple[str, str], str]
) -> dict[str, Any]:
    """Tests the mutants of all files, and returns the figures.

    Raises:
        ValueError: if no tests are known for a file, or no mutants are asked for.
        RuntimeError: if tests fail without a mutant.
    """
    require_least("count", options.count, 1)
    require_least("workers", options.workers, 1)
    unknown = [file for file in options.files if file not in tests]
    if unknown:
        raise ValueError(f"files: expected some of {', '.join(tests)}, got {', '.join(unknown)}")
    log = Log(options.output)
    figures: dict[str, Any] = {}
    with Trees(root, options.workers) as trees:
        for file in options.files:
            results = results_of(file, options, root, tests[file], trees, log)
            missed = [result for result in results if not result.caught]
            reasons = {result.change: argued.get((file, result.change), "") for result in missed}
            figures[file] = {
                "mutants": len(results),
                "caught": len(results) - len(missed),
                "argued": {change: reason for change, reason in reasons.items() if reason},
                "survivors": [f"{file}:{each.line}: {each.change}" for each in missed if not reasons[each.change]],
            }
    survivors = sum(len(each["survivors"]) for each in figures.values())
    caught = sum(each["caught"] for each in figures.values())
    share = caught / max(caught + survivors, 1)
    failed = [] if share >= LEAST else [f"{survivors} mutants survived: expected at least {LEAST:.0%} to be caught"]
    return {"seed": options.seed, "files": figures, "caught": round(share, 3), "failed": failed}


def results_of(file: str, options: Options, root: Path, tests: Sequence[str], trees: Trees, log: Log) -> list[Result]:
    """Results of a sample of a file, in the order of lines."""
    source = (root / file).read_bytes()
    keys = {"source": digest(root / file), "tests": digest(*(root / test for test in tests))}

    def result_of(line: int, change: str, content: bytes, timeout: float | None) -> Result:
        found = log.find(file, change, line, **keys)
        if found is None:
            caught, seconds = trees.test(file, content, tests, options.marks, timeout)
            found = Result(file, line, change, caught, round(seconds, 1), **keys)
            log.add(found)
            print(f"{file}:{line}: {change or 'unchanged'}: {caught or 'passes'}", file=sys.stderr)
        return found

    unchanged = result_of(0, "", source, None)
    if unchanged.caught:
        raise RuntimeError(f"{file}: its tests fail without a mutant: {unchanged.caught}")
    timeout = 60.0 + SLOWER * unchanged.seconds
    drawn = sorted(sample(file, source, options.count, options.seed), key=lambda mutant: mutant.line)
    with ThreadPoolExecutor(options.workers) as pool:
        return list(pool.map(lambda each: result_of(each.line, each.change, each.applied(source), timeout), drawn))


if __name__ == "__main__":
    run(lambda options: measure(options, ROOT, TESTS, ARGUED), Options)
