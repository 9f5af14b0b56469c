"""The ready problems of `fs.tasks`, a file for each data set."""
