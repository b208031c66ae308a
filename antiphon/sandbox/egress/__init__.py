"""Network access of boxes. A proxy outside of the box forwards only the allowed requests."""
