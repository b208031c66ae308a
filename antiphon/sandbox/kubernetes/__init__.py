"""Boxes that are pods of a Kubernetes cluster. The controller agent-sandbox manages the pods."""
