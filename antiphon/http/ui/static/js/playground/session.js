// The playground's conversations: a tree of turns, each one request and its response. Runs are
// background runs, so that a reload of the page goes on reading where it stopped.
import { call, events, get, onForget, post, query, remove } from "../api.js";
import { fold, isTerminal } from "../fold.js";
import { createStore, inSession, newId } from "../lib.js";
import { answerItems, isAnswered, splitTurns } from "./archive.js";
import { editedOutput, leftOpen } from "./edited.js";
import { addToChat, chatOf, nameOf, setName } from "./names.js";
import { buildRequest, DEFAULTS, settingsOf } from "./request.js";

const saved = inSession("playground");
/** How long a lost run is looked for: a server may load a large model after its restart. */
const RECONNECT_MS = 10 * 60 * 1000;
const LONGEST_PAUSE_MS = 5000;

/**
 * `turns`: by id, in order of creation. `leaf`: the last turn of the visible branch. `name`: what the
 * user calls the conversation, or empty. `chat`: the id of the conversation in this browser.
 * A turn: `parent`, `input` (items), `body` (the request), `status` (running, done, error),
 * `response`, `ignored` (tools), `error`, `times` in milliseconds, `answers` to pending calls; `isLost` while
 * the connection to a run is lost, and of a turn that was given up: the server may have its answer. A turn with
 * a response but no `responseId` is not stored by the server; `origin` says where it is from, `inputOf`
 * which stored response has the same input.
 */
export const session = createStore({ turns: {}, leaf: null, name: "", chat: newId(), settings: DEFAULTS, ...saved.read({}) });

export const setSettings = (change) => {
  session.update((state) => ({ settings: { ...state.settings, ...change } }));
  save();
};

const turnOf = (id) => session.get().turns[id];

/** Turns from the first to the leaf. */
export function branch({ turns, leaf }) {
  const path = [];
  for (let turn = turns[leaf]; turn; turn = turns[turn.parent]) path.unshift(turn);
  return path;
}

export const siblings = ({ turns }, turn) =>
  Object.values(turns).filter((other) => other.parent === turn.parent);

const children = (turns, id) => Object.values(turns).filter((turn) => turn.parent === id);

/** Show another branch: follow the newest turns below `turn`. */
export function showBranch(turn) {
  const { turns } = session.get();
  let id = turn.id;
  for (let next = children(turns, id); next.length; next = children(turns, id)) id = next.at(-1).id;
  session.update({ leaf: id });
  save();
}

const isLocal = (turn) => Boolean(turn.response && !turn.responseId);

export const isRunning = (turn) => turn?.status === "running";

// --- saving --------------------------------------------------------------------------------------

/** sessionStorage holds a few megabytes: what does not fit is loaded from the server again. */
function save() {
  const { turns, leaf, name, chat, settings } = session.get();
  if (saved.write({ turns, leaf, name, chat, settings })) return;
  const small = Object.entries(turns).map(([id, turn]) => [id, withoutContents(turn)]);
  saved.write({ turns: Object.fromEntries(small), leaf, name, chat, settings });
}

/** A turn without what the server has. What only this page knows stays. */
const withoutContents = (turn) => (isLocal(turn) && !turn.inputOf ? turn : {
  ...turn,
  isShort: true,
  input: turn.input.map((item) => ({
    ...item,
    content: Array.isArray(item.content)
      ? item.content.map((part) =>
        part.type === "input_text" ? part : { type: part.type, filename: part.filename ?? "an image" })
      : item.content,
  })),
  body: undefined,
  response: turn.responseId ? undefined : turn.response,
});

/** Load the input of a turn again, whose attachments were too large to save. */
async function loadInput({ id, responseId, inputOf, input }) {
  const items = input.length ? await inputItems(responseId ?? inputOf) : [];
  changeTurn(id, { input: items.slice(items.length - input.length), isShort: false });
}

/** Continue what a reload interrupted, on all branches. */
export function restore() {
  for (const turn of Object.values(session.get().turns)) {
    if (turn.isShort && (turn.responseId ?? turn.inputOf)) loadInput(turn).catch(() => {});
    if (isRunning(turn)) {
      if (turn.responseId) {
        // Its events come again, faster than the model wrote them.
        changeTurn(turn.id, { response: null, times: { sent: turn.times.sent, areReplayed: true } });
        follow(turn.id);
      } else if (turn.body) {
        start(turn.id);
      } else {
        changeTurn(turn.id, { status: "error", error: "The request was interrupted." });
      }
    } else if (turn.responseId && !turn.response) {
      get(`/v1/responses/${turn.responseId}`).then(
        (response) => changeTurn(turn.id, { response }),
        (error) => changeTurn(turn.id, { status: "error", error: error.message }),
      );
    }
  }
}

