"""The completions of shells, from the tables that the help texts are made from.

A `Program` has two tables: ``words``, by context, which is the program's name and those of its words that lead
further (``pympsd server set``), and ``values``, by context and option. A candidate that begins with ``@`` is looked
up when it is needed: PIDs of servers, names of servers, files. Each shell gets the tables and a small function that
walks them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import field, frozen

from pympsd.cli.options import DROP_IN_NAME, OWN_NAME
from pympsd.commands.grammar.registry import COMMANDS, Command
from pympsd.commands.grammar.syntax import JSON_OPTION
from pympsd.commands.manual import OPTIONS
from pympsd.devices.machine import COMPUTE_MODES
from pympsd.smi import monitors
from pympsd.smi.options import PLAIN, SHORT, VALUED
from pympsd.smi.queries import DEVICE_ALIASES, DEVICE_FIELDS, PROCESS_ALIASES, PROCESS_FIELDS
from pympsd.smi.report import DISPLAYS
from pympsd.top.table import SORTS
from scripts.manual_page import TOOLS

SERVERS, NAMES, FILES = "@servers", "@names", "@files"
LOOKED_UP: Final = {
    SERVERS: f"{OWN_NAME} get_server_list 2>/dev/null",
    NAMES: f"{OWN_NAME} server list --format=csv,noheader 2>/dev/null | cut -d, -f1",
}
"""The commands that print candidates."""
_FORMATS: Final = "table|csv|json[,noheader]"
_PATHS: Final = frozenset({"FILE", "PREFIX", "DIR", "PATH"})
_OPTION: Final = re.compile(r"(?<![\w-])--?[a-zA-Z][a-z-]*")


@frozen
class Program:
    """A program's completions; ``names``: those it is called by, of which the first begins every context."""

    names: tuple[str, ...]
    words: dict[str, list[str]] = field(factory=dict)
    values: dict[str, list[str]] = field(factory=dict)

    def add_values(self, context: str, options: Sequence[str], shown: str) -> None:
        """Add the values of an option, as the help shows them: ``in-turn|together``, ``FILE``, ``<s>``."""
        if shown == _FORMATS:
            result = ["table", "csv", "json", "csv,noheader", "table,noheader"]
        elif shown in ("<s>", "<server>"):
            result = [NAMES]
        else:
            parts = shown.split("|")
            result = [part for part in parts if not part.startswith("<") and not part.isupper()]
            result += [FILES] if _PATHS & {*parts} or shown == "<file>" else []
        for option in options if result else ():
            self.values[f"{context} {option}"] = result


def programs() -> tuple[Program, ...]:
    """Return the programs that have completions."""
    return _control(), _smi(), _run()


def _control() -> Program:
    program = Program((OWN_NAME, DROP_IN_NAME))
    top = program.words[OWN_NAME] = []
    for left, _ in OPTIONS:
        *options, last = left.split(", ")
        option, _, shown = last.partition(" ")
        options.append(option)
        top += options
        program.add_values(OWN_NAME, options, shown)
    top += sorted({*(command.module for command in COMMANDS.values()), *(usage.split()[1] for usage, _ in TOOLS)})
    for command in COMMANDS.values():
        _add_command(program, command)
    for usage, _ in TOOLS:
        context = " ".join(usage.split()[:2])
        program.words[context] = _OPTION.findall(usage.partition("[")[2])
        program.add_values(context, ["-o"], "FILE")
    program.words[f"{OWN_NAME} plot"].append(FILES)
    program.values[f"{OWN_NAME} top --sort"] = list(SORTS)
    return program


