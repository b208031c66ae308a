"""The table of error codes with their meaning, HTTP status and remedy.

``docs/errors.md`` is generated from this table. A test compares the table with the codes in the
package.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

__all__ = ["ERROR_CODES", "ErrorCode", "response_code"]


class ErrorCode(Struct, frozen=True):
    """An entry in the list of error codes: what an error code means, and when it occurs.

    - ``action``: what the client or the operator can do.
    - ``fails_run``: whether a failed response may have this code.
    - ``status``: the HTTP status. If a run fails after its first event was sent, the client gets
      the code only in events, without this status.
    - ``other_statuses``: HTTP statuses that occur in some cases.
    """

    status: int
    meaning: str
    action: str
    fails_run: bool = False
    other_statuses: tuple[int, ...] = ()


#: Code → row. Codes and their meanings are OpenAI's where OpenAI has them.
ERROR_CODES: Mapping[str, ErrorCode] = {
    "array_above_max_length": ErrorCode(
        400,
        "An array has too many entries.",
        "Send fewer entries.",
    ),
    "container_error": ErrorCode(
        400,
        "A container cannot be opened or used.",
        "Read the message, or create another container.",
    ),
    "container_expired": ErrorCode(
        400,
        "The container was unused for the time in its `expires_after`, so it has expired.",
        "Create another container.",
    ),
    "container_unreachable": ErrorCode(
        503,
        "The process or the other server that runs the container does not answer.",
        "Send the request again. Operator: see `replica_url`.",
    ),
    "containers_disabled": ErrorCode(
        404,
        "The server runs no containers.",
        "Operator: see `sandbox`.",
    ),
    "content_policy_violation": ErrorCode(
        400,
        "A moderator has flagged the input of a request whose `moderation` blocks such inputs.",
        "Change the input.",
    ),
    "context_length_exceeded": ErrorCode(
        400,
        "The conversation does not fit into the context of the model.",
        "Shorten or compact the input, or set `truncation` to `auto`.",
        fails_run=True,
    ),
    "conversation_locked": ErrorCode(
        400,
        "Another response in this conversation is still running.",
        "Wait for it to end, and send the request again.",
    ),
    "decimal_above_max_value": ErrorCode(
        400,
        "A number is too large.",
        "Send a smaller number.",
    ),
    "decimal_below_min_value": ErrorCode(
        400,
        "A number is too small.",
        "Send a larger number.",
    ),
    "empty_array": ErrorCode(
        400,
        "An array that must have entries is empty.",
        "Send an entry, or leave the field out.",
    ),
    "empty_file": ErrorCode(
        400,
        "The file has no content.",
        "Send a file with content.",
    ),
    "empty_image_file": ErrorCode(
        400,
        "The image has no content.",
        "Send an image with content.",
        fails_run=True,
    ),
    "empty_string": ErrorCode(
        400,
        "A text that must not be empty is empty.",
        "Send a text, or leave the field out.",
    ),
    "failed_to_download_file": ErrorCode(
        400,
        "The file could not be fetched from its URL.",
        "Check the URL, or send the content. Operator: see `fetch_urls`.",
    ),
    "failed_to_download_image": ErrorCode(
        400,
        "The image could not be fetched from its URL.",
        "Check the URL, or send the content. Operator: see `fetch_urls`.",
        fails_run=True,
    ),
    "file_not_found": ErrorCode(
        404,
        "No file has this id, or it belongs to another tenant.",
        "Upload the file.",
    ),
    "file_too_large": ErrorCode(
        400,
        "The file has too many bytes or pages, or its text is too long.",
        "Send a smaller file. Operator: see `max_file_bytes`.",
        other_statuses=(413,),
    ),
    "host_not_allowed": ErrorCode(
        400,
        "The `Host` header contains a name that is not allowed. This prevents DNS rebinding.",
        "Operator: add the host to `allowed_hosts`, or configure API keys.",
    ),
    "http_error": ErrorCode(
        424,
        "An MCP server cannot be reached or refuses to list its tools.",
        "Check the URL and the authorization. Operator: see `mcp.unreachable`.",
    ),
    "image_content_policy_violation": ErrorCode(
        400,
        "The upstream or the image generator refuses the content.",
        "Change the content.",
        fails_run=True,
    ),
    "image_file_not_found": ErrorCode(
        404,
        "No file has this id, or it belongs to another tenant.",
        "Upload the image.",
        fails_run=True,
    ),
    "image_file_too_large": ErrorCode(
        400,
        "The image has too many bytes.",
        "Send a smaller image.",
        fails_run=True,
    ),
    "image_parse_error": ErrorCode(
        400,
        "The image is damaged.",
        "Send another image.",
        fails_run=True,
    ),
    "image_too_large": ErrorCode(
        400,
        "The image has too many pixels.",
        "Send a smaller image.",
        fails_run=True,
    ),
    "image_too_small": ErrorCode(
        400,
        "The image has too few pixels.",
        "Send a larger image.",
        fails_run=True,
    ),
    "insufficient_quota": ErrorCode(
        429,
        "A quota of the tenant is used up, or the upstream has no credit left.",
        "Do not retry. Delete stored objects. Operator: raise the quota, or add credit at the"
        " upstream.",
        fails_run=True,
    ),
    "integer_above_max_value": ErrorCode(
        400,
        "A number is too large.",
        "Send a smaller number.",
    ),
    "integer_below_min_value": ErrorCode(
        400,
        "A number is too small.",
        "Send a larger number.",
    ),
    "invalid_api_key": ErrorCode(
        401,
        "The API key is missing or unknown.",
        "Send `Authorization: Bearer KEY`. Operator: `antiphon key new`.",
    ),
    "invalid_base64_image": ErrorCode(
        400,
        "The image is not valid base64.",
        "Encode it again.",
        fails_run=True,
    ),
    "invalid_content_encoding": ErrorCode(
        400,
        "The body is not compressed as its `content-encoding` says.",
        "Compress it again, or send it uncompressed.",
    ),
    "invalid_content_type": ErrorCode(
        400,
        "The body has the wrong `content-type`.",
        "Send `application/json`, or a form as `multipart/form-data`.",
    ),
    "invalid_encrypted_content": ErrorCode(
        400,
        "This server cannot decrypt the item: it has no fitting key, or the item was changed.",
        "Leave the item out. Operator: see `encryption_keys` and `undecryptable_items`.",
    ),
    "invalid_file": ErrorCode(
        400,
        "The file is damaged or protected by a password, or the request names no file.",
        "Send another file.",
    ),
    "invalid_file_data": ErrorCode(
        400,
        "The file is not valid base64.",
        "Encode it again.",
    ),
    "invalid_file_url": ErrorCode(
        400,
        "The server does not fetch files from this URL.",
        "Use http or https and a public address. Operator: see `fetch_urls` and"
        " `fetch_allowed_networks`.",
    ),
    "invalid_grammar": ErrorCode(
        400,
        "A grammar is invalid or too large.",
        "Correct the grammar; the message says where the mistake is.",
        fails_run=True,
    ),
    "invalid_idempotency_key": ErrorCode(
        400,
        "The header `Idempotency-Key` is malformed.",
        "Send 1 to 255 printable ASCII characters.",
    ),
    "invalid_image": ErrorCode(
        400,
        "The request names no image, or the image cannot be used.",
        "Send another image.",
        fails_run=True,
    ),
    "invalid_image_format": ErrorCode(
        400,
        "The format of the image is not supported.",
        "Send PNG, JPEG, GIF or WebP.",
        fails_run=True,
    ),
    "invalid_image_mode": ErrorCode(
        400,
        "The colour mode of the image is not supported.",
        "Convert the image to RGB.",
        fails_run=True,
    ),
    "invalid_image_url": ErrorCode(
        400,
        "The server does not fetch images from this URL.",
        "Use http or https and a public address, or a data URL. Operator: see `fetch_urls` and"
        " `fetch_allowed_networks`.",
        fails_run=True,
    ),
    "invalid_input": ErrorCode(
        400,
        "The input of `response.steer` is no message of the user, or the event has a wrong field.",
        "Read the message, which names the field.",
    ),
    "invalid_json": ErrorCode(
        400,
        "The body is not valid JSON.",
        "Check how the body is encoded.",
    ),
    "invalid_json_schema": ErrorCode(
        400,
        "A JSON schema is invalid, too large, or uses a feature that cannot be enforced.",
        "Correct the schema; the message names the place.",
    ),
    "invalid_multipart": ErrorCode(
        400,
        "The body is not a valid `multipart/form-data` form.",
        "Let an HTTP library encode the form.",
    ),
    "invalid_origin": ErrorCode(
        400,
        "A web page of another origin (another host or port) tried to open a WebSocket.",
        "Open the WebSocket from a page of this server, or from a program that is no browser.",
    ),
    "invalid_prompt": ErrorCode(
        400,
        "The model, its upstream or an MCP server refuses the request.",
        "Read the message; a retry would fail again.",
        fails_run=True,
    ),
    "invalid_skill": ErrorCode(
        400,
        "The files are not a valid skill.",
        "Read the message; a skill has one `SKILL.md` with a name and a description.",
    ),
    "invalid_stream_id": ErrorCode(
        400,
        "The `stream_id` of a WebSocket frame is malformed.",
        "Use up to 256 letters, digits, `_`, `.` and `-`.",
    ),
    "invalid_token": ErrorCode(
        401,
        "The access token is not valid. The message says why.",
        "Get a new token from the identity provider. Operator: see sign-in.md.",
    ),
    "invalid_type": ErrorCode(
        400,
        "A field has the wrong JSON type.",
        "Send the type that the message names.",
        fails_run=True,
    ),
    "invalid_value": ErrorCode(
        400,
        "The value of a field is invalid.",
        "Correct the value; the message says what is allowed.",
        fails_run=True,
    ),
    "method_not_supported": ErrorCode(
        405,
        "The endpoint does not have this method.",
        "Use one of the methods in the header `allow`.",
    ),
    "missing_required_parameter": ErrorCode(
        400,
        "A required field is missing.",
        "Send the field.",
    ),
    "model_loading": ErrorCode(
        503,
        "The endpoint needs the tokenizer of a model that is still being loaded.",
        "Try again after `retry-after` seconds.",
    ),
    "model_not_found": ErrorCode(
        404,
        "No served model has this name, or the API key may not use the model.",
        "Use a name from `GET /v1/models`. Operator: add an alias, or see `keys` and `tenants`.",
    ),
    "model_not_loaded": ErrorCode(
        503,
        "The model could not be loaded.",
        "Read the message; try again after `retry-after` seconds.",
        fails_run=True,
    ),
    "mutually_exclusive_parameters": ErrorCode(
        400,
        "The request has fields that exclude each other.",
        "Send only one of these fields.",
    ),
    "no_grant": ErrorCode(
        403,
        "No grant of the issuer admits this user.",
        "Operator: add a grant to the issuer in `oidc`.",
    ),
    "object_above_max_properties": ErrorCode(
        400,
        "An object has too many fields.",
        "Send fewer fields.",
    ),
    "previous_response_not_found": ErrorCode(
        400,
        "The previous response does not exist, was not stored, or expired.",
        "Send the conversation as `input`. Operator: see the settings `retention_…`.",
    ),
    "prompt_not_found": ErrorCode(
        404,
        "There is no stored prompt with this id and version.",
        "Check the id and the version; `GET /v1/prompts` lists the prompts.",
    ),
    "range_not_satisfiable": ErrorCode(
        416,
        "The range in the `Range` header begins after the end of the file.",
        "Request a range within the file; `content-range` has the size of the file.",
    ),
    "rate_limit_exceeded": ErrorCode(
        429,
        "A limit of the API key, its tenant or the upstream is reached, or too many requests wait.",
        "Try again after `retry-after` seconds. Operator: see `requests_per_minute`, `keys`,"
        " `tenants` and `max_queued_requests`.",
        fails_run=True,
    ),
    "request_too_large": ErrorCode(
        413,
        "The body is larger than the server accepts.",
        "Send a smaller body. Operator: see `max_body_bytes`.",
    ),
    "response_already_completed": ErrorCode(
        400,
        "The response to steer has ended.",
        "Continue it with `previous_response_id`.",
    ),
    "response_not_active": ErrorCode(
        400,
        "The steered response failed, or the client went on without its input.",
        "Send the input that the event returns in a new request.",
    ),
    "response_not_found": ErrorCode(
        400,
        "The response to steer was not created on this WebSocket.",
        "Steer it on its own connection, or a background response over HTTP.",
    ),
    "server_error": ErrorCode(
        500,
        "The server failed (500), the model or its upstream failed (502), or the server is stopping"
        " (503).",
        "Try again. Operator: the log has the cause under the `x-request-id`.",
        fails_run=True,
        other_statuses=(502, 503),
    ),
    "server_is_overloaded": ErrorCode(
        503,
        "The server, its store or its model has no capacity now, or is stopping.",
        "Try again after `retry-after` seconds.",
        fails_run=True,
    ),
    "session_expired": ErrorCode(
        401,
        "The session of the web page has ended.",
        "Sign in again.",
    ),
    "sign_in_expired": ErrorCode(
        400,
        "The sign-in took too long, or was begun in another browser.",
        "Sign in again.",
    ),
    "steering_not_supported": ErrorCode(
        400,
        "The response belongs to a conversation, has `context_management`, or is neither in the "
        "background and stored nor on a WebSocket.",
        "Wait for the end of the response, and continue it.",
    ),
    "storage_disabled": ErrorCode(
        403,
        "The server stores nothing, and the request asks it to store something.",
        "Send `store: false`, and the whole history in `input`. Operator: see `store_nothing`.",
    ),
    "storage_limit_exceeded": ErrorCode(
        413,
        "The file alone is larger than all files of the tenant together may be.",
        "Send a smaller file. Operator: see `max_files_bytes`.",
    ),
    "string_above_max_length": ErrorCode(
        400,
        "A text is too long.",
        "Send a shorter text.",
    ),
    "successor_creation_failed": ErrorCode(
        400,
        "The response that should continue the steered response was refused.",
        "Read the message, and send the input that the event returns in a new request.",
    ),
    "thread_not_found": ErrorCode(
        404,
        "The message that a thread continues is not stored.",
        "Send the whole conversation, with `thread.type` `create`.",
    ),
    "thread_unsupported_request": ErrorCode(
        400,
        "A thread cannot keep what the request asks for.",
        "Send the whole conversation without `thread`.",
    ),
    "token_expired": ErrorCode(
        401,
        "The access token has expired.",
        "Get a new token from the identity provider.",
    ),
    "too_many_pending_steers": ErrorCode(
        400,
        "Too many steering submissions already wait for the end of the response.",
        "Wait until the response has ended.",
    ),
    "tool_not_allowed": ErrorCode(
        403,
        "The API key, or its tenant, may not use this tool.",
        "Leave the tool out. Operator: see the allowed tools in `keys` and `tenants`.",
    ),
    "unknown_parameter": ErrorCode(
        400,
        "The field does not exist.",
        "Check the name of the field.",
    ),
    "unknown_url": ErrorCode(
        404,
        "The path does not exist.",
        "Check method and path; `/docs` lists all endpoints.",
    ),
    "unsupported_content_encoding": ErrorCode(
        400,
        "The compression of the body is not supported.",
        "Use gzip, deflate, zstd or none.",
    ),
    "unsupported_file": ErrorCode(
        400,
        "The type of the file is not supported.",
        'Send text, or a document of a known type. Operator: install the extra "documents".',
    ),
    "unsupported_image_media_type": ErrorCode(
        400,
        "The media type of the image is not supported.",
        "Send PNG, JPEG, GIF or WebP.",
        fails_run=True,
    ),
    "unsupported_model": ErrorCode(
        400,
        "The model does not support this endpoint or this action.",
        "Use another model, or another endpoint.",
    ),
    "unsupported_parameter": ErrorCode(
        400,
        "The field is known, but this server or model does not support it.",
        "Leave the field out.",
        fails_run=True,
    ),
    "unsupported_tool": ErrorCode(
        400,
        "The server does not run this tool.",
        "Leave the tool out, or use a function. Operator: tools.md says how to turn on tools.",
    ),
    "unsupported_value": ErrorCode(
        400,
        "The value is known, but this server or model does not support it.",
        "Send another value.",
        fails_run=True,
    ),
    "upload_checksum_mismatch": ErrorCode(
        400,
        "The MD5 sum of the parts differs from `md5`.",
        "Upload the file again.",
    ),
    "upload_part_not_found": ErrorCode(
        400,
        "The upload has no part with this id.",
        "Send the ids that the server returned for the parts.",
    ),
    "upload_size_exceeded": ErrorCode(
        400,
        "The parts together are larger than the `bytes` of the upload.",
        "Create an upload with the right `bytes`.",
    ),
    "upload_size_mismatch": ErrorCode(
        400,
        "The parts together are smaller than the `bytes` of the upload.",
        "Add the missing parts.",
    ),
    "vector_store_expired": ErrorCode(
        400,
        "The vector store was unused for the time in its `expires_after`, so it has expired.",
        "Create another vector store.",
    ),
    "websocket_connection_limit_reached": ErrorCode(
        400,
        "The connection has reached its maximum age of one hour.",
        "Open another connection.",
    ),
    "websocket_not_supported": ErrorCode(
        426,
        "The server runs without a WebSocket library.",
        "Use `POST /v1/responses`.",
    ),
    "websocket_stream_limit_reached": ErrorCode(
        400,
        "The connection has reached its maximum number of different stream ids.",
        "Reuse one of its stream ids, or open another connection.",
    ),
}

#: The codes of ``response.error`` that OpenAI's client knows, and those on which Codex acts, which
#: OpenAI's server sends to it.
_RESPONSE_CODES = frozenset(
    """
    bio_policy data_residency_mismatch empty_image_file failed_to_download_image
    image_content_policy_violation image_file_not_found image_file_too_large image_parse_error
    image_too_large image_too_small invalid_base64_image invalid_image invalid_image_format
    invalid_image_mode invalid_image_url invalid_prompt misalignment_policy_violation
    rate_limit_exceeded server_error unsupported_image_media_type vector_store_timeout
    context_length_exceeded insufficient_quota server_is_overloaded
    """.split()
)


def response_code(code: str) -> str:
    """Return the code of a failed response for an error code. The types of OpenAI's client list the
    possible codes, so that codes which only HTTP errors can have are replaced."""
    if code in _RESPONSE_CODES:
        return code
    row = ERROR_CODES.get(code)
    return "invalid_prompt" if row is not None and row.status == 400 else "server_error"
