"""Two hyperties and an MQTT sensor: one reports a room, one observes the room and the sensor, and asks the room.

Needs the tokens of the agent `greenhouse` (SKEP_TOKEN) and of a consumer who may invoke actions (SKEP_CONSUMER_TOKEN);
SKEP_URL, SKEP_CA and SKEP_MQTT where the runtime is not that of the folder `site` with its usual addresses.
"""

import asyncio
import os

from skep import Agent
from skep.hyperty import Action, Runtime

SENSOR = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Thermometer",
    "properties": {"temperature": {"type": "number", "readOnly": True}},
}
ROOM = "ctxt://localhost/room"


async def main() -> None:
    url = os.environ.get("SKEP_URL", "https://127.0.0.1:8443")
    mqtt = os.environ.get("SKEP_MQTT", "mqtt://127.0.0.1:1883")
    ca = os.environ.get("SKEP_CA", "site/certs/ca.pem")
    token, consumer = os.environ["SKEP_TOKEN"], os.environ["SKEP_CONSUMER_TOKEN"]
    async with (
        Agent(mqtt, "greenhouse", token, ca=ca) as sensor,
        Runtime(url, token=token, ca=ca) as rooms,
        Runtime(url, token=consumer, ca=ca) as watcher,
    ):
        sensor.expose("thermometer", SENSOR)
        await sensor.publish("thermometer", "temperature", 20.5)
        await sensor.flush()

        greet = Action(run=lambda name: f"welcome, {name}", input={"type": "string"})
        room = await rooms.report("room", {"occupied": False, "people": []}, url=ROOM, actions={"greet": greet})
        seen = await watcher.observe(ROOM)
        measured = await watcher.observe("thing://localhost/greenhouse/thermometer")
        print("room", seen.data, "sensor", measured.data["temperature"])

        # The object is a Thing of its account: what it does is asked there, and recorded in the ledger.
        print("said", await watcher.invoke("thing://localhost/greenhouse/room", "greet", "ann"))

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
