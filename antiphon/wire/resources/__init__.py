"""Wire types of the objects that clients manage besides responses, such as files and
conversations."""
