"""image_generation: what a request asks of images, the images of a conversation, and who makes new
ones."""
