"""Help, version and completion: what a person sees before anything is trained."""

import re
import subprocess
import sys

import pytest

from commands import COMMANDS, main
from commands.options import OPTIONS
from commands.parsing import option_names
from tests.commands.cli import ENVIRONMENT

HELPED = [*([name] for name in sorted(COMMANDS)), ["text", "train"], ["speech", "sample"]]
"""Commands whose help is shown."""
SHOW_HELP = f"""
import sys
from commands import main
for words in {HELPED}:
    try:
        main([*words, "--help"])
    except SystemExit as end:
        assert not end.code, words
    assert "torch" not in sys.modules, words
    print("END")
"""


def test_help_does_not_import_torch() -> None:
    """Of all commands, in one process."""
    command = [sys.executable, "-c", SHOW_HELP]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=100)
    assert done.returncode == 0, done.stderr
    *shown, rest = done.stdout.split("END\n")
    assert not rest
    for words, text in zip(HELPED, shown, strict=True):
        assert "usage:" in text.lower(), words
        assert not [line for line in text.splitlines() if line.count(f"compressive {words[0]} ") > 1]


def test_completion_knows_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion"])
    script = capsys.readouterr().out
    for typed, known, unknown in (
        ("text train --learner.l", "--learner.learning-rate", "--frames"),
        ("launch --learner.l", "--learner.lambda_", "--learner.lambda"),
        ("launch --learner.no-c", "--learner.no-cuda-graph", "--learner.cuda-graph"),
        ("launch --act", "--actors", "--like"),
        ("evaluate --h", "--help", "--actors"),
        ("text sample --", "--prompt", "--path"),
        ("compare --", "--from", "--runs"),
        ("status --", "--help", "--run"),
    ):
        words = f"COMP_WORDS=(compressive {typed}); COMP_CWORD={len(typed.split())}"
        code = f'{script}{words}; _compressive; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        assert known in ["", *done.stdout.split()]
        assert unknown not in done.stdout.split()


@pytest.mark.parametrize("command", ["launch", "compare", "text train", "images sample"])
def test_help_lists_the_options_that_completion_offers(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of cores and corpora that were not asked for are left out of help."""
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    listed = set(re.findall(r"--([\w.-]+)", capsys.readouterr().out))
    offered = {name for name in option_names(OPTIONS[command]) if not re.match(r"(agent|model)[.]core|corpus", name)}
    assert len(offered) > 5
    assert offered <= listed