// --- runs ----------------------------------------------------------------------------------------

function changeTurn(id, change, { keep = true } = {}) {
  if (!turnOf(id)) return;
  session.update(({ turns }) => ({ turns: { ...turns, [id]: { ...turns[id], ...change } } }));
  const { name, chat } = session.get();
  if (change.responseId && keep) addToChat([change.responseId], chat);
  if (name && change.responseId && keep) setName([change.responseId], name);
  if (keep) save();
}

/** What a new turn below `parent` continues: the id of the last stored response, and the items of later
 * turns, which the server does not store or which were stopped: it continues no cancelled response. */
function contextOf(parent) {
  const { turns } = session.get();
  const items = [];
  for (let turn = turns[parent]; turn; turn = turns[turn.parent]) {
    if (!isAnswered(turn)) continue;
    if (turn.responseId && turn.response.status !== "cancelled") return { previous: turn.responseId, items };
    items.unshift(...turn.input, ...answerItems(turn));
  }
  return { previous: null, items };
}

/** The body of a request below `parent`. Without input, the model goes on with its last message. */
function requestAfter(parent, input) {
  const { previous, items } = contextOf(parent);
  return buildRequest(session.get().settings, input.length ? [...items, ...input] : leftOpen(items), previous);
}

/** The body of the request that would send a message after the visible branch. */
export const nextRequest = (text) =>
  requestAfter(session.get().leaf, [userMessage([{ type: "input_text", text }])]);

function showTurn(turn) {
  session.update(({ turns }) => ({ turns: { ...turns, [turn.id]: turn }, leaf: turn.id }));
  save();
}

function addTurn(parent, input) {
  const id = newId();
  const body = requestAfter(parent, input);
  showTurn({ id, parent, input, body, status: "running", times: { sent: Date.now() }, ignored: [] });
  start(id);
}

const userMessage = (content) => ({ type: "message", role: "user", content });

/** Send a new message after the visible branch. */
export const send = (content) => addTurn(session.get().leaf, [userMessage(content)]);

/** Let the model go on with an answer that was cut off or stopped, or with an edited one. */
export const continueAnswer = (turn) => addTurn(turn.id, []);

export const retry = (turn) => addTurn(turn.parent, turn.input);

export const edit = (turn, content) => addTurn(turn.parent, [userMessage(content)]);

/** Show another version of a turn, with changed texts of its answer, by index in the output. */
export function editAnswer(turn, texts) {
  const { model, output, text } = turn.response;
  const edited = { model, text, output: editedOutput(output.filter(Boolean), texts) };
  const inputOf = turn.responseId ?? turn.inputOf;
  showTurn({ ...localTurn({ ...edited, input: turn.input }, "edited"), id: newId(), parent: turn.parent, inputOf });
}

/** Begin a new conversation. A run goes on, and is found in the list of conversations. */
export const clear = () => {
  session.update({ turns: {}, leaf: null, name: "", chat: newId() });
  save();
};

onForget(() => {
  clear();
  setSettings(DEFAULTS);
});

/** The ids of the stored responses of the conversation, with those of all branches. */
const responseIds = () => Object.values(session.get().turns).map((turn) => turn.responseId).filter(Boolean);

export function rename(name) {
  session.update({ name });
  setName(responseIds(), name);
  save();
}

/** Delete the responses of a conversation, with all its branches. Those of running turns are cancelled. */
export async function deleteConversation() {
  const ids = responseIds();
  await Promise.all(ids.map((id) => remove(`/v1/responses/${id}`).catch((error) => {
    if (error.status !== 404) throw error; // another one is gone already
  })));
  setName(ids, "");
  clear();
}

/** The visible branch as Markdown: what was said, without the calls of tools. */
export function asMarkdown(turns) {
  const textOf = (items) => items.filter((item) => (item.type ?? "message") === "message")
    .flatMap((item) => (typeof item.content === "string" ? [item.content] : item.content.map((part) => part.text ?? part.refusal ?? `[${part.filename ?? part.type}]`)))
    .join("\n\n");
  return turns.map((turn) => [["You", textOf(turn.input)], ["Answer", textOf((turn.response?.output ?? []).filter(Boolean))]]
    .filter(([, text]) => text).map(([who, text]) => `**${who}:** ${text}\n`).join("\n")).join("\n");
}

/** Stop a run. Its events end, and what it wrote so far stays. */
export async function stop(turn) {
  if (!turn.responseId) return;
  await post(`/v1/responses/${turn.responseId}/cancel`, {}).catch(() => {});
}

