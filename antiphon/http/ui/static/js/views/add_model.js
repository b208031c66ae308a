// Search models, add one, and change the options of an added one. For operators.
import { get, post, query } from "../api.js";
import { html, useLoaded, useState } from "../lib.js";
import { Dialog, Field, Icon, Notice, Spinner, bytes, count } from "../parts.js";

/** Options of a model: name in the API, label, and what an input of numbers needs. */
const OPTIONS = [
  ["context_size", "Context in tokens", { min: 256, step: 1 }],
  ["max_output_tokens", "Longest answer in tokens", { min: 1, step: 1 }],
  ["temperature", "Temperature", { min: 0, max: 2, step: "any" }],
  ["top_p", "Top P", { min: 0, max: 1, step: "any" }],
  ["top_k", "Top K", { min: 0, step: 1 }],
  ["min_p", "Min P", { min: 0, max: 1, step: "any" }],
  ["repetition_penalty", "Repetition penalty", { min: 0, step: "any" }],
  ["idle_unload_s", "Unload after idle seconds", { min: 0, step: "any" }],
];

/** The models that fit this machine, and a search at Hugging Face. */
export function AddModel({ onAdded, onClose }) {
  const [text, setText] = useState("");
  const [wanted, setWanted] = useState("");
  const [source, setSource] = useState("");
  const [name, setName] = useState("");
  const [busy, setBusy] = useState(null);
  const [trouble, setTrouble] = useState("");
  const found = useLoaded(() => get(`/antiphon/found-models${query({ query: wanted })}`), [wanted]);
  const add = async (chosen, as) => {
    setTrouble("");
    setBusy(chosen);
    try {
      onAdded((await post("/antiphon/added-models", { source: chosen, name: as || undefined })).id);
    } catch (error) {
      setTrouble(error.message);
      setBusy(null);
    }
  };
  const submit = (action) => (event) => {
    event.preventDefault();
    action();
  };
  return html`<${Dialog} title="Add a model" onClose=${onClose} wide>
    ${(trouble || found.error) && html`<${Notice} kind="error">${trouble || found.error.message}</${Notice}>`}
    <form class="row" onSubmit=${submit(() => setWanted(text.trim()))}>
      <input type="search" aria-label="Search for a model" placeholder="Search Hugging Face" value=${text} onInput=${(event) => setText(event.currentTarget.value)} />
      <button type="submit">Search</button>
    </form>
    ${found.value?.problem && html`<${Notice} kind="warning">${found.value.problem}</${Notice}>`}
    ${found.loading ? html`<${Spinner} />` : html`<ul class="found-models" aria-label="Models that can be added">${found.value?.data.map((model) => html`<li key=${model.source}>
      <div class="grow"><strong>${model.name}</strong>
        <small>${[model.good_for, model.size_bytes && bytes(model.size_bytes), model.licence, model.downloads && `${count(model.downloads)} downloads`].filter(Boolean).join(" · ")}</small>
        ${model.problem && html`<small class="trouble">${model.problem}</small>`}</div>
      <button type="button" class="small" aria-label="Add ${model.name}" disabled=${busy !== null} onClick=${() => add(model.source)}>${busy === model.source ? html`<${Spinner} />` : "Add"}</button>
    </li>`)}</ul>`}
    <form class="row" onSubmit=${submit(() => add(source.trim(), name.trim()))}>
      <input aria-label="Repository" placeholder="owner/repository:Q4_K_M" required value=${source} onInput=${(event) => setSource(event.currentTarget.value)} />
      <input aria-label="Name" placeholder="name (optional)" title="A second name lets one repository have other options." value=${name} onInput=${(event) => setName(event.currentTarget.value)} />
      <button type="submit" disabled=${busy !== null}>Add repository</button>
    </form>
  </${Dialog}>`;
}

/** The options that every request to an added model uses if it sets none of its own. */
export function ModelOptions({ added, onSaved, onClose }) {
  const [values, setValues] = useState(() => Object.fromEntries(["instructions", ...OPTIONS.map(([name]) => name)].map((name) => [name, added[name] ?? ""])));
  const [trouble, setTrouble] = useState("");
  const save = async (event) => {
    event.preventDefault();
    const body = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "").map(([name, value]) => [name, name === "instructions" ? value : Number(value)]));
    try {
      await post(`/antiphon/added-models/${added.id}`, body);
      onSaved();
    } catch (error) {
      setTrouble(error.message);
    }
  };
  return html`<${Dialog} title="Options of ${added.id}" onClose=${onClose}>
    ${trouble && html`<${Notice} kind="error">${trouble}</${Notice}>`}
    <form class="stack" onSubmit=${save}>
      <${Field} label="System prompt"><textarea rows="4" value=${values.instructions} onInput=${(event) => setValues({ ...values, instructions: event.currentTarget.value })}></textarea></${Field}>
      <div class="sampling">${OPTIONS.map(([name, label, input]) => html`<${Field} key=${name} label=${label}>
        <input type="number" ...${input} value=${values[name]} onInput=${(event) => setValues({ ...values, [name]: event.currentTarget.value })} /></${Field}>`)}</div>
      <p class="hint">Empty: the default of the model. The next request loads the model again.</p>
      <div class="row end"><button type="submit" class="primary"><${Icon} name="check" />Save</button></div>
    </form>
  </${Dialog}>`;
}
