"""Execution of batches: files of requests that run when the server has nothing else to do."""
