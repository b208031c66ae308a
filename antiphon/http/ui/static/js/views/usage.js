// What was answered lately, by day and by model, and what is used of the quotas.
import { get, query } from "../api.js";
import { html, useLoaded } from "../lib.js";
import { Empty, Notice, Spinner, bytes, count, duration } from "../parts.js";

/** The newest responses that are counted: a few pages, so that the view opens at once. */
const PAGES = 10;
const PAGE = 100;
const DAYS = 14;

const STORED = [
  ["responses", "Responses", count], ["responses_bytes", "Size of the responses", bytes],
  ["files", "Files", count], ["files_bytes", "Size of the files", bytes],
  ["vector_stores", "Vector stores", count], ["containers", "Containers", count],
];

export function Usage() {
  const usage = useLoaded(() => get("/antiphon/usage"), []);
  const responses = useLoaded(newest, []);
  const list = responses.value ?? [];
  return html`<div class="view">
    <header class="view-bar"><h1>Usage</h1><span class="grow"></span>${(usage.loading || responses.loading) && html`<${Spinner} />`}</header>
    <div class="view-body">
      ${[usage.error, responses.error].filter(Boolean).map((error) => html`<${Notice} kind="error">${error.message}</${Notice}>`)}
      ${list.length > 0 && html`<${Days} responses=${list} />
        <${ModelTable} rows=${byModel(list)} />
        <p class="muted">Counted are the stored responses${list.length === PAGES * PAGE ? `, the newest ${count(list.length)} of them` : ""}.
          All requests since the start of the server are in <code>/metrics</code>.</p>`}
      ${responses.value && !list.length && html`<${Empty} icon="chart" title="Nothing was used yet" />`}
      ${usage.value && html`<${Quotas} report=${usage.value} />`}
    </div>
  </div>`;
}

async function newest() {
  const all = [];
  for (let page = { last_id: "", has_more: true }, pages = 0; page.has_more && pages < PAGES; pages += 1) {
    page = await get(`/v1/responses${query({ limit: PAGE, after: page.last_id })}`);
    all.push(...page.data);
  }
  return all;
}

const tokensOf = (response) => response.usage?.total_tokens ?? 0;
const sum = (list, value) => list.reduce((total, each) => total + value(each), 0);

function groupBy(list, key) {
  const groups = new Map();
  for (const each of list) groups.set(key(each), [...groups.get(key(each)) ?? [], each]);
  return groups;
}

// --- by day ----------------------------------------------------------------------------------------

const dayOf = (unix) => new Date(unix * 1000).toLocaleDateString("sv"); // 2026-11-22
const dayName = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });

function Days({ responses }) {
  const groups = groupBy(responses, (response) => dayOf(response.created_at));
  const days = Array.from({ length: DAYS }, (_, back) => {
    const date = new Date();
    date.setDate(date.getDate() - (DAYS - 1 - back));
    const list = groups.get(dayOf(date / 1000)) ?? [];
    return { name: dayName.format(date), tokens: sum(list, tokensOf), requests: list.length };
  });
  return html`<div class="split">
    <${Chart} title="Tokens a day" days=${days} value=${(day) => day.tokens} />
    <${Chart} title="Responses a day" days=${days} value=${(day) => day.requests} />
  </div>`;
}

/** Bars. The same numbers are in a table for those who do not see them. */
function Chart({ title, days, value }) {
  const most = Math.max(...days.map(value), 1);
  const step = 100 / days.length;
  return html`<section class="panel-card" aria-label=${title}>
    <div class="card-head"><h2>${title}</h2><span class="muted">${count(sum(days, value))} in ${days.length} days</span></div>
    <svg class="chart" viewBox="0 0 100 40" preserveAspectRatio="none" aria-hidden="true">
      ${days.map((day, index) => {
        const height = (value(day) / most) * 38;
        return html`<rect key=${index} x=${index * step + step * 0.15} width=${step * 0.7} y=${40 - height} height=${height}><title>${day.name}: ${count(value(day))}</title></rect>`;
      })}
      <line x1="0" x2="100" y1="40" y2="40" />
    </svg>
    <div class="row spread"><small>${days[0].name}</small><small>most: ${count(most)}</small><small>${days.at(-1).name}</small></div>
    <table class="sr-only"><caption>${title}</caption><tbody>${days.filter(value).map((day) => html`<tr key=${day.name}><th scope="row">${day.name}</th><td>${count(value(day))}</td></tr>`)}</tbody></table>
  </section>`;
}

// --- by model --------------------------------------------------------------------------------------

function byModel(responses) {
  return [...groupBy(responses, (response) => response.model)].map(([model, list]) => {
    const ended = list.filter((each) => each.completed_at);
    return {
      model,
      responses: list.length,
      errors: list.filter((each) => each.error).length,
      input: sum(list, (each) => each.usage?.input_tokens ?? 0),
      cached: sum(list, (each) => each.usage?.input_tokens_details?.cached_tokens ?? 0),
      output: sum(list, (each) => each.usage?.output_tokens ?? 0),
      seconds: ended.length ? sum(ended, (each) => each.completed_at - each.created_at) / ended.length : null,
    };
  }).sort((one, other) => other.responses - one.responses);
}

const COLUMNS = ["Responses", "Errors", "Input tokens", "Cached", "Output tokens", "Mean time"];

function ModelTable({ rows }) {
  return html`<div class="table-frame full" tabindex="0" role="region" aria-label="Models"><table>
    <thead><tr><th scope="col">Model</th>${COLUMNS.map((name) => html`<th scope="col" align="right" key=${name}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.model}><td><strong>${row.model}</strong></td>
      ${[count(row.responses), count(row.errors), count(row.input), count(row.cached), count(row.output), row.seconds !== null && row.seconds < 1 ? "under 1 s" : duration(row.seconds)].map((text, index) =>
        html`<td align="right" key=${index}>${text}</td>`)}</tr>`)}</tbody></table></div>`;
}

// --- quotas ----------------------------------------------------------------------------------------

function Quotas({ report }) {
  const { requests, background_runs: runs } = report;
  return html`<section class="panel-card" aria-label="Quotas">
    <h2>Now</h2>
    <p class="muted">${count(requests.in_progress)} requests running, ${count(requests.queued)} waiting;
      ${" "}${count(runs.in_progress)} background runs running, ${count(runs.queued)} waiting.</p>
    <div class="cards">${STORED.filter(([name]) => report.storage[name]).map(([name, label, format]) =>
      html`<${Meter} key=${name} label=${label} format=${format} quota=${report.storage[name]} />`)}</div>
  </section>`;
}

function Meter({ label, quota, format }) {
  const part = quota.limit ? Math.min(1, quota.used / quota.limit) : 0;
  return html`<div class="meter"><div><span>${label}</span><span>${format(quota.used)}${quota.limit ? ` of ${format(quota.limit)}` : ""}</span></div>
    ${quota.limit > 0 && html`<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="${label}: ${Math.round(part * 100)} % used">
      <rect width=${part * 100} height="8" /></svg>`}</div>`;
}
