"""The OpenVINO engine. It runs the model in a worker process."""
