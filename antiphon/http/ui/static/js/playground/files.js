// Saving conversations as files, and opening them.
import { offer } from "../api.js";
import { html, useRef, useState } from "../lib.js";
import { Dialog, Notice, Spinner } from "../parts.js";
import { archived, archiveText, parseArchive } from "./archive.js";
import { allConversations, asMarkdown, openConversation } from "./session.js";

const TITLE_LENGTH = 80;

function save(text, type, name) {
  offer(new Blob([text], { type }), name);
}

/** The name of a conversation, or its first question. */
const titleOf = ({ name, turns }) =>
  name || asMarkdown(turns).replace(/^\*\*\w+:\*\* /, "").split("\n")[0].slice(0, TITLE_LENGTH) || "Conversation";

export function FilesDialog({ turns, name, onClose }) {
  const [found, setFound] = useState([]);
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  const picker = useRef(null);
  const current = archived(name, turns);
  const attempt = async (work) => {
    setTrouble("");
    setBusy(true);
    await Promise.resolve().then(work).catch((error) => setTrouble(error.message));
    setBusy(false);
  };
  const saveAll = () => attempt(async () => {
    const all = (await allConversations()).map((each) => archived(each.name, each.turns));
    save(archiveText(all.filter(({ turns: answered }) => answered.length)), "application/json", "conversations.json");
  });
  const open = (conversation) => {
    openConversation(conversation);
    onClose();
  };
  const read = ([file]) => file && attempt(async () => {
    setFound([]);
    const conversations = parseArchive(await file.text());
    if (conversations.length === 1) open(conversations[0]);
    else setFound(conversations);
  });
  return html`<${Dialog} title="Save or open conversations" onClose=${onClose}>
    <div class="row wrap">
      <button type="button" disabled=${!turns.length} onClick=${() => save(asMarkdown(turns), "text/markdown", "conversation.md")}>Save as Markdown</button>
      <button type="button" disabled=${!current.turns.length} onClick=${() => save(archiveText([current]), "application/json", "conversation.json")}>Save as JSON</button>
      <button type="button" disabled=${busy} onClick=${saveAll}>Save all as JSON</button>
    </div>
    <div class="row">
      <input type="file" hidden accept=".json,application/json" aria-label="File of conversations" ref=${picker}
        onChange=${(event) => { read(event.currentTarget.files); event.currentTarget.value = ""; }} />
      <button type="button" disabled=${busy} onClick=${() => picker.current.click()}>Open a JSON file…</button>
      ${busy && html`<${Spinner} />`}
    </div>
    <small class="hint">JSON files can be opened again, also on another server. What is opened is stored by the server with the next message.</small>
    ${trouble && html`<${Notice} kind="error">${trouble}</${Notice}>`}
    ${found.length > 0 && html`<section class="stack" aria-label="Conversations of the file"><h3>Open which one?</h3>
      <ul class="choices">${found.map((each, index) => html`<li key=${index}>
        <button type="button" class="quiet" onClick=${() => open(each)}>${titleOf({ name: each.name, turns: each.turns.map((turn) => ({ input: turn.input, response: turn })) })}</button></li>`)}</ul></section>`}
  </${Dialog}>`;
}
