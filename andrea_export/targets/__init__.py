"""What can be built: a folder a target, each with the passes that only it uses."""
