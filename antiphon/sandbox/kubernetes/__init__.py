"""Boxes that are pods of a Kubernetes cluster, managed by agent-sandbox."""
