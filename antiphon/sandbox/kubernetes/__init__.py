"""Boxes (sandbox environments) that are pods of a Kubernetes cluster. The Kubernetes controller
agent-sandbox manages the pods."""
