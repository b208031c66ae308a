"""Options of an object storage. If the settings leave out an option, it is read from a standard
environment variable, such as ``AWS_REGION``."""

from __future__ import annotations

from collections.abc import Mapping

#: URL scheme → pairs of an environment variable and an option. If several variables of the same
#: option are set, the first variable is used.
_VARIABLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "access_key_id"),
        ("AWS_SECRET_ACCESS_KEY", "secret_access_key"),
        ("AWS_SESSION_TOKEN", "session_token"),
        ("AWS_ROLE_ARN", "role_arn"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "container_credentials_full_uri"),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "container_authorization_token_file"),
        ("AWS_ENDPOINT_URL_S3", "endpoint"),
        ("AWS_ENDPOINT_URL", "endpoint"),
        ("AWS_REGION", "region"),
        ("AWS_DEFAULT_REGION", "region"),
    ),
    "gs": (("GOOGLE_APPLICATION_CREDENTIALS", "application_credentials"),),
    "az": (
        ("AZURE_STORAGE_ACCOUNT_NAME", "account_name"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "account_key"),
        ("AZURE_CLIENT_ID", "client_id"),
        ("AZURE_CLIENT_SECRET", "client_secret"),
        ("AZURE_TENANT_ID", "tenant_id"),
        ("AZURE_FEDERATED_TOKEN_FILE", "federated_token_file"),
    ),
}


def storage_options(
    url: str, options: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, str]:
    """Return the options for the object storage at ``url``.

    ``options``: the options in the settings. Options that are not in the settings are read from the
    standard environment variables. ``variables``: all environment variables.
    """
    found = dict(options)
    for variable, name in _VARIABLES.get(url.partition(":")[0], ()):
        if variables.get(variable):
            found.setdefault(name, variables[variable])
    return found
