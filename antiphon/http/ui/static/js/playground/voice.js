// Speaking and listening, with the server's models for audio. Both are off until the user turns them on.
import { call } from "../api.js";
import { createStore, html, inBrowser, useEffect, useRef, useState, useStore } from "../lib.js";
import { IconButton, Section, Switch } from "../parts.js";

const stored = inBrowser("voice");
/** `transcription`, `speech`: the names of the server's models. The rest is the user's choice. */
export const voice = createStore({ transcription: null, speech: null, microphone: false, aloud: false, name: "alloy", ...stored.read({}) });

/** Remember which models of the server can listen and speak. */
export function findVoices(entries) {
  const first = (task) => entries.find((entry) => entry.task === task)?.id ?? null;
  voice.update({ transcription: first("transcription"), speech: first("speech") });
}

function choose(values) {
  voice.update(values);
  const { microphone, aloud, name } = voice.get();
  stored.write({ microphone, aloud, name });
}

/** The switches in the settings. */
export function VoiceSettings() {
  const { transcription, speech, microphone, aloud, name } = useStore(voice);
  if (!transcription && !speech) return null;
  return html`<${Section} title="Voice">
    ${transcription && html`<${Switch} label="Microphone" hint="Speak instead of typing." checked=${microphone}
      onChange=${(on) => choose({ microphone: on })} />`}
    ${speech && html`<${Switch} label="Read aloud" hint="A button at each answer." checked=${aloud}
      onChange=${(on) => choose({ aloud: on })} />
      ${aloud && html`<label class="field"><span class="field-label">Voice</span>
        <input value=${name} onInput=${(event) => choose({ name: event.currentTarget.value })} /></label>`}`}
  </${Section}>`;
}

/** A button that records, and gives the text of the recording to `onText`. */
export function Microphone({ onText, onTrouble }) {
  const { transcription, microphone } = useStore(voice);
  const [state, setState] = useState("idle"); // recording, writing
  const recorder = useRef(null);
  useEffect(() => () => recorder.current?.stop(), []);
  if (!transcription || !microphone) return null;
  const write = async (blob) => {
    setState("writing");
    const form = new FormData();
    form.append("file", blob, blob.type.includes("mp4") ? "speech.mp4" : "speech.webm");
    form.append("model", transcription);
    try {
      const { text } = await (await call("POST", "/v1/audio/transcriptions", { form })).json();
      if (text) onText(text);
    } catch (error) {
      onTrouble(error.message);
    }
    setState("idle");
  };
  const record = async () => {
    onTrouble("");
    try {
      const source = await navigator.mediaDevices.getUserMedia({ audio: true });
      const pieces = [];
      const made = new MediaRecorder(source);
      made.ondataavailable = ({ data }) => pieces.push(data);
      made.onstop = () => {
        source.getTracks().forEach((track) => track.stop());
        recorder.current = null;
        write(new Blob(pieces, { type: made.mimeType }));
      };
      made.start();
      recorder.current = made;
      setState("recording");
    } catch (error) {
      onTrouble(`The microphone cannot be used: ${error.message}`);
    }
  };
  const isRecording = state === "recording";
  return html`<${IconButton} icon=${isRecording ? "stop" : "microphone"} aria-pressed=${isRecording} disabled=${state === "writing"}
    label=${isRecording ? "Stop the recording" : "Speak"} onClick=${() => (isRecording ? recorder.current.stop() : record())} />`;
}

/** A button that reads a text aloud, or stops reading. */
export function ReadAloud({ text }) {
  const { speech, aloud, name } = useStore(voice);
  const [state, setState] = useState("idle"); // waiting, playing
  const [trouble, setTrouble] = useState("");
  const player = useRef(null);
  const stop = () => {
    player.current?.abort();
    player.current = null;
    setState("idle");
  };
  useEffect(() => stop, []);
  if (!speech || !aloud) return null;
  const play = async () => {
    const control = new AbortController();
    player.current = control;
    setTrouble("");
    setState("waiting");
    try {
      const body = { model: speech, voice: name, input: text.slice(0, 4096) };
      const reply = await call("POST", "/v1/audio/speech", { body, signal: control.signal });
      const source = URL.createObjectURL(await reply.blob());
      const sound = new Audio(source);
      control.signal.addEventListener("abort", () => sound.pause());
      sound.onended = stop;
      sound.onpause = () => URL.revokeObjectURL(source);
      await sound.play();
      setState("playing");
    } catch (error) {
      if (!control.signal.aborted) {
        stop();
        setTrouble(error.message);
      }
    }
  };
  return html`<button type="button" class="quiet small" aria-pressed=${state !== "idle"} title=${trouble || null}
    onClick=${state === "idle" ? play : stop}>${state === "idle" ? "Read aloud" : "Stop reading"}</button>
    ${trouble && html`<span class="trouble" role="alert">${trouble}</span>`}`;
}
