// The served models and their states. Operators can load and unload them, and add others.
import { get, post, remove } from "../api.js";
import { html, useEffect, useLoaded, useState } from "../lib.js";
import { Icon, Notice, Spinner, Status, bytes, count } from "../parts.js";
import { AddModel, ModelOptions } from "./add_model.js";

const POLL_MS = 1500;
const ACTIVE = ["loading", "downloading", "unloading"];

/** What operators see, or else what every client sees. */
async function load() {
  try {
    const [{ data, memory }, added] = await Promise.all([get("/antiphon/models"), get("/antiphon/added-models")]);
    return { models: data, memory, managed: true, added: new Map(added.data.map((each) => [each.id, each])) };
  } catch (error) {
    if (![403, 404].includes(error.status)) throw error;
    const { data } = await get("/v1/models");
    return { models: data, memory: null, managed: false, added: new Map() };
  }
}

export function Models() {
  const loaded = useLoaded(load, []);
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(null);
  const [dialog, setDialog] = useState(null);
  const { models = [], memory, managed, added } = loaded.value ?? {};
  const waiting = busy || models.some((model) => ACTIVE.includes(model.status.value));
  useEffect(() => {
    if (!waiting) return undefined;
    const timer = setTimeout(loaded.reload, POLL_MS);
    return () => clearTimeout(timer);
  }, [loaded.value, busy]);
  const attempt = async (id, work) => {
    setTrouble("");
    setBusy(id);
    await work().catch((error) => setTrouble(error.message));
    setBusy(null);
    loaded.reload();
  };
  const act = (id, action) => attempt(id, () => post(`/antiphon/models/${id}/${action}`));
  const drop = (id) => confirm(`Remove ${id} and its downloaded files?`) && attempt(id, () => remove(`/antiphon/added-models/${id}`));
  const close = () => setDialog(null);
  const onAdded = (id) => {
    close();
    act(id, "load");
  };
  const onSaved = () => {
    close();
    loaded.reload();
  };
  return html`<div class="view">
    <header class="view-bar"><h1>Models</h1><span class="grow"></span>${loaded.loading && html`<${Spinner} />`}
      ${managed && html`<button type="button" class="primary small" onClick=${() => setDialog("add")}><${Icon} name="plus" />Add a model</button>`}</header>
    <div class="view-body">
      ${(loaded.error || trouble) && html`<${Notice} kind="error">${loaded.error?.message ?? trouble}</${Notice}>`}
      ${memory?.used_bytes > 0 && html`<p class="muted">Memory of the loaded models: about ${bytes(memory.used_bytes)}${memory.budget_bytes ? ` of ${bytes(memory.budget_bytes)}` : ""}.</p>`}
      <div class="cards">${models.map((model) => html`<${Model} key=${model.id} model=${model} managed=${managed} busy=${busy} onAct=${act}
        added=${added.get(model.id)} reading=${loaded.loading} onOptions=${setDialog} onRemove=${drop} />`)}</div>
    </div>
    ${dialog === "add" && html`<${AddModel} onAdded=${onAdded} onClose=${close} />`}
    ${dialog?.id && html`<${ModelOptions} added=${dialog} onSaved=${onSaved} onClose=${close} />`}
  </div>`;
}

function Model({ model, managed, busy, onAct, added, reading, onOptions, onRemove }) {
  const { status } = model;
  const isLoaded = status.value === "loaded";
  const facts = [
    ["Aliases", model.aliases?.join(", ")],
    ["Engine", model.engine],
    ["Source", model.source],
    ["Context", model.context_size && `${count(model.context_size)} tokens`],
    ["Files", model.size_bytes != null && bytes(model.size_bytes)],
    ["Memory", model.memory_bytes != null && `about ${bytes(model.memory_bytes)}`],
    ["Prompt cache", model.prompt_cache && `${bytes(model.prompt_cache.bytes)} of ${bytes(model.prompt_cache.limit_bytes)}; ${count(model.prompt_cache.hits)} hits, ${count(model.prompt_cache.misses)} misses, ${count(model.prompt_cache.evictions)} evictions`],
    ["CPU threads", model.threads && count(model.threads)],
    ["Running requests", managed && count(model.running_requests)],
  ].filter(([, value]) => value);
  return html`<article class="panel-card" data-model=${model.id}>
    <div class="card-head"><h2>${model.id}</h2><${Status} status=${status.value} /></div>
    ${facts.length > 0 && html`<dl class="pairs">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`}
    ${ACTIVE.includes(status.value) && html`<div class="meter"><div><span>${status.stage || status.value}</span>
      ${status.total_bytes && html`<span>${bytes(status.bytes)} of ${bytes(status.total_bytes)}</span>`}</div>
      <progress aria-label="Progress of ${model.id}" max=${status.total_bytes ?? 1} value=${status.total_bytes ? status.bytes : undefined}></progress></div>`}
    ${managed && model.can_unload && html`<div class="row">
      <button type="button" class="small" disabled=${busy === model.id} onClick=${() => onAct(model.id, isLoaded ? "unload" : "load")}>
        ${isLoaded ? "Unload" : "Load"}</button>
      ${added && html`<button type="button" class="small" disabled=${reading} onClick=${() => onOptions(added)}>Options</button>
        <button type="button" class="small danger" disabled=${busy === model.id} onClick=${() => onRemove(model.id)}>Remove</button>`}
      ${busy === model.id && html`<${Spinner} />`}</div>`}
  </article>`;
}
