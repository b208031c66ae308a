// Charts over time, as bars that are stacked or as lines. The numbers are in a table below, for those
// who do not see the colours, or who want to copy them.
import { html } from "./lib.js";

/** Units of the drawing, which is stretched to the width of its place. */
const WIDTH = 100;
const HEIGHT = 40;
/** Share of its step that a bar takes. */
const BAR = 0.7;
/** A scale has this many labels at most. */
const LABELS = 7;

/**
 * `steps`: pairs of a short and a full label. `series`: `{name, values}`, with a value, or null for
 * none, for each step. `lines`: draw lines instead of stacked bars. `total`: the text beside the title.
 */
export function Chart({ title, total, steps, series, format, lines = false }) {
  const most = niceTop(steps.map((_, at) => highest(series, at, lines)));
  const top = lines ? most : Math.max(2, most);  // bars count things, and half a thing is no label
  const step = WIDTH / steps.length;
  const y = (value) => HEIGHT - (value / top) * HEIGHT;
  return html`<section class="panel-card chart-card" aria-label=${title}>
    <div class="card-head"><h2>${title}</h2><span class="muted">${total}</span></div>
    <div class="chart-frame">
      <div class="chart-scale" aria-hidden="true">${[top, top / 2, 0].map((value) => html`<small key=${value}>${format(value)}</small>`)}</div>
      <svg class="chart" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label="${title}: ${total}">
        ${[0, HEIGHT / 2, HEIGHT].map((at) => html`<line key=${at} class="grid" x1="0" x2=${WIDTH} y1=${at} y2=${at} />`)}
        ${lines ? series.map((one, at) => html`<${Line} key=${one.name} values=${one.values} at=${at} step=${step} y=${y} />`)
          : steps.map((_, at) => html`<${Bar} key=${at} series=${series} at=${at} step=${step} y=${y} />`)}
        ${steps.map(([, name], at) => html`<rect key=${name} class="hover" x=${at * step} width=${step} y="0" height=${HEIGHT}>
          <title>${[name, ...series.filter(({ values }) => values[at]).map(({ name: of, values }) => `${of}: ${format(values[at])}`)].join("\n")}</title></rect>`)}
      </svg>
      <${StepLabels} steps=${steps} />
    </div>
    ${series.length > 1 && html`<ul class="legend">${series.map(({ name }, at) => html`<li key=${name}>
      <svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect class="series-${at}" width="10" height="10" rx="2" /></svg>${name}</li>`)}</ul>`}
    <${Numbers} title=${title} steps=${steps} series=${series} format=${format} />
  </section>`;
}

/** One value of all series, above each other. */
function Bar({ series, at, step, y }) {
  let below = 0;
  return series.map(({ name, values }, index) => {
    const value = values[at] ?? 0;
    below += value;
    return value > 0 && html`<rect key=${name} class="series-${index}" x=${(at + (1 - BAR) / 2) * step} width=${step * BAR}
      y=${y(below)} height=${HEIGHT - y(value)} />`;
  });
}

/** A line through neighbours; a value between two steps without one is a dot. */
function Line({ values, at, step, y }) {
  const points = values.map((value, index) => (value == null ? null : `${(index + 0.5) * step} ${y(value)}`));
  const path = points.map((point, index) => point && `${index && points[index - 1] ? "L" : "M"}${point}`).filter(Boolean);
  const dots = points.filter(Boolean).map((point) => `M${point}h0`);
  return html`<path class="line series-${at}" d=${path.join("")} /><path class="dots-of series-${at}" d=${dots.join("")} />`;
}

/** Counted from the last step; a narrow chart shows every other label. */
function StepLabels({ steps }) {
  const every = Math.ceil(steps.length / LABELS);
  return html`<svg class="chart-steps" aria-hidden="true">${steps.map(([short], at) => {
    const fromEnd = steps.length - 1 - at;
    return fromEnd % every === 0 && html`<text key=${short} class=${(fromEnd / every) % 2 ? "minor" : ""}
      x="${((at + 0.5) / steps.length) * 100}%" y="12" text-anchor="middle">${short}</text>`;
  })}</svg>`;
}

function Numbers({ title, steps, series, format }) {
  const used = steps.map(([, name], at) => [name, at]).filter(([, at]) => series.some(({ values }) => values[at]));
  if (!used.length) return null;
  return html`<details class="numbers"><summary>Numbers<span class="sr-only"> of ${title}</span></summary>
    <div class="table-frame" tabindex="0" role="region" aria-label="Numbers of ${title}"><table>
      <thead><tr><th scope="col">Time</th>${series.map(({ name }) => html`<th key=${name} scope="col" align="right">${name}</th>`)}</tr></thead>
      <tbody>${used.map(([name, at]) => html`<tr key=${name}><th scope="row">${name}</th>
        ${series.map(({ name: of, values }) => html`<td key=${of} align="right">${values[at] ? format(values[at]) : "–"}</td>`)}</tr>`)}</tbody>
    </table></div></details>`;
}

function highest(series, at, lines) {
  const values = series.map(({ values: each }) => each[at] ?? 0);
  return lines ? Math.max(...values) : values.reduce((sum, value) => sum + value, 0);
}

/** The next of 1, 2, 4, 10, 20, 40 … whose half is a short number, too. */
function niceTop(values) {
  const most = Math.max(...values);
  if (!(most > 0)) return 2;
  const unit = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 6, 8, 10].map((factor) => factor * unit).find((top) => top >= most);
}
