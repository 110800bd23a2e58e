// A node-wot consumer driven from outside: JSON lines in, JSON lines out.
//
// The first line is {"td", "credentials"}; every other line asks for one interaction of the Scripting API:
// {"id", "do": "readProperty" | …, "name", "value", "options"}. What observed properties and events bring is told as
// {"told": name, "value"}.
"use strict";

const readline = require("node:readline");
const { Servient } = require("@node-wot/core");
const { HttpClientFactory, HttpsClientFactory } = require("@node-wot/binding-http");
const { MqttClientFactory } = require("@node-wot/binding-mqtt");

const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const plain = async (output) => (output === undefined || output === null ? null : await output.value());

async function consumed(setup) {
    const servient = new Servient();
    servient.addClientFactory(new HttpClientFactory());
    servient.addClientFactory(new HttpsClientFactory());
    servient.addClientFactory(new MqttClientFactory());
    servient.addCredentials(setup.credentials);
    const wot = await servient.start();
    return wot.consume(setup.td);
}

async function main() {
    const lines = readline.createInterface({ input: process.stdin });
    const subscriptions = new Map();
    let thing;
    const work = async (asked) => {
        const { name, value, options } = asked;
        switch (asked.do) {
            case "readProperty":
                return plain(await thing.readProperty(name, options));
            case "readAllProperties": {
                const found = {};
                for (const [key, output] of await thing.readAllProperties(options)) found[key] = await plain(output);
                return found;
            }
            case "writeProperty":
                await thing.writeProperty(name, value, options);
                return null;
            case "invokeAction":
                return plain(await thing.invokeAction(name, value, options));
            case "observeProperty":
            case "subscribeEvent": {
                const told = async (output) => say({ told: name, value: await plain(output) });
                const failed = (error) => say({ told: name, error: String(error && error.message) });
                subscriptions.set(name, await thing[asked.do](name, told, failed, options));
                return null;
            }
            case "stop":
                await subscriptions.get(name).stop(options);
                return null;
            default:
                throw new Error(`unknown: ${asked.do}`);
        }
    };
    for await (const line of lines) {
        const asked = JSON.parse(line);
        if (thing === undefined) {
            thing = await consumed(asked);
            say({ id: 0, value: thing.getThingDescription().id });
            continue;
        }
        work(asked).then(
            (value) => say({ id: asked.id, value }),
            (error) => say({ id: asked.id, error: String(error && error.message) })
        );
    }
    process.exit(0);
}

main().catch((error) => {
    say({ id: 0, error: String(error && error.stack) });
    process.exit(1);
});
