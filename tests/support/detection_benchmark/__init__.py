"""How many planted faults are caught: the models and faults, the rounds, and what is made of their answers."""
