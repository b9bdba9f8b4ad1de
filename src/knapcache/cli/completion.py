"""`knapcache completion SHELL`: print a script that completes commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from knapcache.errors import MissingExtra, install_command

HELP = "print the script that completes commands in a shell"
SHELLS = ("bash", "zsh", "fish")
DESCRIPTION = """Print a script with which the shell completes commands, options, their choices, and names of files.
It is needed again after an upgrade. For one user, in new shells:

  bash  mkdir -p ~/.local/share/bash-completion/completions
        knapcache completion bash \\
          > ~/.local/share/bash-completion/completions/knapcache
  zsh   mkdir -p ~/.zfunc && knapcache completion zsh > ~/.zfunc/_knapcache
  fish  knapcache completion fish > ~/.config/fish/completions/knapcache.fish

bash needs the package bash-completion; without it, add `source <(knapcache completion bash)` to ~/.bashrc. zsh needs
`fpath+=~/.zfunc` before `compinit` in ~/.zshrc."""
FILES, DIRECTORIES = ("FILE", "LOG", "PATH", "REQUEST", "TRACE"), ("DIR",)
"""Placeholders of arguments that are names."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    try:
        import shtab
    except ImportError:
        raise MissingExtra(f"completion needs shtab: {install_command('completion')}") from None
    (commands,) = subcommands(args.build_parser([]))
    parser = args.build_parser(list(commands.choices))
    for action in actions(parser):
        kind = shtab.FILE if action.metavar in FILES else shtab.DIRECTORY if action.metavar in DIRECTORIES else None
        if kind is not None:
            action.complete = kind  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments and options of a parser and of its subcommands."""
    yield from parser._actions
    for found in subcommands(parser):
        for sub in found.choices.values():
            yield from actions(sub)


def subcommands(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    """Return the subcommands of a parser: none, or one action."""
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
