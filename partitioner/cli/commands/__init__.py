"""One file per sub-command: `add_arguments(parser)` says what it takes, `run(options)` does it."""
