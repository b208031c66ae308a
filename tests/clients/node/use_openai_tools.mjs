// The official client for Node, with the tools that run in the server: its helper for streams
// refuses events that it does not know.
import OpenAI from "openai";
import { MODEL, assert, run } from "./checks.mjs";

const client = new OpenAI({ maxRetries: 0 });
const FJORDS = "https://wiki.example/fjords.md";

// The response at the end of a stream, which a plain answer agrees with.
async function streamed(input, tool, include = []) {
  const asked = { model: MODEL, input, tools: [tool], include };
  const stream = client.responses.stream(asked);
  const types = [];
  for await (const event of stream) types.push(event.type);
  const final = await stream.finalResponse();
  assert.equal(final.status, "completed");
  assert.equal(types.at(-1), "response.completed");
  const plain = await client.responses.create(asked);
  assert.deepEqual(
    plain.output.map((item) => item.type),
    final.output.map((item) => item.type),
  );
  assert.equal(plain.output_text, final.output_text);
  return final;
}

async function aWebSearch() {
  const include = ["web_search_call.action.sources"];
  const final = await streamed("How long is the Sognefjord?", { type: "web_search" }, include);
  const [search, opened, found, message] = final.output;
  assert.deepEqual(search.action.sources, [{ type: "url", url: FJORDS }]);
  assert.equal(opened.action.url, FJORDS);
  assert.equal(found.action.pattern, "longest");
  assert.equal(message.content[0].annotations[0].title, "Fjords");
}

async function aFileSearch() {
  const store = await client.vectorStores.create({ name: "animals" });
  const file = new File(["The red animal is a fox."], "fox.txt");
  await client.vectorStores.files.uploadAndPoll(store.id, file);
  const tool = { type: "file_search", vector_store_ids: [store.id] };
  const include = ["file_search_call.results"];
  const [call, message] = (await streamed("Which animal is red?", tool, include)).output;
  assert.equal(call.results[0].filename, "fox.txt");
  assert.equal(message.content[0].annotations[0].file_id, call.results[0].file_id);
}

async function code() {
  const tool = { type: "code_interpreter", container: { type: "auto" } };
  const include = ["code_interpreter_call.outputs"];
  const [call, message] = (await streamed("What are the first squares?", tool, include)).output;
  assert.deepEqual(call.outputs, [{ type: "logs", logs: "[0, 1, 4, 9, 16]\n" }]);
  const [cited] = message.content[0].annotations;
  const { container_id } = cited;
  const content = await client.containers.files.content.retrieve(cited.file_id, { container_id });
  assert.equal(await content.text(), "hi");
}

async function images() {
  const tool = { type: "image_generation", size: "16x16", partial_images: 2 };
  const [made, message] = (await streamed("Draw a cat", tool)).output;
  assert.ok(made.result.startsWith("iVBOR"));
  assert.equal(made.revised_prompt, "A small cat");
  assert.equal(message.content[0].text, "There it is.");
  const named = { type: "image_generation_call", id: made.id };
  const again = [named, { role: "user", content: "Make it green" }];
  const [changed] = (await streamed(again, tool)).output;
  assert.equal(changed.action, "edit");
}

async function mcp() {
  const tool = { type: "mcp", server_label: "toys", require_approval: "never" };
  const [listed, call] = (await streamed("What is the sum of two and three?", tool)).output;
  assert.ok(listed.tools.some((each) => each.name === "add"));
  assert.equal(call.output, "5");
}

async function aShell() {
  const tool = { type: "shell", environment: { type: "container_auto" } };
  const [call, output] = (await streamed("How many lines has the poem?", tool)).output;
  assert.equal(output.call_id, call.call_id);
  assert.equal(output.output[1].stdout, "2\n");
}

await run(aWebSearch, aFileSearch, code, images, mcp, aShell);
