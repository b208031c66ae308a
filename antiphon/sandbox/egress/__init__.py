"""Network access of boxes: a proxy outside of the box passes on only the allowed requests."""
