"""Image generation in this process, with a model of the diffusers library.

All pipelines run in one separate thread, one image at a time. A pipeline can be stopped only
between two denoising steps.
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
from antiphon.support.installation import needs_extra

from .base import GeneratedImage, Image, ImageRequest, ImageTask, PartialImage, UnsupportedOption
from .encoding import WRITABLE_FORMATS, encode_picture

__all__ = ["Diffusers", "DiffusersOptions"]

_log = structlog.get_logger(__name__)

#: Width and height must be multiples of this number. The encoders of most models need a multiple of
#: 8, and their patches have 2 x 2 latents.
_SIDE_MULTIPLE = 16
#: ``quality`` → factor by which the default number of steps is multiplied.
_STEP_FACTORS: Mapping[str, float] = {"low": 0.5, "medium": 1, "high": 2}
#: ``input_fidelity`` → the pipeline's argument ``strength``, if the pipeline has this argument. It
#: controls how much of the input image changes.
_STRENGTHS: Mapping[str | None, float] = {"high": 0.5, "low": 0.8, None: 0.8}
_PREVIEW_DECODERS = ("AutoencoderKL", "AutoencoderTiny")
_CALLBACK = "callback_on_step_end"
_CANCELLED_MESSAGE = "The image generation was cancelled."


class DiffusersOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's options for diffusers (``image_generation_options``).

    - ``device``: by default, the best available device.
    - ``dtype``: ``auto`` means bfloat16 on GPUs and float32 on the CPU.
    - ``variant``, ``revision``: the variant and the revision of the model files to load.
    - ``steps``: number of denoising steps at medium quality. The default is the default of the
      pipeline.
    - ``images``: the maximum number of input images of an edit.
    - ``offload``: keep only the active part of the model on the GPU.
    - ``arguments``: further arguments of every pipeline call (``guidance_scale`` …).
    """

    device: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    variant: str | None = None
    revision: str | None = None
    steps: int | None = None
    images: int = 1
    offload: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


class _Cancelled(Exception):
    """Raised in the pipeline when the caller has cancelled the generation."""


