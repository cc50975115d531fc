"""`tidegate conformance`: runs the suite that every driver must pass."""

from __future__ import annotations

import click

from ._wrong_use import json_option, wrong_use

STATUS = {0: 0, 4: 2}
"""Ours for pytest's: passed, and wrong use of its options. Everything else is a failure."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--driver", required=True, metavar="NAME", help="Which driver to test: cpu, null, or one you registered.")
@click.option("--require", is_flag=True, help="Fail if the driver is not available, instead of skipping.")
@click.option(
    "--programs", default=100, show_default=True, type=click.IntRange(0), help="How many random programs to run."
)
@json_option("Write the outcomes as JSON.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- PYTEST ARGUMENTS]...")
def conformance(driver: str, require: bool, programs: int, json_file: str | None, arguments: tuple[str, ...]) -> int:
    """Run the conformance suite against a driver."""
    from tidegate import conformance as suite

    with wrong_use("--driver"):
        status = suite.run(driver, require=require, programs=programs, arguments=list(arguments), json=json_file)
    return STATUS.get(status, 1)
