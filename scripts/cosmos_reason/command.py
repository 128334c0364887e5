"""`cosmos-reason`: the scripts as subcommands of one program. `make tools` puts it beside python, a
wheel installs it.

It imports nothing of the library before it knows which script is meant, and runs that script in
this process.
"""

import argparse
import runpy
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
PROGRAM = "cosmos-reason"
SHORT = {"status": "show_status", "preflight": "check_tao_launch_preflight"}
# Started by jobs, not by people.
OF_JOBS = {"run_with_transformers", "train_with_cosmos_rl"}
BASH = """_cosmos_reason() {
  mapfile -t COMPREPLY < <(cosmos-reason complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _cosmos_reason cosmos-reason
"""
ZSH = """#compdef cosmos-reason
_cosmos_reason() {
  local -a found
  found=("${(@f)$(cosmos-reason complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "$found" ]]; then compadd -Q -- $found; else _files; fi
}
compdef _cosmos_reason cosmos-reason
"""


def subcommands() -> dict[str, Path]:
    """Subcommand -> its script; the names of the scripts with hyphens, and the short ones."""
    found = {}
    for path in sorted(SCRIPTS.glob("*.py")):
        if path.stem not in OF_JOBS:
            found[path.stem.replace("_", "-")] = path
    return found | {name: SCRIPTS / f"{stem}.py" for name, stem in SHORT.items()}


def main() -> None:
    known = subcommands()
    name, *words = sys.argv[1:] or ["--help"]
    script = known.get(name.replace("_", "-"))
    # The library is found from the scripts, as it is when one of them is called by its path.
    sys.path[0] = str(SCRIPTS)
    if script:
        from cosmos_reason import cli

        cli.program = PROGRAM
        sys.argv = [str(script), *words]
        runpy.run_path(str(script), run_name="__main__")
    elif name == "complete":
        write("\n".join(completions(words or [""])))
    elif name == "completion" and words in (["bash"], ["zsh"]):
        write({"bash": BASH, "zsh": ZSH}[words[0]].rstrip())
    elif name in ("-h", "--help"):
        write(usage(known))
    else:
        from cosmos_reason.base import findings

        hint = findings.did_you_mean(name, known)
        text = f"{PROGRAM}: error: got {name}, expected a subcommand or completion bash|zsh.{hint}"
        findings.say(text)
        sys.exit(findings.EXIT_BAD_INPUT)


def write(text: str) -> None:
    from cosmos_reason.base import findings

    print(findings.printable(text))


def usage(known: dict[str, Path]) -> str:
    lines = [f"usage: {PROGRAM} SUBCOMMAND [flags]", ""]
    for name, path in known.items():
        if path.stem not in SHORT.values() or name in SHORT:
            lines.append(f"  {name:32}{purpose(path)}")
    lines += ["", f"{PROGRAM} SUBCOMMAND --help; {PROGRAM} completion bash|zsh, to be sourced"]
    return "\n".join(lines)


def purpose(path: Path) -> str:
    """Return what a script's docstring says first, up to a colon."""
    text = path.read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
    return " ".join(text.partition("\n\n")[0].partition(":")[0].split()).rstrip(".")


def completions(words: list[str]) -> list[str]:
    """Return what the last of the words after the program's name may become; the shell adds
    files."""
    *before, begun = words
    if not before:
        offered = [*subcommands(), "completion"]
    elif before[0] == "completion":
        offered = ["bash", "zsh"]
    else:
        script = subcommands().get(before[0])
        offered = offers(script, before[1:], begun) if script else []
    return sorted(word for word in dict.fromkeys(offered) if word.startswith(begun))


def offers(script: Path, before: list[str], begun: str) -> list[str]:
    """Flags, verbs and choices of a script's parser, or of the verb that stands there."""
    parser = runpy.run_path(str(script), run_name="completion")["parser"]()
    for action in list(parser._actions):
        if isinstance(action, argparse._SubParsersAction):
            verbs = [word for word in before if word in action.choices]
            if not verbs:
                return [*action.choices, *parser._option_string_actions]
            parser = action.choices[verbs[0]]
    last = parser._option_string_actions.get(before[-1]) if before else None
    if last is not None and last.nargs != 0:
        return list(map(str, last.choices or ()))
    if begun.startswith("-"):
        return list(parser._option_string_actions)
    return [
        str(choice)
        for action in parser._actions
        if not action.option_strings
        for choice in action.choices or ()
    ]


if __name__ == "__main__":
    main()
