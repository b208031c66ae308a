// An editor for JSON Schemas: a form for the usual cases, and the text for all others.
import { html, useState } from "../lib.js";
import { Icon, IconButton, Tabs } from "../parts.js";

const TYPES = ["string", "number", "integer", "boolean", "enum", "object", "array"];

const kindOf = (schema) => (schema.enum ? "enum" : schema.type ?? "string");

const BLANK = {
  string: { type: "string" },
  number: { type: "number" },
  integer: { type: "integer" },
  boolean: { type: "boolean" },
  enum: { type: "string", enum: ["a", "b"] },
  object: { type: "object", properties: {}, required: [], additionalProperties: false },
  array: { type: "array", items: { type: "string" } },
};

const withKind = (schema, kind) =>
  JSON.parse(JSON.stringify({ ...BLANK[kind], ...(schema.description ? { description: schema.description } : {}) }));

/** Whether the form can show all of a schema. */
function isSimple(schema) {
  if (!schema || typeof schema !== "object" || !TYPES.includes(kindOf(schema))) return false;
  const known = ["type", "description", "enum", "properties", "required", "additionalProperties", "items"];
  if (Object.keys(schema).some((key) => !known.includes(key))) return false;
  if (kindOf(schema) === "object") return Object.values(schema.properties ?? {}).every(isSimple);
  return kindOf(schema) !== "array" || isSimple(schema.items ?? { type: "string" });
}

export function SchemaEditor({ schema, onChange, label }) {
  const simple = isSimple(schema) && kindOf(schema) === "object";
  const [tab, setTab] = useState(simple ? "form" : "text");
  return html`<div class="schema-editor" role="group" aria-label=${label}>
    <${Tabs} label="Editor" active=${tab} onChange=${setTab} tabs=${[["form", "Form"], ["text", "JSON Schema"]]} />
    ${tab === "text" && html`<${SchemaText} schema=${schema} onChange=${onChange} />`}
    ${tab === "form" && (simple
      ? html`<${Properties} schema=${schema} onChange=${onChange} />`
      : html`<p class="muted">This schema uses keywords that the form does not show.</p>`)}
  </div>`;
}

function SchemaText({ schema, onChange }) {
  const [text, setText] = useState(JSON.stringify(schema, null, 2));
  const [trouble, setTrouble] = useState("");
  const change = (value) => {
    setText(value);
    try {
      const parsed = JSON.parse(value);
      if (!parsed || typeof parsed !== "object" || Array.isArray(parsed)) throw new Error("A schema is an object.");
      onChange(parsed);
      setTrouble("");
    } catch (error) {
      setTrouble(error.message);
    }
  };
  return html`<textarea class="mono" rows="10" aria-label="JSON Schema" spellcheck=${false} value=${text}
      aria-invalid=${trouble !== ""} onInput=${(event) => change(event.currentTarget.value)}></textarea>
    ${trouble && html`<p class="trouble" role="alert">${trouble}</p>`}`;
}

/** The properties of an object, one row each. */
function Properties({ schema, onChange }) {
  const entries = Object.entries(schema.properties ?? {});
  const required = new Set(schema.required ?? []);
  const write = (rows, names) => onChange({
    ...schema,
    properties: Object.fromEntries(rows),
    required: rows.map(([name]) => name).filter((name) => names.has(name)),
  });
  const rename = (index, name) => {
    if (!name || entries.some(([other], at) => at !== index && other === name)) return;
    const names = new Set(required);
    if (names.delete(entries[index][0])) names.add(name);
    write(entries.map((entry, at) => (at === index ? [name, entry[1]] : entry)), names);
  };
  const change = (index, value) =>
    write(entries.map((entry, at) => (at === index ? [entry[0], value] : entry)), required);
  const require = (name, on) => {
    const names = new Set(required);
    if (on) names.add(name);
    else names.delete(name);
    write(entries, names);
  };
  const add = () => {
    let number = entries.length + 1;
    while (schema.properties?.[`field_${number}`]) number += 1;
    write([...entries, [`field_${number}`, { type: "string" }]], new Set([...required, `field_${number}`]));
  };
  return html`<div class="properties">
    ${entries.map(([name, value], index) => html`<div class="property" key=${index}>
      <div class="property-row">
        <${NameInput} name=${name} onRename=${(next) => rename(index, next)} />
        <${KindSelect} value=${kindOf(value)} onChange=${(kind) => change(index, withKind(value, kind))} />
        <label class="check" title="Required"><input type="checkbox" checked=${required.has(name)}
          onChange=${(event) => require(name, event.currentTarget.checked)} /><span>required</span></label>
        <${IconButton} icon="trash" label="Remove ${name}" onClick=${() => write(entries.filter((_, at) => at !== index), required)} />
      </div>
      <input aria-label="Description of ${name}" placeholder="Description" value=${value.description ?? ""}
        onInput=${(event) => change(index, { ...value, description: event.currentTarget.value || undefined })} />
      <${Details} schema=${value} name=${name} onChange=${(next) => change(index, next)} />
    </div>`)}
    <button type="button" class="quiet small" onClick=${add}><${Icon} name="plus" />Add a field</button>
  </div>`;
}

/** A name takes effect while it is typed, unless it is empty or belongs to another field. */
function NameInput({ name, onRename }) {
  const [text, setText] = useState(name);
  const change = (event) => {
    setText(event.currentTarget.value);
    onRename(event.currentTarget.value.trim());
  };
  return html`<input class="mono" aria-label="Name of the field" value=${text} onInput=${change} onBlur=${() => setText(name)} />`;
}

const KindSelect = ({ value, onChange, label = "Type" }) => html`<select aria-label=${label} value=${value}
  onChange=${(event) => onChange(event.currentTarget.value)}>
  ${TYPES.map((type) => html`<option key=${type} value=${type}>${type}</option>`)}
</select>`;

function ValuesInput({ name, values, onChange }) {
  const [text, setText] = useState(values.join(", "));
  const change = (event) => {
    setText(event.currentTarget.value);
    const written = event.currentTarget.value.split(",").map((each) => each.trim()).filter(Boolean);
    if (written.length) onChange([...new Set(written)]);
  };
  return html`<input aria-label="Values of ${name}" placeholder="Values, separated by commas" value=${text} onInput=${change} />`;
}

/** What a type needs besides its name. */
function Details({ schema, name, onChange }) {
  const kind = kindOf(schema);
  if (kind === "enum") {
    return html`<${ValuesInput} name=${name} values=${schema.enum} onChange=${(values) => onChange({ ...schema, enum: values })} />`;
  }
  if (kind === "object") return html`<div class="nested"><${Properties} schema=${schema} onChange=${onChange} /></div>`;
  if (kind !== "array") return null;
  const items = schema.items ?? { type: "string" };
  return html`<div class="nested">
    <label class="inline">Items <${KindSelect} label="Type of the items of ${name}" value=${kindOf(items)}
      onChange=${(next) => onChange({ ...schema, items: withKind({}, next) })} /></label>
    <${Details} schema=${items} name="${name} items" onChange=${(next) => onChange({ ...schema, items: next })} />
  </div>`;
}
