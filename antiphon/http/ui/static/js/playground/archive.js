// Conversations as a file: `{format, version, conversations: [{name, turns: [{model, input, output}]}]}`,
// where `input` and `output` are items of the API.
import { messageText } from "./edited.js";

const FORMAT = "antiphon.conversations";
const VERSION = 1;
/** Fields of items that the page reads as lists. */
const LISTS = ["content", "summary", "tools", "results", "outputs", "queries", "sources", "annotations"];

/** The items of an answer that a conversation has. Of a stopped answer, these are its texts: its calls may
 * have no end. */
export const answerItems = ({ response }) => (response?.status === "cancelled"
  ? response.output.filter((item) => item?.type === "message" && messageText(item)) : response?.output ?? []);

/** Turns that are part of a conversation: others failed, or were stopped before they had a text. */
export const isAnswered = (turn) => ["completed", "incomplete"].includes(turn.response?.status) ||
  (turn.response?.status === "cancelled" && answerItems(turn).length > 0);

export const archived = (name, turns) => ({
  name,
  turns: turns.filter(isAnswered).map((turn) => ({ model: turn.response.model, input: turn.input, output: answerItems(turn) })),
});

export const archiveText = (conversations) =>
  `${JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 2)}\n`;

/** Return the conversations of a file. Raises Error with what is wrong and where. */
export function parseArchive(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (file?.format !== FORMAT) throw new Error("This file was not saved by this page.");
  if (file.version !== VERSION) throw new Error(`The file has version ${file.version}; this page reads version ${VERSION}.`);
  if (!isList(file.conversations)) throw new Error("conversations must be a list of objects.");
  if (!file.conversations.length) throw new Error("This file has no conversations.");
  return file.conversations.map((each, index) => conversationOf(each, `conversations[${index}]`));
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isList = (value) => Array.isArray(value) && value.every(isObject);

function conversationOf({ name, turns }, path) {
  if (!isList(turns) || !turns.length) throw new Error(`${path}.turns must be a list of turns.`);
  return {
    name: typeof name === "string" ? name.slice(0, 200) : "",
    turns: turns.map(({ model, input, output }, index) => ({
      model: typeof model === "string" ? model : "",
      input: itemsOf(input, `${path}.turns[${index}].input`),
      output: itemsOf(output, `${path}.turns[${index}].output`),
    })),
  };
}

function itemsOf(items, path) {
  if (!isList(items)) throw new Error(`${path} must be a list of items.`);
  return items.map((item, index) => {
    const at = `${path}[${index}]`;
    if (typeof item.type !== "string") throw new Error(`${at} has no type.`);
    if (item.type === "message" && !isList(item.content)) throw new Error(`${at}.content must be a list of parts.`);
    checkShape(item, at);
    checkShape(item.action ?? {}, `${at}.action`);
    [...(item.content ?? []), ...(item.summary ?? [])].forEach((part, place) => {
      checkShape(part, `${at} part ${place}`);
      if (part.type === "output_text" && part.text == null) throw new Error(`${at} has a part without text.`);
    });
    return item;
  });
}

/** Check what the page takes for granted where it shows an item or a part. Null stands for no list. */
function checkShape(value, path) {
  for (const field of LISTS) {
    const list = value[field] ?? [];
    if (!Array.isArray(list) || list.includes(null)) throw new Error(`${path}.${field} must be a list.`);
  }
  if (typeof (value.text ?? "") !== "string") throw new Error(`${path}.text must be a text.`);
}

/** Items that a client sends; all others are of the model and its tools. */
const SENT = new Set(["function_call_output", "custom_tool_call_output", "mcp_approval_response", "local_shell_call_output"]);
const isSent = (item) => ((item.type ?? "message") === "message" ? item.role !== "assistant" : SENT.has(item.type));

/** Divide items into turns, `{input, output}`: each begins where a client's item follows the model's. */
export function splitTurns(items) {
  const turns = [];
  for (const item of items) {
    const sent = isSent(item);
    if (!turns.length || (sent && turns.at(-1).output.length)) turns.push({ input: [], output: [] });
    turns.at(-1)[sent ? "input" : "output"].push(item);
  }
  return turns;
}
