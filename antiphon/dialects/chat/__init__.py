"""The dialect of models with a Jinja chat template."""
