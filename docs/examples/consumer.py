"""A consumer: it reads, asks and watches. Needs SKEP_URL, SKEP_TOKEN and SKEP_CA."""

import asyncio
import os

from skep import Consumer


async def main() -> None:
    async with Consumer(os.environ["SKEP_URL"], token=os.environ["SKEP_TOKEN"], ca=os.environ["SKEP_CA"]) as consumer:
        bed = consumer.thing("dtw:greenhouse:bed-1")
        print("moisture", await bed.read("moisture"))
        request = await bed.invoke("water", 5)
        async for status in request.statuses():
            print(status.state, status.progress, status.output)
        async for change in consumer.watch("dtw:greenhouse:*", latest=True):
            print(change.thing_id, change.name, change.value)
            break


asyncio.run(main())
