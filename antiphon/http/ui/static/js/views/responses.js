// The stored responses: a list with filters, and one response in full.
import { call, events, get, post, query, remove } from "../api.js";
import { InputPart, Item } from "../items.js";
import { html, useEffect, useLoaded, useRef, useState } from "../lib.js";
import { Code, Json } from "../markdown.js";
import { CopyButton, Empty, Icon, Notice, Spinner, Status, Tabs, count, duration, moment, wholeSeconds } from "../parts.js";
import { fold } from "../fold.js";
import { inputItems, openResponse } from "../playground/session.js";
import { Timeline, eventTime } from "./timeline.js";

const PAGE = 30;
const STATUSES = ["completed", "in_progress", "queued", "incomplete", "failed", "cancelled"];
const TOOLS = ["function", "mcp", "web_search", "file_search", "code_interpreter", "shell", "image_generation"];
const ACTIVE = ["queued", "in_progress"];
const NO_FILTERS = { search: "", status: "", model: "", tool: "", failed: "", background: "", conversation: "" };

export function Responses({ rest: [id] }) {
  return id ? html`<${Detail} key=${id} id=${id} />` : html`<${List} />`;
}

// --- the list --------------------------------------------------------------------------------------

function List() {
  const [filters, setFilters] = useState(NO_FILTERS);
  const [models, setModels] = useState([]);
  const [older, setOlder] = useState([]);
  const [trouble, setTrouble] = useState("");
  const path = (after = "") => `/v1/responses${query({ ...filters, limit: PAGE, after })}`;
  const first = useLoaded(() => get(path()), [JSON.stringify(filters)]);
  useEffect(() => {
    get("/v1/models").then(({ data }) => setModels(data.map((model) => model.id)), () => {});
  }, []);
  useEffect(() => setOlder([]), [first.value]);
  const pages = [first.value, ...older].filter(Boolean);
  const rows = pages.flatMap((page) => page.data);
  const last = pages.at(-1);
  const more = () => get(path(last.last_id)).then((page) => setOlder((all) => [...all, page]), (error) => setTrouble(error.message));
  const set = (name) => (event) => setFilters({ ...filters, [name]: event.currentTarget.value });

  return html`<div class="view">
    <header class="view-bar"><h1>Responses</h1><span class="grow"></span>
      ${first.loading && html`<${Spinner} />`}
      <button type="button" class="quiet small" onClick=${first.reload}><${Icon} name="retry" /><span>Refresh</span></button></header>
    <div class="view-body">
      <search class="filters">
        <${SearchBox} value=${filters.search} onChange=${(search) => setFilters({ ...filters, search })} />
        <${Filter} label="Status" value=${filters.status} onChange=${set("status")} options=${STATUSES} />
        <${Filter} label="Model" value=${filters.model} onChange=${set("model")} options=${models} />
        <${Filter} label="Tool" value=${filters.tool} onChange=${set("tool")} options=${TOOLS} />
        <${Filter} label="Error" value=${filters.failed} onChange=${set("failed")} options=${[["true", "with an error"], ["false", "without"]]} />
        <${Filter} label="Mode" value=${filters.background} onChange=${set("background")} options=${[["true", "background"], ["false", "foreground"]]} />
        ${filters.conversation && html`<button type="button" class="small" onClick=${() => setFilters({ ...filters, conversation: "" })}>
          One conversation <${Icon} name="close" /></button>`}
      </search>
      ${(first.error || trouble) && html`<${Notice} kind="error">${first.error?.message ?? trouble}</${Notice}>`}
      ${rows.length > 0 && html`<${Table} rows=${rows} onConversation=${(conversation) => setFilters({ ...filters, conversation })} />`}
      ${first.value && !rows.length && html`<${Empty} icon="list" title="No responses">
        <p>${filters === NO_FILTERS ? "They appear here when the first request is answered." : "Nothing matches these filters."}</p></${Empty}>`}
      ${last?.has_more && html`<div class="row center"><button type="button" onClick=${more}>Older</button></div>`}
    </div>
  </div>`;
}

/** Searches when the typing pauses. */
function SearchBox({ value, onChange }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  const change = (event) => {
    const next = event.currentTarget.value;
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(next.trim()), 250);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  return html`<label class="search-box"><${Icon} name="search" /><span class="sr-only">Search</span>
    <input type="search" placeholder="Search in questions and answers" value=${text} onInput=${change} /></label>`;
}

