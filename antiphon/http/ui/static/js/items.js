// How each kind of item is shown, in the playground and in a stored response.
import { call, download } from "./api.js";
import { Fragment, html, useEffect, useState } from "./lib.js";
import { Code, Json, Markdown, useSeconds } from "./markdown.js";
import { Dialog, Icon, Spinner, duration } from "./parts.js";

const RUNNING = new Set(["in_progress", "searching", "interpreting", "generating", "calling", "compacting"]);

const isActive = (item, live) => live && RUNNING.has(item.status);

/** A card whose content opens by click. It is open while the item is in progress. `isCrashed`: its call was
 * run, but what it ran failed. */
function Card({ icon, title, detail, item, live, open = false, isCrashed = false, children }) {
  const [choice, setChoice] = useState(null);
  const active = isActive(item, live);
  const shown = choice ?? (open || active);
  const failed = item.status === "failed" || item.error || isCrashed;
  return html`<div class="card ${failed ? "failed" : ""}" data-item=${item.type}>
    <button type="button" class="card-title" aria-expanded=${shown} onClick=${() => setChoice(!shown)}>
      <${Icon} name=${icon} />
      <span class="card-name">${title}</span>
      <span class="card-detail">${detail}</span>
      ${active && html`<${Spinner} />`}
      ${failed && html`<span class="status failed">failed</span>`}
      <${Icon} name="chevron" />
    </button>
    ${shown && html`<div class="card-body">${children}</div>`}
  </div>`;
}

const Labelled = ({ label, children }) =>
  html`<div class="labelled"><span class="label">${label}</span>${children}</div>`;

const shorten = (text, length = 80) =>
  text && text.length > length ? `${text.slice(0, length)}…` : text ?? "";

// --- messages and reasoning ----------------------------------------------------------------------

function MessageItem({ item, format }) {
  return html`<div class="message">
    ${item.content.map((part, index) => html`<${Part} key=${index} part=${part} format=${format} />`)}
  </div>`;
}

function Part({ part, format }) {
  switch (part.type) {
    case "output_text":
      return html`<${Fragment}>
        ${isJson(format) ? html`<${Json} value=${part.text} label="JSON output" />` : html`<${Markdown} text=${part.text} />`}
        <${Citations} annotations=${part.annotations ?? []} />
      </${Fragment}>`;
    case "refusal":
      return html`<p class="refusal">${part.refusal}</p>`;
    default:
      return html`<${InputPart} part=${part} />`;
  }
}

const isJson = (format) => ["json_object", "json_schema"].includes(format?.type);

/** A part of a user's message. */
export function InputPart({ part }) {
  if (part.type === "input_text" || part.type === "text") return html`<p class="plain">${part.text}</p>`;
  if (part.type === "input_image" && part.image_url?.startsWith("data:")) {
    return html`<${Picture} src=${part.image_url} label="Attached image" />`;
  }
  const names = { input_image: part.image_url ?? part.file_id ?? "an image", input_file: part.filename ?? part.file_id ?? part.file_url ?? "a file" };
  return html`<span class="attachment"><${Icon} name=${part.type === "input_image" ? "image" : "file"} />
    ${names[part.type] ?? part.type}</span>`;
}

export function Picture({ src, label }) {
  const [large, setLarge] = useState(false);
  return html`<button type="button" class="picture" onClick=${() => setLarge(true)} aria-label="${label}, enlarge">
      <img src=${src} alt="" /></button>
    ${large && html`<${Dialog} title=${label} wide onClose=${() => setLarge(false)}>
      <img class="large" src=${src} alt=${label} /></${Dialog}>`}`;
}

function Citations({ annotations }) {
  const unique = [...new Map(annotations.filter(Boolean).map((each) => [sourceOf(each), each])).values()];
  if (!unique.length) return null;
  return html`<ol class="citations" aria-label="Sources">
    ${unique.map((each, index) => html`<li key=${index}><${Citation} annotation=${each} number=${index + 1} /></li>`)}
  </ol>`;
}

const sourceOf = (each) => each.url ?? `${each.container_id ?? ""}/${each.file_id}`;

