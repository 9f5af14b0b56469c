"""Updates of low rank: LoRA's factors of chosen leaves, around any method, and how a server averages them."""
