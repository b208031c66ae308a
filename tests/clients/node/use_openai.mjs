// The official client for Node.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";
import { MODEL, SCHEMA, assert, run } from "./checks.mjs";

const client = new OpenAI({ maxRetries: 0 });
const City = z.object({ name: z.string(), country: z.string() });
const ROME = { name: "Rome", country: "Italy" };
const WEATHER = { type: "function", name: "get_weather", parameters: SCHEMA, strict: true };

async function anAnswer() {
  const answer = await client.responses.create({ model: MODEL, input: "hi" });
  assert.equal(answer.output_text, "Hello there!");
  const again = await client.responses.retrieve(answer.id);
  assert.deepEqual(again.output, answer.output);
  await client.responses.delete(answer.id);
  await assert.rejects(client.responses.retrieve(answer.id), OpenAI.NotFoundError);
}

async function aStream() {
  const stream = client.responses.stream({ model: MODEL, input: "Think first" });
  let said = "";
  stream.on("response.output_text.delta", (event) => (said += event.delta));
  const final = await stream.finalResponse();
  assert.equal(said, "Forty-two.");
  assert.equal(final.output_text, said);
  assert.equal(final.output[0].type, "reasoning");
}

async function aParsedAnswer() {
  const answer = await client.responses.parse({
    model: MODEL,
    input: "Name a city as JSON",
    text: { format: zodTextFormat(City, "city") },
  });
  assert.deepEqual(answer.output_parsed, ROME);
}

async function aToolLoop() {
  const input = [{ role: "user", content: "What is the weather in two cities?" }];
  const asked = await client.responses.create({ model: MODEL, input, tools: [WEATHER] });
  const outputs = asked.output
    .filter((item) => item.type === "function_call")
    .map((call) => ({ type: "function_call_output", call_id: call.call_id, output: "sunny" }));
  assert.equal(outputs.length, 2);
  const answer = await client.responses.create({
    model: MODEL,
    input: [...input, ...asked.output, ...outputs],
    tools: [WEATHER],
  });
  assert.equal(answer.output_text, "Sunny in both.");
}

async function inTheBackground() {
  const queued = await client.responses.create({ model: MODEL, input: "hi", background: true });
  const stream = await client.responses.retrieve(queued.id, { stream: true, starting_after: 1 });
  const events = [];
  for await (const event of stream) events.push(event);
  assert.equal(events[0].sequence_number, 2);
  assert.equal(events.at(-1).response.output_text ?? "Hello there!", "Hello there!");
  const done = await client.responses.retrieve(queued.id);
  assert.equal(done.output_text, "Hello there!");
}

async function conversations() {
  const items = [{ role: "user", content: "I am Ada." }];
  const talk = await client.conversations.create({ items });
  await client.responses.create({ model: MODEL, input: "hi", conversation: talk.id });
  const kinds = [];
  for await (const item of client.conversations.items.list(talk.id)) kinds.push(item.type);
  assert.equal(kinds.length, 3);
  assert.equal((await client.conversations.delete(talk.id)).deleted, true);
}

async function aConnection() {
  const connection = new ResponsesWS(client);
  const answer = await new Promise((resolve, reject) => {
    connection.on("error", reject);
    connection.on("response.completed", (event) => resolve(event.response));
    connection.send({ type: "response.create", model: MODEL, input: "hi", store: false });
  });
  assert.equal(answer.output[0].content[0].text, "Hello there!");
  connection.close();
}

async function chatCompletions() {
  const messages = [{ role: "user", content: "hi" }];
  const answer = await client.chat.completions.create({ model: MODEL, messages });
  assert.equal(answer.choices[0].message.content, "Hello there!");
  const stream = client.chat.completions.stream({ model: MODEL, messages });
  assert.equal(await stream.finalContent(), "Hello there!");
  const city = await client.chat.completions.parse({
    model: MODEL,
    messages: [{ role: "user", content: "Name a city as JSON" }],
    response_format: zodResponseFormat(City, "city"),
  });
  assert.deepEqual(city.choices[0].message.parsed, ROME);
  const loop = client.chat.completions.runTools({
    model: MODEL,
    messages: [{ role: "user", content: "What is the weather in two cities?" }],
    tools: [
      {
        type: "function",
        function: {
          name: "get_weather",
          parameters: SCHEMA,
          parse: JSON.parse,
          function: ({ city }) => `sunny in ${city}`,
        },
      },
    ],
  });
  assert.equal(await loop.finalContent(), "Sunny in both.");
}

async function failures() {
  await assert.rejects(
    client.responses.create({ model: "nobody", input: "hi" }),
    (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found",
  );
  await assert.rejects(async () => {
    const stream = await client.responses.create({
      model: MODEL,
      input: "Fail at once",
      stream: true,
    });
    for await (const _ of stream);
  }, /The engine is gone/);
}

await run(
  anAnswer,
  aStream,
  aParsedAnswer,
  aToolLoop,
  inTheBackground,
  conversations,
  aConnection,
  chatCompletions,
  failures,
);