const Filter = ({ label, value, options, onChange }) => html`<span class="filter">
  <select aria-label=${label} value=${value} onChange=${onChange} class=${value ? "set" : ""}>
    <option value="">${label}: all</option>
    ${options.map((option) => {
      const [id, name] = Array.isArray(option) ? option : [option, option.replaceAll("_", " ")];
      return html`<option key=${id} value=${id}>${name}</option>`;
    })}
  </select></span>`;

function Table({ rows, onConversation }) {
  return html`<div class="table-frame full stacked" tabindex="0" role="region" aria-label="Responses"><table>
    <thead><tr><th scope="col">Question and answer</th><th scope="col">Status</th><th scope="col" class="model-cell">Model</th>
      <th scope="col" align="right">Tokens</th><th scope="col">Time</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.id}>
      <td class="wide-cell"><a class="row-link" href="#/responses/${row.id}">${row.input_preview || (row.previous_response_id ? "Result or approval" : row.id)}</a>
        <small class="preview">${row.error?.message ?? row.output_preview}</small>
        ${(row.tools.length > 0 || row.conversation) && html`<div class="chips">
          ${row.tools.map((tool) => html`<span class="chip" key=${tool}>${tool.replaceAll("_", " ")}</span>`)}
          ${row.conversation && html`<button type="button" class="chip" onClick=${() => onConversation(row.conversation.id)}>conversation</button>`}
        </div>`}</td>
      <td><${Status} status=${row.status} /></td>
      <td class="model-cell">${row.model}</td>
      <td align="right" class="tokens">${row.usage ? count(row.usage.total_tokens) : "–"}</td>
      <td class="time">${moment(row.created_at)}${row.completed_at > row.created_at && html`<small>${wholeSeconds(row.completed_at - row.created_at)}</small>`}</td>
    </tr>`)}</tbody>
  </table></div>`;
}

// --- one response ----------------------------------------------------------------------------------

function Detail({ id }) {
  const loaded = useLoaded(() => get(`/v1/responses/${id}`), [id]);
  const [live, setLive] = useState(null);
  const [log, setLog] = useState([]);
  const [tab, setTab] = useState("items");
  const [trouble, setTrouble] = useState("");
  const response = live ?? loaded.value;
  const active = ACTIVE.includes(response?.status);
  const timeline = useLoaded(() => get(`/antiphon/responses/${id}/timeline`), [id, active]).value;
  useEffect(() => {
    if (!loaded.value?.background) return undefined;
    return follow(id, setLive, setLog);
  }, [loaded.value?.id]);

  const act = (work) => work().catch((error) => setTrouble(error.message));
  const cancel = () => act(() => post(`/v1/responses/${id}/cancel`, {}).then(setLive));
  const drop = () => confirm("Delete this response?") && act(async () => {
    await remove(`/v1/responses/${id}`);
    location.hash = "#/responses";
  });
  const open = () => act(async () => {
    await openResponse(id);
    location.hash = "#/playground";
  });
  const tabs = [["items", "Items"], ["events", "Events"], ["prompt", "Prompt"], ["request", "Request"], ["json", "JSON"]];

  return html`<div class="view">
    <header class="view-bar"><a class="back" href="#/responses">Responses</a><${Icon} name="chevron" /><h1 class="id">${id}</h1></header>
    <div class="view-body">
      ${(loaded.error || trouble) && html`<${Notice} kind="error">${loaded.error?.message ?? trouble}</${Notice}>`}
      ${response && html`
        <${Facts} response=${response} timeline=${timeline} />
        <div class="row wrap spread">
          <${Tabs} label="Response" tabs=${tabs} active=${tab} onChange=${setTab} />
          <div class="row wrap">
            ${active && response.background && html`<button type="button" class="small" onClick=${cancel}>Cancel</button>`}
            <button type="button" class="small" onClick=${open}><${Icon} name="chat" />Open in the playground</button>
            <button type="button" class="small danger" onClick=${drop}><${Icon} name="trash" />Delete</button>
          </div>
        </div>
        <div role="tabpanel" aria-label=${tabs.find(([name]) => name === tab)[1]}>
          ${tab === "items" && html`<${Items} response=${response} live=${active} timeline=${timeline} />`}
          ${tab === "events" && html`<${Events} log=${log} response=${response} timeline=${timeline} />`}
          ${tab === "prompt" && html`<${Prompt} id=${id} active=${active} />`}
          ${tab === "request" && html`<${RequestFields} response=${response} />`}
          ${tab === "json" && html`<div class="row end"><${CopyButton} text=${() => JSON.stringify(response, null, 2)} /></div>
            <${Json} value=${response} label="Response" />`}
        </div>`}
    </div>
  </div>`;
}

const isActive = async (id) => ACTIVE.includes((await get(`/v1/responses/${id}`)).status);

/**
 * Read the events of a background run while the view is open. Returns the function that stops it.
 * The events of a run in progress have the times of their arrival here.
 */
function follow(id, onResponse, onLog) {
  const stopper = new AbortController();
  (async () => {
    let response = null;
    const log = [];
    let frame = 0;
    const show = () => {
      frame = 0;
      onResponse(response);
      onLog([...log]);
    };
    const begun = await isActive(id) ? Date.now() : null;
    const reply = await call("GET", `/v1/responses/${id}?stream=true`, { signal: stopper.signal });
    for await (const event of events(reply)) {
      response = fold(response, event);
      log.push({ event, at: begun && Date.now() - begun });
      frame ||= requestAnimationFrame(show);
    }
    if (ACTIVE.includes(response?.status)) response = await get(`/v1/responses/${id}`);
    show();
  })().catch(() => {}); // its events are no longer stored, or the view was left
  return () => stopper.abort();
}

function Facts({ response, timeline }) {
  const { usage } = response;
  const since = (at) => at != null && timeline.created_at != null && duration(at - timeline.created_at);
  const took = (timeline && since(timeline.completed_at)) ||
    (response.completed_at && wholeSeconds(response.completed_at - response.created_at));
  const first = timeline && since(timeline.items[0]?.started_at);
  const facts = [
    ["Status", html`<${Status} status=${response.status} />`],
    ["Model", response.model],
    ["Created", moment(response.created_at)],
    took && ["Took", took],
    first && ["First output", `after ${first}`],
    usage && ["Input", `${count(usage.input_tokens)} tokens${usage.input_tokens_details?.cached_tokens ? `, ${count(usage.input_tokens_details.cached_tokens)} cached` : ""}`],
    usage && ["Output", `${count(usage.output_tokens)} tokens${usage.output_tokens_details?.reasoning_tokens ? `, ${count(usage.output_tokens_details.reasoning_tokens)} of thoughts` : ""}`],
    ["Mode", response.background ? "background" : "foreground"],
    response.conversation && ["Conversation", response.conversation.id],
  ].filter(Boolean);
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${response.error && html`<${Notice} kind="error">${response.error.message} <code>${response.error.code}</code></${Notice}>`}`;
}

