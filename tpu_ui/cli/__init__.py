"""The command line: `python -m tpu_ui ...`."""
