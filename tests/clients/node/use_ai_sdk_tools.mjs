// Vercel's AI SDK, with every tool of its provider. Its schemas are the strictest of all.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, streamText, tool } from "ai";
import OpenAI from "openai";
import { execFileSync } from "node:child_process";
import { z } from "zod";
import { MODEL, PICTURE, assert, run } from "./checks.mjs";

const openai = createOpenAI();
const client = new OpenAI({ maxRetries: 0 });

// What is answered with these tools: streamed and at once, stored and not, in the same words.
async function asked(prompt, tools, { stored = [true, false] } = {}) {
  let done;
  for (const store of stored) {
    const asking = {
      model: openai(MODEL),
      prompt,
      tools,
      stopWhen: isStepCount(6),
      maxRetries: 0,
      providerOptions: { openai: { store } },
    };
    const streamed = streamText(asking);
    const parts = [];
    for await (const part of streamed.fullStream) {
      assert.notEqual(part.type, "error", String(part.error?.stack ?? part.error));
      assert.notEqual(part.type, "tool-error", String(part.error?.stack ?? part.error));
      parts.push(part);
    }
    done = await generateText(asking);
    assert.equal(await streamed.text, done.text);
    assert.equal((await streamed.steps).length, done.steps.length);
    const messages = [
      { role: "user", content: prompt },
      ...done.response.messages,
      { role: "user", content: "Thanks!" },
    ];
    assert.ok((await generateText({ ...asking, prompt: undefined, messages })).text);
    done.parts = parts;
  }
  return done;
}

const results = (done, name) =>
  done.steps
    .flatMap((step) => step.content)
    .filter((part) => part.type === "tool-result" && part.toolName === name)
    .map((part) => part.output);

async function aWebSearch() {
  for (const make of ["webSearch", "webSearchPreview"]) {
    const name = make === "webSearch" ? "web_search" : "web_search_preview";
    const done = await asked("How long is the Sognefjord?", { [name]: openai.tools[make]({}) });
    const [search, opened, found] = results(done, name);
    assert.deepEqual(search.action.type, "search");
    assert.equal(opened.action.url, "https://wiki.example/fjords.md");
    assert.equal(found.action.pattern, "longest");
    assert.deepEqual(
      done.sources.map((source) => source.url),
      ["https://wiki.example/fjords.md"],
    );
    const { citations } = done.content.find((part) => part.type === "text");
    assert.equal(citations[0].source.title, "Fjords");
    assert.ok(done.parts.some((part) => part.type === "source"));
  }
}

async function aFileSearch() {
  const store = await client.vectorStores.create({ name: "animals" });
  const file = new File(["The red animal is a fox."], "fox.txt");
  await client.vectorStores.files.uploadAndPoll(store.id, file);
  const file_search = openai.tools.fileSearch({ vectorStoreIds: [store.id], maxNumResults: 2 });
  const done = await asked("Which animal is red?", { file_search });
  const [found] = results(done, "file_search");
  assert.deepEqual(found.queries, ["red animal"]);
  assert.equal(done.text, "The fox.");
  assert.equal(done.sources[0].filename, "fox.txt");
  const told = await generateText({
    model: openai(MODEL),
    prompt: "Which animal is red?",
    tools: { file_search },
    providerOptions: { openai: { include: ["file_search_call.results"] } },
  });
  assert.equal(results(told, "file_search")[0].results[0].text, "The red animal is a fox.");
}

async function code() {
  const code_interpreter = openai.tools.codeInterpreter({});
  const done = await asked("What are the first squares?", { code_interpreter });
  const [ran] = results(done, "code_interpreter");
  assert.deepEqual(ran.outputs, [{ type: "logs", logs: "[0, 1, 4, 9, 16]\n" }]);
  assert.equal(done.sources[0].filename, "note.txt");
  const deltas = done.parts.filter((part) => part.type === "tool-input-delta");
  const written = JSON.parse(deltas.map((part) => part.delta).join(""));
  assert.ok(written.code.endsWith("[n * n for n in range(5)]"));
  const [call] = done.steps[0].toolCalls;
  assert.equal(JSON.parse(JSON.stringify(call.input)).code, written.code);
}