/** Parents, the input, the output, and the responses that continue this one. */
function Items({ response, live, timeline }) {
  const input = useLoaded(() => inputItems(response.id), [response.id]);
  const children = useLoaded(() => get(`/v1/responses${query({ previous_response_id: response.id, limit: 20 })}`), [response.id]);
  const [all, setAll] = useState(false);
  const items = input.value ?? [];
  const own = ownInput(items);
  const shown = all ? items : own;
  return html`<div class="tree">
    ${response.previous_response_id && html`<a class="tree-link" href="#/responses/${response.previous_response_id}"><${Icon} name="chevron" />The response before this one</a>`}
    ${input.error && html`<${Notice} kind="error">${input.error.message}</${Notice}>`}
    ${items.length > own.length && html`<button type="button" class="quiet small" aria-expanded=${all} onClick=${() => setAll(!all)}>
      ${all ? "Hide" : "Show"} ${items.length - own.length} earlier items</button>`}
    ${shown.map((item, index) => html`<${InputItem} key=${item.id ?? index} item=${item} />`)}
    <div class="tree-divider"><span>Output</span></div>
    <${Timeline} timeline=${timeline} />
    ${response.output.filter(Boolean).map((item, index) => html`<${Item} key=${item.id ?? index} item=${item} live=${live} format=${response.text?.format} times=${itemTimes(timeline, index)} />`)}
    ${children.value?.data.length > 0 && html`<div class="tree-divider"><span>Continued by</span></div>
      <ul class="children">${children.value.data.map((child) => html`<li key=${child.id}>
        <a class="tree-link" href="#/responses/${child.id}"><${Icon} name="chevron" />${child.input_preview || "Result or approval"}</a><${Status} status=${child.status} /></li>`)}</ul>`}
  </div>`;
}

