"""How a cohort is shared by several devices: its clients, and where their states are."""
