// Vercel's AI SDK, over the Responses API (its default), Chat Completions and Anthropic's API.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { Output, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import { MODEL, assert, run } from "./checks.mjs";

const openai = createOpenAI();
const anthropic = createAnthropic({ baseURL: process.env.OPENAI_BASE_URL, apiKey: "none" });
const models = [openai(MODEL), openai("gpt-5.5"), openai.chat(MODEL), anthropic(MODEL)];
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
      // By default, this provider calls a tool for models that it does not know.
      providerOptions: { anthropic: { structuredOutputMode: "outputFormat" } },
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

async function toolsThatTheServerRuns() {
  const mcp = (more) =>
    openai.tools.mcp({ serverLabel: "toys", connectorId: "toys", allowedTools: ["add"], ...more });
  const asked = {
    model: openai(MODEL),
    messages: [{ role: "user", content: "What is the sum of two and three?" }],
    maxRetries: 0,
  };
  const free = { mcp: mcp({ requireApproval: "never" }) };
  const done = await generateText({ ...asked, tools: free });
  assert.equal(done.text, "It is five.");
  const result = done.content.find((part) => part.type === "tool-result");
  assert.equal(result.output.output, "5");
  const streamed = streamText({ ...asked, tools: free });
  for await (const part of streamed.fullStream) {
    assert.notEqual(part.type, "error", String(part.error));
  }
  assert.equal(await streamed.text, "It is five.");

  const guarded = { mcp: mcp({ requireApproval: "always" }) };
  const first = await generateText({ ...asked, tools: guarded });
  const request = first.content.find((part) => part.type === "tool-approval-request");
  const second = await generateText({
    ...asked,
    tools: guarded,
    messages: [
      ...asked.messages,
      ...first.response.messages,
      {
        role: "tool",
        content: [
          {
            type: "tool-approval-response",
            approvalId: request.approvalId,
            approved: true,
            providerExecuted: true,
          },
        ],
      },
    ],
  });
  assert.equal(second.text, "It is five.");
}

await run(toolsThatTheServerRuns, anAnswer, aToolLoop, aStream, thinking, aTypedAnswer, failures);
