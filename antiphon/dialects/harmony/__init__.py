"""The dialect of gpt-oss."""
