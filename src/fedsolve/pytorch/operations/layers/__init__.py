"""Operations of network layers."""
