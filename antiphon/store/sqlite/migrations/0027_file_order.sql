-- With this index, a query for a page of the files of a vector store reads only this page.
CREATE INDEX vector_files_in_order ON vector_files (store, seq);
