"""image_generation: the options of a request, the images of a conversation, and the generators of
new images."""
