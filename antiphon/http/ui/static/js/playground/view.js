// The playground: a conversation, the box to write in, and the settings beside it.
import { get } from "../api.js";
import { html, inBrowser, useEffect, useEscape, useLayoutEffect, useRef, useState, useStore } from "../lib.js";
import { Dialog, Field, Icon, IconButton, Notice, count } from "../parts.js";
import { Composer, focusComposer } from "./composer.js";
import { FilesDialog } from "./files.js";
import { Panel } from "./panel.js";
import { branch, clear, deleteConversation, isRunning, nextRequest, rename, restore, session, send, setSettings } from "./session.js";
import { CodeDialog, Turn } from "./turn.js";
import { findVoices } from "./voice.js";

const panelChoice = inBrowser("panel");
const isWide = () => matchMedia("(min-width: 1200px)").matches;
/** Whether the settings cover the conversation, as in playground.css. */
const isOverlay = () => matchMedia("(max-width: 1000px)").matches;
let restored = false;

const EXAMPLES = [
  "Make a title for this text: Rivers carry water from the mountains to the sea.",
  "Is this review positive or negative? “The room was clean and the staff were kind.”",
  "Make a list of the people in this text: Anna met Ben and Carla at the station.",
];

export function Playground() {
  const state = useStore(session);
  const [models, setModels] = useState([]);
  const [trouble, setTrouble] = useState("");
  const [open, setOpen] = useState(() => isWide() && panelChoice.read(true));
  const [code, setCode] = useState(false);
  const [files, setFiles] = useState(false);
  const [naming, setNaming] = useState(false);
  const turns = branch(state);
  const turn = turns.at(-1);

  useEffect(() => {
    if (!restored) restore();
    restored = true;
    loadModels().then((list) => {
      setModels(list);
      const { settings } = session.get();
      if (!list.some(({ name }) => name === settings.model)) setSettings({ model: list[0]?.name ?? "" });
    }, (error) => setTrouble(error.message));
  }, []);
  useEscape(open && isOverlay(), () => toggle(false));
  const drop = () => confirm("Delete this conversation and its responses?") &&
    deleteConversation().catch((error) => setTrouble(error.message));
  const begin = () => {
    clear();
    focusComposer();
  };
  const toggle = (shown) => {
    setOpen(shown);
    if (isWide()) panelChoice.write(shown);
  };

  return html`<div class="playground ${open ? "with-panel" : ""}">
    <div class="conversation">
      <header class="view-bar">
        <h1 title=${titleOf(state, turns)}>${titleOf(state, turns)}</h1>
        <select class="model-select" aria-label="Model" value=${state.settings.model}
          onChange=${(event) => setSettings({ model: event.currentTarget.value })}>
          ${models.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select>
        <span class="grow"></span>
        ${turns.length > 0 && html`
          <${IconButton} icon="edit" label="Rename the conversation" onClick=${() => setNaming(true)} />
          <${IconButton} icon="trash" label="Delete the conversation" onClick=${drop} />`}
        <${IconButton} icon="download" label="Save or open conversations" onClick=${() => setFiles(true)} />
        <button type="button" class="quiet small code-button" onClick=${() => setCode(true)}><${Icon} name="code" /><span>Code</span></button>
        <button type="button" class="quiet small" disabled=${!turns.length} onClick=${begin}><${Icon} name="plus" /><span>New chat</span></button>
        <${IconButton} icon="panel" label="Request settings" aria-pressed=${open} onClick=${() => toggle(!open)} />
      </header>
      ${trouble && html`<${Notice} kind="error">${trouble}</${Notice}>`}
      <${Scroller} turns=${turns}>
        ${turns.length
          ? turns.map((each) => html`<${Turn} key=${each.id} turn=${each} last=${each === turn} state=${state} />`)
          : html`<${Welcome} model=${state.settings.model} />`}
      </${Scroller}>
      <${Announcer} turn=${turn} />
      <${Composer} turn=${turn} models=${models} settings=${state.settings} onSettings=${() => toggle(true)} />
    </div>
    ${open && html`<${Panel} settings=${state.settings} onClose=${() => toggle(false)} />`}
    ${naming && html`<${NameDialog} name=${state.name} onClose=${() => setNaming(false)} />`}
    ${files && html`<${FilesDialog} turns=${turns} name=${state.name} onClose=${() => setFiles(false)} />`}
    ${code && html`<${CodeDialog} body=${turn?.body ?? nextRequest(EXAMPLES[0])} onClose=${() => setCode(false)} />`}
  </div>`;
}

