// Containers, in which code ran, and the files in them.
import { download, get, remove } from "../api.js";
import { html, useLoaded, useState } from "../lib.js";
import { Empty, IconButton, Notice, Spinner, Status, bytes, moment } from "../parts.js";

export function Containers() {
  const [trouble, setTrouble] = useState("");
  const loaded = useLoaded(() => get("/v1/containers?limit=100"), []);
  const containers = loaded.value?.data ?? [];
  const drop = (container) => confirm(`Delete ${container.name || container.id}?`) &&
    remove(`/v1/containers/${container.id}`).then(loaded.reload, (error) => setTrouble(error.message));
  return html`<div class="view">
    <header class="view-bar"><h1>Containers</h1><span class="grow"></span>${loaded.loading && html`<${Spinner} />`}</header>
    <div class="view-body">
      ${trouble && html`<${Notice} kind="error">${trouble}</${Notice}>`}
      ${loaded.error && html`<${Empty} icon="box" title="No containers"><p>${loaded.error.message}</p></${Empty}>`}
      ${containers.length > 0 && html`<div class="cards">${containers.map((container) => html`<article class="panel-card" key=${container.id}>
        <div class="card-head"><h2>${container.name || container.id}</h2>
          <${Status} status=${container.status} />
          <${IconButton} icon="trash" label="Delete ${container.name || container.id}" onClick=${() => drop(container)} /></div>
        <dl class="pairs"><dt>Created</dt><dd>${moment(container.created_at)}</dd><dt>Last used</dt><dd>${moment(container.last_active_at)}</dd>
          <dt>Memory</dt><dd>${container.memory_limit}</dd></dl>
        ${container.status === "active" && html`<${ContainerFiles} id=${container.id} />`}
      </article>`)}</div>`}
      ${loaded.value && !containers.length && html`<${Empty} icon="box" title="No containers">
        <p>The code interpreter and the shell make containers when a model uses them.</p></${Empty}>`}
    </div>
  </div>`;
}

function ContainerFiles({ id }) {
  const loaded = useLoaded(() => get(`/v1/containers/${id}/files?limit=100`), [id]);
  const [trouble, setTrouble] = useState("");
  const nameOf = (file) => file.path.split("/").at(-1);
  const save = (file) =>
    download(`/v1/containers/${id}/files/${file.id}/content`, nameOf(file)).catch((error) => setTrouble(error.message));
  if (loaded.loading) return html`<${Spinner} />`;
  return html`${(loaded.error || trouble) && html`<${Notice} kind="error">${loaded.error?.message ?? trouble}</${Notice}>`}
    <ul class="uploads">${loaded.value?.data.map((file) => html`<li key=${file.id}>
      <span>${file.path}</span><small>${bytes(file.bytes)}</small><span class="grow"></span>
      <${IconButton} icon="download" label="Download ${nameOf(file)}" onClick=${() => save(file)} /></li>`)}</ul>
    ${loaded.value && !loaded.value.data.length && html`<p class="muted">No files.</p>`}`;
}
