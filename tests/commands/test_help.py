"""Help, version and completion: what a person sees before anything is trained."""

import subprocess
import sys

import pytest

from commands import COMMANDS, main
from tests.commands.cli import ENVIRONMENT


@pytest.mark.parametrize(
    "words", [*([name] for name in sorted(COMMANDS)), ["text", "train"], ["speech", "sample"]], ids=" ".join
)
def test_help_does_not_import_torch(words: list[str]) -> None:
    check = "finally: assert 'torch' not in sys.modules"
    code = f"import sys; from commands import main\ntry: main({[*words, '--help']})\n{check}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout.lower()
    assert not [line for line in done.stdout.splitlines() if line.count(f"compressive {words[0]} ") > 1]


def test_completion_knows_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion"])
    script = capsys.readouterr().out
    for typed, known, unknown in (
        ("text train --learner.l", "--learner.learning-rate", "--frames"),
        ("text sample --", "--prompt", "--path"),
        ("compare --", "--from", "--runs"),
        ("status --", "", "--run"),
    ):
        words = f"COMP_WORDS=(compressive {typed}); COMP_CWORD={len(typed.split())}"
        code = f'{script}{words}; _compressive; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        assert known in ["", *done.stdout.split()]
        assert unknown not in done.stdout.split()