/** The name of a conversation, or its first question. */
function titleOf({ name }, turns) {
  const question = turns.flatMap((turn) => turn.input).find((item) => item.role === "user");
  const text = typeof question?.content === "string" ? question.content
    : question?.content.find((part) => part.text)?.text;
  return name || text || "New chat";
}

function NameDialog({ name, onClose }) {
  const [text, setText] = useState(name);
  const submit = (event) => {
    event.preventDefault();
    rename(text.trim());
    onClose();
  };
  return html`<${Dialog} title="Rename the conversation" onClose=${onClose}>
    <form class="stack" onSubmit=${submit}>
      <${Field} label="Name" hint="Without a name, the first question is the title. Names stay in this browser.">
        <input maxlength="200" autofocus value=${text} onInput=${(event) => setText(event.currentTarget.value)} />
      </${Field}>
      <div class="row end"><button type="submit" class="primary">Save</button></div>
    </form>
  </${Dialog}>`;
}

/** Models that answer; embedding models are in `data` only. `readsTextOnly`: it is known to read no images. */
async function loadModels() {
  const { data, models } = await get("/v1/models");
  findVoices(data);
  const entries = new Map(data.map((entry) => [entry.id, entry]));
  return models.map(({ slug }) => {
    const modalities = entries.get(slug)?.input_modalities;
    return { name: slug, readsTextOnly: modalities ? !modalities.includes("image") : false };
  });
}

function Welcome({ model }) {
  return html`<div class="welcome">
    <h2>What should ${model || "the model"} answer?</h2>
    <p class="muted">Requests go to this server only. Tools, output formats and sampling are in the request settings.</p>
    <ul class="examples">${EXAMPLES.map((text) => html`<li key=${text}>
      <button type="button" onClick=${() => send([{ type: "input_text", text }])}>${text}</button></li>`)}</ul>
  </div>`;
}

/** Keeps the end in view while it grows, unless the reader scrolled up. */
function Scroller({ turns, children }) {
  const place = useRef(null);
  const following = useRef(true);
  const [away, setAway] = useState(false);
  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = place.current;
    following.current = scrollHeight - scrollTop - clientHeight < 80;
    setAway(!following.current);
  };
  const toEnd = () => place.current?.scrollTo({ top: place.current.scrollHeight });
  useLayoutEffect(() => {
    if (following.current) toEnd();
  });
  useEffect(() => {
    following.current = true;
    toEnd();
  }, [turns.length]);
  useEffect(() => {
    const observer = new ResizeObserver(() => following.current && toEnd());
    observer.observe(place.current.firstElementChild);
    return () => observer.disconnect();
  }, []);
  return html`<div class="scroller" ref=${place} onScroll=${onScroll} tabindex="0" role="region" aria-label="Conversation">
    <div class="turns">${children}</div>
    ${away && html`<${IconButton} icon="down" className="to-end" label="To the end" onClick=${toEnd} />`}
  </div>`;
}

/** What screen readers hear: not each word, but the beginning and the end of an answer. */
function Announcer({ turn }) {
  const output = turn?.response?.usage?.output_tokens;
  const text = isRunning(turn) ? "The model is answering." :
    turn?.status === "error" ? "The request failed." : output == null ? "" : `The answer is complete: ${count(output)} tokens.`;
  return html`<p class="sr-only" role="status">${text}</p>`;
}
