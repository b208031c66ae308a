// One turn: what was sent, what came back, and what can be done with it.
import { html, useEditor, useEffect, useRef, useState } from "../lib.js";
import { InputPart, Item } from "../items.js";
import { CopyButton, Dialog, Icon, IconButton, Notice, Spinner, Tabs, count, duration } from "../parts.js";
import { STREAMED } from "../kinds.js";
import { Code, Json } from "../markdown.js";
import { isAnswered } from "./archive.js";
import { focusComposer } from "./composer.js";
import { messageText } from "./edited.js";
import { answer, continueAnswer, edit, editAnswer, isRunning, pendingCalls, reconnect, retry, showBranch, siblings } from "./session.js";
import { LANGUAGES, snippet } from "./snippets.js";
import { ReadAloud } from "./voice.js";

export function Turn({ turn, last, state }) {
  const editor = useEditor();
  const live = isRunning(turn);
  const output = (turn.response?.output ?? []).filter(Boolean);
  const pending = new Set(last ? pendingCalls(turn).map((item) => item.id) : []);
  const format = turn.body?.text?.format ?? turn.response?.text?.format;
  return html`<article class="turn" aria-label="Turn" data-status=${turn.response?.status ?? turn.status}>
    <${Sent} turn=${turn} state=${state} />
    ${editor.isOpen ? html`<${AnswerEditor} turn=${turn} output=${output} onClose=${editor.close} />` : html`
    <div class="reply" aria-busy=${live}>
      ${output.map((item, index) => html`<${Item} key=${item.id || index} item=${item} live=${live} format=${format} times=${turn.times.items?.[index]}>
        ${pending.has(item.id) && html`<${Answer} turn=${turn} item=${item} />`}
      </${Item}>`)}
      ${live && (turn.isLost || !output.length) && html`<p class="waiting" role=${turn.isLost ? "status" : undefined}><span class="dots" aria-hidden="true"><i></i><i></i><i></i></span>
        <span>${waitingFor(turn)}</span></p>`}
      ${turn.origin && html`<div class="event">${ORIGINS[turn.origin]}
        ${last && turn.origin === "edited" && html`<${ContinueButton} turn=${turn} />`}</div>`}
      <${Troubles} turn=${turn} last=${last} />
    </div>
    ${!live && html`<${Footer} turn=${turn} output=${output} editor=${editor} />`}`}
  </article>`;
}

/** Where an answer is from that this server's model did not write here. */
const ORIGINS = {
  edited: "Edited by you.",
  file: "From a file.",
  input: "Sent by the client, not written here.",
};

const waitingFor = (turn) => turn.isLost ? "The connection was lost. Trying again" :
  ({ queued: "Queued", in_progress: "Reading the prompt" })[turn.response?.status] ?? "Sending";

// --- what was sent -----------------------------------------------------------------------------

function Sent({ turn, state }) {
  const editor = useEditor();
  const messages = turn.input.filter((item) => item.type === "message" || item.role);
  const others = turn.input.filter((item) => !messages.includes(item));
  const busy = isRunning(turn);
  if (!turn.input.length && siblings(state, turn).length < 2) return null;
  return html`<div class="sent">
    ${others.map((item, index) => html`<${Item} key=${index} item=${item} />`)}
    ${editor.isOpen
      ? html`<${Editor} turn=${turn} onClose=${editor.close} />`
      : messages.map((item, index) => html`<div class="user" key=${index}>
          ${contentOf(item).map((part, at) => html`<${InputPart} key=${at} part=${part} />`)}
        </div>`)}
    ${!editor.isOpen && html`<div class="sent-actions">
      <${Branches} turn=${turn} state=${state} />
      ${messages.length > 0 && html`<${IconButton} icon="edit" label="Edit and branch" disabled=${busy} buttonRef=${editor.button} onClick=${editor.open} />`}
    </div>`}
  </div>`;
}

const contentOf = (item) =>
  typeof item.content === "string" ? [{ type: "input_text", text: item.content }] : item.content;

/** Step through the versions of a turn. */
function Branches({ turn, state }) {
  const versions = siblings(state, turn);
  if (versions.length < 2) return null;
  const at = versions.findIndex((each) => each.id === turn.id);
  return html`<span class="branches" role="group" aria-label="Versions">
    <${IconButton} icon="chevron" className="flipped" label="Previous version" disabled=${at === 0} onClick=${() => showBranch(versions[at - 1])} />
    <span>${at + 1} / ${versions.length}</span>
    <${IconButton} icon="chevron" label="Next version" disabled=${at === versions.length - 1} onClick=${() => showBranch(versions[at + 1])} />
  </span>`;
}

