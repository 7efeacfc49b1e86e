"""`compressive completion`: prints a script with which bash and zsh complete commands and options."""

from collections.abc import Sequence

from commands import COMMANDS
from commands.arguments import PARSERS
from commands.options import option_names
from commands.sequence_arguments import OPTIONS
from training import UserError

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
    kinds = {name: kind for name, (kind, _) in PARSERS.items()}
    kinds |= {f"{modality} {name}": kind for modality, parts in OPTIONS.items() for name, kind in parts.items()}
    words = {name: " ".join(f"--{option}" for option in option_names(kind)) for name, kind in kinds.items()}
    cases = [("''", " ".join(COMMANDS)), ("text|speech", "train evaluate sample")]
    cases += [(f'"{name}"*', options) for name, options in words.items()]
    print(SCRIPT.format(cases="\n".join(f"    {pattern}) words='{options}' ;;" for pattern, options in cases)), end="")
