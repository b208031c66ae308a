// OpenAI's Agents SDK for Node, with every tool of its own.
import {
  Agent,
  OpenAIProvider,
  applyDiff,
  applyPatchTool,
  codeInterpreterTool,
  computerTool,
  fileSearchTool,
  hostedMcpTool,
  imageGenerationTool,
  run as ask,
  setDefaultModelProvider,
  setTracingDisabled,
  shellTool,
  tool,
  toolNamespace,
  toolSearchTool,
  webSearchTool,
} from "@openai/agents";
import OpenAI from "openai";
import { execFileSync } from "node:child_process";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { z } from "zod";
import { MODEL, PICTURE, assert, run } from "./checks.mjs";

setTracingDisabled(true);
setDefaultModelProvider(new OpenAIProvider());
const client = new OpenAI({ maxRetries: 0 });

// What an agent with these tools answers; it is asked in both ways, and told what it said.
async function asked(question, ...tools) {
  const agent = new Agent({ name: "a", model: MODEL, tools });
  const streamed = await ask(agent, question, { stream: true });
  for await (const _ of streamed);
  await streamed.completed;
  assert.equal(streamed.error, null);
  const done = await ask(agent, question);
  assert.equal(done.finalOutput, streamed.finalOutput);
  const more = [...done.history, { role: "user", content: "Thanks!" }];
  assert.ok((await ask(agent, more)).finalOutput);
  return done;
}

const calls = (done) =>
  done.newItems.filter((item) => item.type === "tool_call_item").map((item) => item.rawItem);
const cited = (done) => done.newItems.at(-1).rawItem.content[0].providerData.annotations[0];

async function aWebSearch() {
  const done = await asked("How long is the Sognefjord?", webSearchTool());
  assert.deepEqual(
    calls(done).map((call) => call.status),
    ["completed", "completed", "completed"],
  );
  assert.equal(cited(done).title, "Fjords");
}

async function aFileSearch() {
  const store = await client.vectorStores.create({ name: "animals" });
  const file = new File(["The red animal is a fox."], "fox.txt");
  await client.vectorStores.files.uploadAndPoll(store.id, file);
  const search = fileSearchTool(store.id, { includeSearchResults: true });
  const done = await asked("Which animal is red?", search);
  assert.equal(done.finalOutput, "The fox.");
  assert.equal(cited(done).filename, "fox.txt");
  assert.equal(calls(done)[0].providerData.results[0].text, "The red animal is a fox.");
}

async function code() {
  const python = codeInterpreterTool({ includeOutputs: true });
  const done = await asked("What are the first squares?", python);
  assert.equal(calls(done)[0].providerData.outputs[0].logs, "[0, 1, 4, 9, 16]\n");
  assert.equal(cited(done).filename, "note.txt");
  // A call that failed can be shown by it, but not sent back: its schema lacks the status.
  const agent = new Agent({ name: "a", model: MODEL, tools: [python] });
  const died = await ask(agent, "Code that ends Python");
  assert.equal(died.finalOutput, "It is over.");
  assert.equal(calls(died)[0].status, "failed");
}

async function images() {
  const pictures = imageGenerationTool({ size: "16x16", partialImages: 1 });
  const done = await asked("Draw a cat", pictures);
  assert.ok(calls(done)[0].output.startsWith("iVBOR") || calls(done)[0].providerData.result);
  assert.equal(done.finalOutput, "There it is.");
  const agent = new Agent({ name: "a", model: MODEL, tools: [pictures] });
  const more = [...done.history, { role: "user", content: "Make it green" }];
  assert.equal((await ask(agent, more)).finalOutput, "Greener now.");
}

async function mcp() {
  const toys = hostedMcpTool({ serverLabel: "toys", connectorId: "toys", requireApproval: "never" });
  const done = await asked("What is the sum of two and three?", toys);
  assert.equal(done.finalOutput, "It is five.");
  const seen = [];
  const guarded = hostedMcpTool({
    serverLabel: "toys",
    connectorId: "toys",
    requireApproval: "always",
    onApproval: async (_, item) => {
      seen.push(item.rawItem.name);
      return { approve: true };
    },
  });
  const agent = new Agent({ name: "a", model: MODEL, tools: [guarded] });
  assert.equal((await ask(agent, "What is the sum of two and three?")).finalOutput, "It is five.");
  assert.deepEqual(seen, ["add"]);
}

async function aShellThere() {
  const done = await asked(
    "How many lines has the poem?",
    shellTool({ environment: { type: "container_auto" } }),
  );
  assert.equal(done.finalOutput, "It has two lines.");
}

async function aShellOfOurs() {
  const ran = [];
  const shell = {
    run: async (action) => {
      ran.push(...action.commands);
      const stdout = execFileSync("sh", ["-c", action.commands[0]]).toString();
      return { output: [{ stdout, stderr: "", outcome: { type: "exit", exitCode: 0 } }] };
    },
  };
  const done = await asked("What do my files say?", shellTool({ shell }));
  assert.equal(done.finalOutput, "They say ahoy.");
  assert.deepEqual(ran, ["echo ahoy", "echo ahoy"]);
}

async function patches() {
  const editor = {
    createFile: async ({ path, diff }) => {
      writeFileSync(path, applyDiff("", diff, "create"));
      return { status: "completed" };
    },
    updateFile: async ({ path, diff }) => {
      writeFileSync(path, applyDiff(readFileSync(path, "utf8"), diff));
      return { status: "completed" };
    },
    deleteFile: async ({ path }) => {
      rmSync(path);
      return { status: "completed" };
    },
  };
  const done = await asked("Make and mend greet.py", applyPatchTool({ editor }));
  assert.equal(done.finalOutput, "Done: it says hello.");
  assert.equal(readFileSync("greet.py", "utf8").trim(), 'print("hello")');
}

async function aScreen() {
  const clicked = [];
  const never = async () => assert.fail("nobody asked for that");
  const computer = {
    environment: "browser",
    dimensions: [800, 600],
    screenshot: async () => PICTURE,
    click: async (x, y, button) => clicked.push([x, y, button]),
    doubleClick: never,
    scroll: never,
    type: never,
    wait: never,
    move: never,
    keypress: never,
    drag: never,
  };
  const done = await asked("Press the button on the screen", computerTool({ computer }));
  assert.equal(done.finalOutput, "I pressed it.");
  assert.deepEqual(clicked, [
    [3, 4, "left"],
    [3, 4, "left"],
  ]);
}

async function aSearchForTools() {
  const water = tool({
    name: "water_plants",
    description: "Waters the plants.",
    parameters: z.object({ litres: z.number() }),
    deferLoading: true,
    execute: async () => "wet",
  });
  const garden = toolNamespace({ name: "garden", description: "The garden.", tools: [water] });
  const done = await asked("Water the garden", ...garden, toolSearchTool());
  assert.equal(done.finalOutput, "The garden is wet.");
}

async function toolsOfBothInOneTurn() {
  const toys = hostedMcpTool({ serverLabel: "toys", connectorId: "toys", requireApproval: "never" });
  const weather = tool({
    name: "get_weather",
    description: "The weather in a city.",
    parameters: z.object({ city: z.string() }),
    execute: async () => "sunny",
  });
  const done = await asked("Add, and ask for the weather", toys, weather);
  assert.equal(done.finalOutput, "Five, and sunny.");
}

await run(
  aWebSearch,
  aFileSearch,
  code,
  images,
  mcp,
  aShellThere,
  aShellOfOurs,
  patches,
  aScreen,
  aSearchForTools,
  toolsOfBothInOneTurn,
);
