"""The table of what this server does not offer of the APIs that it serves in part.

A client of one of these paths gets the name of the missing part and what to use instead.
``make docs`` writes the table to ``docs/not-offered.md``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class NotOffered(Struct, frozen=True):
    """A part of an API that the server does not offer.

    ``paths``: the part has these paths and the paths below them. ``what``: its name. ``instead``:
    one or more sentences that say what to use instead; an empty text if nothing replaces it.
    """

    api: str
    paths: tuple[str, ...]
    what: str
    instead: str = ""

    def contains(self, path: str) -> bool:
        """Return whether a path belongs to this part."""
        return any(f"{path}/".startswith(f"{each}/") for each in self.paths)


_OPENAI, _ANTHROPIC, _OLLAMA = "OpenAI", "Anthropic", "Ollama"

NOT_OFFERED: Sequence[NotOffered] = (
    NotOffered(
        _OPENAI,
        ("/v1/assistants", "/v1/threads"),
        "the Assistants API",
        "Use the Responses API with 'conversation'.",
    ),
    NotOffered(_OPENAI, ("/v1/chatkit",), "ChatKit", "Use the Responses API with 'conversation'."),
    NotOffered(
        _OPENAI,
        ("/v1/audio/voice_consents", "/v1/audio/voices"),
        "voices by API",
        "Set 'voices' of the speech model in the settings.",
    ),
    NotOffered(_OPENAI, ("/v1/content_provenance_checks",), "content provenance checks"),
    NotOffered(
        _OPENAI,
        ("/v1/evals",),
        "evals",
        "Run an evaluation program against /v1/responses.",
    ),
    NotOffered(
        _OPENAI,
        ("/v1/fine_tuning",),
        "fine-tuning",
        "Serve the tuned model, or its LoRA adapter.",
    ),
    NotOffered(_OPENAI, ("/v1/images/variations",), "image variations", "Use /v1/images/edits."),
    NotOffered(_OPENAI, ("/v1/live",), "live sessions", "Use the WebSocket of /v1/responses."),
    NotOffered(
        _OPENAI,
        ("/v1/organization", "/v1/projects"),
        "this part of the administration API",
        "It has usage and costs only. Tenants and keys are set in the settings.",
    ),
    NotOffered(
        _OPENAI, ("/v1/realtime",), "the Realtime API", "Use the WebSocket of /v1/responses."
    ),
    NotOffered(_OPENAI, ("/v1/safety",), "safety alerts and cases"),
    NotOffered(_OPENAI, ("/v1/videos",), "videos"),
    NotOffered(
        _OPENAI,
        ("/v1/agents", "/v1/vaults"),
        "managed agents",
        "Run the agent's loop at the client, or use the tools of /v1/responses.",
    ),
    NotOffered(
        _ANTHROPIC,
        (
            "/v1/deployment_runs",
            "/v1/deployments",
            "/v1/dreams",
            "/v1/environments",
            "/v1/memory_stores",
            "/v1/sessions",
        ),
        "managed agents",
        "Run the agent's loop at the client, or use the tools of /v1/messages.",
    ),
    NotOffered(
        _ANTHROPIC,
        ("/v1/compliance", "/v1/organizations", "/v1/user_profiles"),
        "the administration API",
        "Tenants and keys are set in the settings.",
    ),
    NotOffered(_ANTHROPIC, ("/v1/tunnels",), "tunnels", "Set MCP servers in the settings."),
    NotOffered(
        _OLLAMA,
        ("/api/blobs", "/api/create", "/api/push"),
        "the creation of models",
        "Describe a model in the settings, in '[models.NAME]'.",
    ),
    NotOffered(
        _OLLAMA, ("/api/copy",), "copies of models", "Set 'aliases' in the settings of the model."
    ),
    NotOffered(
        _OLLAMA,
        ("/api/web_fetch", "/api/web_search"),
        "web search as an endpoint",
        "Use the tool 'web_search' of /v1/responses.",
    ),
    NotOffered(
        _OLLAMA,
        ("/api/experimental", "/api/me", "/api/signout", "/api/status"),
        "this part of Ollama's API",
        "It concerns Ollama's cloud.",
    ),
    NotOffered(_OLLAMA, ("/v1/systemone",), "System One"),
)


def not_offered(path: str) -> NotOffered | None:
    """Return the part of an API that a path belongs to and that the server does not offer."""
    return next((each for each in NOT_OFFERED if each.contains(path)), None)
