"""A hyperty: it reports a room of its own and observes an agent's Thing. Needs SKEP_URL, SKEP_TOKEN and SKEP_CA."""

import asyncio
import os

from skep import Runtime


async def main() -> None:
    async with Runtime(os.environ["SKEP_URL"], token=os.environ["SKEP_TOKEN"], ca=os.environ["SKEP_CA"]) as runtime:
        room = await runtime.report("room", {"occupied": False})
        await room.set("occupied", True)
        bed = await runtime.observe("thing://localhost/greenhouse/bed-1")
        print("occupied", room.data["occupied"], "moisture", bed.data["moisture"])


asyncio.run(main())
