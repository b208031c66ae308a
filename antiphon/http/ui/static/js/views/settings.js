// The server's settings: read-only, with where each came from.
import { get } from "../api.js";
import { html, useLoaded, useState } from "../lib.js";
import { Empty, Icon, Spinner, Switch } from "../parts.js";

/** Text with `code` in backticks. */
const Help = ({ text }) => text.split("`").map((part, at) => (at % 2 ? html`<code key=${at}>${part}</code>` : part));

/** The processes of a server with several workers. */
function Processes({ processes }) {
  if (!processes?.length) return null;
  return html`<section class="setting-group" aria-label="Processes"><h2>Processes</h2>
    ${processes.map(({ name, status, restarts }) => html`<div class="setting" key=${name}><div><strong>${name}</strong></div>
      <div><span>${status}${restarts > 0 && `, started again ${restarts === 1 ? "once" : `${restarts} times`}`}</span></div></div>`)}</section>`;
}

export function ServerSettings() {
  const loaded = useLoaded(() => get("/antiphon/settings"), []);
  const health = useLoaded(() => get("/health"), []);
  const [text, setText] = useState("");
  const [changed, setChanged] = useState(false);
  const shown = (loaded.value?.data ?? []).filter((setting) =>
    (!changed || setting.origin !== "default") && `${setting.name} ${setting.help}`.toLowerCase().includes(text.toLowerCase()));
  const groups = [...new Set(shown.map((setting) => setting.group))];
  return html`<div class="view">
    <header class="view-bar"><h1>Settings</h1><span class="grow"></span>${loaded.loading && html`<${Spinner} />`}</header>
    <div class="view-body">
      ${loaded.error && html`<${Empty} icon="gear" title="The settings are not shown"><p>${loaded.error.message}</p></${Empty}>`}
      ${loaded.value && html`<search class="filters">
        <label class="search-box"><${Icon} name="search" /><span class="sr-only">Search</span>
          <input type="search" placeholder="Search in the settings" value=${text} onInput=${(event) => setText(event.currentTarget.value)} /></label>
        <div><${Switch} label="Only what is set" checked=${changed} onChange=${setChanged} /></div></search>
        <${Processes} processes=${health.value?.processes} />
        <p class="muted">Settings are read when the server starts: from a file, the environment and flags.</p>`}
      ${groups.map((group) => html`<section key=${group} class="setting-group" aria-label=${group}><h2>${group}</h2>
        ${shown.filter((setting) => setting.group === group).map((setting) => html`<div class="setting" key=${setting.name}>
          <div><strong class="mono">${setting.name}</strong><small><${Help} text=${setting.help} /></small></div>
          <div><code>${setting.value ?? "not set"}</code>
            <span class="chip ${setting.origin === "default" ? "" : "set"}">${setting.origin}</span></div>
        </div>`)}</section>`)}
    </div>
  </div>`;
}
