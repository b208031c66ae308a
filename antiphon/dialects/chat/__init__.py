"""The dialect of models that have a Jinja chat template."""
