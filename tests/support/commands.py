"""The commands there are, in the order in which ``--help`` lists them."""

COMMANDS = (
    "build",
    "validate",
    "diff",
    "record",
    "check",
    "report",
    "run",
    "bench",
    "convert",
    "inspect",
    "trace",
    "doctor",
)