/** When an item began and ended, in milliseconds; undefined if unknown. */
function itemTimes(timeline, index) {
  const { started_at: begun, completed_at: ended } = timeline?.items[index] ?? {};
  return begun && ended ? { begun: begun * 1000, ended: ended * 1000 } : undefined;
}

const isInput = (item) => item.type?.endsWith("_output") || item.type === "mcp_approval_response" ||
  ((item.type ?? "message") === "message" && item.role !== "assistant");

/** What was added since the last item that a model wrote. */
function ownInput(items) {
  const last = items.findLastIndex((item) => !isInput(item));
  return items.slice(last + 1);
}

function InputItem({ item }) {
  if (item.type !== "message" && !item.role) return html`<${Item} item=${item} />`;
  const content = typeof item.content === "string" ? [{ type: "input_text", text: item.content }] : item.content;
  if (item.role === "assistant") return html`<${Item} item=${{ ...item, content }} />`;
  return html`<div class="input-item"><span class="role">${item.role}</span>
    <div>${content.map((part, index) => html`<${InputPart} key=${index} part=${part} />`)}</div></div>`;
}

/** Events in order; deltas of one item in a row are one line. */
function Events({ log, response, timeline }) {
  const groups = [];
  for (const { event, at } of log) {
    const last = groups.at(-1);
    if (last && last.type === event.type && event.type.endsWith(".delta") && last.index === event.output_index) {
      last.count += 1;
      last.end = at;
      last.to = event.sequence_number;
    } else {
      groups.push({ type: event.type, index: event.output_index, from: event.sequence_number, to: event.sequence_number, count: 1, at, end: at, event });
    }
  }
  if (!groups.length) {
    return html`<p class="muted">${response.background
      ? "The events of this response are no longer stored, only when its items were made."
      : "Only the events of background responses are stored. Of this one, it is known when its items were made."}</p>
      <${Timeline} timeline=${timeline} />`;
  }
  for (const group of groups) group.at ??= eventTime(timeline, group.event);
  return html`<ol class="events">${groups.map((group) => html`<${EventGroup} key=${group.from} group=${group} />`)}</ol>`;
}

function EventGroup({ group }) {
  const [open, setOpen] = useState(false);
  const kind = group.type.split(".").at(-1);
  return html`<li class=${kind}>
    <button type="button" class="event-title" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <span class="sequence">${group.from === group.to ? group.from : `${group.from}–${group.to}`}</span>
      <span class="event-name">${group.type}</span>
      ${group.count > 1 && html`<span class="chip">× ${group.count}</span>`}
      <span class="grow"></span>${group.at != null && html`<span class="muted" title="Since the response was created, or this page was opened">+${(group.at / 1000).toFixed(2)} s</span>`}
    </button>
    ${open && html`<${Json} value=${group.event} label=${group.type} />`}
  </li>`;
}

/** The tokens as text, with the control tokens that the model's format adds. */
function Prompt({ id, active }) {
  const loaded = useLoaded(() => get(`/antiphon/responses/${id}/transcript`), [id, active]);
  if (loaded.loading) return html`<${Spinner} />`;
  if (loaded.error) return html`<p class="muted">${loaded.error.message}</p>`;
  return html`<p class="muted">All ${count(loaded.value.token_count)} tokens that the model read and wrote, as text.</p>
    <${Code} text=${loaded.value.text} language="plain" label="Prompt and output" />`;
}

const ECHOED = ["model", "instructions", "previous_response_id", "conversation", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "max_output_tokens", "max_tool_calls", "truncation", "text", "reasoning", "store", "background", "metadata", "prompt_cache_key"];

/** The fields of the request, with its own input: what the responses before it had is not repeated. */
function RequestFields({ response }) {
  const input = useLoaded(() => inputItems(response.id), [response.id]);
  if (input.loading) return html`<${Spinner} />`;
  const fields = Object.fromEntries(ECHOED.filter((name) => response[name] != null).map((name) => [name, response[name]]));
  return html`${input.error && html`<${Notice} kind="error">${input.error.message}</${Notice}>`}
    <${Json} value=${{ ...fields, input: ownInput(input.value ?? []) }} label="Request" />`;
}
