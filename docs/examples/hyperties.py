"""Two hyperties and an MQTT sensor: one reports a room, one observes the room and the sensor.

Needs SKEP_URL, SKEP_CA, SKEP_MQTT, and the tokens of an agent (SKEP_TOKEN) and a consumer (SKEP_CONSUMER_TOKEN).
"""

import asyncio
import os

from skep import Agent
from skep.hyperty import Runtime

SENSOR = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Thermometer",
    "properties": {"temperature": {"type": "number", "readOnly": True}},
}


async def main() -> None:
    url, mqtt, ca = os.environ["SKEP_URL"], os.environ["SKEP_MQTT"], os.environ["SKEP_CA"]
    token, consumer = os.environ["SKEP_TOKEN"], os.environ["SKEP_CONSUMER_TOKEN"]
    async with (
        Agent(mqtt, "greenhouse", token, ca=ca) as sensor,
        Runtime(url, token=token, ca=ca) as rooms,
        Runtime(url, token=consumer, ca=ca) as watcher,
    ):
        sensor.expose("thermometer", SENSOR)
        await sensor.publish("thermometer", "temperature", 20.5)
        await sensor.flush()

        room = await rooms.report("room", {"occupied": False, "people": []}, scheme="ctxt")
        seen = await watcher.observe(room.url)
        measured = await watcher.observe("thing://localhost/greenhouse/thermometer")
        print("room", seen.data, "sensor", measured.data["temperature"])

        await room.set("occupied", True)
        await room.add("people", "ann")
        await sensor.publish("thermometer", "temperature", 21.5)
        for observer, count in ((seen, 2), (measured, 1)):
            async for change in observer:
                print(change.attribute, change.value)
                count -= 1
                if not count:
                    break


asyncio.run(main())
