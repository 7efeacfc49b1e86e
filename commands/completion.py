"""`compressive completion`: prints a script with which bash and zsh complete commands and options."""

from commands import COMMANDS
from commands.options import OPTIONS, PARTS, CompletionOptions
from commands.parsing import option_names

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


def completion(_: CompletionOptions) -> None:
    """Runs the command."""
    cases = {"''": COMMANDS, "text|speech|images": PARTS}
    for name, kind in OPTIONS.items():
        options = [f"--{option}" for option in option_names(kind)]
        options.append("--help")
        if name == "launch":
            options.append("--actors")  # stands for two others
        cases[f'"{name}"*'] = options
    lines = [f"    {pattern}) words='{' '.join(words)}' ;;" for pattern, words in cases.items()]
    print(SCRIPT.format(cases="\n".join(lines)), end="")
