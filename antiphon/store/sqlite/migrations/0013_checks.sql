-- One row. A health check updates it, to test whether the database can be written.
CREATE TABLE checks (id INTEGER PRIMARY KEY CHECK (id = 1), count INTEGER NOT NULL);
INSERT INTO checks (id, count) VALUES (1, 0);
