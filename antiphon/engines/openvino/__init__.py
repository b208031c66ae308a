"""The OpenVINO engine, in a worker process."""
