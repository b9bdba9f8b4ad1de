"""`knapcache doctor`: check what the proxy needs, one line each. Nothing is changed."""

from __future__ import annotations

import argparse
import json
import logging
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal, NamedTuple

from knapcache.cli import options
from knapcache.cli.output import output_width, printable
from knapcache.cli.serve import add_settings, require_packages, settings_from_flags
from knapcache.errors import KnapcacheError, reason_text
from knapcache.units import counted

HELP = "check what the proxy needs to run here, and say what to do"
DESCRIPTION = """Check Python, installed packages, settings, port, data directory, file formats, disk, clock, the shared
store and the upstreams. Each check prints a line: ok, warning or problem, and what to do. It takes the settings of
`knapcache serve`, also beside a running proxy, and changes nothing. Upstreams are connected to, and nothing is sent.
With --call-upstreams, each gets one request for its list of models, which is free. The exit code is 1 if there is a
problem."""
PROBLEM_CODE = 1

Level = Literal["ok", "warning", "problem"]


class Finding(NamedTuple):
    """The result of a check. `--json` prints these fields."""

    check: str
    level: Level
    message: str


class Doctor:
    """Runs checks, and keeps their findings.

    A check returns what is right. It raises KnapcacheError or OSError for a problem, and logs warnings, as the same
    code does in the proxy.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def run(self, name: str, check: Callable[[], str]) -> bool:
        """Run a check. Return whether there is no problem. A check with a warning has no line with what is right."""
        found: list[tuple[Level, str]] = []
        with logged_warnings() as warnings:
            try:
                text = check()
            except (KnapcacheError, OSError) as error:
                lines = str(error) if isinstance(error, KnapcacheError) else reason_text(error)
                found = [("problem", line) for line in lines.splitlines()]
            else:
                found = [] if warnings else [("ok", text)]
        found += [("warning", text) for text in dict.fromkeys(warnings)]
        self.findings += [Finding(name, level, text) for level, text in found]
        return all(level != "problem" for level, _ in found)

    def count(self, level: Level) -> int:
        """Return the number of findings of a level."""
        return Counter(finding.level for finding in self.findings)[level]


@contextmanager
def logged_warnings() -> Iterator[list[str]]:
    """Collect what is logged as a warning or an error, and keep it from the terminal."""
    texts: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    logger, collector = logging.getLogger("knapcache"), Collector(logging.WARNING)
    before = logger.propagate
    logger.addHandler(collector)
    logger.propagate = False
    try:
        yield texts
    finally:
        logger.removeHandler(collector)
        logger.propagate = before


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_settings(parser)
    parser.add_argument("--call-upstreams", action="store_true", help="ask each upstream for its list of models")
    options.add_json(parser)
    parser.usage = "%(prog)s [options]"
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    doctor = Doctor()
    examine(doctor, args)
    if args.json:
        print(json.dumps([finding._asdict() for finding in doctor.findings], indent=2))
    else:
        show(doctor)
    return PROBLEM_CODE if doctor.count("problem") else 0


def examine(doctor: Doctor, args: argparse.Namespace) -> None:
    """Run all checks that are possible: the others need the packages of the proxy and valid settings."""

    def installed() -> str:
        require_packages()
        from knapcache.cli import doctor_checks

        return doctor_checks.packages()

    if not doctor.run("packages", installed):
        return
    from knapcache.cli import doctor_checks as checks
    from knapcache.proxy.settings.loading import LoadedSettings, load

    doctor.run("python", checks.python_version)
    loaded: list[LoadedSettings] = []

    def read() -> str:
        loaded.append(load(args.config, settings_from_flags(args)))
        return checks.sources(loaded[0], args.config)

    if not doctor.run("settings", read):
        return
    settings = loaded[0].settings
    for name, check in checks.CHECKS.items():
        doctor.run(name, partial(check, settings))
    if settings.tls_cert is not None:
        doctor.run("tls", partial(checks.certificate, settings))
    if settings.store is not None:
        doctor.run("store", partial(checks.shared_store, settings))
    for name, check_feature in checks.feature_checks(settings):
        doctor.run(name, check_feature)
    for name, result in checks.upstreams(settings, call=args.call_upstreams):
        doctor.run(f"upstream {name}", result)


def show(doctor: Doctor) -> None:
    """Print a line for each finding, and a summary."""
    names = max(len(finding.check) for finding in doctor.findings)
    for finding in doctor.findings:
        start = f"{finding.level:8} {finding.check:{names}}  "
        lines = textwrap.wrap(
            printable(finding.message), max(40, output_width() - len(start)), break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        print(start + f"\n{' ' * len(start)}".join(lines))
    problems, warnings = doctor.count("problem"), doctor.count("warning")
    rest = "" if any(finding.check == "port" for finding in doctor.findings) else "; the other checks were not possible"
    print(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}{rest}")
