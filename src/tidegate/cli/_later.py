"""Commands whose names are settled and whose work is not in this version."""

from __future__ import annotations

import click


@click.command()
@click.argument("script", type=click.Path())
@click.option("--validate", is_flag=True, help="Check every call against the rules of the model.")
@click.option("--trace", type=click.Path(dir_okay=False), metavar="FILE", help="Write a trace of the run.")
def run(script: str, validate: bool, trace: str | None) -> None:
    """Run a script with validation or a trace (not in this version)."""
    raise click.UsageError("run: not in this version; start the script with python instead")


@click.command()
@click.argument("script", type=click.Path())
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", required=True, help="How many orders to try.")
def explore(script: str, seeds: int) -> None:
    """Run a script under many orders of events (not in this version)."""
    raise click.UsageError("explore: not in this version")
