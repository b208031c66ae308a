// Vector stores: their files, and a search in them.
import { get, post, remove } from "../api.js";
import { SearchResult } from "../items.js";
import { html, useEffect, useLoaded, useState } from "../lib.js";
import { Empty, Field, Icon, IconButton, Notice, Spinner, Status, bytes, count, moment } from "../parts.js";
import { Uploader } from "./files.js";

const POLL_MS = 1500;

export function VectorStores({ rest: [id] }) {
  return id ? html`<${Store} key=${id} id=${id} />` : html`<${List} />`;
}

function List() {
  const [name, setName] = useState("");
  const [trouble, setTrouble] = useState("");
  const stores = useLoaded(() => get("/v1/vector_stores?limit=100"), []);
  const create = async (event) => {
    event.preventDefault();
    try {
      const store = await post("/v1/vector_stores", { name: name.trim() });
      location.hash = `#/stores/${store.id}`;
    } catch (error) {
      setTrouble(error.message);
    }
  };
  return html`<div class="view">
    <header class="view-bar"><h1>Vector stores</h1><span class="grow"></span>${stores.loading && html`<${Spinner} />`}</header>
    <div class="view-body">
      <form class="row wrap" onSubmit=${create}>
        <input class="short" aria-label="Name of the new store" placeholder="Name" required value=${name} onInput=${(event) => setName(event.currentTarget.value)} />
        <button type="submit" class="primary"><${Icon} name="plus" />New vector store</button>
      </form>
      ${(stores.error || trouble) && html`<${Notice} kind="error">${stores.error?.message ?? trouble}</${Notice}>`}
      ${stores.value?.data.length > 0 && html`<div class="cards">${stores.value.data.map((store) => html`<article class="panel-card" key=${store.id}>
        <div class="card-head"><h2><a href="#/stores/${store.id}">${store.name || store.id}</a></h2><${Status} status=${store.status} /></div>
        <dl class="pairs"><dt>Files</dt><dd>${count(store.file_counts.total)}</dd><dt>Index</dt><dd>${bytes(store.usage_bytes)}</dd>
          <dt>Created</dt><dd>${moment(store.created_at)}</dd></dl></article>`)}</div>`}
      ${stores.value && !stores.value.data.length && html`<${Empty} icon="book" title="No vector stores">
        <p>A vector store makes files searchable for the tool “File search”.</p></${Empty}>`}
    </div>
  </div>`;
}

function Store({ id }) {
  const path = `/v1/vector_stores/${id}`;
  const [trouble, setTrouble] = useState("");
  const loaded = useLoaded(() => load(path), [id]);
  const { store, files } = loaded.value ?? {};
  const indexing = store?.file_counts.in_progress > 0;
  useEffect(() => {
    if (!indexing) return undefined;
    const timer = setTimeout(loaded.reload, POLL_MS);
    return () => clearTimeout(timer);
  }, [loaded.value]);
  const attempt = (work) => work().catch((error) => setTrouble(error.message));
  const drop = () => confirm("Delete this vector store? Its files stay.") && attempt(async () => {
    await remove(path);
    location.hash = "#/stores";
  });
  const take = (file) => attempt(async () => {
    await remove(`${path}/files/${file.id}`);
    loaded.reload();
  });
  return html`<div class="view">
    <header class="view-bar"><a class="back" href="#/stores">Vector stores</a><${Icon} name="chevron" />
      <h1>${store?.name || id}</h1><span class="grow"></span>${loaded.loading && html`<${Spinner} />`}</header>
    <div class="view-body">
      ${(loaded.error || trouble) && html`<${Notice} kind="error">${loaded.error?.message ?? trouble}</${Notice}>`}
      ${store && html`<div class="split">
        <section class="panel-card" aria-label="Files of the store">
          <div class="card-head"><h2>Files</h2><button type="button" class="small danger" onClick=${drop}><${Icon} name="trash" />Delete the store</button></div>
          <${Uploader} label="Drop files to index, or" each=${(file) => post(`${path}/files`, { file_id: file.id })} onDone=${loaded.reload} />
          <ul class="uploads">${files.map((file) => html`<li key=${file.id}><span>${file.filename}</span><span class="grow"></span>
            <${Status} status=${file.status} />${file.last_error && html`<span class="trouble">${file.last_error.message}</span>`}
            <${IconButton} icon="trash" label="Remove ${file.filename}" onClick=${() => take(file)} /></li>`)}</ul>
        </section>
        <${Search} path=${path} />
      </div>`}
    </div>
  </div>`;
}

/** A store and its files with their names, which the store does not know. */
async function load(path) {
  const [store, page] = await Promise.all([get(path), get(`${path}/files?limit=100`)]);
  const files = await Promise.all(page.data.map(async (entry) => {
    const file = await get(`/v1/files/${entry.id}`).catch(() => ({ filename: entry.id }));
    return { ...entry, filename: file.filename };
  }));
  return { store, files };
}

function Search({ path }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  const [trouble, setTrouble] = useState("");
  const search = async (event) => {
    event.preventDefault();
    setTrouble("");
    try {
      setFound((await post(`${path}/search`, { query: text, max_num_results: 8 })).data);
    } catch (error) {
      setTrouble(error.message);
    }
  };
  return html`<section class="panel-card" aria-label="Search in the store">
    <h2>Search</h2>
    <form class="row" onSubmit=${search}>
      <input aria-label="Search for" placeholder="What do the files say about …" required value=${text} onInput=${(event) => setText(event.currentTarget.value)} />
      <button type="submit">Search</button></form>
    ${trouble && html`<${Notice} kind="error">${trouble}</${Notice}>`}
    ${found?.map((result, index) => html`<${SearchResult} key=${index} result=${result} />`)}
    ${found && !found.length && html`<p class="muted">Nothing was found.</p>`}
  </section>`;
}
