"""Run ``pympsd machine``: convert machine files from and to the format of nvml-mock's profiles."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from pympsd.cli.control_client import print_text
from pympsd.devices.machine import BadMachine, describe, set_driver
from pympsd.devices.nvml_mock import export_profile, read_profile
from pympsd.vocabulary.mistyped import Parser

NEEDS = "reading YAML needs PyYAML: pip install pyyaml, or convert the profile to JSON"


def main(arguments: Sequence[str]) -> int:
    """Convert a machine.

    Return the exit status, which is 1, with a sentence on standard error, if that is impossible.
    """
    options = _options(arguments)
    try:
        if options.direction == "export":
            profile = export_profile(set_driver(describe(options.machine), os.environ))
            return print_text(f"{json.dumps(profile, indent=2)}\n")
        read = read_profile(_load(options.machine))
    except (BadMachine, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        print(f"pympsd machine: {options.machine}: {reason}", file=sys.stderr)
        return 1
    if read.omitted:
        print(
            f"pympsd machine: emulated devices do not have, so left out: {', '.join(read.omitted)}", file=sys.stderr
        )
    return print_text(read.toml)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="pympsd machine",
        show=print_text,
        description="Print a machine as a profile of nvml-mock (export), or a profile as a machine file (import). "
        "UUIDs, PCI addresses and memory stay the same.",
    )
    parser.add_argument("direction", metavar="DIRECTION", choices=("export", "import"), help="export or import")
    parser.add_argument(
        "machine",
        metavar="MACHINE",
        help="export: a value of PYMPSD_EMULATED_DEVICES (2xH200, machine.toml); import: the profile, YAML or JSON",
    )
    return parser.parse_args(arguments)


def _load(path: str) -> object:
    """Return the value in a JSON or YAML file; raise BadMachine if YAML cannot be read."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    try:
        loaded: object = json.loads(text)
        return loaded
    except ValueError:
        pass
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise BadMachine(NEEDS) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadMachine(f"it is not YAML: {' '.join(str(error).split())}") from None
