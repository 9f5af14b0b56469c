"""Line searches of clients: the theorems of Geetika et al. 2024 on convex problems."""
