"""The `maya` command. Each subcommand is a module here, and thin: the work is done by the packages beside this one."""