function Citation({ annotation, number }) {
  const label = html`<span class="number">${number}</span>`;
  if (annotation.type === "url_citation") {
    const safe = /^https?:/i.test(annotation.url) ? annotation.url : undefined;
    return html`<a class="source" href=${safe} target="_blank" rel="noopener noreferrer" title=${annotation.url}>
      ${label}${annotation.title || annotation.url}</a>`;
  }
  return html`<${FileSource} annotation=${annotation} label=${label} />`;
}

/** A file that the answer names: its text, or a download of what a container made. */
function FileSource({ annotation, label }) {
  const [text, setText] = useState(null);
  const name = annotation.filename ?? annotation.file_id;
  const inContainer = annotation.type === "container_file_citation";
  const path = inContainer
    ? `/v1/containers/${annotation.container_id}/files/${annotation.file_id}/content`
    : `/v1/files/${annotation.file_id}/content`;
  const isPicture = inContainer && /\.(png|jpe?g|gif|webp)$/i.test(name);
  const open = async () => {
    if (inContainer || !annotation.index && !/\.(txt|md|csv|json|py|js|html?|xml|ya?ml|toml|log)$/i.test(name)) {
      return download(path, name).catch((error) => setText(error.message));
    }
    return call("GET", path).then((reply) => reply.text()).then(setText, (error) => setText(error.message));
  };
  return html`${isPicture && html`<${ContainerPicture} path=${path} name=${name} />`}
    <button type="button" class="source" onClick=${open}>
      ${label}<${Icon} name=${inContainer ? "download" : "file"} />${name}</button>
    ${text !== null && html`<${Dialog} title=${name} wide onClose=${() => setText(null)}>
      <pre class="code plain-text" tabindex="0">${text}</pre></${Dialog}>`}`;
}

/** A picture that code made in a container, such as a chart. It vanishes with the container. */
function ContainerPicture({ path, name }) {
  const [src, setSrc] = useState(null);
  useEffect(() => {
    let made = null;
    call("GET", path).then((reply) => reply.blob()).then((blob) => {
      made = URL.createObjectURL(blob);
      setSrc(made);
    }, () => {});
    return () => made && URL.revokeObjectURL(made);
  }, [path]);
  return src && html`<${Picture} src=${src} label=${name} />`;
}

function ReasoningItem({ item, live, times }) {
  const active = live && item.status === "in_progress";
  const [choice, setChoice] = useState(false);
  const seconds = useSeconds(times?.begun ?? Date.now(), active);
  const text = [...(item.summary ?? []), ...(item.content ?? [])].filter(Boolean).map((part) => part.text).join("\n\n");
  const took = times?.ended ? duration((times.ended - times.begun) / 1000) : null;
  const title = active ? `Thinking… ${seconds} s` : took ? `Thought for ${took}` : "Thoughts";
  const last = text.trimEnd().split("\n").at(-1);
  return html`<div class="reasoning ${active ? "active" : ""}" data-item="reasoning">
    <button type="button" class="reasoning-title" aria-expanded=${choice} onClick=${() => setChoice(!choice)}>
      <${Icon} name="thought" /><span>${title}</span>
      ${active && !choice && html`<span class="reasoning-tail">${shorten(last, 90)}</span>`}
      <${Icon} name="chevron" />
    </button>
    ${choice && html`<div class="reasoning-text">
      ${text ? html`<${Markdown} text=${text} />` : html`<p class="muted">The text of these thoughts is not shown by the server.</p>`}
    </div>`}
  </div>`;
}

// --- calls -----------------------------------------------------------------------------------------

function FunctionItem({ item, live, children }) {
  const custom = item.type === "custom_tool_call";
  return html`<${Card} icon="tool" title=${item.name} detail=${custom ? "custom tool" : "function"} item=${item} live=${live} open>
    <${Labelled} label=${custom ? "Input" : "Arguments"}>
      ${custom ? html`<pre class="code" tabindex="0">${item.input}</pre>` : html`<${Json} value=${item.arguments} label="Arguments" />`}
    </${Labelled}>
    ${children}
  </${Card}>`;
}

function CallOutputItem({ item }) {
  return html`<${Card} icon="check" title="Result" detail=${shorten(outputText(item.output), 60)} item=${item}>
    <${Output} value=${item.output} />
  </${Card}>`;
}

const outputText = (output) => (typeof output === "string" ? output : JSON.stringify(output));

