// When the items of a stored response were made, as bars on one scale.
import { html } from "../lib.js";
import { duration } from "../parts.js";

/** Units of the scale, which is stretched to the width of its place. */
const WIDTH = 100;
const THIN = 0.6;

/** The time of an event since its response was created, in milliseconds; undefined if unknown. */
export function eventTime(timeline, event) {
  const item = timeline?.items[event.output_index];
  const times = {
    "response.created": timeline?.created_at,
    "response.in_progress": timeline?.started_at,
    "response.output_item.added": item?.started_at,
    "response.output_item.done": item?.completed_at,
    "response.completed": timeline?.completed_at,
    "response.incomplete": timeline?.completed_at,
    "response.failed": timeline?.completed_at,
  };
  const at = times[event.type];
  return at == null ? undefined : (at - timeline.created_at) * 1000;
}

/** Rows of the drawing: a name, and the time of one or two steps since the response was created. */
function rowsOf(timeline) {
  const since = (at) => at - timeline.created_at;
  const rows = timeline.items.filter((item) => item.started_at != null && item.completed_at != null).map((item) => ({
    name: item.type.replaceAll("_", " "),
    from: since(item.started_at),
    // Of a call that the server runs: when its tool began.
    tool: item.written_at != null && item.completed_at > item.written_at ? since(item.written_at) : null,
    to: since(item.completed_at),
  }));
  if (!rows.length) return rows;
  const queued = timeline.started_at != null ? since(timeline.started_at) : 0;
  const waits = [["queued", 0, queued], ["wait for the first output", queued, rows[0].from]];
  return [...waits.filter(([, from, to]) => to - from >= 0.001).map(([name, from, to]) => ({ name, from, to, tool: null, wait: true })), ...rows];
}

export function Timeline({ timeline }) {
  if (timeline?.created_at == null || timeline.completed_at == null) return null;
  const rows = rowsOf(timeline);
  const total = Math.max(timeline.completed_at - timeline.created_at, 0.001);
  const x = (seconds) => (seconds / total) * WIDTH;
  if (!rows.length) return null;
  return html`<ol class="timeline" aria-label="Timeline">${rows.map((row, index) => html`<li key=${index}>
    <span class="timeline-name">${row.name}</span>
    <svg class="timeline-track" viewBox="0 0 ${WIDTH} 10" preserveAspectRatio="none" aria-hidden="true">
      <${Bar} className=${row.wait ? "wait" : "written"} from=${x(row.from)} to=${x(row.tool ?? row.to)} />
      ${row.tool != null && html`<${Bar} className="tool" from=${x(row.tool)} to=${x(row.to)} />`}
    </svg>
    <span class="timeline-time">${row.tool != null && html`<span class="muted">tool ${duration(row.to - row.tool)} of </span>`}${duration(row.to - row.from)}
      <span class="muted"> from ${duration(row.from)}</span></span>
  </li>`)}</ol>`;
}

const Bar = ({ className, from, to }) => html`<rect class=${className} x=${from} width=${Math.max(to - from, THIN)} y="2" height="6" />`;
