-- A page of the files of a vector store is read alone.
CREATE INDEX vector_files_in_order ON vector_files (store, seq);
