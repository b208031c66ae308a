// From the playground's settings to the body of a request.

export const DEFAULTS = {
  model: "",
  instructions: "",
  effort: "",
  summary: "",
  verbosity: "",
  sampling: {},
  format: "text",
  schemaName: "answer",
  schema: {
    type: "object",
    properties: { answer: { type: "string" } },
    required: ["answer"],
    additionalProperties: false,
  },
  toolChoice: "",
  hosted: {},
  vectorStores: [],
  servers: [],
  functions: [],
};

/** Sampling options: name, label, and bounds. `extra`: an extension, not OpenAI's. */
export const SAMPLING = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1 },
  { name: "top_p", label: "Top P", min: 0, max: 1, step: 0.05 },
  { name: "max_output_tokens", label: "Max output tokens", min: 1, step: 1 },
  { name: "top_k", label: "Top K", min: 1, step: 1, extra: true },
  { name: "min_p", label: "Min P", min: 0, max: 1, step: 0.05, extra: true },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.1, max: 2, step: 0.05, extra: true },
  { name: "seed", label: "Seed", min: 0, step: 1, extra: true },
];

/** Tools that the server runs. */
export const HOSTED = [
  { type: "web_search", label: "Web search", icon: "globe", include: ["web_search_call.action.sources"] },
  { type: "file_search", label: "File search", icon: "search", include: ["file_search_call.results"] },
  {
    type: "code_interpreter", label: "Code interpreter", icon: "code",
    include: ["code_interpreter_call.outputs"], more: { container: { type: "auto" } },
  },
  { type: "shell", label: "Shell", icon: "terminal", more: { environment: { type: "container_auto" } } },
  { type: "image_generation", label: "Image generation", icon: "image" },
  { type: "programmatic_tool_calling", label: "Programmatic tool calls", icon: "bolt" },
];

/** The body of `POST /v1/responses`. */
export function buildRequest(settings, input, previousResponseId) {
  const tools = buildTools(settings);
  const body = {
    model: settings.model || undefined,
    instructions: settings.instructions.trim() || undefined,
    input: shortInput(input),
    previous_response_id: previousResponseId ?? undefined,
    tools: tools.length ? tools : undefined,
    tool_choice: tools.length ? settings.toolChoice || undefined : undefined,
    // A small model that has to call tools would call them until its limit of tokens.
    parallel_tool_calls: tools.length && settings.toolChoice === "required" ? false : undefined,
    include: buildInclude(settings),
    reasoning: nonEmpty({ effort: settings.effort, summary: settings.summary }),
    text: buildText(settings),
    ...nonEmpty(settings.sampling),
    background: true,
    stream: true,
  };
  return JSON.parse(JSON.stringify(body)); // leaves out what is undefined
}

/** What else than text a request asks for, in short: its output format and its tools. */
export function choicesOf(settings) {
  const hosted = HOSTED.filter(({ type }) => settings.hosted[type]).map(({ label }) => label);
  const others = [...settings.servers, ...settings.functions].filter((tool) => tool.on).map((tool) => tool.label ?? tool.name);
  const tools = [...hosted, ...others];
  return [...(settings.format === "text" ? [] : ["JSON"]), ...(tools.length > 3 ? [`${tools.length} tools`] : tools)];
}

/** The change that makes a plain question of the settings: all tools are switched off. */
export const cleared = ({ servers, functions }) => ({
  format: DEFAULTS.format, hosted: {}, toolChoice: "",
  servers: servers.map((tool) => ({ ...tool, on: false })), functions: functions.map((tool) => ({ ...tool, on: false })),
});

/** Whether files should be searched, but no vector store is chosen. */
export const withoutStore = (settings) => Boolean(settings.hosted.file_search) && !settings.vectorStores.length;

/** The settings that would send a stored response's request again. Authorizations are not stored. */
export function settingsOf(response, settings) {
  const tools = response.tools ?? [];
  const format = response.text?.format ?? {};
  const bySchema = format.type === "json_schema";
  return {
    ...settings,
    model: response.model,
    instructions: typeof response.instructions === "string" ? response.instructions : "",
    effort: response.reasoning?.effort ?? "",
    summary: response.reasoning?.summary ?? "",
    verbosity: response.text?.verbosity ?? "",
    format: format.type ?? "text",
    ...(bySchema ? { schema: format.schema, schemaName: format.name } : {}),
    hosted: Object.fromEntries(tools.filter((tool) => HOSTED.some(({ type }) => type === tool.type)).map((tool) => [tool.type, true])),
    toolChoice: ["required", "none"].includes(response.tool_choice) ? response.tool_choice : "",
    vectorStores: tools.find((tool) => tool.type === "file_search")?.vector_store_ids ?? [],
    servers: mergeTools(settings.servers, tools.filter((tool) => tool.type === "mcp").map((tool) => ({
      on: true, label: tool.server_label, url: tool.server_url ?? "", authorization: "",
      approval: tool.require_approval === "never" ? "never" : "always",
    })), "label"),
    functions: mergeTools(settings.functions, tools.filter((tool) => tool.type === "function").map((tool) => ({
      on: true, name: tool.name, description: tool.description ?? "", strict: tool.strict ?? false,
      parameters: tool.parameters ?? { type: "object", properties: {} },
    })), "name"),
  };
}

/** The known tools switched off, but for those of the request. */
const mergeTools = (known, used, key) => [
  ...known.filter((tool) => !used.some((other) => other[key] === tool[key])).map((tool) => ({ ...tool, on: false })),
  ...used.map((tool) => ({ ...known.find((other) => other[key] === tool[key]), ...tool, authorization: known.find((other) => other[key] === tool[key])?.authorization ?? tool.authorization })),
];

/** One message of text only is written as a text. Nothing lets the model continue an answer that was cut off. */
function shortInput(input) {
  if (!input.length) return undefined;
  const [item, ...others] = input;
  const onlyText = !others.length && item.type === "message" && item.content.length === 1 &&
    item.content[0].type === "input_text";
  return onlyText ? item.content[0].text : input;
}

function nonEmpty(values) {
  const set = Object.entries(values).filter(([, value]) => value !== "" && value != null);
  return set.length ? Object.fromEntries(set) : undefined;
}

const enabledTools = (settings) =>
  HOSTED.filter(({ type }) => settings.hosted[type] &&
    (type !== "file_search" || settings.vectorStores.length));

function buildTools(settings) {
  const hosted = enabledTools(settings).map(({ type, more }) => ({
    type,
    ...more,
    ...(type === "file_search" ? { vector_store_ids: settings.vectorStores } : {}),
  }));
  const servers = settings.servers.filter((server) => server.on).map((server) => ({
    type: "mcp",
    server_label: server.label,
    ...nonEmpty({ server_url: server.url, authorization: server.authorization }),
    require_approval: server.approval,
  }));
  const functions = settings.functions.filter((each) => each.on).map((each) => ({
    type: "function",
    name: each.name,
    description: each.description || undefined,
    parameters: each.parameters,
    strict: each.strict,
  }));
  return [...hosted, ...servers, ...functions];
}

function buildInclude(settings) {
  const include = enabledTools(settings).flatMap((tool) => tool.include ?? []);
  return include.length ? include : undefined;
}

function buildText(settings) {
  const format = {
    text: undefined,
    json_object: { type: "json_object" },
    json_schema: { type: "json_schema", name: settings.schemaName || "answer", schema: settings.schema, strict: true },
  }[settings.format];
  return nonEmpty({ format, verbosity: settings.verbosity });
}
