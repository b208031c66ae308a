"""Images by a model of diffusers in this process. Its pipelines run in one thread of their own, one
image after the other, and stop between steps.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from typing import Any, Literal

import msgspec
import structlog
from msgspec import Struct, field

from antiphon.errors import BackendError, SetupError, first_line

from .base import Image, ImageRequest, Made, Order, Partial, Unable
from .encoding import WRITTEN, encoded

__all__ = ["Diffusers", "Options"]

_log = structlog.get_logger(__name__)

#: Sides of images are multiples of it: of 8 for the encoders of most models, times their patches.
_MULTIPLE = 16
#: ``quality`` → how many times the usual steps.
_EFFORTS: Mapping[str, float] = {"low": 0.5, "medium": 1, "high": 2}
#: ``input_fidelity`` → how much of an image is made anew, for pipelines that can be told.
_STRENGTHS: Mapping[str | None, float] = {"high": 0.5, "low": 0.8, None: 0.8}
_PLAIN_ENCODERS = ("AutoencoderKL", "AutoencoderTiny")
_CALLBACK = "callback_on_step_end"


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator may say of the model. ``device``: unset, the best there is. ``dtype``:
    ``auto`` is bfloat16 on GPUs and float32 else. ``steps``: of an image of medium quality; unset,
    as the pipeline has it. ``images``: how many it takes at a time to edit. ``offload``: keep on
    the GPU only what is at work. ``arguments``: what every call of the pipeline gets besides
    (``guidance_scale`` …)."""

    device: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    variant: str | None = None
    revision: str | None = None
    steps: int | None = None
    images: int = 1
    offload: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


class _Stopped(Exception):
    """Nobody waits for the image any more."""


