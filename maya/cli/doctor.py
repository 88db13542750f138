"""`maya doctor`: checks whether this machine can run Maya."""

from __future__ import annotations

import sys

import click


@click.command(short_help="Check this machine.")
def doctor() -> None:
    """Check this machine, and print advice on problems."""
    from maya.doctor import Verdict, examine

    colours = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}
    checks = list(examine())
    for check in checks:
        verdict = click.style(f"{check.verdict.value:<4}", fg=colours[check.verdict])
        click.echo(f"{verdict}  {check.subject:<20}  {check.found}")
        if check.advice:
            click.echo(f"{'':<28}{check.advice}")
    if any(check.verdict is Verdict.FAIL for check in checks):
        sys.exit(1)
