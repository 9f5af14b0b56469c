"""A run that takes a moment: four clients, a softmax model, three rounds."""

SMALL = (
    *("--task-set", "num_clients=4", "--task-set", "model=softmax"),
    *("--clients-per-round", "2", "--rounds", "3"),
)
