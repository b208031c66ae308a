// What was used, as rows that charts and tables add up. Who may manage the server sees the usage of
// all API keys; others see the responses that their own tenant stored.
import { get, query } from "../api.js";

/** A period of the charts: `step` is the width of its bars, in seconds. */
export const PERIODS = {
  day: { name: "24 hours", step: 3600, steps: 24, width: "1h" },
  week: { name: "7 days", step: 86_400, steps: 7, width: "1d" },
  month: { name: "30 days", step: 86_400, steps: 30, width: "1d" },
};

/** The newest stored responses that are read: a few pages, so that the view opens at once. */
const PAGES = 10;
const PAGE = 100;

/** The start of the first bar. Bars begin at full hours and days in UTC. */
function firstStart({ step, steps }) {
  const now = Math.floor(Date.now() / 1000);
  return now - (now % step) - (steps - 1) * step;
}

/**
 * Return `{period, start, rows, source, isPartial}`. A row has `start` (unix seconds, of its bar), `model`, `key`
 * (null: not known), and sums: requests, errors, input, cached, output, tools, milliseconds.
 */
export async function loadUsage(period) {
  const start = firstStart(period);
  try {
    const [answers, embeddings] = await Promise.all(
      ["completions", "embeddings"].map((kind) => organizationUsage(kind, period, start)));
    return { period, start, rows: [...answers, ...embeddings], source: "requests", isPartial: false };
  } catch (error) {
    if (error.status !== 403) throw error;
    return { period, start, source: "responses", ...await storedResponses(period, start) };
  }
}

async function organizationUsage(kind, period, start) {
  const parameters = [["start_time", start], ["bucket_width", period.width], ["limit", period.steps],
    ["group_by", "model"], ["group_by", "api_key_id"]];
  const { data } = await get(`/v1/organization/usage/${kind}?${new URLSearchParams(parameters)}`);
  return data.flatMap((bucket) => bucket.results.map((result) => ({
    start: bucket.start_time,
    model: result.model,
    key: result.api_key_id,
    requests: result.num_model_requests,
    errors: result.num_failed_requests ?? 0,
    input: result.input_tokens,
    cached: result.input_cached_tokens ?? 0,
    output: result.output_tokens ?? 0,
    tools: result.num_tool_calls ?? 0,
    milliseconds: result.latency_ms,
  })));
}

async function storedResponses(period, start) {
  const all = [];
  let page = { last_id: "", has_more: true };
  for (let pages = 0; page.has_more && pages < PAGES; pages += 1) {
    page = await get(`/v1/responses${query({ limit: PAGE, after: page.last_id })}`);
    all.push(...page.data);
    if (page.data.at(-1)?.created_at < start) page = { has_more: false };
  }
  const rows = all.filter((response) => response.created_at >= start).map(({ usage, ...response }) => ({
    start: response.created_at - (response.created_at % period.step),
    model: response.model,
    key: null,
    requests: 1,
    errors: response.error ? 1 : 0,
    input: usage?.input_tokens ?? 0,
    cached: usage?.input_tokens_details?.cached_tokens ?? 0,
    output: usage?.output_tokens ?? 0,
    tools: 0,
    milliseconds: 1000 * Math.max(0, (response.completed_at ?? response.created_at) - response.created_at),
  }));
  return { rows, isPartial: page.has_more };
}

export const tokens = (sums) => sums.input + sums.output;
export const meanSeconds = (sums) => (sums.requests ? sums.milliseconds / sums.requests / 1000 : null);

const SUMS = ["requests", "errors", "input", "cached", "output", "tools", "milliseconds"];

export function add(rows) {
  return Object.fromEntries(SUMS.map((name) => [name, rows.reduce((total, row) => total + row[name], 0)]));
}

/** Return pairs of each value of `field` and its rows; those with the most requests first. */
export function groupBy(rows, field) {
  const groups = new Map();
  for (const row of rows) groups.set(row[field], [...(groups.get(row[field]) ?? []), row]);
  return [...groups].sort(([, one], [, other]) => add(other).requests - add(one).requests);
}
