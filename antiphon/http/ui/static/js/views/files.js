// Uploaded files: drop, list, download, delete.
import { download, get, query, remove, upload } from "../api.js";
import { html, useEffect, useLoaded, useRef, useState } from "../lib.js";
import { Empty, Icon, IconButton, Notice, Spinner, bytes, moment } from "../parts.js";

const PAGE = 50;

export function Files() {
  const [pages, setPages] = useState([]);
  const [trouble, setTrouble] = useState("");
  const first = useLoaded(() => get(`/v1/files${query({ limit: PAGE })}`), []);
  useEffect(() => setPages([]), [first.value]);
  const all = [first.value, ...pages].filter(Boolean);
  const files = all.flatMap((page) => page.data);
  const last = all.at(-1);
  const attempt = (work) => work().catch((error) => setTrouble(error.message));
  const more = () => attempt(async () => {
    const page = await get(`/v1/files${query({ limit: PAGE, after: last.last_id })}`);
    setPages((old) => [...old, page]);
  });
  const drop = (file) => confirm(`Delete ${file.filename}?`) && attempt(async () => {
    await remove(`/v1/files/${file.id}`);
    first.reload();
  });
  return html`<div class="view">
    <header class="view-bar"><h1>Files</h1><span class="grow"></span>${first.loading && html`<${Spinner} />`}</header>
    <div class="view-body">
      <${Uploader} onDone=${first.reload} label="Drop files here, or" />
      ${(first.error || trouble) && html`<${Notice} kind="error">${first.error?.message ?? trouble}</${Notice}>`}
      ${files.length > 0 && html`<div class="table-frame full stacked" tabindex="0" role="region" aria-label="Files"><table>
        <thead><tr><th scope="col">Name</th><th scope="col" align="right">Size</th><th scope="col">Purpose</th><th scope="col">Created</th>
          <th scope="col"><span class="sr-only">Actions</span></th></tr></thead>
        <tbody>${files.map((file) => html`<tr key=${file.id}>
          <td class="wide-cell"><strong class="row-link">${file.filename}</strong><small class="preview">${file.id}</small></td>
          <td align="right">${bytes(file.bytes)}</td><td>${file.purpose}</td><td class="time">${moment(file.created_at)}</td>
          <td class="actions-cell">
            <${IconButton} icon="download" label="Download ${file.filename}" onClick=${() => attempt(() => download(`/v1/files/${file.id}/content`, file.filename))} />
            <${IconButton} icon="trash" label="Delete ${file.filename}" onClick=${() => drop(file)} /></td>
        </tr>`)}</tbody></table></div>`}
      ${first.value && !files.length && html`<${Empty} icon="file" title="No files"><p>Files can be attached to messages and put into vector stores.</p></${Empty}>`}
      ${last?.has_more && html`<div class="row center"><button type="button" onClick=${more}>Older</button></div>`}
    </div>
  </div>`;
}

/** Uploads files with progress, one after the other. `each` is called with every new file. */
export function Uploader({ onDone, each = async () => {}, label }) {
  const [jobs, setJobs] = useState([]);
  const [over, setOver] = useState(false);
  const picker = useRef(null);
  const change = (index, values) => setJobs((old) => old.map((job, at) => (at === index ? { ...job, ...values } : job)));

  const start = async (list) => {
    const files = [...list];
    setJobs(files.map((file) => ({ name: file.name, part: 0 })));
    for (const [index, file] of files.entries()) {
      const form = new FormData();
      form.append("purpose", "user_data");
      form.append("file", file, file.name);
      try {
        await each(await upload("/v1/files", form, (part) => change(index, { part })));
        change(index, { part: 1, done: true });
      } catch (error) {
        change(index, { error: error.message });
      }
    }
    onDone();
  };
  const onDrop = (event) => {
    event.preventDefault();
    setOver(false);
    start(event.dataTransfer.files);
  };
  return html`<div class="drop-zone ${over ? "over" : ""}" onDragOver=${(event) => { event.preventDefault(); setOver(true); }}
      onDragLeave=${() => setOver(false)} onDrop=${onDrop}>
      <${Icon} name="file" />
      <span>${label} <button type="button" class="small" onClick=${() => picker.current.click()}>choose files</button></span>
      <input ref=${picker} type="file" multiple hidden aria-label="Files to upload" onChange=${(event) => {
        start(event.currentTarget.files);
        event.currentTarget.value = "";
      }} />
    </div>
    ${jobs.length > 0 && html`<ul class="uploads" aria-label="Uploads">${jobs.map((job, index) => html`<li key=${index}>
      <span>${job.name}</span>
      ${job.error ? html`<span class="trouble" role="alert">${job.error}</span>`
        : job.done ? html`<span class="status completed">uploaded</span>`
          : html`<progress max="1" value=${job.part} aria-label="Upload of ${job.name}"></progress>`}
    </li>`)}</ul>`}`;
}