async function start(id) {
  const turn = turnOf(id);
  try {
    // The key makes a repeated request find the same run.
    const reply = await call("POST", "/v1/responses", {
      body: turn.body,
      headers: { "idempotency-key": `ui-${id}` },
    });
    const ignored = reply.headers.get("x-antiphon-ignored-tools");
    if (ignored) changeTurn(id, { ignored: ignored.split(", ") });
    if (await read(id, events(reply))) return;
  } catch (error) {
    if (!turnOf(id)?.responseId) return fail(id, error);
  }
  await follow(id);
}

function fail(id, error) {
  const message = error instanceof TypeError ? "The server cannot be reached." : error.message;
  changeTurn(id, { status: "error", error: message, param: error.param, code: error.code });
}

/** Look again for a run that was given up. */
export function reconnect(turn) {
  changeTurn(turn.id, { status: "running", error: undefined });
  follow(turn.id);
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Read a run's events from the first one that is not yet known, again if the connection is lost. */
async function follow(id) {
  const { responseId } = turnOf(id);
  const end = Date.now() + RECONNECT_MS;
  for (let wait = 500; Date.now() < end && isRunning(turnOf(id)); wait = Math.min(2 * wait, LONGEST_PAUSE_MS)) {
    try {
      const after = turnOf(id).response ? turnOf(id).sequence : undefined;
      const path = `/v1/responses/${responseId}${query({ stream: true, starting_after: after })}`;
      if (await read(id, events(await call("GET", path)))) return;
    } catch { /* the network, or the events are no longer stored: the response tells */ }
    try {
      // The stream of a cancelled run has no last event.
      const response = await get(`/v1/responses/${responseId}`);
      if (!["queued", "in_progress"].includes(response.status)) return finish(id, response);
    } catch (error) {
      if (error.status && error.status < 500) return fail(id, error);
      changeTurn(id, { isLost: true });
    }
    await pause(wait);
  }
  if (isRunning(turnOf(id))) fail(id, new Error("The connection was lost."));
}

/** Apply events once a frame: a fast model sends more than a screen can show. Returns whether the
 * last event came. */
async function read(id, stream) {
  let { response = null, times, sequence, responseId } = turnOf(id);
  let ended = false;
  let frame = 0;
  const show = () => {
    frame = 0;
    changeTurn(id, { response, times, sequence, responseId }, { keep: false });
  };
  try {
    for await (const event of stream) {
      if (!turnOf(id)) return true;
      response = fold(response, event);
      sequence = event.sequence_number;
      times = timed(times, event);
      if (turnOf(id).isLost) changeTurn(id, { isLost: false, times: times = { ...times, areReplayed: true } });
      if (event.response?.id && event.response.id !== responseId) {
        responseId = event.response.id;
        changeTurn(id, { responseId });
      }
      ended ||= isTerminal(event) || event.type === "error";
      frame ||= requestAnimationFrame(show);
    }
  } finally {
    cancelAnimationFrame(frame);
    show();
  }
  if (ended) finish(id, response);
  return ended;
}

function timed(times, event) {
  const now = Date.now();
  const next = { ...times, last: now };
  if (!times.first && event.type.endsWith(".delta")) next.first = now;
  if (event.type === "response.output_item.added") {
    next.items = { ...times.items, [event.output_index]: { begun: now } };
  } else if (event.type === "response.output_item.done") {
    next.items = { ...times.items, [event.output_index]: { ...times.items?.[event.output_index], ended: now } };
  }
  return next;
}

function finish(id, response) {
  changeTurn(id, { response, status: "done", isLost: false, responseId: response.id ?? turnOf(id).responseId });
  if (turnOf(id)?.times.areReplayed) measureAgain(id).catch(() => {});
}

/** Take the times of a turn whose events were read again from the server, which knows when it wrote them. */
async function measureAgain(id) {
  const { responseId, response, times } = turnOf(id);
  const { created_at, completed_at, items } = await get(`/antiphon/responses/${responseId}/timeline`);
  if (created_at == null || completed_at == null) return;
  const ms = (seconds) => (seconds == null ? undefined : seconds * 1000);
  const known = response.output.map((_, index) => ({
    begun: ms(items[index]?.started_at), ended: ms(items[index]?.written_at ?? items[index]?.completed_at),
  }));
  changeTurn(id, { times: {
    ...times, sent: ms(created_at), first: known[0]?.begun, last: known.at(-1)?.ended, items: { ...known }, areReplayed: false,
  } });
}

// --- calls that wait for the user ------------------------------------------------------------------

/** Calls of a response that only the client can answer. */
export function pendingCalls(turn) {
  const output = turn.response?.output ?? [];
  if (turn.status !== "done" || turn.response?.status !== "completed") return [];
  const answered = new Set(output.filter((item) => item.type.endsWith("_output")).map((item) => item.call_id));
  return output.filter((item) =>
    item.type === "mcp_approval_request" ||
    (["function_call", "custom_tool_call"].includes(item.type) && !answered.has(item.call_id)));
}

/** Keep an answer; when all pending calls have one, continue the conversation. */
export function answer(turn, item, reply) {
  const answers = { ...turn.answers, [item.id]: reply };
  changeTurn(turn.id, { answers });
  const calls = pendingCalls(turn);
  if (calls.every((call) => answers[call.id] !== undefined)) {
    addTurn(turn.id, calls.map((call) => answerItem(call, answers[call.id])));
  }
}

function answerItem(call, reply) {
  if (call.type === "mcp_approval_request") {
    return { type: "mcp_approval_response", approval_request_id: call.id, approve: reply };
  }
  return { type: `${call.type}_output`, call_id: call.call_id, output: reply };
}

// --- conversations that are stored ----------------------------------------------------------------

/** A turn with an answer that the server does not store. */
const localTurn = ({ input, ...response }, origin) => ({
  input, origin, status: "done", response: { status: "completed", ...response }, times: {}, ignored: [],
});

/** The turns of a stored response and of what led to it. */
async function loadTurns(id) {
  const chain = [];
  for (let next = id; next;) {
    const response = await get(`/v1/responses/${next}`).catch((error) => {
      if (chain.length) return null;
      throw error;
    });
    if (!response) break;
    chain.unshift(response);
    next = response.previous_response_id;
  }
  const inputs = splitInputs(await inputItems(id), chain);
  return chain.flatMap((response, index) => {
    const running = ["queued", "in_progress"].includes(response.status);
    const sent = splitTurns(inputs[index]);
    const input = sent.at(-1)?.output.length === 0 ? sent.pop().input : [];
    return [...sent.map((turn) => localTurn(turn, "input")), {
      input, status: running ? "running" : "done", responseId: response.id, response, times: {}, ignored: [],
    }];
  });
}

/** Show turns, each of which continues the one before. */
function show(list, change) {
  const turns = {};
  let leaf = null;
  for (const turn of list) {
    const id = newId();
    turns[id] = { ...turn, id, parent: leaf };
    leaf = id;
  }
  session.update({ turns, leaf, chat: newId(), ...change });
  save();
  restore();
}

/** Show a stored response and what led to it, to go on from there. */
export async function openResponse(id) {
  const turns = await loadTurns(id);
  show(turns, { name: nameOf(id), chat: chatOf(id) ?? newId(), settings: settingsOf(turns.at(-1).response, session.get().settings) });
}

/** Show a conversation of a file. The server stores it with the next message. */
export const openConversation = ({ name, turns }) =>
  show(turns.map((turn) => localTurn(turn, "file")), { name });

/** Responses that none of the others continues: the last ones of conversations. */
export function lastResponses(responses) {
  const continued = new Set(responses.map((response) => response.previous_response_id));
  return responses.filter((response) => !continued.has(response.id));
}

/** All stored conversations with their turns, newest first. */
export async function allConversations() {
  const responses = [];
  for (let after = "", more = true; more;) {
    const page = await get(`/v1/responses${query({ limit: 100, after })}`);
    responses.push(...page.data);
    after = page.last_id;
    more = page.has_more;
  }
  const conversations = [];
  for (const { id } of lastResponses(responses)) {
    conversations.push({ name: nameOf(id), turns: await loadTurns(id) });
  }
  return conversations;
}

/** All input items of a response, oldest first, with those of its ancestors. */
export async function inputItems(id) {
  const items = [];
  for (let after = "", more = true; more;) {
    const page = await get(
      `/v1/responses/${id}/input_items${query({ order: "asc", limit: 100, after })}`);
    items.push(...page.data);
    after = page.last_id;
    more = page.has_more;
  }
  return items;
}

/** The items of a chain alternate: the input of a response, if it has one, then its output. */
function splitInputs(items, chain) {
  const outputs = chain.map((response) => new Set(response.output.map((item) => item.id)));
  const inputs = chain.map(() => []);
  let at = 0;
  let inOutput = false;
  for (const item of items) {
    const of = outputs.findIndex((ids, index) => index >= at && ids.has(item.id));
    if (of >= 0) {
      at = of;
      inOutput = true;
    } else {
      if (inOutput) at = Math.min(at + 1, chain.length - 1);
      inOutput = false;
      inputs[at].push(item);
    }
  }
  return inputs;
}
