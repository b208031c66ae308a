// The settings of the playground's requests.
import { get } from "../api.js";
import { html, useEffect, useLoaded, useState } from "../lib.js";
import { Dialog, Field, Icon, IconButton, Section, Spinner, Switch, count, duration } from "../parts.js";
import { HOSTED, SAMPLING } from "./request.js";
import { SchemaEditor } from "./schema.js";
import { setSettings } from "./session.js";
import { VoiceSettings } from "./voice.js";

const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

const Choice = ({ label, value, options, onChange, hint }) => html`<${Field} label=${label} hint=${hint}>
  <select value=${value} onChange=${(event) => onChange(event.currentTarget.value)}>
    ${options.map(([id, name]) => html`<option key=${id} value=${id}>${name}</option>`)}
  </select></${Field}>`;

const toolCount = ({ hosted, servers, functions }) => Object.values(hosted).filter(Boolean).length +
  [...servers, ...functions].filter((each) => each.on).length;

export function Panel({ settings, onClose }) {
  const samplingCount = Object.values(settings.sampling).filter((value) => value !== "").length;
  return html`<aside class="panel" aria-label="Request settings">
    <header><h2>Request</h2><${IconButton} icon="close" label="Close the settings" onClick=${onClose} /></header>
    <div class="panel-body">
      <${Section} title="Instructions" open>
        <textarea rows="4" aria-label="Instructions" placeholder="You are a helpful assistant." value=${settings.instructions}
          onInput=${(event) => setSettings({ instructions: event.currentTarget.value })}></textarea>
      </${Section}>
      <${Section} title="Tools" note=${toolCount(settings) || ""} open><${Tools} settings=${settings} /></${Section}>
      <${Section} title="Output" note=${settings.format === "text" ? "" : "JSON"}><${Output} settings=${settings} /></${Section}>
      <${Section} title="Reasoning" note=${settings.effort}>
        <${Choice} label="Effort" value=${settings.effort} onChange=${(effort) => setSettings({ effort })}
          options=${[["", "Default"], ...EFFORTS.map((name) => [name, name])]} hint="Models without reasoning reject an effort." />
        <${Choice} label="Summary" value=${settings.summary} onChange=${(summary) => setSettings({ summary })}
          options=${[["", "None"], ["auto", "auto"], ["concise", "concise"], ["detailed", "detailed"]]} />
      </${Section}>
      <${Section} title="Sampling" note=${samplingCount || ""}><${Sampling} sampling=${settings.sampling} /></${Section}>
      <${VoiceSettings} />
    </div>
  </aside>`;
}

function Sampling({ sampling }) {
  const set = (name, text) =>
    setSettings({ sampling: { ...sampling, [name]: text === "" ? "" : Number(text) } });
  return html`<div class="sampling">${SAMPLING.map(({ name, label, min, max, step }) => html`
    <label class="field" key=${name}><span class="field-label">${label}</span>
      <input type="number" min=${min} max=${max} step=${step} placeholder="default" value=${sampling[name] ?? ""}
        onInput=${(event) => set(name, event.currentTarget.value)} /></label>`)}
  </div>`;
}

function Output({ settings }) {
  return html`
    <${Choice} label="Format" value=${settings.format} onChange=${(format) => setSettings({ format })}
      options=${[["text", "Text"], ["json_object", "JSON object"], ["json_schema", "JSON by a schema"]]} />
    ${settings.format === "json_schema" && html`
      <${Field} label="Name of the schema"><input value=${settings.schemaName}
        onInput=${(event) => setSettings({ schemaName: event.currentTarget.value })} /></${Field}>
      <${SchemaEditor} label="Schema of the output" schema=${settings.schema} onChange=${(schema) => setSettings({ schema })} />`}
    <${Choice} label="Verbosity" value=${settings.verbosity} onChange=${(verbosity) => setSettings({ verbosity })}
      options=${[["", "Default"], ["low", "low"], ["medium", "medium"], ["high", "high"]]} />`;
}

// --- tools ---------------------------------------------------------------------------------------

