"""`tidegate devices`: what can be opened here, and why the rest cannot."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate.types import DriverInfo


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Write JSON instead of a table.")
def devices(as_json: bool) -> None:
    """List the drivers and the devices they found."""
    import tidegate as tg

    drivers = tg.list_drivers()
    if as_json:
        import json

        facts = {"drivers": [dataclasses.asdict(driver) for driver in drivers]}
        click.echo(json.dumps(facts, indent=2, default=str))
        return
    from rich.console import Console

    Console().print(_table(drivers))


def _table(drivers: Sequence[DriverInfo]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("device", "name", "driver", "memory")
    for driver in drivers:
        for device in driver.devices:
            memory = f"{device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes else "-"
            table.add_row(f"[bold]{escape(device.uri)}[/]", escape(device.name), driver.name, memory)
        if not driver.available:
            table.add_row("[dim]none[/]", f"[dim]{escape(driver.reason)}[/]", driver.name, "-")
    return table
