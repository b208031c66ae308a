-- One row. A health check updates it, to test whether the database can be written.
CREATE TABLE checks (id INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1), count BIGINT NOT NULL);
INSERT INTO checks (count) VALUES (0);
