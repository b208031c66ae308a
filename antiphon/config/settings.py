"""All settings of a server. Each setting is declared here, or in a table of ``tables.py``, with its
type, bounds, default and help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from . import groups
from .folders import cache_folder, data_folder
from .keys import ApiKey
from .model import DEFAULT_MODEL, Model
from .oidc import OidcIssuer
from .options import AUTO_SWITCH, Switch
from .tables import (
    AudioSettings,
    ChatSettings,
    FileSearchSettings,
    ImageGenerationSettings,
    McpSettings,
    ProgramSettings,
    RetentionSettings,
    SandboxSettings,
    ToolPrices,
    WebhookSettings,
    WebSearchSettings,
)
from .tenants import Tenant


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a server. A limit or time of 0 means no limit. A field whose type is a struct,
    such as ``web_search``, is a table of settings."""

    @property
    def shares_prefix_cache(self) -> bool:
        """Whether tenants share the prefix caches of engines. If the setting ``share_prefix_cache``
        is not set, the caches are shared only if the server can have no second tenant: there are no
        keys in the store and no issuers, and all keys in the settings belong to one tenant."""
        if self.share_prefix_cache is None:
            tenants = {key.tenant for key in self.keys}
            return not (self.stored_keys or self.oidc) and len(tenants) <= 1
        return self.share_prefix_cache

    host: Annotated[
        str,
        groups.server(
            "IP address or host name at which the server listens. `0.0.0.0` and `::`: all "
            "addresses of the machine."
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        groups.server(
            (
                "Port at which the server listens. 0: the operating system chooses a free port. "
                "Commands such as `antiphon chat` connect to this port."
            ),
            ge=0,
            le=65535,
        ),
    ] = 8000
    ollama_port: Annotated[
        int,
        groups.server(
            (
                "A second port at which the server listens, for clients that look for Ollama at "
                "port 11434. 0: none. Both ports have the same endpoints. See ollama.md."
            ),
            ge=0,
            le=65535,
        ),
    ] = 0
    workers: Annotated[
        int,
        groups.server(
            (
                "Number of processes that accept requests at `port`. Several processes use "
                "several CPU cores. They need a store in SQLite or PostgreSQL, which they share. "
                "See scaling.md."
            ),
            ge=1,
            le=64,
        ),
    ] = 1
    cors_origins: Annotated[
        tuple[str, ...],
        groups.server(
            "Origins of web pages, such as `https://app.example.com`, that may call the "
            'server from a browser (CORS). "*": all origins. Empty: only the web page of the '
            "server."
        ),
    ] = ()
    drain_s: Annotated[
        float,
        groups.server(
            (
                "Time in seconds that running requests get to finish when the server stops. A "
                "request that needs more time fails. A background run that needs more time "
                "continues on another server, or after the next start."
            ),
            ge=0,
        ),
    ] = 30
    lease_s: Annotated[
        float,
        groups.server(
            (
                "Lease on background runs, in seconds. If a server sends no heartbeat to the "
                "store for this time, other servers on the same store take over its background "
                "runs."
            ),
            ge=0.2,
        ),
    ] = 5
    replica_url: Annotated[
        str | None,
        groups.server(
            "URL at which other servers on the same PostgreSQL store can reach this server, "
            "such as `http://10.0.0.3:8000`. Through it, they use the containers of this "
            "server. Unset: the address in `host`. If that is `0.0.0.0` or `::`, other "
            "servers cannot use the containers. See scaling.md."
        ),
    ] = None
    replica_secret: Annotated[
        str | None,
        groups.server(
            (
                "Secret with which servers on the same store sign their calls to each other. It "
                "must be the same for all these servers. Unset: a secret that Antiphon creates "
                "in the store."
            ),
            flag=None,
            secret=True,
        ),
    ] = None
    metrics: Annotated[
        Literal["loopback", "everybody", "nobody"],
        groups.server(
            'Who may read `/metrics` without an API key. "loopback": clients on the same '
            'machine. "everybody": all clients. "nobody": no client.'
        ),
    ] = "loopback"
    metrics_export: Annotated[
        Literal["off", "otlp"],
        groups.server(
            '"otlp": also send OpenTelemetry metrics about generative AI to the collector at '
            "`otlp_endpoint`. Needs the extra `otel`."
        ),
    ] = "off"
    ui: Annotated[
        Literal["auto", "on", "off"],
        groups.server(
            "Whether the server has its web page at `/`, with a chat for the browser. "
            '"auto": only if `host` is a loopback address. See ui.md.'
        ),
    ] = "auto"
    traces: Annotated[
        Literal["off", "otlp"],
        groups.server(
            '"otlp": send OpenTelemetry traces to the collector at `otlp_endpoint`. Needs '
            "the extra `otel`."
        ),
    ] = "off"
    otlp_endpoint: Annotated[
        str | None,
        groups.server(
            "Base URL of the OpenTelemetry collector (OTLP over HTTP). Unset: the "
            "environment variable `OTEL_EXPORTER_OTLP_ENDPOINT`. If that is not set either: "
            "`http://localhost:4318`."
        ),
    ] = None
    trace_content: Annotated[
        bool,
        groups.server(
            "Include the texts of prompts and answers in traces. false: traces contain "
            "times, names, ids and token counts, but no such texts."
        ),
    ] = False
    log_format: Annotated[
        Literal["human", "json"],
        groups.server(
            "Format of the log: text for people (`human`), or one JSON object per line (`json`)."
        ),
    ] = "human"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        groups.server("Lowest level of the messages that are logged."),
    ] = "info"
    stall_log_ms: Annotated[
        int,
        groups.server(
            (
                "Time in milliseconds. If the event loop is blocked for longer, the server logs "
                "the stack of the blocking code and increments `antiphon_loop_stalls_total`. A "
                "wait for a CPU counts too, but is logged at most every ten minutes. 0: off."
            ),
            ge=0,
        ),
    ] = 100

    models: Annotated[
        dict[str, Model],
        groups.models(
            (
                "Models to serve: `[models.NAME]` tables in the file, or `NAME=SOURCE` separated "
                "by commas in the environment variable. If the command line names models, only "
                "these are served."
            ),
            flag=None,
            default=f"{DEFAULT_MODEL}, downloaded on first use",
            kind="tables [models.NAME]",
        ),
    ] = field(default_factory=lambda: {DEFAULT_MODEL: Model(source=DEFAULT_MODEL)})
    default_model: Annotated[
        str | None,
        groups.models(
            "Name of the model for requests that name no model. Unset: the first model in "
            "the settings that is neither for embeddings nor for reranking."
        ),
    ] = None
    threads: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        groups.models(
            "Number of CPU threads for each model whose own setting `threads` is not set. Unset: "
            "`llama` measures which number is fastest; other engines use the processors that are "
            "available, or all but one of them."
        ),
    ] = None
    cache_dir: Annotated[
        Path, groups.models("Folder for downloaded models.", default="~/.cache/antiphon/models")
    ] = field(default_factory=lambda: cache_folder() / "models")

    model_memory_mb: Annotated[
        int,
        groups.models(
            (
                "Limit in MiB for the estimated memory of all loaded models together. If a "
                "request needs a model that does not fit, the least recently used models are "
                "unloaded as soon as their running requests have ended. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0

    formats_dir: Annotated[
        Path | None,
        groups.models(
            "Folder with your own model formats: `*.toml` files that describe how a model "
            "writes tool calls and reasoning. See models.md."
        ),
    ] = None

    store: Annotated[
        str,
        groups.storage(
            (
                "Store for responses and all other data: the path of a SQLite file, `memory:` "
                "(a temporary file, lost when the server stops), `postgresql://…` (several "
                "servers can share it), or the URL of a plug-in (see embedding.md)."
            ),
            default="~/.local/share/antiphon/responses.db",
        ),
    ] = field(default_factory=lambda: str(data_folder() / "responses.db"))
    store_connections: Annotated[
        int,
        groups.storage(
            (
                "Maximum number of connections of each process to PostgreSQL. One more "
                "connection receives notifications."
            ),
            ge=2,
            le=1000,
        ),
    ] = 10
    store_listen_url: Annotated[
        str | None,
        groups.storage(
            (
                "URL of the same PostgreSQL database for the connection that receives "
                "notifications. Needed if the URL in `store` leads to a connection pooler in "
                "transaction mode. Unset: the URL in `store`."
            ),
            secret=True,
        ),
    ] = None
    bus: Annotated[
        str | None,
        groups.storage(
            (
                "Message bus that sends new events of background runs to other processes on the "
                "same PostgreSQL store: `redis://HOST:PORT` for Redis or Valkey, `rediss://` with "
                "TLS. Needs the extra `redis`. Unset: PostgreSQL sends them. See scaling.md."
            ),
            secret=True,
        ),
    ] = None
    files: Annotated[
        str,
        groups.storage(
            (
                "Where the contents of uploaded files are stored: in the store (`store`), "
                "in object storage (`s3://BUCKET/PREFIX`, also `gs://` and `az://`) or in a "
                "folder (`file:///FOLDER`). Object storage and folders need the extra "
                "`objects`. See files.md."
            ),
        ),
    ] = "store"
    files_options: Annotated[
        dict[str, str],
        groups.storage(
            (
                "Options of the object storage, such as `endpoint`, `region`, "
                "`access_key_id` and `secret_access_key`. Options that are not set here are "
                "read from the standard environment variables `AWS_…`, `AZURE_…` and "
                "`GOOGLE_APPLICATION_CREDENTIALS`."
            ),
            flag=None,
            secret=True,
        ),
    ] = field(default_factory=dict)
    store_encrypted: Annotated[
        bool,
        groups.storage(
            "Encrypt responses, conversations, files and other contents with the first key in "
            "`encryption_keys` before they are written to the store (see operations.md). Contents "
            "that are there already do not change."
        ),
    ] = False
    files_encrypted: Annotated[
        bool,
        groups.storage(
            "Encrypt contents before they are written to the object storage or folder in "
            "`files`, with the first key in `encryption_keys`. Contents that are there "
            "already do not change."
        ),
    ] = False
    response_blob_bytes: Annotated[
        int,
        groups.storage(
            (
                "If the input, output and token ids of a response together have at least this "
                "number of bytes, they are stored where `files` says, and not in PostgreSQL. Has "
                "no effect if `files` is `store` or the store is not PostgreSQL. 0: all "
                "responses stay in PostgreSQL."
            ),
            ge=0,
        ),
    ] = 1 << 20
    files_signed_urls_s: Annotated[
        int,
        groups.storage(
            (
                "Lifetime in seconds of signed URLs of the object storage. Downloads of "
                "unencrypted files of up to 8 MiB are redirected to such URLs. 0: all downloads "
                "go through the server."
            ),
            ge=0,
            le=604_800,
        ),
    ] = 0
    vectors: Annotated[
        Literal["exact", "pgvector"],
        groups.storage(
            "How vector stores find the vectors nearest to a query. exact: the process compares "
            "the query with all vectors. pgvector: an extension of PostgreSQL searches them, for "
            "vector stores of more than 100,000 chunks. See file-search.md."
        ),
    ] = "exact"
    prompts_dir: Annotated[
        Path,
        groups.storage(
            (
                "Folder with stored prompts, which all tenants share. The file of a prompt "
                "is `ID/VERSION.toml`."
            ),
            default="~/.local/share/antiphon/prompts",
        ),
    ] = field(default_factory=lambda: data_folder() / "prompts")
    store_nothing: Annotated[
        bool,
        groups.storage(
            "Store no content of any request: every response is created as with `store: false`, "
            "and what must be stored is refused (background responses, conversations, files, "
            "vector stores, skills). Counts of requests and tokens are still kept."
        ),
    ] = False
    retention: RetentionSettings = RetentionSettings()
    webhook: WebhookSettings = WebhookSettings()
    keys: Annotated[
        tuple[ApiKey, ...],
        groups.access(
            (
                "API keys: `[[keys]]` tables in the file, or `TENANT=SHA256` separated by commas "
                "in the environment variable. If there are none and `stored_keys` is false, "
                "every client that can reach the server may use it."
            ),
            flag=None,
            kind="tables [[keys]]",
        ),
    ] = ()
    stored_keys: Annotated[
        bool,
        groups.access(
            "Also accept API keys from the store. Operators can create, rotate and revoke "
            "them while the server runs. Every request then needs a key, even if there is no "
            "key yet."
        ),
    ] = False
    first_key: Annotated[
        bool,
        groups.access(
            "If there is no API key and no issuer, create the API key `first` in the store when "
            "the server starts, and print it once. Needs `stored_keys`. The container image sets "
            "both."
        ),
    ] = False
    oidc: Annotated[
        dict[str, OidcIssuer],
        groups.access(
            "Issuers of OpenID Connect whose users may use the server, besides clients with an "
            "API key: `[oidc.NAME]` tables. See sign-in.md.",
            flag=None,
            kind="tables [oidc.NAME]",
        ),
    ] = field(default_factory=dict)
    tenants: Annotated[
        dict[str, Tenant],
        groups.access(
            "Quotas and limits of individual tenants: `[tenants.NAME]` tables.",
            flag=None,
            kind="tables [tenants.NAME]",
        ),
    ] = field(default_factory=dict)
    added_models: Annotated[
        Path | None,
        groups.models(
            "File of the models that operators add over the API or on the web page. Unset: "
            "operators cannot add models.",
            default="~/.local/share/antiphon/models.toml",
        ),
    ] = field(default_factory=lambda: data_folder() / "models.toml")
    allow_hub_models: Annotated[
        tuple[str, ...],
        groups.models(
            "Repositories of Hugging Face that any client may name as the model of a request, with "
            "patterns such as `Qwen/*`. Such a model is added, downloaded and loaded at its first "
            "request, and unloaded when it was idle for 10 minutes. Empty: none."
        ),
    ] = ()
    keep_prefixes: Annotated[
        Literal["auto", "memory", "disk"],
        groups.models(
            "Where `llama` keeps the states of prompts that other prompts have displaced (see "
            "engines.md). `memory`: only in main memory. `disk`: also in files, so that stored "
            "conversations continue without delay after a restart. `auto`: `disk` if the store is "
            "a SQLite file. The files are next to this file, or for PostgreSQL in `cache_dir`; "
            "with `memory:`, there are none. They are encrypted if `encryption_keys` is set."
        ),
    ] = "auto"
    keep_prefixes_mb: Annotated[
        int,
        groups.models(
            "Disk space in MiB for the states of each model. A state that takes more than a "
            "quarter of it is not written. 0: none.",
            ge=0,
        ),
    ] = 2048
    share_prefix_cache: Annotated[
        bool | None,
        groups.access(
            "Let tenants share the prefix caches of engines. This is faster if the prompts "
            "of several tenants have the same beginning. But `cached_tokens` and response "
            "times then reveal whether another tenant has sent this beginning. Unset: true "
            "only if `stored_keys` is false, there are no issuers, and all keys belong to one "
            "tenant."
        ),
    ] = None
    encryption_keys: Annotated[
        tuple[str, ...],
        groups.access(
            (
                "Keys that encrypt data which clients keep and send back, such as reasoning and "
                "compacted conversations. Each is `ID:SECRET`, with a secret of 32 bytes in "
                "base64. The first key encrypts new data. All keys can decrypt data. Empty: a "
                "key that Antiphon creates in the store."
            ),
            flag=None,
            secret=True,
        ),
    ] = ()
    prompt_editors: Annotated[
        tuple[str, ...],
        groups.access(
            "Names of the API keys that may read and change stored prompts. If the server "
            "needs no API keys, every client on the same machine may do this."
        ),
    ] = ()
    operators: Annotated[
        tuple[str, ...],
        groups.access(
            "Names of the API keys that may manage the running server: its models, its "
            "stored API keys and the data of tenants. They may also read the settings, the "
            "audit log and the usage of all tenants. If the server needs no API keys, every "
            "client on the same machine may do this."
        ),
    ] = ()
    auditors: Annotated[
        tuple[str, ...],
        groups.access(
            "Names of the API keys that may read the settings, the audit log and the usage of "
            "all tenants, but may not manage the server. Operators may read these too."
        ),
    ] = ()
    allow_unauthenticated: Annotated[
        bool,
        groups.access(
            "Allow a server that needs no API keys to listen at an address that other "
            "machines can reach. false: such a server starts only if `host` is a loopback "
            "address."
        ),
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        groups.access(
            "Host names that the `Host` header may contain in requests that come from the "
            "same machine and need no API key. `localhost` and IP addresses are always "
            'allowed. "*": all names. This check prevents DNS rebinding.'
        ),
    ] = ()
    requests_per_minute: Annotated[
        int,
        groups.access(
            (
                "Maximum number of requests per minute for each API key that has no limit of its "
                "own. If the server needs no API keys: for all clients together. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0

    max_body_bytes: Annotated[
        int,
        groups.limits(
            (
                "Maximum size of a request body in bytes. Uploaded files have another limit, "
                "`max_file_bytes`."
            ),
            ge=1,
        ),
    ] = 64 * 2**20
    max_file_bytes: Annotated[
        int,
        groups.limits(
            (
                "Maximum size in bytes of an uploaded file, and of a file that the server "
                "fetches from a URL."
            ),
            ge=1,
        ),
    ] = 64 * 2**20
    max_responses: Annotated[
        int,
        groups.limits(
            (
                "Maximum number of stored responses of a tenant. If it is reached, new "
                "responses are refused. (`retention.responses` deletes old responses "
                "instead.) 0: no limit."
            ),
            ge=0,
        ),
    ] = 10_000_000
    max_responses_bytes: Annotated[
        int,
        groups.limits(
            (
                "Maximum total size in bytes of the stored responses of a tenant. If it is "
                "reached, new responses are refused. 0: no limit."
            ),
            ge=0,
        ),
    ] = 100 * 2**30
    max_files: Annotated[
        int, groups.limits("Maximum number of files of a tenant. 0: no limit.", ge=0)
    ] = 100_000
    max_files_bytes: Annotated[
        int,
        groups.limits(
            (
                "Maximum total size in bytes of a tenant's files. The same limit applies "
                "separately to its pending uploads and to its skills. 0: no limit."
            ),
            ge=0,
        ),
    ] = 10 * 2**30
    max_vector_stores: Annotated[
        int, groups.limits("Maximum number of vector stores of a tenant. 0: no limit.", ge=0)
    ] = 10_000
    max_containers: Annotated[
        int, groups.limits("Maximum number of active containers of a tenant. 0: no limit.", ge=0)
    ] = 16
    max_items: Annotated[
        int, groups.limits("Maximum number of input items in a request.", ge=1)
    ] = 10_000
    max_tools: Annotated[int, groups.limits("Maximum number of tools in a request.", ge=1)] = 1_024
    max_nesting: Annotated[
        int, groups.limits("Maximum nesting depth of the JSON in a request body.", ge=8, le=400)
    ] = 64
    max_concurrent_requests: Annotated[
        int,
        groups.limits(
            (
                "Maximum number of requests to models that are processed at the same time. "
                "Further requests wait in a queue."
            ),
            ge=1,
        ),
    ] = 256
    max_background_runs: Annotated[
        int,
        groups.limits(
            (
                "Maximum number of background runs that this server executes at the same time. "
                "Further runs are queued."
            ),
            ge=1,
        ),
    ] = 64
    batch_lines: Annotated[
        int,
        groups.limits(
            (
                "Number of requests of batches that a process executes at the same time, while "
                "the server has no other requests. See batches.md."
            ),
            ge=1,
            le=1024,
        ),
    ] = 4
    max_tenant_background_runs: Annotated[
        int,
        groups.limits(
            (
                "Maximum number of a tenant's background responses that are queued or in "
                "progress. If it is reached, further ones are answered with HTTP status 429. "
                "`tenants.NAME.background_runs` sets another number for one tenant. 0: no limit."
            ),
            ge=0,
        ),
    ] = 10_000
    max_connections_per_address: Annotated[
        int,
        groups.limits(
            (
                "Maximum number of open connections from one IP address to one process of the "
                "server. Loopback addresses are not limited. Increase it if many clients use the "
                "same proxy. 0: no limit."
            ),
            ge=0,
        ),
    ] = 2048
    max_queued_requests: Annotated[
        int,
        groups.limits(
            (
                "Maximum number of requests that wait because `max_concurrent_requests` is "
                "reached. If there are more, requests are answered with HTTP status 429."
            ),
            ge=0,
        ),
    ] = 1024
    max_tenant_share: Annotated[
        float,
        groups.limits(
            (
                "Largest share of `max_concurrent_requests`, of `max_background_runs` and of "
                "the memory for large request bodies that one tenant may use. The rest stays "
                "free for other tenants. Has no effect if `stored_keys` is false and all API "
                "keys belong to one tenant. 1: no limit."
            ),
            ge=0.01,
            le=1,
        ),
    ] = 0.75

    fetch_urls: Annotated[
        Switch,
        groups.fetching(
            (
                "Fetch images and files that requests name by URL. Only public addresses and "
                "those in `fetch_allowed_networks` are allowed. auto: on if the extra `fetch` is "
                "installed."
            ),
            kind=AUTO_SWITCH,
        ),
    ] = "auto"
    fetch_allowed_networks: Annotated[
        tuple[str, ...],
        groups.fetching(
            "Private addresses and networks from which the server may fetch, in "
            "addition to public addresses. Example: `10.1.0.0/16`."
        ),
    ] = ()

    sandbox: SandboxSettings = SandboxSettings()
    programs: ProgramSettings = ProgramSettings()
    web_search: WebSearchSettings = WebSearchSettings()
    image_generation: ImageGenerationSettings = ImageGenerationSettings()
    audio: AudioSettings = AudioSettings()
    tool_options: Annotated[
        dict[str, Any],
        groups.tools(
            ("Options of tools from other packages: one table per tool, `[tool_options.NAME]`."),
            flag=None,
            kind="a table",
        ),
    ] = {}
    mcp: McpSettings = McpSettings()
    file_search: FileSearchSettings = FileSearchSettings()
    tool_prices: ToolPrices = ToolPrices()
    max_turns: Annotated[
        int,
        groups.tools(
            ("Maximum number of model calls (turns) in one response that uses server-side tools."),
            ge=1,
        ),
    ] = 32
    max_tool_time_s: Annotated[
        float,
        groups.tools(
            (
                "Maximum total time in seconds in which the server-side tool calls of a response "
                "run. When this time is used up, running calls are stopped. The time in which the "
                "model generates does not count. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0
    on_tool_limit: Annotated[
        Literal["answer", "incomplete"],
        groups.tools(
            "What happens when a response reaches `max_turns`, `max_tool_time_s` or the "
            "request's `max_tool_calls`. `answer`: the model answers without further "
            "tool calls. `incomplete`: the response ends as incomplete."
        ),
    ] = "answer"
    tool_timeout_s: Annotated[
        float, groups.tools("Timeout in seconds for each call of a server-side tool.", gt=0)
    ] = 300

    unavailable_tools: Annotated[
        Literal["ignore", "refuse"],
        groups.answers(
            "What happens if a request contains a hosted tool that this server does not run. "
            "`ignore`: the tool is left out of the prompt, and the response names it in "
            "`ignored_tools`. `refuse`: the request is rejected with HTTP status 400."
        ),
    ] = "ignore"
    undecryptable_items: Annotated[
        Literal["drop", "refuse"],
        groups.answers(
            "What happens if a request contains encrypted items that this server cannot "
            "decrypt. `drop`: they are left out, and the response reports this in "
            "`input_transformations`. `refuse`: the request is rejected with HTTP "
            "status 400."
        ),
    ] = "drop"
    reasoning_events: Annotated[
        Literal["openai", "open_responses"],
        groups.answers(
            "Names of the events with the raw text of reasoning: "
            "`response.reasoning_text.*` (`openai`), or `response.reasoning.*` "
            "(`open_responses`, as in the Open Responses specification)."
        ),
    ] = "openai"
    reasoning_summaries: Annotated[
        Literal["excerpt", "model"],
        groups.answers(
            "How reasoning summaries (`reasoning.summary`) are made. `excerpt`: they "
            "are the headings and first sentences of the reasoning, and are sent while "
            "the model reasons. `model`: a model (`summary_model`) writes them after "
            "the reasoning."
        ),
    ] = "excerpt"
    summary_model: Annotated[
        str | None,
        groups.answers(
            'Model that writes reasoning summaries if `reasoning_summaries = "model"`. Unset: '
            "the model that reasoned."
        ),
    ] = None
    keepalive_s: Annotated[
        float,
        groups.answers(
            (
                "Number of seconds without events after which a stream sends a keepalive: a "
                "`keepalive` event, or an SSE comment if clients would reject the event."
            ),
            gt=0,
        ),
    ] = 15
    upstream_start_wait_s: Annotated[
        float,
        groups.answers(
            (
                "Number of seconds for which a stream waits for the first output of the upstream "
                "before it starts; longer while Antiphon retries a refused request. If the "
                "upstream fails in this time, the client gets an HTTP error instead of a stream. "
                "0: the stream starts immediately."
            ),
            ge=0,
        ),
    ] = 3
    timeout_s: Annotated[
        float,
        groups.answers(
            (
                "Maximum duration of a response in seconds. A response that needs more time "
                "fails. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0

    chat: ChatSettings = ChatSettings()
