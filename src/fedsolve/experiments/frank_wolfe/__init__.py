"""Federated Frank-Wolfe: the tables, figures and theorems of Dadras, Banerjee, Prakhya and Yurtsever 2024."""
