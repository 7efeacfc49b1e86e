"""`compressive completion`: prints a script with which bash and zsh complete commands and options."""

from collections.abc import Sequence

import commands.sequence as sequence
from commands import COMMANDS, compare, evaluate, launch, report, status, visualize
from commands.options import option_names
from training import UserError

KINDS = {
    **{module.__name__.rpartition(".")[2]: module.Options for module in (compare, evaluate, launch, report, status)},
    "visualize": visualize.Options,
    "text train": sequence.TextTraining,
    "text evaluate": sequence.TextEvaluateOptions,
    "text sample": sequence.TextSampleOptions,
    "speech train": sequence.SpeechTraining,
    "speech evaluate": sequence.SpeechEvaluateOptions,
    "speech sample": sequence.SpeechSampleOptions,
}
"""Options of every command."""
SCRIPT = """# Completion for compressive. bash: source <(compressive completion)
# zsh: autoload -U bashcompinit && bashcompinit && source <(compressive completion)
_compressive() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  case "${{COMP_WORDS[*]:1:COMP_CWORD-1}}" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _compressive compressive
"""


def completion(arguments: Sequence[str]) -> None:
    """Runs the command."""
    if arguments:
        raise UserError(f"completion: expected no arguments, got {' '.join(arguments)}")
    words = {kind: " ".join(f"--{name}" for name in option_names(options)) for kind, options in KINDS.items()}
    cases = [("''", " ".join(COMMANDS)), ("text|speech", "train evaluate sample")]
    cases += [(f'"{kind}"*', options) for kind, options in words.items()]
    print(SCRIPT.format(cases="\n".join(f"    {pattern}) words='{options}' ;;" for pattern, options in cases)), end="")
