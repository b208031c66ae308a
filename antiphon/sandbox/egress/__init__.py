"""Network access of boxes (sandbox environments). A proxy outside the box forwards only the allowed
requests."""
