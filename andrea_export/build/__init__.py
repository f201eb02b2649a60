"""The build: which targets, which steps, what is reused."""
