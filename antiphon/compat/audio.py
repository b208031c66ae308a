"""OpenAI's Audio API: parse requests for transcripts and speech, and render transcripts.

The fields follow the types of the ``openai`` SDK 3.57.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeVar

from msgspec import UNSET, Meta, Struct

from antiphon.errors import InvalidRequest, invalid_field, unsupported_value
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import missing_parameter
from antiphon.wire.parsing.fields import convert, drop_nulls, known_fields, require
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from antiphon.wire.parsing.text_fields import read_texts
from antiphon.wire.resources.audio import (
    AudioFormat,
    AudioTranscript,
    Transcription,
    TranscriptSegment,
)

_FormT = TypeVar("_FormT", bound="TranslationForm")
_Granularity = Literal["word", "segment"]
_Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
#: Media types of transcripts that are not JSON.
_MEDIA_TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
#: Fields of OpenAI's API that this server refuses, with the reason.
_REFUSED = {
    "include": "this server returns no log-probabilities of transcripts",
    "known_speaker_names": "this server does not tell speakers apart",
    "known_speaker_references": "this server does not tell speakers apart",
    "keywords": "put the words into 'prompt'",
    "languages": "set 'language', or leave it out to detect the language",
}


class TranslationForm(Struct, frozen=True, kw_only=True):
    """The fields of the form of ``POST /audio/translations``, besides ``file``."""

    model: str
    prompt: str | None = None
    response_format: _Format = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None


class TranscriptionForm(TranslationForm, frozen=True, kw_only=True):
    """The fields of the form of ``POST /audio/transcriptions``, besides ``file``.
    ``chunking_strategy`` may be ``auto`` only: the model divides the recording."""

    language: str | None = None
    timestamp_granularities: tuple[_Granularity, ...] = ()
    stream: bool = False
    chunking_strategy: Literal["auto"] | None = None


class SpeechRequest(Struct, frozen=True, kw_only=True):
    """The body of ``POST /audio/speech``."""

    input: Annotated[str, Meta(min_length=1, max_length=4096)]
    model: str
    voice: str | JsonObject
    response_format: AudioFormat = "mp3"
    speed: Annotated[float, Meta(ge=0.25, le=4)] = 1
    instructions: Annotated[str, Meta(max_length=4096)] | None = None
    stream_format: Literal["audio", "sse"] = "audio"

    @property
    def voice_name(self) -> str:
        return self.voice if isinstance(self.voice, str) else str(self.voice["id"])


def parse_transcription(fields: Iterable[tuple[str, str]]) -> TranscriptionForm:
    """Parse the fields of a form for a transcript, in their order. Raises ``InvalidRequest``."""
    form = _read_form(fields, TranscriptionForm)
    if form.timestamp_granularities and form.response_format != "verbose_json":
        raise invalid_field("timestamp_granularities", "it needs response_format 'verbose_json'.")
    if form.stream and form.response_format not in ("json", "text"):
        raise unsupported_value("response_format", "a stream has response_format 'json' or 'text'.")
    return form


def parse_translation(fields: Iterable[tuple[str, str]]) -> TranslationForm:
    """Parse the fields of a form for a translation. Raises ``InvalidRequest``."""
    fields = tuple(fields)
    form = _read_form(fields, TranslationForm)
    known_fields(dict(fields), TranslationForm.__struct_fields__, "")
    return form


def _read_form(fields: Iterable[tuple[str, str]], cls: type[_FormT]) -> _FormT:
    fields = tuple(fields)
    for name, _ in fields:
        plain = name.partition("[")[0]
        if plain in _REFUSED:
            raise InvalidRequest(
                f"Unsupported parameter: '{plain}': {_REFUSED[plain]}.",
                param=plain,
                code="unsupported_parameter",
            )
    return convert(read_texts(fields, cls), cls, "")


def parse_speech(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> SpeechRequest:
    """Parse the body of ``POST /audio/speech``. Raises ``InvalidRequest``."""
    raw = drop_nulls(parse_json_object(body, limits))
    require(raw, "", "input", "model", "voice")
    voice = raw["voice"]
    if isinstance(voice, dict) and not isinstance(voice.get("id"), str):
        raise missing_parameter("voice.id")
    return convert(known_fields(raw, SpeechRequest.__struct_fields__, ""), SpeechRequest, "")


# --- transcripts ---------------------------------------------------------------------------------


def render_transcript(
    form: TranslationForm, transcript: AudioTranscript
) -> tuple[str, str] | Transcription:
    """Render a transcript in the format of a request: a media type with a text, or an object."""
    text, usage = transcript.text, transcript.usage or UNSET
    if form.response_format == "json":
        return Transcription(text=text, usage=usage)
    if form.response_format == "text":
        return _MEDIA_TYPES["text"], f"{text}\n"
    segments = _segments(transcript)
    if form.response_format in _MEDIA_TYPES:
        return _MEDIA_TYPES[form.response_format], _SUBTITLES[form.response_format](segments)
    transcribes = isinstance(form, TranscriptionForm)
    wanted = form.timestamp_granularities if isinstance(form, TranscriptionForm) else ()
    duration = transcript.duration
    if duration is None:
        duration = segments[-1].end if segments else 0
    return Transcription(
        task="transcribe" if transcribes else "translate",
        language=language_name(transcript.language or "") if transcribes else "english",
        duration=duration,
        text=text,
        segments=segments if not wanted or "segment" in wanted else UNSET,
        words=transcript.words if "word" in wanted else UNSET,
        usage=usage,
    )


def _segments(transcript: AudioTranscript) -> tuple[TranscriptSegment, ...]:
    """Return the segments. A transcript without times is one segment."""
    if transcript.segments or not transcript.text:
        return transcript.segments
    end, text = transcript.duration or 0, transcript.text
    return (TranscriptSegment(id=0, start=0, end=end, text=text),)


def _srt(segments: Iterable[TranscriptSegment]) -> str:
    return "\n".join(
        f"{number}\n{_time(each.start, ',')} --> {_time(each.end, ',')}\n{_cue(each)}\n"
        for number, each in enumerate(segments, 1)
    )


def _vtt(segments: Iterable[TranscriptSegment]) -> str:
    return "WEBVTT\n\n" + "\n".join(
        f"{_time(each.start, '.')} --> {_time(each.end, '.')}\n{_cue(each)}\n" for each in segments
    )


_SUBTITLES = {"srt": _srt, "vtt": _vtt}


def _cue(segment: TranscriptSegment) -> str:
    """Return the text of a subtitle. An arrow would look like the times of the next one."""
    return " ".join(segment.text.replace("-->", "->").split())


def _time(seconds: float, separator: str) -> str:
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}{separator}{milliseconds:03}"


#: The languages that Whisper knows, as ISO 639 codes with their names.
_NAMES = """
af afrikaans, am amharic, ar arabic, as assamese, az azerbaijani, ba bashkir, be belarusian,
bg bulgarian, bn bengali, bo tibetan, br breton, bs bosnian, ca catalan, cs czech, cy welsh,
da danish, de german, el greek, en english, es spanish, et estonian, eu basque, fa persian,
fi finnish, fo faroese, fr french, gl galician, gu gujarati, ha hausa, haw hawaiian, he hebrew,
hi hindi, hr croatian, ht haitian creole, hu hungarian, hy armenian, id indonesian, is icelandic,
it italian, ja japanese, jw javanese, jv javanese, ka georgian, kk kazakh, km khmer, kn kannada,
ko korean, la latin, lb luxembourgish, ln lingala, lo lao, lt lithuanian, lv latvian, mg malagasy,
mi maori, mk macedonian, ml malayalam, mn mongolian, mr marathi, ms malay, mt maltese, my myanmar,
ne nepali, nl dutch, nn nynorsk, no norwegian, oc occitan, pa punjabi, pl polish, ps pashto,
pt portuguese, ro romanian, ru russian, sa sanskrit, sd sindhi, si sinhala, sk slovak,
sl slovenian, sn shona, so somali, sq albanian, sr serbian, su sundanese, sv swedish, sw swahili,
ta tamil, te telugu, tg tajik, th thai, tk turkmen, tl tagalog, tr turkish, tt tatar, uk ukrainian,
ur urdu, uz uzbek, vi vietnamese, yi yiddish, yo yoruba, yue cantonese, zh chinese
"""
_NAME_OF = dict(entry.split(maxsplit=1) for entry in _NAMES.replace("\n", " ").strip().split(", "))


def language_name(language: str) -> str:
    """Return the name of a language, such as ``english`` for ``en``. Return other texts, such as
    the names that an upstream reports, in lower case."""
    language = language.lower()
    return _NAME_OF.get(language, language)
