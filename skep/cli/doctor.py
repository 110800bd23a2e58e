"""`skep doctor`: looks for what commonly goes wrong, and says what to do about it."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from skep.cli.access import Access, access_options, run_async
from skep.cli.failures import Unsuccessful
from skep.cli.findings import Finding
from skep.cli.output import cell, console, print_json


@click.command(
    epilog="""\b
Examples:
  skep doctor --home ./site
  skep doctor --url https://gw.local:8443        from another machine, as a client sees it"""
)
@access_options
def doctor(access: Access) -> None:
    """Look for what commonly goes wrong. Exit code 1: something is wrong.

    On the gateway: Python, disk, configuration, ports, health, certificate, clock, Java. From another machine (--url,
    or where you are logged in): its name, HTTPS, certificate, health, clock, MQTT, where its descriptions lead.
    """
    if access.url is None:
        from skep.cli.checks_here import checked

        _show(list(checked(access.home)), as_json=access.json)
    else:
        from skep.cli.checks_afar import checked_from_afar

        _show(run_async(checked_from_afar(access)), as_json=access.json)


def _show(found: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        for one in found:
            mark = "[green]ok  [/]" if one.ok else "[red]bad [/]"
            console().print(f"{mark} {one.check}: {cell(one.detail)}", soft_wrap=True)
    if not all(one.ok for one in found):
        raise Unsuccessful
