-- API keys, without their secrets.
CREATE TABLE api_keys (name TEXT COLLATE "C" PRIMARY KEY, body BYTEA NOT NULL);
