"""Boxes that are pods of a Kubernetes cluster, by agent-sandbox."""