function Tools({ settings }) {
  const [dialog, setDialog] = useState(null);
  const served = useLoaded(() => get("/antiphon/tools"), []);
  const entry = (type) => served.value?.data.find((tool) => tool.type === type);
  const problemOf = (type) => entry(type)?.reason;
  const labels = entry("mcp")?.server_labels ?? [];
  const offered = labels.filter((label) => !settings.servers.some((each) => each.label === label));
  // What is offered becomes the next server when it is switched on.
  const servers = [...settings.servers, ...offered.map((label) => ({ ...NEW_SERVER, label, on: false }))];
  const close = () => setDialog(null);
  const change = (list, index, value) => {
    const items = [...settings[list]];
    if (value === null) items.splice(index, 1);
    else items[index] = value;
    setSettings({ [list]: items });
  };
  return html`
    ${HOSTED.map(({ type, label }) => html`<${Switch} key=${type} label=${label} checked=${Boolean(settings.hosted[type])}
      hint=${problemOf(type) && (settings.hosted[type] ? problemOf(type) : "not ready")}
      onChange=${(on) => setSettings({ hosted: { ...settings.hosted, [type]: on } })} />
      ${type === "file_search" && settings.hosted.file_search && html`<${VectorStores} chosen=${settings.vectorStores} />`}`)}
    ${servers.map((server, index) => {
      const at = Math.min(index, settings.servers.length);
      const isOwn = index < settings.servers.length;
      const isOperators = !server.url && labels.includes(server.label);
      return html`<div key=${server.label}>
        <${ToolRow} name=${server.label} hint=${isOperators ? "MCP server of this server" : "MCP server"} tool=${server}
          onChange=${(value) => change("servers", at, value)} onEdit=${isOwn && (() => setDialog({ list: "servers", index }))} />
        ${isOperators && html`<${ServerTest} ...${server} />`}
      </div>`;
    })}
    ${settings.functions.map((tool, index) => html`<${ToolRow} key=${index} name=${tool.name} hint="function" tool=${tool}
      onChange=${(value) => change("functions", index, value)} onEdit=${() => setDialog({ list: "functions", index })} />`)}
    <div class="row wrap">
      <button type="button" class="small" onClick=${() => setDialog({ list: "servers", index: settings.servers.length })}>
        <${Icon} name="plus" />MCP server</button>
      <button type="button" class="small" onClick=${() => setDialog({ list: "functions", index: settings.functions.length })}>
        <${Icon} name="plus" />Function</button>
    </div>
    <${Choice} label="Tool choice" value=${settings.toolChoice} onChange=${(toolChoice) => setSettings({ toolChoice })}
      options=${[["", "auto"], ["required", "required"], ["none", "none"]]}
      hint=${toolCount(settings) && !settings.toolChoice ? "Small models seldom call tools by themselves: choose “required”, one call at a time." : ""} />
    ${dialog?.list === "servers" && html`<${ServerDialog} server=${settings.servers[dialog.index]} onClose=${close}
      onSave=${(server) => change("servers", dialog.index, server)} />`}
    ${dialog?.list === "functions" && html`<${FunctionDialog} tool=${settings.functions[dialog.index]} onClose=${close}
      onSave=${(tool) => change("functions", dialog.index, tool)} />`}`;
}

/** `onChange` gets the changed tool, or null to remove it. Without `onEdit`, the tool is only offered. */
function ToolRow({ name, hint, tool, onChange, onEdit }) {
  return html`<div class="tool-row">
    <${Switch} label=${name} hint=${hint} checked=${tool.on} onChange=${(on) => onChange({ ...tool, on })} />
    ${onEdit && html`<${IconButton} icon="edit" label="Edit ${name}" onClick=${onEdit} />
      <${IconButton} icon="trash" label="Remove ${name}" onClick=${() => onChange(null)} />`}
  </div>`;
}

/** Ask an MCP server of the operator for its tools, with the access token for it, if any. Show them, or why it does not answer. */
function ServerTest({ label, authorization }) {
  const [{ busy, tools, seconds, trouble }, setState] = useState({});
  const test = async () => {
    setState({ busy: true });
    const begun = performance.now();
    try {
      const headers = authorization ? { "mcp-authorization": authorization } : {};
      const { data } = await get(`/antiphon/mcp-servers/${encodeURIComponent(label)}/tools`, { headers });
      setState({ tools: data, seconds: (performance.now() - begun) / 1000 });
    } catch (error) {
      setState({ trouble: error.message });
    }
  };
  return html`<div class="server-test">
    <button type="button" class="small" aria-label="Test ${label}" disabled=${busy} onClick=${test}>${busy ? html`<${Spinner} />` : "Test"}</button>
    <div role="status">
      ${trouble && html`<p class="trouble">${trouble}</p>`}
      ${tools && html`<details><summary>${count(tools.length)} ${tools.length === 1 ? "tool" : "tools"}, ${duration(seconds)}</summary>
        <ul tabindex="0" aria-label="Tools of ${label}">${tools.map((tool) => html`<li key=${tool.name}>
          <strong>${tool.name}</strong>${tool.read_only && html` <small class="hint">only reads</small>`}
          ${tool.description && html`<p>${tool.description}</p>`}</li>`)}</ul></details>`}
    </div>
  </div>`;
}