def _add_command(program: Program, command: Command) -> None:
    syntax, context = command.syntax, f"{OWN_NAME} {command.name}"
    arguments = (*syntax.required, *syntax.optional)
    names = [argument.name for argument in arguments]
    words = [SERVERS] if command.names_server and arguments else []
    words += [f"{syntax.spelling(name)}{'' if option.spelling else '='}" for name, option in syntax.options.items()]
    words += [flag.spelling for flag in syntax.flags]
    words += [JSON_OPTION] if command.usage != syntax.usage else []
    words += [value for argument in arguments for value in argument.placeholder.split("|") if value.isdecimal()]
    if command.module == "server" and command.verb != "create" and "name" in names:
        words.append(NAMES)
    if "file" in names:
        words.append(FILES)
    program.words[context] = words
    if command.verb:
        verbs = program.words.setdefault(f"{OWN_NAME} {command.module}", [])
        verbs[:] = sorted([*verbs, command.verb])
    for name, option in syntax.options.items():
        if command.names_server and option.placeholder == "PID":
            program.values[f"{context} {syntax.spelling(name)}"] = [SERVERS]
        else:
            program.add_values(context, [syntax.spelling(name)], option.placeholder)


def _smi() -> Program:
    name = "pympsd-smi"
    options = [*SHORT, *PLAIN, *(f"{option}=" for option in VALUED)]
    values = {
        "--compute-mode": [*COMPUTE_MODES],
        "--persistence-mode": ["0", "1"],
        "--display": sorted(DISPLAYS),
        "--format": ["csv", "csv,noheader", "csv,noheader,nounits", "csv,nounits"],
        "--filename": [FILES],
        "--query-gpu": [*DEVICE_FIELDS, *DEVICE_ALIASES],
        "--query-compute-apps": [*PROCESS_FIELDS, *PROCESS_ALIASES],
    }
    by_short = {short: values[option] for short, option in SHORT.items() if option in values}
    return Program(
        (name,),
        {
            name: [*options, *monitors.COMMANDS, "topo", "memory-limits"],
            f"{name} topo": ["-m"],
            f"{name} memory-limits": [
                "--set",
                "--get",
                "--id",
                "--namespace",
                "--soft-limit",
                "--hard-limit",
                "--help",
            ],
            **{f"{name} {command}": [*monitors.OPTIONS, "-h"] for command in monitors.COMMANDS},
        },
        {
            **{f"{name} {option}": words for option, words in {**values, **by_short}.items()},
            **{f"{name} {command} -f": [FILES] for command in monitors.COMMANDS},
        },
    )


def _run() -> Program:
    return Program(("pympsd-run",), {"pympsd-run": ["-m", "--help", FILES]})


def _function(program: Program) -> str:
    return f"_{program.names[0].replace('-', '_')}"


def _quote(words: Sequence[str]) -> str:
    return "'{}'".format(" ".join(words).replace("'", "'\\''"))


def _table(name: str, table: Mapping[str, Sequence[str]]) -> str:
    rows = "".join(f"        ['{context}']={_quote(words)}\n" for context, words in sorted(table.items()))
    return f"    local -A {name}=(\n{rows}    )\n"


def bash(program: Program) -> str:
    """Return the completions of a program for bash."""
    function = _function(program)
    looked_up = "".join(f'        {each}) list+=" $({command})" ;;\n' for each, command in LOOKED_UP.items())
    return f"""\
# Completions of {" and ".join(program.names)} for bash, generated by scripts/generate-docs.
{function}() {{
{_table("words", program.words)}{_table("values", program.values)}\
    local context={program.names[0]} current=${{COMP_WORDS[COMP_CWORD]}} option=$3 list= files= prefix= word i
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${{COMP_WORDS[i]}}
        [[ -n ${{words["$context $word"]+set}} ]] && context+=" $word"
    done
    # "=" is a word of its own here: --format = json
    if [[ $current == = ]]; then
        current=
        option=${{COMP_WORDS[COMP_CWORD - 1]}}
    elif [[ ${{COMP_WORDS[COMP_CWORD - 1]}} == = ]]; then
        option=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    for word in ${{values["$context $option"]-${{words["$context"]}}}}; do
        case $word in
{looked_up}\
        {FILES}) files=1 ;;
        *) list+=" $word" ;;
        esac
    done
    [[ $current == *,* ]] && prefix=${{current%,*}},
    mapfile -t COMPREPLY < <(
        compgen -P "$prefix" -W "$list" -- "${{current##*,}}"
        ${{files:+compgen -f -- "$current"}}
    )
    [[ ${{COMPREPLY[0]-}} == *= ]] && compopt -o nospace 2>/dev/null
    return 0
}}
complete -F {function} {" ".join(program.names)}
"""