async function images() {
  const image_generation = openai.tools.imageGeneration({ size: "16x16", partialImages: 2 });
  const done = await asked("Draw a cat", { image_generation });
  assert.equal(done.text, "There it is.");
  const [made] = results(done, "image_generation");
  assert.ok(made.result.startsWith("iVBOR"));
  const shown = done.parts.filter((part) => part.type === "tool-result");
  assert.equal(shown.length, 3); // two previews and the image
  const toolChoice = { type: "tool", toolName: "image_generation" };
  const model = openai(MODEL);
  const tools = { image_generation };
  const messages = [
    { role: "user", content: "Draw a cat" },
    ...(await generateText({ model, tools, toolChoice, prompt: "Draw a cat" })).response.messages,
    { role: "user", content: "Make it green" },
  ];
  const changed = await generateText({ model, tools, messages });
  assert.equal(changed.text, "Greener now.");
  const refused = await asked("Draw what is forbidden", { image_generation });
  assert.equal(refused.text, "I may not draw that.");
  assert.deepEqual(results(refused, "image_generation"), [{ result: "" }]);
}

async function mcp() {
  const toys = openai.tools.mcp({
    serverLabel: "toys",
    connectorId: "toys",
    requireApproval: "never",
  });
  const done = await asked("What is the sum of two and three?", { mcp: toys });
  assert.equal(done.text, "It is five.");
  const ran = done.steps[0].content.find((part) => part.type === "tool-result");
  assert.equal(ran.output.output, "5");
}

async function aShellThere() {
  const shell = openai.tools.shell({ environment: { type: "containerAuto" } });
  const done = await asked("How many lines has the poem?", { shell });
  assert.equal(done.text, "It has two lines.");
  const [ran] = results(done, "shell");
  assert.equal(ran.output[1].stdout, "2\n");
}

async function shellsOfOurs() {
  const outcome = { type: "exit", exitCode: 0 };
  const shell = openai.tools.shell({
    execute: async ({ action }) => {
      assert.deepEqual(action.commands, ["echo ahoy"]);
      assert.equal(action.timeoutMs, 5000);
      return { output: [{ stdout: "ahoy\n", stderr: "", outcome }] };
    },
  });
  assert.equal((await asked("What do my files say?", { shell })).text, "They say ahoy.");
  const local_shell = openai.tools.localShell({
    execute: async ({ action: { command } }) => ({
      output: execFileSync(command[0], command.slice(1)).toString(),
    }),
  });
  const done = await asked("Say ahoy without a shell", { local_shell });
  assert.equal(done.text, "It said ahoy.");
  assert.deepEqual(results(done, "local_shell"), [{ output: "ahoy\n" }]);
}

async function patches() {
  const seen = [];
  const apply_patch = openai.tools.applyPatch({
    execute: async ({ operation }) => {
      seen.push(`${operation.type} ${operation.path}`);
      return { status: "completed", output: "done" };
    },
  });
  const done = await asked("Make and mend greet.py", { apply_patch }, { stored: [true] });
  assert.equal(done.text, "Done: it says hello.");
  assert.deepEqual(seen.slice(0, 4), [
    "create_file greet.py",
    "create_file old.py",
    "update_file greet.py",
    "delete_file old.py",
  ]);
}

async function aScreen() {
  const seen = [];
  const computer = openai.tools.computer({
    execute: async ({ actions, pendingSafetyChecks }) => {
      assert.deepEqual(pendingSafetyChecks, []);
      seen.push(...actions);
      const imageUrl = `data:image/png;base64,${PICTURE}`;
      return { output: { type: "computer_screenshot", imageUrl } };
    },
  });
  const done = await asked("Press the button on the screen", { computer }, { stored: [true] });
  assert.equal(done.text, "I pressed it.");
  assert.deepEqual(seen.slice(0, 2), [
    { type: "screenshot" },
    { type: "click", button: "left", x: 3, y: 4 },
  ]);
}

async function toolsOfBothInOneTurn() {
  const toys = openai.tools.mcp({
    serverLabel: "toys",
    connectorId: "toys",
    requireApproval: "never",
  });
  const get_weather = tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `sunny in ${city}`,
  });
  const done = await asked("Add, and ask for the weather", { mcp: toys, get_weather });
  assert.equal(done.text, "Five, and sunny.");
  assert.equal(done.steps.length, 2);
}

async function aSearchForTools() {
  const toolSearch = openai.tools.toolSearch({});
  const water_plants = tool({
    description: "Waters the plants of the garden.",
    inputSchema: z.object({ litres: z.number() }),
    execute: async () => "wet",
    providerOptions: { openai: { deferLoading: true } },
  });
  const done = await asked("Water the lawn", { toolSearch, water_plants });
  assert.equal(done.text, "The lawn is wet.");
}

await run(
  aWebSearch,
  aFileSearch,
  code,
  images,
  mcp,
  aShellThere,
  shellsOfOurs,
  patches,
  aScreen,
  toolsOfBothInOneTurn,
  aSearchForTools,
);
