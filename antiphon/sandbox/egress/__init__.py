"""The network of boxes: a proxy outside of the box, which lets through what is allowed."""
