"""A file per sub-command: `add_arguments(parser)` declares its arguments, `run(options)` runs it."""
