"""The ``image_generation`` tool: the options of a request, the images of a conversation, and the
generators of new images."""
