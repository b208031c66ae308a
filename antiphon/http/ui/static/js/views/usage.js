// What was used: requests, tokens, errors and times by model and API key, and the quotas.
import { get } from "../api.js";
import { Chart } from "../charts.js";
import { html, inBrowser, useLoaded, useState } from "../lib.js";
import { Empty, Notice, Spinner, Tabs, bytes, count, duration } from "../parts.js";
import { PERIODS, add, groupBy, loadUsage, meanSeconds, tokens } from "./usage_data.js";

/** Charts show this many models or keys; the rest is one series. */
const SERIES = 5;
const GROUPS = { model: "Model", key: "API key" };

const STORED = [
  ["responses", "Responses", count], ["responses_bytes", "Size of the responses", bytes],
  ["files", "Files", count], ["files_bytes", "Size of the files", bytes],
  ["vector_stores", "Vector stores", count], ["containers", "Containers", count],
];

const chosenPeriod = inBrowser("usage.period");

export function Usage() {
  const [chosen, setChosen] = useState(chosenPeriod.read("week"));
  const [group, setGroup] = useState("model");
  const quotas = useLoaded(() => get("/antiphon/usage"), []);
  const used = useLoaded(() => loadUsage(PERIODS[chosen] ?? PERIODS.week), [chosen]);
  const choose = (name) => {
    chosenPeriod.write(name);
    setChosen(name);
  };
  const { rows, source, isPartial } = used.value ?? { rows: [] };
  return html`<div class="view">
    <header class="view-bar"><h1>Usage</h1><span class="grow"></span>${(quotas.loading || used.loading) && html`<${Spinner} />`}</header>
    <div class="view-body">
      ${[quotas.error, used.error].filter(Boolean).map((error) => html`<${Notice} kind="error">${error.message}</${Notice}>`)}
      <div class="row wrap">
        <${Tabs} label="Period" active=${chosen} onChange=${choose} tabs=${Object.entries(PERIODS).map(([id, { name }]) => [id, name])} />
        ${source === "requests" && html`<${Tabs} label="By" active=${group} onChange=${setGroup} tabs=${Object.entries(GROUPS).map(([id, name]) => [id, `By ${name === "Model" ? "model" : name}`])} />`}
      </div>
      ${rows.length > 0 && html`<${Charts} used=${used.value} group=${source === "requests" ? group : "model"} />
        <p class="muted">${source === "requests" ? html`Counted are all requests, also those that were not stored, on all servers of this store.`
          : html`Counted are your stored responses${isPartial ? ", the newest of them" : ""}. Who may manage the server sees all requests, by API key.`}
          ${" "}Days begin at midnight UTC.</p>`}
      ${used.value && !rows.length && html`<${Empty} icon="chart" title="Nothing was used in this time">
        <p>Send a message in the <a href="#/playground">playground</a>, or choose a longer time.</p></${Empty}>`}
      ${quotas.value && html`<${Quotas} report=${quotas.value} />`}
    </div>
  </div>`;
}

// --- charts and table ------------------------------------------------------------------------------

const hour = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const fullHour = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone: "UTC" });

/** Pairs of the short and the full label of each bar. */
function stepLabels(period, start) {
  return Array.from({ length: period.steps }, (_, at) => {
    const date = new Date((start + at * period.step) * 1000);
    return period.step < 86_400 ? [hour.format(date), fullHour.format(date)] : [day.format(date), day.format(date)];
  });
}

const nameOf = (group, value) => value || (group === "key" ? "no key" : "unknown");

function Charts({ used, group }) {
  const { period, start, rows } = used;
  const steps = stepLabels(period, start);
  const groups = groupBy(rows, group).map(([value, list]) => ({ name: nameOf(group, value), rows: list }));
  const shown = groups.slice(0, SERIES);
  if (groups.length > SERIES) shown.push({ name: "others", rows: groups.slice(SERIES).flatMap((each) => each.rows) });
  const series = (value) => shown.map(({ name, rows: list }) => ({
    name,
    values: steps.map((_, at) => {
      const found = list.filter((row) => Math.floor((row.start - start) / period.step) === at);
      return found.length ? value(add(found)) : null;
    }),
  }));
  const all = add(rows);
  const share = all.errors && (all.errors / all.requests) * 100;
  return html`<div class="charts">
      <${Chart} title="Requests" total=${count(all.requests)} steps=${steps} format=${count} series=${series((sums) => sums.requests)} />
      <${Chart} title="Tokens" total="${count(all.input)} in, ${count(all.output)} out" steps=${steps} format=${count} series=${series(tokens)} />
      <${Chart} title="Errors" total="${count(all.errors)}${all.errors ? `, ${share < 1 ? "under 1" : Math.round(share)} %` : ""}" steps=${steps} format=${count} series=${series((sums) => sums.errors)} />
      <${Chart} title="Mean time" total=${duration(meanSeconds(all))} steps=${steps} format=${duration} series=${series(meanSeconds)} lines />
    </div>
    <${GroupTable} title=${GROUPS[group]} groups=${groups} />`;
}

const COLUMNS = [
  ["Requests", (sums) => count(sums.requests)], ["Errors", (sums) => count(sums.errors)],
  ["Input tokens", (sums) => count(sums.input)], ["Cached", (sums) => count(sums.cached)],
  ["Output tokens", (sums) => count(sums.output)], ["Mean time", (sums) => duration(meanSeconds(sums))],
];

function GroupTable({ title, groups }) {
  return html`<div class="table-frame full" tabindex="0" role="region" aria-label="Usage by ${title}"><table>
    <thead><tr><th scope="col">${title}</th>${COLUMNS.map(([name]) => html`<th scope="col" align="right" key=${name}>${name}</th>`)}</tr></thead>
    <tbody>${groups.map(({ name, rows }) => html`<tr key=${name}><th scope="row">${name}</th>
      ${COLUMNS.map(([column, text]) => html`<td align="right" key=${column}>${text(add(rows))}</td>`)}</tr>`)}</tbody></table></div>`;
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