def zsh() -> str:
    """Return the completions of all programs for zsh, which calls the file by the name of any of them."""
    cases = "".join(
        f"{'|'.join(program.names)})\n    context={program.names[0]}\n"
        f"{_table('follow', program.words)}{_table('values', program.values)}    ;;\n".replace("local -A ", "")
        for program in programs()
    )
    looked_up = "".join(f"    {each}) compadd -- $({command}) ;;\n" for each, command in LOOKED_UP.items())
    return f"""\
#compdef {" ".join(name for program in programs() for name in program.names)}
# Completions of pympsd's programs for zsh, generated by scripts/generate-docs.
local -A follow values
local context option word candidates
integer i
case ${{words[1]:t}} in
{cases}esac
for ((i = 2; i < CURRENT; i++)); do
    word="$context ${{words[i]}}"
    (( ${{+follow[$word]}} )) && context=$word
done
option="$context ${{words[CURRENT-1]}}"
if [[ ${{words[CURRENT]}} == -*=* ]]; then
    option="$context ${{words[CURRENT]%%=*}}"
    compset -P '*='
fi
candidates=${{values[$option]:-${{follow[$context]}}}}
compset -P '*,'
for word in ${{=candidates}}; do
    case $word in
{looked_up}    {FILES}) _files ;;
    *=) compadd -S '' -- $word ;;
    *) compadd -- $word ;;
    esac
done
"""


def fish(program: Program) -> str:
    """Return the completions of a program for fish."""
    function = f"_{_function(program)}"
    first = "|".join(sorted(context.split()[1] for context in program.words if len(context.split()) == 2)) or "@"
    lines = [
        f"# Completions of {' and '.join(program.names)} for fish, generated by scripts/generate-docs.",
        f"function {function}_given",
        "    set -l words (commandline -opc)",
        "    echo ' '(string join ' ' -- (string match -v -- '-*' $words[2..]))",
        "end",
        f"function {function}_at",
        f"    string match -q -- $argv[1] ({function}_given)",
        "end",
        f"function {function}_first",
        f"    not string match -qr -- ' ({first})( |$)' ({function}_given)",
        "end",
    ]
    for name in program.names:
        for context, words in sorted(program.words.items()):
            before = f"complete -c {name} -n {_fish_condition(program, function, context)}"
            plain = [word for word in words if not word.startswith(("-", "@"))]
            plain += [f"({LOOKED_UP[word]})" for word in words if word in LOOKED_UP]
            if plain or FILES not in words:
                files = "" if FILES in words else " -f"
                lines.append(f"{before}{files}" + (f" -a {_quote(plain)}" if plain else ""))
            for word in (word for word in words if word.startswith("-")):
                lines.append(f"{before} {_fish_option(program, context, word)}")
    return "\n".join(lines) + "\n"


def _fish_condition(program: Program, function: str, context: str) -> str:
    place = context.partition(" ")[2]
    if not place:
        return f"{function}_first"
    leads_further = any(word.startswith(f"{context} ") for word in program.words)
    return f"\"{function}_at '* {place}{'' if leads_further else '*'}'\""


def _fish_option(program: Program, context: str, word: str) -> str:
    option = word.rstrip("=")
    # Options of one letter cannot be joined.
    kind = f"-l {option[2:]}" if option.startswith("--") else f"-o {option[1:]}"
    values = program.values.get(f"{context} {option}", [])
    result = [f"({LOOKED_UP[value]})" if value in LOOKED_UP else value for value in values if value != FILES]
    if result:
        return f"{kind} -x -a {_quote(result)}"
    return f"{kind} -r -F" if FILES in values else f"{kind} -x" if word.endswith("=") else kind


def pages() -> dict[str, str]:
    """Return the files of completions by path: bash and fish look for one named like the command."""
    made = {"zsh/_pympsd": zsh()}
    for program in programs():
        for name in program.names:
            made[f"bash/{name}"], made[f"fish/{name}.fish"] = bash(program), fish(program)
    return made
