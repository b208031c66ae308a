// Vercel's AI SDK, over the Responses API (its default) and over Chat Completions.
import { createOpenAI } from "@ai-sdk/openai";
import { Output, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import { MODEL, assert, run } from "./checks.mjs";

const openai = createOpenAI();
const models = [openai(MODEL), openai("gpt-5.5"), openai.chat(MODEL)];
const City = z.object({ name: z.string(), country: z.string() });
const tools = {
  get_weather: tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `sunny in ${city}`,
  }),
};

async function anAnswer() {
  for (const model of models) {
    const done = await generateText({ model, prompt: "hi", maxRetries: 0 });
    assert.equal(done.text, "Hello there!");
    assert.ok(done.usage.inputTokens > 0);
  }
}

async function aToolLoop() {
  for (const model of models) {
    for (const options of [{}, { store: false, include: ["reasoning.encrypted_content"] }]) {
      const done = await generateText({
        model,
        prompt: "What is the weather in two cities?",
        tools,
        stopWhen: isStepCount(5),
        maxRetries: 0,
        providerOptions: { openai: options },
      });
      assert.equal(done.text, "Sunny in both.");
      assert.equal(done.steps.length, 2);
    }
  }
}

async function aStream() {
  for (const model of models) {
    const streamed = streamText({
      model,
      prompt: "What is the weather in Rome?",
      tools,
      stopWhen: isStepCount(5),
      maxRetries: 0,
    });
    let said = "";
    for await (const part of streamed.fullStream) {
      assert.notEqual(part.type, "error", String(part.error));
      if (part.type === "text-delta") said += part.text;
    }
    assert.equal(said, "It is sunny in Rome.");
  }
}

async function thinking() {
  for (const store of [true, false]) {
    const include = ["reasoning.encrypted_content"];
    const providerOptions = { openai: store ? { store } : { store, include } };
    const messages = [{ role: "user", content: "Think first" }];
    const model = openai("gpt-5.5");
    const done = await generateText({ model, messages, providerOptions, maxRetries: 0 });
    assert.equal(done.text, "Forty-two.");
    messages.push(...done.response.messages, { role: "user", content: "Why?" });
    assert.ok((await generateText({ model, messages, providerOptions, maxRetries: 0 })).text);
  }
}

async function aTypedAnswer() {
  for (const model of models) {
    const done = await generateText({
      model,
      prompt: "Name a city as JSON",
      output: Output.object({ schema: City }),
      maxRetries: 0,
    });
    assert.deepEqual(done.output, { name: "Rome", country: "Italy" });
  }
}

async function failures() {
  await assert.rejects(
    generateText({ model: openai("nobody"), prompt: "hi", maxRetries: 0 }),
    /does not exist/,
  );
}

await run(anAnswer, aToolLoop, aStream, thinking, aTypedAnswer, failures);
