"""What every layer may use and what knows no layer: text, logs, extras, plug-ins."""
