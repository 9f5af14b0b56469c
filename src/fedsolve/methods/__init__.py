"""The methods: what clients and servers compute, and what stands around any of them."""
