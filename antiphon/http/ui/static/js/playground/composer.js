// The box in which a message is written: text, and files by drop, paste or a dialog.
import { onForget } from "../api.js";
import { createStore, html, useEffect, useLayoutEffect, useRef, useState, useStore } from "../lib.js";
import { bytes, Icon, IconButton } from "../parts.js";
import { choicesOf, cleared, withoutStore } from "./request.js";
import { isRunning, send, setSettings, stop } from "./session.js";
import { Microphone } from "./voice.js";

const MAX_BYTES = 32 * 1000 * 1000;

const NOTHING = { text: "", files: [] };
/** What is not sent yet. It stays while other views are shown. */
const draft = createStore(NOTHING); // of `files`: {file, preview, asImages}
onForget(() => draft.update(NOTHING));

export const focusComposer = () => document.querySelector(".composer textarea")?.focus();

function readAsDataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** A file as a part of a message. Browsers know no media type for some texts. */
async function toPart({ file, asImages }) {
  const data = await readAsDataUrl(file);
  if (/^image\/(png|jpeg|gif|webp)$/.test(file.type)) {
    return { type: "input_image", image_url: data, detail: "auto" };
  }
  const typed = file.type ? data : data.replace(/^data:[^;,]*/, "data:text/plain");
  return { type: "input_file", filename: file.name, file_data: typed, ...(asImages ? { detail: "high" } : {}) };
}

export function Composer({ turn, models, settings, onSettings }) {
  const { text, files } = useStore(draft);
  const [trouble, setTrouble] = useState("");
  const [over, setOver] = useState(false);
  const area = useRef(null);
  const picker = useRef(null);
  const running = isRunning(turn);
  const { model } = settings;
  const readsTextOnly = models.find(({ name }) => name === model)?.readsTextOnly;
  const choices = choicesOf(settings);

  useLayoutEffect(() => {
    area.current.style.height = "auto";
    area.current.style.height = `${Math.min(area.current.scrollHeight, 260)}px`;
  }, [text]);
  useEffect(() => area.current.focus(), []);
  useDrop(setOver, (list) => add(list));

  const add = (list) => {
    const added = [...list];
    const large = added.filter((file) => file.size > MAX_BYTES);
    setTrouble(large.length ? `${large[0].name} is larger than ${bytes(MAX_BYTES)}.` : "");
    const fitting = added.filter((file) => file.size <= MAX_BYTES)
      .map((file) => ({ file, preview: file.type.startsWith("image/") ? URL.createObjectURL(file) : null }));
    draft.update((old) => ({ files: [...old.files, ...fitting] }));
  };
  const drop = (index) => draft.update((old) => ({ files: old.files.filter((_, at) => at !== index) }));
  const change = (index, values) =>
    draft.update((old) => ({ files: old.files.map((each, at) => (at === index ? { ...each, ...values } : each)) }));
  const submit = async () => {
    if (running || (!text.trim() && !files.length)) return;
    if (withoutStore(settings)) {
      setTrouble("File search needs a vector store. Choose one in the request settings, or switch the tool off.");
      onSettings();
      return;
    }
    setTrouble("");
    try {
      const parts = await Promise.all(files.map(toPart));
      send([...parts, ...(text.trim() ? [{ type: "input_text", text: text.trim() }] : [])]);
    } catch (error) {
      setTrouble(`A file cannot be read: ${error.message}`);
      return;
    }
    files.forEach(({ preview }) => preview && URL.revokeObjectURL(preview));
    draft.update(NOTHING);
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  };
  const onPaste = (event) => {
    if (event.clipboardData.files.length) {
      event.preventDefault();
      add(event.clipboardData.files);
    }
  };

  return html`<div class="composer-place">
    ${over && html`<div class="drop-hint"><${Icon} name="attach" />Drop images, PDFs or texts</div>`}
    <form class="composer" onSubmit=${(event) => { event.preventDefault(); submit(); }}>
      ${files.length > 0 && html`<ul class="attachments" aria-label="Attachments">
        ${files.map(({ file, preview, asImages = false }, index) => html`<li key=${index} class="attachment">
          ${preview ? html`<img src=${preview} alt="" />` : html`<${Icon} name="file" />`}
          <span class="name">${file.name}</span><small>${bytes(file.size)}</small>
          ${file.type === "application/pdf" && !readsTextOnly && html`<${IconButton} icon="image" aria-pressed=${asImages}
            label="Show the pages of ${file.name} as images to a model with vision" onClick=${() => change(index, { asImages: !asImages })} />`}
          <${IconButton} icon="close" label="Remove ${file.name}" onClick=${() => drop(index)} />
        </li>`)}
      </ul>`}
      ${readsTextOnly && files.some(({ preview }) => preview) && html`<p class="trouble" role="status">${model} reads text only: only a tool can use the image.</p>`}
      ${trouble && html`<p class="trouble" role="alert">${trouble}</p>`}
      <textarea ref=${area} rows="1" aria-label="Message" placeholder="Write a message" value=${text}
        onInput=${(event) => draft.update({ text: event.currentTarget.value })} onKeyDown=${onKeyDown} onPaste=${onPaste}></textarea>
      <div class="composer-bar">
        <${IconButton} icon="attach" label="Attach files" onClick=${() => picker.current.click()} />
        <input ref=${picker} type="file" multiple hidden aria-label="Files" onChange=${(event) => {
          add(event.currentTarget.files);
          event.currentTarget.value = "";
        }} />
        <${Microphone} onTrouble=${setTrouble} onText=${(said) => {
          draft.update((old) => ({ text: old.text ? `${old.text} ${said}` : said }));
          area.current?.focus();
        }} />
        ${choices.length > 0 && html`<button type="button" class="quiet small" title="Open the request settings" onClick=${onSettings}>${choices.join(" · ")}</button>
          <${IconButton} icon="close" label="Ask without tools and output format" onClick=${() => setSettings(cleared(settings))} />`}
        <span class="grow"></span>
        ${running
          ? html`<button type="button" class="send stop" aria-label="Stop" title="Stop" onClick=${() => stop(turn)}><${Icon} name="stop" /></button>`
          : html`<button type="submit" class="send" aria-label="Send" title="Send" disabled=${!text.trim() && !files.length}><${Icon} name="send" /></button>`}
      </div>
    </form>
  </div>`;
}

/** Take files that are dropped anywhere on the page. */
function useDrop(setOver, onFiles) {
  const latest = useRef(onFiles);
  latest.current = onFiles;
  useEffect(() => {
    let depth = 0;
    const carriesFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    const handlers = {
      dragenter: (event) => carriesFiles(event) && setOver((depth += 1) > 0),
      dragleave: (event) => carriesFiles(event) && setOver((depth -= 1) > 0),
      dragover: (event) => carriesFiles(event) && event.preventDefault(),
      drop: (event) => {
        if (!carriesFiles(event)) return;
        event.preventDefault();
        depth = 0;
        setOver(false);
        latest.current(event.dataTransfer.files);
      },
    };
    Object.entries(handlers).forEach(([name, handler]) => addEventListener(name, handler));
    return () => Object.entries(handlers).forEach(([name, handler]) => removeEventListener(name, handler));
  }, []);
}
