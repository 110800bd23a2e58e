"""Simulated devices behind an agent: time is stepped here, their words are published, their actions handled."""

import asyncio
from collections.abc import Mapping

from pydantic import JsonValue

from skep.agent import Agent
from skep.handlers import ActionHandler, AgentRequest, Refused
from things.addresses import Kind
from things.samples import sample_td
from things.simulated import Device, DeviceRefusal
from things.td import ThingDescription

STEP_S = 0.5
ACTION_STEP_S = 0.05
"""While an action is under way the device moves in finer steps, so that its caller is not kept waiting."""


class Simulation:
    """Devices by Thing id. `rate` is how many simulated seconds pass in a real one."""

    def __init__(self, agent: Agent, devices: Mapping[str, Device], *, rate: float = 1.0) -> None:
        self._agent = agent
        self._devices = dict(devices)
        self._rate = rate
        for thing, device in self._devices.items():
            self._declare(thing, device)

    async def run(self) -> None:
        """Step all devices until cancelled."""
        while True:
            await self.step(STEP_S)
            await asyncio.sleep(STEP_S)

    async def step(self, seconds: float) -> None:
        """Let real `seconds` pass for every device and publish what changed."""
        for thing, device in self._devices.items():
            await self._pass(thing, device, seconds * self._rate)

    async def _pass(self, thing: str, device: Device, seconds: float) -> None:
        for change in device.step(seconds):
            if change.kind is Kind.EVENT:
                await self._agent.event(thing, change.name, change.value)
            else:
                await self._agent.publish(thing, change.name, change.value)

    def _declare(self, thing: str, device: Device) -> None:
        text = sample_td(device.sample)
        self._agent.expose(thing, text)
        document = ThingDescription.parse(text, agent=True).document
        for name in document.get("actions", {}):
            self._agent.action(thing, name)(self._action(thing, device))
        for name, definition in document.get("properties", {}).items():
            if not definition.get("readOnly"):
                self._agent.write(thing, name)(self._write(thing, device))

    def _action(self, thing: str, device: Device) -> ActionHandler:
        async def handle(data: JsonValue, request: AgentRequest) -> JsonValue:
            try:
                device.act(request.name, data)
            except DeviceRefusal as refusal:
                raise Refused(str(refusal)) from refusal
            while (done := device.progress(request.name)) < 100:
                await request.progress(round(done))
                await asyncio.sleep(ACTION_STEP_S)
                await self._pass(thing, device, ACTION_STEP_S)
            return data

        return handle

    def _write(self, thing: str, device: Device) -> ActionHandler:
        async def handle(value: JsonValue, request: AgentRequest) -> JsonValue:
            try:
                device.write(request.name, value)
            except DeviceRefusal as refusal:
                raise Refused(str(refusal)) from refusal
            await self._pass(thing, device, ACTION_STEP_S)
            return None

        return handle