function Output({ value }) {
  if (Array.isArray(value)) {
    return value.map((part, index) => html`<${InputPart} key=${index} part=${part} />`);
  }
  const text = outputText(value ?? "");
  return /^\s*[[{]/.test(text) ? html`<${Json} value=${text} label="Result" />` : html`<pre class="code" tabindex="0">${text}</pre>`;
}

function McpCallItem({ item, live }) {
  return html`<${Card} icon="plug" title=${item.name} detail=${`MCP · ${item.server_label}`} item=${item} live=${live}>
    <${Labelled} label="Arguments"><${Json} value=${item.arguments} label="Arguments" /></${Labelled}>
    ${item.output != null && html`<${Labelled} label="Result"><${Output} value=${item.output} /></${Labelled}>`}
    ${item.error && html`<${Labelled} label="Error"><${Json} value=${item.error} label="Error" /></${Labelled}>`}
  </${Card}>`;
}

function McpToolsItem({ item, live }) {
  const tools = item.tools ?? [];
  return html`<${Card} icon="plug" title=${item.server_label} detail=${tools.length === 1 ? "1 tool" : `${tools.length} tools`} item=${item} live=${live}>
    <ul class="tools">${tools.map((tool) => html`<li key=${tool.name}><strong>${tool.name}</strong> ${tool.description}</li>`)}</ul>
    ${item.error && html`<${Json} value=${item.error} label="Error" />`}
  </${Card}>`;
}

function ApprovalItem({ item, children }) {
  return html`<div class="card ${children ? "approval" : ""}" data-item=${item.type}>
    <div class="card-title"><${Icon} name="plug" />
      <span class="card-name">${children ? `Run ${item.name}?` : `Asked to run ${item.name}`}</span><span class="card-detail">MCP · ${item.server_label}</span></div>
    <div class="card-body">
      <${Labelled} label="Arguments"><${Json} value=${item.arguments} label="Arguments" /></${Labelled}>
      ${children}
    </div>
  </div>`;
}

function ApprovalAnswerItem({ item }) {
  return html`<p class="event"><${Icon} name=${item.approve ? "check" : "close"} />
    ${item.approve ? "You approved the call." : "You denied the call."}</p>`;
}

function WebSearchItem({ item, live }) {
  const action = item.action ?? {};
  const title = { search: "Searched the web", open_page: "Opened a page", find_in_page: "Searched in a page" }[action.type] ?? "Web search";
  const queries = action.queries ?? [action.query].filter(Boolean);
  const detail = queries.length ? queries.join(" · ") : action.url ?? action.pattern ?? "";
  const sources = action.sources ?? [];
  return html`<${Card} icon="globe" title=${title} detail=${shorten(detail)} item=${item} live=${live}>
    ${detail && html`<p>${/^https?:/i.test(detail) ? html`<a href=${detail} target="_blank" rel="noopener noreferrer">${detail}</a>` : detail}</p>`}
    ${sources.length > 0 && html`<ul class="sources">${sources.map((source, index) => html`<li key=${index}>
      <a href=${/^https?:/i.test(source.url) ? source.url : undefined} target="_blank" rel="noopener noreferrer">${source.title || source.url}</a></li>`)}</ul>`}
  </${Card}>`;
}

function FileSearchItem({ item, live }) {
  const results = item.results ?? [];
  return html`<${Card} icon="search" title="Searched files" detail=${shorten((item.queries ?? []).join(" · "))} item=${item} live=${live}>
    ${(item.queries ?? []).map((text, index) => html`<p key=${index}>“${text}”</p>`)}
    ${results.map((result, index) => html`<${SearchResult} key=${index} result=${result} />`)}
  </${Card}>`;
}

/** One passage that a search found. */
export function SearchResult({ result }) {
  const text = result.text ?? (result.content ?? []).map((part) => part.text).join("\n");
  return html`<div class="search-result">
    <p><strong>${result.filename ?? result.file_id}</strong>
      <span class="score" title="Score">${Number(result.score).toFixed(2)}</span></p>
    <p class="passage">${shorten(text, 600)}</p>
  </div>`;
}

/** The last line of a Python traceback. */
const EXCEPTION = /^Traceback \(most recent call last\):[^]*\n(\w[\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Iteration)\b[^\n]*)\s*$/m;

function CodeItem({ item, live }) {
  const outputs = item.outputs ?? [];
  const exception = outputs.map((output) => EXCEPTION.exec(output.logs ?? "")?.[1]).find(Boolean);
  const title = isActive(item, live) ? "Running code" : exception ? "Code failed" : "Ran code";
  return html`<${Card} icon="code" title=${title} isCrashed=${Boolean(exception)} detail=${shorten(exception ?? (item.code ?? "").trim().split("\n")[0], 60)} item=${item} live=${live}>
    <${Code} text=${item.code ?? ""} language="python" label="Code" />
    ${outputs.map((output, index) => output.type === "image" && /^data:/.test(output.url)
      ? html`<${Picture} key=${index} src=${output.url} label="Image made by the code" />`
      : html`<${Labelled} key=${index} label="Output"><pre class="code" tabindex="0">${output.logs ?? output.url}</pre></${Labelled}>`)}
  </${Card}>`;
}

function ShellItem({ item, live }) {
  const lines = item.action?.commands ?? [item.action?.command].flat().filter(Boolean);
  return html`<${Card} icon="terminal" title="Shell" detail=${shorten(lines[0], 60)} item=${item} live=${live}>
    <${Code} text=${lines.map((line) => `$ ${line}`).join("\n")} language="bash" label="Commands" />
  </${Card}>`;
}

function ShellOutputItem({ item }) {
  const outputs = Array.isArray(item.output) ? item.output : [{ stdout: item.output }];
  const exit = outputs.map((each) => each.outcome?.exit_code).filter((code) => code !== undefined);
  return html`<${Card} icon="terminal" title="Output of the shell" detail=${exit.length ? `exit code ${exit.join(", ")}` : ""} item=${item}>
    ${outputs.map((each, index) => html`<pre class="code" tabindex="0" key=${index}>${[each.stdout, each.stderr].filter(Boolean).join("\n")}</pre>`)}
  </${Card}>`;
}

function ImageItem({ item, live }) {
  const data = item.result ?? item.partial;
  const source = data && `data:image/${item.output_format ?? "png"};base64,${data}`;
  return html`<${Card} icon="image" title=${item.result ? "Made an image" : "Making an image"} detail=${shorten(item.revised_prompt, 60)} item=${item} live=${live} open>
    ${source && html`<${Picture} src=${source} label="Generated image" />
      ${item.result && html`<a class="button small start" href=${source} download="image.${item.output_format ?? "png"}">Download</a>`}`}
    ${item.error && html`<${Json} value=${item.error} label="Error" />`}
  </${Card}>`;
}

function ProgramItem({ item, live }) {
  return html`<${Card} icon="bolt" title="Program" detail="calls tools" item=${item} live=${live}>
    <${Code} text=${item.code} language="javascript" label="Program" />
  </${Card}>`;
}

function ProgramOutputItem({ item }) {
  return html`<${Card} icon="bolt" title="Result of the program" detail=${shorten(item.result, 60)} item=${item}>
    <${Output} value=${item.result} />
  </${Card}>`;
}

function OtherItem({ item, live }) {
  return html`<${Card} icon="box" title=${item.type.replaceAll("_", " ")} item=${item} live=${live}>
    <${Json} value=${item} label=${item.type} />
  </${Card}>`;
}

const VIEWS = {
  message: MessageItem,
  reasoning: ReasoningItem,
  function_call: FunctionItem,
  custom_tool_call: FunctionItem,
  function_call_output: CallOutputItem,
  custom_tool_call_output: CallOutputItem,
  mcp_call: McpCallItem,
  mcp_list_tools: McpToolsItem,
  mcp_approval_request: ApprovalItem,
  mcp_approval_response: ApprovalAnswerItem,
  web_search_call: WebSearchItem,
  file_search_call: FileSearchItem,
  code_interpreter_call: CodeItem,
  shell_call: ShellItem,
  local_shell_call: ShellItem,
  shell_call_output: ShellOutputItem,
  local_shell_call_output: ShellOutputItem,
  image_generation_call: ImageItem,
  program: ProgramItem,
  program_output: ProgramOutputItem,
};

/** An item. `live`: its run goes on. `children`: what the user can do with it. */
export function Item({ item, ...rest }) {
  const View = VIEWS[item.type] ?? OtherItem;
  return html`<${View} item=${item} ...${rest} />`;
}
