"""Label skew, local steps and control variates."""