function VectorStores({ chosen }) {
  const [stores, setStores] = useState(null);
  useEffect(() => {
    get("/v1/vector_stores?limit=100").then(({ data }) => {
      setStores(data);
      if (data.length === 1 && !chosen.length) setSettings({ vectorStores: [data[0].id] });
    }, () => setStores([]));
  }, []);
  if (stores === null) return null;
  if (!stores.length) return html`<p class="hint indented">There is no vector store yet. <a href="#/stores">Make one</a>.</p>`;
  const toggle = (id, on) =>
    setSettings({ vectorStores: on ? [...chosen, id] : chosen.filter((each) => each !== id) });
  return html`<fieldset class="indented"><legend>Vector stores</legend>
    ${!chosen.length && html`<p class="trouble" role="status">Choose at least one to search in.</p>`}
    ${stores.map((store) => html`<label class="check" key=${store.id}><input type="checkbox" checked=${chosen.includes(store.id)}
      onChange=${(event) => toggle(store.id, event.currentTarget.checked)} /><span>${store.name || store.id}</span></label>`)}
  </fieldset>`;
}

const NEW_SERVER = { on: true, label: "", url: "", authorization: "", approval: "always" };

function ServerDialog({ server, onClose, onSave }) {
  const [value, setValue] = useState(server ?? NEW_SERVER);
  const set = (name) => (event) => setValue({ ...value, [name]: event.currentTarget.value });
  const submit = (event) => {
    event.preventDefault();
    onSave(value);
    onClose();
  };
  return html`<${Dialog} title="MCP server" onClose=${onClose}><form class="stack" onSubmit=${submit}>
    <${Field} label="Label"><input required pattern="[A-Za-z][A-Za-z0-9_\\-]*" value=${value.label} onInput=${set("label")} placeholder="weather" /></${Field}>
    <${Field} label="URL" hint="Leave it empty for an MCP server that the operator has configured.">
      <input type="url" value=${value.url} onInput=${set("url")} placeholder="https://example.com/mcp" /></${Field}>
    <${Field} label="Authorization" hint="An access token. It stays in this tab and is sent with each request.">
      <input type="password" autocomplete="off" value=${value.authorization} onInput=${set("authorization")} /></${Field}>
    <${Field} label="Approval"><select value=${value.approval} onChange=${set("approval")}>
      <option value="always">Ask before each call</option><option value="never">Run calls without asking</option></select></${Field}>
    <div class="row end"><button type="submit" class="primary">Save</button></div>
  </form></${Dialog}>`;
}

const NEW_FUNCTION = {
  on: true,
  name: "",
  description: "",
  strict: true,
  parameters: {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
    additionalProperties: false,
  },
};

function FunctionDialog({ tool, onClose, onSave }) {
  const [value, setValue] = useState(tool ?? NEW_FUNCTION);
  const submit = (event) => {
    event.preventDefault();
    onSave(value);
    onClose();
  };
  return html`<${Dialog} title="Function" wide onClose=${onClose}><form class="stack" onSubmit=${submit}>
    <p class="muted">The model calls it; you write the result by hand.</p>
    <${Field} label="Name"><input required pattern="[A-Za-z0-9_\\-]+" value=${value.name} placeholder="get_weather"
      onInput=${(event) => setValue({ ...value, name: event.currentTarget.value })} /></${Field}>
    <${Field} label="Description"><input value=${value.description} placeholder="The weather in a city"
      onInput=${(event) => setValue({ ...value, description: event.currentTarget.value })} /></${Field}>
    <${SchemaEditor} label="Parameters" schema=${value.parameters} onChange=${(parameters) => setValue((old) => ({ ...old, parameters }))} />
    <${Switch} label="Strict" hint="The arguments follow the schema exactly." checked=${value.strict}
      onChange=${(strict) => setValue({ ...value, strict })} />
    <div class="row end"><button type="submit" class="primary">Save</button></div>
  </form></${Dialog}>`;
}
