// LangChain for Node, over the Responses API and over Chat Completions.
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";
import { MODEL, assert, run } from "./checks.mjs";

const models = [true, false].map(
  (useResponsesApi) => new ChatOpenAI({ model: MODEL, useResponsesApi, maxRetries: 0 }),
);
const weather = tool(async ({ city }) => `sunny in ${city}`, {
  name: "get_weather",
  description: "The weather in a city.",
  schema: z.object({ city: z.string() }),
});

async function anAnswer() {
  for (const model of models) assert.equal((await model.invoke("hi")).text, "Hello there!");
}

async function aStream() {
  for (const model of models) {
    let said = "";
    for await (const chunk of await model.stream("hi")) said += chunk.text;
    assert.equal(said, "Hello there!");
  }
}

async function aToolLoop() {
  for (const model of models) {
    const bound = model.bindTools([weather]);
    const talk = [new HumanMessage("What is the weather in two cities?")];
    const asked = await bound.invoke(talk);
    talk.push(asked);
    for (const call of asked.tool_calls) {
      const content = await weather.invoke(call.args);
      talk.push(new ToolMessage({ content, tool_call_id: call.id }));
    }
    assert.equal((await bound.invoke(talk)).text, "Sunny in both.");
  }
}

async function aTypedAnswer() {
  const City = z.object({ name: z.string(), country: z.string() });
  for (const model of models) {
    const typed = model.withStructuredOutput(City, { method: "jsonSchema" });
    const city = await typed.invoke("Name a city as JSON");
    assert.deepEqual(city, { name: "Rome", country: "Italy" });
  }
}

await run(anAnswer, aStream, aToolLoop, aTypedAnswer);