class Diffusers:
    """``ImageGenerator`` that runs a model of the library diffusers. The pipelines for text to
    image, for edits and for edits with a mask all use this model."""

    def __init__(self, pipeline: Any, options: DiffusersOptions) -> None:
        self._options = options
        self._text_to_image = pipeline
        self._image_to_image = _derive_pipeline(pipeline, "image", "AutoPipelineForImage2Image")
        self._inpainting = _derive_pipeline(pipeline, "mask_image", "AutoPipelineForInpainting")
        for each in (self._text_to_image, self._image_to_image, self._inpainting):
            if each is not None:
                each.set_progress_bar_config(disable=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="images")

    @classmethod
    def load(cls, source: str, settings: Mapping[str, Any]) -> Diffusers:
        """Load the model from a folder or a model repository. This blocks the thread, possibly for
        minutes.

        ``settings``: the operator's options. Raises ``SetupError``.
        """
        try:
            options = msgspec.convert(dict(settings), DiffusersOptions)
        except msgspec.ValidationError as error:
            raise SetupError(f"image_generation_options: {error}") from None
        try:
            import torch
            from diffusers import DiffusionPipeline
        except ImportError:
            raise SetupError(
                needs_extra("diffusers or torch is not installed", "diffusers")
            ) from None
        device = options.device or _best_device(torch)
        default_dtype = "float32" if device == "cpu" else "bfloat16"
        load_options = {"variant": options.variant, "revision": options.revision}
        try:
            pipeline = DiffusionPipeline.from_pretrained(
                source,
                dtype=getattr(torch, default_dtype if options.dtype == "auto" else options.dtype),
                **{name: value for name, value in load_options.items() if value is not None},
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
    def supports_edits(self) -> bool:
        return self._image_to_image is not None

    @property
    def supports_masks(self) -> bool:
        return self._inpainting is not None

    def check(self, request: ImageRequest) -> None:
        if request.output_format not in WRITABLE_FORMATS:
            raise UnsupportedOption(
                "output_format", f"this model supports {', '.join(WRITABLE_FORMATS)}"
            )
        if request.background == "transparent":
            raise UnsupportedOption("background", "this model makes no transparent images")
        if request.quality is not None and request.quality not in _STEP_FACTORS:
            raise UnsupportedOption("quality", f"this model supports {', '.join(_STEP_FACTORS)}")
        if request.complexity is not None:
            raise UnsupportedOption("complexity", "this model does not support it")
        if request.size is not None and any(side % _SIDE_MULTIPLE for side in request.size):
            raise UnsupportedOption(
                "size", f"width and height must be multiples of {_SIDE_MULTIPLE}"
            )
        if request.input_fidelity is not None and not _has_argument(
            self._image_to_image, "strength"
        ):
            raise UnsupportedOption("input_fidelity", "this model does not support it")
        if (
            request.moderation == "low"
            and getattr(self._text_to_image, "safety_checker", None) is not None
        ):
            raise UnsupportedOption("moderation", "this model has only one level of moderation")
        if request.partial_images and not self._supports_previews:
            raise UnsupportedOption("partial_images", "this model makes no previews")

    async def generate(
        self, task: ImageTask
    ) -> AsyncGenerator[PartialImage | GeneratedImage, None]:
        if len(task.images) > self._options.images:
            raise BackendError(f"At most {self._options.images} images can be used at a time.")
        loop = asyncio.get_running_loop()
        previews: asyncio.Queue[PartialImage | None] = asyncio.Queue()
        stop = threading.Event()

        def send_threadsafe(partial: PartialImage | None) -> None:
            with suppress(RuntimeError):  # raised if the event loop is closed
                loop.call_soon_threadsafe(previews.put_nowait, partial)

        future = loop.run_in_executor(self._thread, self._run_pipeline, task, send_threadsafe, stop)
        future.add_done_callback(lambda _: previews.put_nowait(None))
        try:
            while (partial := await previews.get()) is not None:
                yield partial
            yield future.result()
        finally:
            stop.set()
            future.cancel()  # this has an effect only if the pipeline has not started
            if future.done() and not future.cancelled():
                future.exception()  # mark the exception as retrieved

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    # --- worker thread ---------------------------------------------------------------------------

    def _run_pipeline(
        self, task: ImageTask, send: Callable[[PartialImage], None], stop: threading.Event
    ) -> GeneratedImage:
        """Generate one image in the worker thread. ``send`` sends previews to the event loop.
        ``stop`` is set when the caller cancels. Raises ``BackendError``."""
        if stop.is_set():
            raise BackendError(_CANCELLED_MESSAGE)
        pipeline = (
            self._inpainting
            if task.mask
            else self._image_to_image
            if task.images
            else self._text_to_image
        )
        try:
            arguments = self._pipeline_arguments(pipeline, task)
            if _has_argument(pipeline, _CALLBACK):
                arguments[_CALLBACK] = _StepCallback(task.request, arguments, send, stop)
            output = pipeline(**arguments)
        except _Cancelled:
            raise BackendError(_CANCELLED_MESSAGE) from None
        except BackendError:
            raise
        except Exception as error:
            _log.exception("an image could not be generated")
            if type(error).__name__ == "OutOfMemoryError":
                raise BackendError("The image model ran out of memory.") from None
            raise BackendError("The image model failed.") from None
        finally:
            if hasattr(pipeline, "maybe_free_model_hooks"):
                pipeline.maybe_free_model_hooks()
        if any(getattr(output, "nsfw_content_detected", None) or ()):
            raise BackendError(
                "The model's safety checker rejected the image.",
                code="image_content_policy_violation",
            )
        return GeneratedImage(
            image=encode_picture(output.images[0], task.request), background="opaque"
        )

    def _pipeline_arguments(self, pipeline: Any, task: ImageTask) -> dict[str, Any]:
        request = task.request
        width, height = request.size or self._default_size(task)
        arguments: dict[str, Any] = {
            "prompt": task.prompt,
            "num_inference_steps": self._step_count(pipeline, request.quality),
            **self._options.arguments,
        }
        sizes = {"width": width, "height": height}
        arguments |= {name: value for name, value in sizes.items() if _has_argument(pipeline, name)}
        if task.images:
            pictures = [_open_picture(image) for image in task.images]
            if _has_argument(pipeline, "strength"):  # these pipelines start from the image itself
                pictures = [each.resize((width, height)) for each in pictures]
                arguments["strength"] = _STRENGTHS[request.input_fidelity]
            arguments["image"] = pictures if len(pictures) > 1 else pictures[0]
        if task.mask is not None:
            arguments["mask_image"] = _mask_picture(task.mask, (width, height))
        return arguments

    def _step_count(self, pipeline: Any, quality: str | None) -> int:
        default_steps = self._options.steps
        if default_steps is None:
            parameter = inspect.signature(pipeline.__call__).parameters["num_inference_steps"]
            default_steps = parameter.default
        return max(1, round(default_steps * _STEP_FACTORS[quality or "medium"]))

    def _default_size(self, task: ImageTask) -> tuple[int, int]:
        """Return the width and height of the image to generate, for a request that sets no size.
        Without input images, this is the native size of the model. With input images, the new image
        has the aspect ratio of the first input image and at most the native number of pixels."""
        side = _native_side(self._text_to_image)
        if not task.images:
            return side, side
        first = task.images[0]
        scale = min(1.0, (side * side / (first.width * first.height)) ** 0.5)
        return _round_side(first.width * scale), _round_side(first.height * scale)

    @property
    def _supports_previews(self) -> bool:
        """Whether the pipeline can produce previews. Two conditions must hold: the VAE alone can
        decode the intermediate results (latents), and the pipeline accepts a callback for the end
        of each denoising step."""
        encoder = getattr(self._text_to_image, "vae", None)
        is_plain = type(encoder).__name__ in _PREVIEW_DECODERS
        return is_plain and _has_argument(self._text_to_image, _CALLBACK)


class _StepCallback:
    """The callback that the pipeline calls after each denoising step. The callback sends previews
    of the image to the caller at evenly spaced steps. If the caller has cancelled the image
    generation, the callback stops the pipeline."""

    def __init__(
        self,
        request: ImageRequest,
        arguments: Mapping[str, Any],
        send: Callable[[PartialImage], None],
        stop: threading.Event,
    ) -> None:
        self._request = request
        self._size = (arguments.get("width"), arguments.get("height"))
        self._steps = arguments["num_inference_steps"]
        self._send = send
        self._stop = stop

    def __call__(
        self, pipeline: object, step: int, timestep: object, callback_kwargs: dict[str, Any]
    ) -> Any:
        if self._stop.is_set():
            raise _Cancelled
        count = self._request.partial_images
        steps = getattr(pipeline, "num_timesteps", None) or self._steps
        preview_steps = {round(steps * part / (count + 1)) for part in range(1, count + 1)}
        if step + 1 in preview_steps and step + 1 < steps and "latents" in callback_kwargs:
            preview = self._preview(pipeline, callback_kwargs["latents"])
            self._send(PartialImage(encode_picture(preview, self._request)))
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


def _derive_pipeline(pipeline: object, argument: str, auto: str) -> Any:
    """Return a pipeline that has the parameter with the name ``argument`` and uses the same model
    as ``pipeline``. Return None if diffusers has no such pipeline. ``auto``: the name of the
    diffusers class that makes the pipeline."""
    if _has_argument(pipeline, argument):
        return pipeline
    import diffusers

    try:
        return getattr(diffusers, auto).from_pipe(pipeline)
    except (ValueError, TypeError):
        return None


def _has_argument(pipeline: Any, argument: str) -> bool:
    return pipeline is not None and argument in inspect.signature(pipeline.__call__).parameters


def _native_side(pipeline: object) -> int:
    """Return the side length, in pixels, of the square images on which the model was trained."""
    side = getattr(pipeline, "default_sample_size", None)
    if side is None:
        model = getattr(pipeline, "unet", None) or getattr(pipeline, "transformer", None)
        side = getattr(getattr(model, "config", None), "sample_size", None)
    latents = side if isinstance(side, int) else 128
    return latents * int(getattr(pipeline, "vae_scale_factor", 8))


def _round_side(side: float) -> int:
    return max(_SIDE_MULTIPLE, int(side) // _SIDE_MULTIPLE * _SIDE_MULTIPLE)


def _open_picture(image: Image) -> Any:
    """Decode an image. Raises ``BackendError`` if it is damaged."""
    from PIL import Image as pictures

    try:
        return pictures.open(BytesIO(image.content)).convert("RGB")
    except (OSError, ValueError, pictures.DecompressionBombError):
        raise BackendError("An image is damaged.") from None


def _mask_picture(mask: Image, size: tuple[int, int]) -> Any:
    """Return the mask in the form that the pipeline needs. It is white where the given mask is
    transparent, and black elsewhere. ``size``: width and height in pixels. Raises
    ``BackendError``."""
    from PIL import Image as pictures

    try:
        alpha = pictures.open(BytesIO(mask.content)).convert("RGBA").getchannel("A")
    except (OSError, ValueError, pictures.DecompressionBombError):
        raise BackendError("The mask is damaged.") from None
    if alpha.getextrema()[0] > 0:
        raise BackendError("The mask has no transparent area, so nothing would change.")
    return alpha.point(lambda value: 0 if value else 255).resize(size)
