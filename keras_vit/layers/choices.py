"""The names that arguments of layers take; data, for those who check a name without building a layer."""

GELUS = ("tanh", "exact")
POOLINGS = ("token", "avg", "map", "none")
# What BiT pads its first pooling with.
POOL_PADDINGS = {"-inf": float("-inf"), "zeros": 0.0}
