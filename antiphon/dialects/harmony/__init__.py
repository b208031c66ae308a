"""The dialect of gpt-oss, which writes the harmony format."""
