-- API keys, without their secrets.
CREATE TABLE api_keys (name TEXT PRIMARY KEY, body BLOB NOT NULL);
