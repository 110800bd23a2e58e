"""`skep simulate`: the sample devices, as an agent."""

from pathlib import Path

import anyio
import click

from skep.cli.access import run_async
from skep.cli.agents import agent_for, agent_options
from skep.simulation import Simulation
from things.errors import TimedOut
from things.simulated import PumpStation, RoomClimate


@click.command(epilog="Example: skep simulate --home ./site")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Simulated seconds a second.")
@agent_options("simulated")
def simulate(rate: float, home: Path, agent: str, mqtt: str | None, token: str | None, ca: Path | None) -> None:
    """Run a pump station (pump-1) and a room (room-1) until stopped."""

    async def work() -> None:
        speaker = await agent_for(home, agent, mqtt=mqtt, token=token, ca=ca)
        simulation = Simulation(speaker, {"pump-1": PumpStation(), "room-1": RoomClimate()}, rate=rate)
        async with speaker, anyio.create_task_group() as tasks:
            tasks.start_soon(simulation.run)
            while not speaker.is_connected:
                try:
                    await speaker.connected()
                except TimedOut as late:
                    click.echo(f"{late.code}: {late.detail}; trying again", err=True)
            click.echo(f"dtw:{agent}:pump-1 and dtw:{agent}:room-1 are live; Ctrl-C ends them")

    run_async(work())