function Editor({ turn, onClose }) {
  const parts = turn.input.filter((item) => item.type === "message").flatMap(contentOf);
  const [text, setText] = useState(parts.filter((part) => part.text).map((part) => part.text).join("\n"));
  const area = useRef(null);
  useEffect(() => area.current.focus(), []);
  const submit = () => {
    onClose();
    edit(turn, [...parts.filter((part) => part.type !== "input_text"), { type: "input_text", text }]);
    focusComposer();
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") onClose();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  };
  return html`<div class="editor">
    <textarea ref=${area} aria-label="Edit the message" rows=${Math.min(12, rowsFor(text))} value=${text}
      onInput=${(event) => setText(event.currentTarget.value)} onKeyDown=${onKeyDown}></textarea>
    <div class="row end"><button type="button" class="quiet" onClick=${onClose}>Cancel</button>
      <button type="button" class="primary" disabled=${!text.trim()} onClick=${submit}>Send</button></div>
  </div>`;
}

/** An answer with its texts to change. Its other items stay as they are. */
function AnswerEditor({ turn, output, onClose }) {
  const messages = output.filter((item) => item.type === "message");
  const [texts, setTexts] = useState(() =>
    Object.fromEntries(output.flatMap((item, index) => (item.type === "message" ? [[index, messageText(item)]] : []))));
  const place = useRef(null);
  useEffect(() => place.current.querySelector("textarea").focus(), []);
  const isEmpty = !Object.values(texts).some((text) => text.trim());
  const submit = (event) => {
    event.preventDefault();
    if (isEmpty) return;
    onClose();
    editAnswer(turn, texts);
    focusComposer();
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") onClose();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };
  const labelOf = (item) =>
    (messages.length > 1 ? `Edit text ${messages.indexOf(item) + 1} of the answer` : "Edit the answer");
  return html`<form class="editor" ref=${place} onSubmit=${submit} onKeyDown=${onKeyDown}>
    ${output.map((item, index) => (item.type === "message"
      ? html`<textarea key=${index} aria-label=${labelOf(item)} rows=${rowsFor(texts[index])} value=${texts[index]}
          onInput=${(event) => setTexts({ ...texts, [index]: event.currentTarget.value })}></textarea>`
      : html`<${Item} key=${index} item=${item} times=${turn.times.items?.[index]} />`))}
    <div class="row end"><small class="hint grow">The model goes on from the new text. Ctrl+Enter saves.</small>
      <button type="button" class="quiet" onClick=${onClose}>Cancel</button>
      <button type="submit" class="primary" disabled=${isEmpty}>Save</button></div>
  </form>`;
}

/** Lines as wide as the page have about 90 characters. */
const rowsFor = (text) =>
  Math.min(24, text.split("\n").reduce((rows, line) => rows + 1 + Math.floor(line.length / 90), 1));

// --- answers to calls ----------------------------------------------------------------------------

function Answer({ turn, item }) {
  const given = turn.answers?.[item.id];
  if (given !== undefined) return html`<p class="muted">Answered; other calls still wait.</p>`;
  if (item.type === "mcp_approval_request") {
    return html`<div class="row">
      <button type="button" class="primary" onClick=${() => answer(turn, item, true)}>Approve</button>
      <button type="button" onClick=${() => answer(turn, item, false)}>Deny</button>
    </div>`;
  }
  return html`<${ResultForm} onSend=${(text) => answer(turn, item, text)} name=${item.name} />`;
}

function ResultForm({ name, onSend }) {
  const [text, setText] = useState("");
  return html`<form class="result-form" onSubmit=${(event) => { event.preventDefault(); onSend(text); }}>
    <label class="field"><span class="field-label">Result of ${name}</span>
      <textarea rows="3" placeholder='For example {"temperature": 21}' value=${text}
        onInput=${(event) => setText(event.currentTarget.value)}></textarea></label>
    <button type="submit" class="primary" disabled=${!text.trim()}>Send result</button>
  </form>`;
}

// --- troubles ------------------------------------------------------------------------------------

const INCOMPLETE = {
  max_output_tokens: "The answer reached the limit of output tokens.",
  content_filter: "The answer was cut by a content filter.",
  max_messages: "The answer reached the limit of model calls, or of its time. Ask the model to go on.",
};

/** A model continues messages and thoughts, but not a call that was cut off. */
const canContinue = (response) => response.incomplete_details?.reason === "max_output_tokens" &&
  ["message", "reasoning"].includes(response.output.at(-1)?.type);

const ContinueButton = ({ turn }) =>
  html`<button type="button" class="small" onClick=${() => continueAnswer(turn)}>Continue</button>`;

function Troubles({ turn, last }) {
  const { response } = turn;
  const error = turn.status === "error" ? turn.error : response?.error?.message;
  const ignored = response?.ignored_tools ?? turn.ignored?.map((type) => ({ type })) ?? [];
  return html`
    ${ignored.map((tool) => html`<${Notice} kind="warning" key=${tool.type}>The model did not see the tool
      ${" "}<code>${tool.type}</code>. ${tool.reason ?? "This server does not run it."}</${Notice}>`)}
    ${error && html`<${Notice} kind="error">${error}${turn.param && html` <code>${turn.param}</code>`}
      ${turn.status === "error" && turn.isLost && html` <button type="button" class="small" onClick=${() => reconnect(turn)}>Reconnect</button>`}</${Notice}>`}
    ${response?.status === "incomplete" && html`<${Notice} kind="warning">
      ${INCOMPLETE[response.incomplete_details?.reason] ?? "The answer is incomplete."}
      ${last && canContinue(response) && html` <${ContinueButton} turn=${turn} />`}</${Notice}>`}
    ${response?.status === "cancelled" && html`<${Notice}>Stopped.
      ${last && isAnswered(turn) && html` <${ContinueButton} turn=${turn} />`}</${Notice}>`}`;
}

// --- below a turn --------------------------------------------------------------------------------

function Footer({ turn, output, editor }) {
  const [code, setCode] = useState(false);
  const [raw, setRaw] = useState(false);
  const text = output.filter((item) => item.type === "message").map(messageText).join("\n\n");
  return html`<footer class="turn-footer">
    <div class="turn-actions">
      ${text && html`<${CopyButton} text=${text} className="quiet small" />`}
      ${text && html`<${ReadAloud} text=${text} />`}
      <button type="button" class="quiet small" onClick=${() => retry(turn)}>Retry</button>
      ${text && html`<button type="button" ref=${editor.button} class="quiet small" onClick=${editor.open}>Edit</button>`}
      ${turn.body && html`<button type="button" class="quiet small" onClick=${() => setCode(true)}>Code</button>`}
      ${turn.response && html`<button type="button" class="quiet small" onClick=${() => setRaw(true)}>JSON</button>`}
      ${turn.responseId && html`<a class="button quiet small" href="#/responses/${turn.responseId}">Details</a>`}
    </div>
    <${Figures} turn=${turn} />
    ${code && html`<${CodeDialog} body=${turn.body} onClose=${() => setCode(false)} />`}
    ${raw && html`<${Dialog} title="Response" wide onClose=${() => setRaw(false)}>
      <div class="row end"><${CopyButton} text=${() => JSON.stringify(turn.response, null, 2)} /></div>
      <${Json} value=${turn.response} label="Response" /></${Dialog}>`}
  </footer>`;
}

/** Shorter answers come in a few network packets, which say nothing about the model's speed. */
const SHORTEST_MS = 100;

/** Tokens and times. The rate is measured here: output tokens from the first one shown to the last. */
function Figures({ turn }) {
  const usage = turn.response?.usage;
  if (!usage) return null;
  const { sent, first, last } = turn.times;
  const cached = usage.input_tokens_details?.cached_tokens;
  const isMeasured = first && last - first >= SHORTEST_MS && turn.response.output.every((item) => STREAMED.includes(item.type));
  const rate = isMeasured && usage.output_tokens > 1 ? (usage.output_tokens - 1) / ((last - first) / 1000) : null;
  const figures = [
    ["model", turn.response.model],
    ["in", `${count(usage.input_tokens)}${cached ? ` (${count(cached)} cached)` : ""}`, "Input tokens"],
    ["out", count(usage.output_tokens), "Output tokens"],
    first && ["first token", duration((first - sent) / 1000), "Time to the first token"],
    rate && ["tokens/s", rate >= 100 ? Math.round(rate) : rate.toFixed(1), "Output tokens a second"],
  ].filter(Boolean);
  return html`<dl class="figures">${figures.map(([name, value, title]) =>
    html`<div key=${name} title=${title}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function CodeDialog({ body, onClose }) {
  const [language, setLanguage] = useState("curl");
  const text = snippet(language, body);
  return html`<${Dialog} title="This request as code" wide onClose=${onClose}>
    <div class="row spread">
      <${Tabs} label="Language" tabs=${LANGUAGES} active=${language} onChange=${setLanguage} />
      <${CopyButton} text=${text} />
    </div>
    <${Code} text=${text} language=${language === "curl" ? "bash" : language} label="Code" />
  </${Dialog}>`;
}