class Diffusers:
    """``Maker`` over a pipeline; those that edit share its parts."""

    def __init__(self, pipeline: Any, options: Options) -> None:
        self._options = options
        self._draws = pipeline
        self._changes = _related(pipeline, "image", "AutoPipelineForImage2Image")
        self._fills = _related(pipeline, "mask_image", "AutoPipelineForInpainting")
        for each in (self._draws, self._changes, self._fills):
            if each is not None:
                each.set_progress_bar_config(disable=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="images")

    @classmethod
    def load(cls, source: str, told: Mapping[str, Any]) -> Diffusers:
        """The model in a folder or repository. ``told``: what the operator says of it. Takes its
        time. Raises ``SetupError``."""
        try:
            options = msgspec.convert(dict(told), Options)
        except msgspec.ValidationError as error:
            raise SetupError(f"image_generation_options: {error}") from None
        try:
            import torch
            from diffusers import DiffusionPipeline
        except ImportError:
            raise SetupError(
                'diffusers makes images with an extra: pip install "antiphon[diffusers]"'
            ) from None
        device = options.device or _best_device(torch)
        usual = "float32" if device == "cpu" else "bfloat16"
        kept = {"variant": options.variant, "revision": options.revision}
        try:
            pipeline = DiffusionPipeline.from_pretrained(
                source,
                dtype=getattr(torch, usual if options.dtype == "auto" else options.dtype),
                **{name: value for name, value in kept.items() if value is not None},
            )
            if options.offload:
                pipeline.enable_model_cpu_offload(device=device)
            else:
                pipeline.to(device)
        except Exception as error:
            raise SetupError(
                f"image_generation_model {source!r} cannot be loaded: {first_line(error)}"
            ) from None
        return cls(pipeline, options)

    @property
    def edits(self) -> bool:
        return self._changes is not None

    @property
    def masks(self) -> bool:
        return self._fills is not None

    def check(self, wish: ImageRequest) -> None:
        if wish.output_format not in WRITTEN:
            raise Unable("output_format", f"the formats here are {', '.join(WRITTEN)}")
        if wish.background == "transparent":
            raise Unable("background", "this model makes no transparent images")
        if wish.quality is not None and wish.quality not in _EFFORTS:
            raise Unable("quality", f"the qualities here are {', '.join(_EFFORTS)}")
        if wish.complexity is not None:
            raise Unable("complexity", "this model does not plan")
        if wish.size is not None and any(side % _MULTIPLE for side in wish.size):
            raise Unable("size", f"width and height must be multiples of {_MULTIPLE}")
        if wish.input_fidelity is not None and not _takes(self._changes, "strength"):
            raise Unable("input_fidelity", "this model cannot be told")
        if wish.moderation == "low" and getattr(self._draws, "safety_checker", None) is not None:
            raise Unable("moderation", "this model has one level of it")
        if wish.partial_images and not self._previews:
            raise Unable("partial_images", "this model makes no previews")

    async def make(self, order: Order) -> AsyncGenerator[Partial | Made, None]:
        if len(order.images) > self._options.images:
            raise BackendError(f"At most {self._options.images} images can be used at a time.")
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[Partial | None] = asyncio.Queue()
        stop = threading.Event()

        def tell(partial: Partial | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody is there
                loop.call_soon_threadsafe(news.put_nowait, partial)

        work = loop.run_in_executor(self._thread, self._made, order, tell, stop)
        work.add_done_callback(lambda _: news.put_nowait(None))
        try:
            while (partial := await news.get()) is not None:
                yield partial
            yield work.result()
        finally:
            stop.set()
            work.cancel()  # where it has not begun
            if work.done() and not work.cancelled():
                work.exception()  # has been heard of

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    # --- in the thread ---------------------------------------------------------------------------

    def _made(self, order: Order, tell: Callable[[Partial], None], stop: threading.Event) -> Made:
        """Raises ``BackendError``."""
        if stop.is_set():
            raise BackendError("The image was not waited for.")
        pipeline = self._fills if order.mask else self._changes if order.images else self._draws
        try:
            arguments = self._arguments(pipeline, order)
            if _takes(pipeline, _CALLBACK):
                arguments[_CALLBACK] = _Watch(order.wish, arguments, tell, stop)
            drawn = pipeline(**arguments)
        except _Stopped:
            raise BackendError("The image was not waited for.") from None
        except BackendError:
            raise
        except Exception as error:
            _log.exception("an image could not be made")
            if type(error).__name__ == "OutOfMemoryError":
                raise BackendError("The image model ran out of memory.") from None
            raise BackendError("The image model failed.") from None
        finally:
            if hasattr(pipeline, "maybe_free_model_hooks"):
                pipeline.maybe_free_model_hooks()
        if any(getattr(drawn, "nsfw_content_detected", None) or ()):
            raise BackendError(
                "The image is not fit to be shown.", code="image_content_policy_violation"
            )
        return Made(image=encoded(drawn.images[0], order.wish), background="opaque")

    def _arguments(self, pipeline: Any, order: Order) -> dict[str, Any]:
        wish = order.wish
        width, height = wish.size or self._size(order)
        arguments: dict[str, Any] = {
            "prompt": order.prompt,
            "num_inference_steps": self._steps(pipeline, wish.quality),
            **self._options.arguments,
        }
        sizes = {"width": width, "height": height}
        arguments |= {name: value for name, value in sizes.items() if _takes(pipeline, name)}
        if order.images:
            pictures = [_picture(image) for image in order.images]
            if _takes(pipeline, "strength"):  # which go on from the image itself
                pictures = [each.resize((width, height)) for each in pictures]
                arguments["strength"] = _STRENGTHS[wish.input_fidelity]
            arguments["image"] = pictures if len(pictures) > 1 else pictures[0]
        if order.mask is not None:
            arguments["mask_image"] = _mask(order.mask, (width, height))
        return arguments

    def _steps(self, pipeline: Any, quality: str | None) -> int:
        usual = self._options.steps
        if usual is None:
            parameter = inspect.signature(pipeline.__call__).parameters["num_inference_steps"]
            usual = parameter.default
        return max(1, round(usual * _EFFORTS[quality or "medium"]))

    def _size(self, order: Order) -> tuple[int, int]:
        """As large as the model was made for; of an edit, in the shape of its first image."""
        side = _side(self._draws)
        if not order.images:
            return side, side
        first = order.images[0]
        scale = min(1.0, (side * side / (first.width * first.height)) ** 0.5)
        return _rounded(first.width * scale), _rounded(first.height * scale)

    @property
    def _previews(self) -> bool:
        """Its latents are decoded as those of the models that came first are."""
        encoder = getattr(self._draws, "vae", None)
        is_plain = type(encoder).__name__ in _PLAIN_ENCODERS
        return is_plain and _takes(self._draws, _CALLBACK)


class _Watch:
    """Called after each step: stops, or shows what there is at evenly spread steps."""

    def __init__(
        self,
        wish: ImageRequest,
        arguments: Mapping[str, Any],
        tell: Callable[[Partial], None],
        stop: threading.Event,
    ) -> None:
        self._wish = wish
        self._size = (arguments.get("width"), arguments.get("height"))
        self._steps = arguments["num_inference_steps"]
        self._tell = tell
        self._stop = stop

    def __call__(self, pipeline: Any, step: int, time: Any, known: dict[str, Any]) -> Any:
        if self._stop.is_set():
            raise _Stopped
        count = self._wish.partial_images
        steps = getattr(pipeline, "num_timesteps", None) or self._steps
        spread = {round(steps * part / (count + 1)) for part in range(1, count + 1)}
        if step + 1 in spread and step + 1 < steps and "latents" in known:
            preview = self._preview(pipeline, known["latents"])
            self._tell(Partial(encoded(preview, self._wish)))
        return {}

    def _preview(self, pipeline: Any, latents: Any) -> Any:
        encoder = pipeline.vae
        if hasattr(pipeline, "_unpack_latents"):
            width, height = self._size
            latents = pipeline._unpack_latents(latents, height, width, pipeline.vae_scale_factor)
        shift = getattr(encoder.config, "shift_factor", None) or 0
        latents = latents / encoder.config.scaling_factor + shift
        decoded = encoder.decode(latents.to(encoder.dtype), return_dict=False)[0]
        return pipeline.image_processor.postprocess(decoded, output_type="pil")[0]


def _best_device(torch: Any) -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _related(pipeline: Any, argument: str, auto: str) -> Any:
    """The pipeline of the same parts that takes this argument; None if there is none."""
    if _takes(pipeline, argument):
        return pipeline
    import diffusers

    try:
        return getattr(diffusers, auto).from_pipe(pipeline)
    except (ValueError, TypeError):
        return None


def _takes(pipeline: Any, argument: str) -> bool:
    return pipeline is not None and argument in inspect.signature(pipeline.__call__).parameters


def _side(pipeline: Any) -> int:
    """Of the square images that a model was made for."""
    side = getattr(pipeline, "default_sample_size", None)
    if side is None:
        model = getattr(pipeline, "unet", None) or getattr(pipeline, "transformer", None)
        side = getattr(getattr(model, "config", None), "sample_size", None)
    latents = side if isinstance(side, int) else 128
    return latents * int(getattr(pipeline, "vae_scale_factor", 8))


def _rounded(side: float) -> int:
    return max(_MULTIPLE, int(side) // _MULTIPLE * _MULTIPLE)


def _picture(image: Image) -> Any:
    """Raises ``BackendError`` for what cannot be decoded."""
    from PIL import Image as pictures

    try:
        return pictures.open(BytesIO(image.content)).convert("RGB")
    except (OSError, ValueError, pictures.DecompressionBombError):
        raise BackendError("An image is damaged.") from None


def _mask(mask: Image, size: tuple[int, int]) -> Any:
    """White where the image is to change: where the mask is transparent."""
    from PIL import Image as pictures

    try:
        alpha = pictures.open(BytesIO(mask.content)).convert("RGBA").getchannel("A")
    except (OSError, ValueError, pictures.DecompressionBombError):
        raise BackendError("The mask is damaged.") from None
    if alpha.getextrema()[0] > 0:
        raise BackendError("The mask is nowhere transparent, so that nothing would change.")
    return alpha.point(lambda value: 0 if value else 255).resize(size)
