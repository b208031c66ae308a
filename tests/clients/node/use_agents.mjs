// OpenAI's Agents SDK for Node.
import {
  Agent,
  OpenAIProvider,
  Runner,
  run as ask,
  setDefaultModelProvider,
  setTracingDisabled,
  tool,
} from "@openai/agents";
import { z } from "zod";
import { MODEL, assert, run } from "./checks.mjs";

setTracingDisabled(true);
setDefaultModelProvider(new OpenAIProvider());

const City = z.object({ name: z.string(), country: z.string() });
const called = [];
const weather = tool({
  name: "get_weather",
  description: "The weather in a city.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    called.push(city);
    return "sunny";
  },
});

async function aToolLoop() {
  const agent = new Agent({ name: "a", instructions: "Be brief.", model: MODEL, tools: [weather] });
  const done = await ask(agent, "What is the weather in two cities?");
  assert.equal(done.finalOutput, "Sunny in both.");
  assert.deepEqual(called.sort(), ["Oslo", "Rome"]);
  const again = await ask(agent, [...done.history, { role: "user", content: "hi" }]);
  assert.ok(again.finalOutput);
}

async function aStream() {
  const agent = new Agent({ name: "a", model: MODEL, tools: [weather] });
  const streamed = await ask(agent, "What is the weather in Rome?", { stream: true });
  for await (const _ of streamed);
  await streamed.completed;
  assert.equal(streamed.finalOutput, "It is sunny in Rome.");
}

async function aTypedAnswer() {
  const agent = new Agent({ name: "a", model: MODEL, outputType: City });
  const done = await ask(agent, "Name a city as JSON");
  assert.deepEqual(done.finalOutput, { name: "Rome", country: "Italy" });
}

async function aHandOver() {
  const poet = new Agent({ name: "poet", model: MODEL });
  const agent = Agent.create({ name: "a", model: MODEL, handoffs: [poet] });
  assert.equal((await ask(agent, "Hand me over")).finalOutput, "Roses are red.");
}

async function thinkingThatIsReplayed() {
  const modelSettings = { store: false, providerData: { include: ["reasoning.encrypted_content"] } };
  const agent = new Agent({ name: "a", model: MODEL, modelSettings });
  const done = await ask(agent, "Think first");
  assert.equal(done.finalOutput, "Forty-two.");
  assert.ok((await ask(agent, [...done.history, { role: "user", content: "Why?" }])).finalOutput);
}

async function aConnection() {
  const runner = new Runner({
    modelProvider: new OpenAIProvider({ useResponses: true, useResponsesWebSocket: true }),
    tracingDisabled: true,
  });
  const agent = new Agent({ name: "a", model: MODEL, tools: [weather] });
  const done = await runner.run(agent, "What is the weather in Rome?");
  assert.equal(done.finalOutput, "It is sunny in Rome.");
}

await run(aToolLoop, aStream, aTypedAnswer, aHandOver, thinkingThatIsReplayed, aConnection);
