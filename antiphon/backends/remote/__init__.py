"""Remote backends. They call models on other servers through HTTP APIs."""
