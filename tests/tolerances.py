"""How far a number may be from its reference: all tolerances that more than one test uses, with their reasons.

Absolute errors in float32 on a CPU, unless another thing is said. The references carry rounding errors of their own:
a float64 reading of the files differs from them by up to 5e-6 in the logits and 2e-5 in the encoder's output.
"""

# Against the original code. The noise of the references times 4 or 5; the wrong choices that are easily made (exact
# GELU, another epsilon) miss them by a factor of 30 or more on the case that probes for them.
LOGITS = 2e-5
ENCODED = 1e-4

# Before the last layer normalisation, which divides by a small number in the probes, errors are smaller.
EARLY = 1e-5

# Between two ways to compute the same function, also on two backends: the order of the sums differs.
SAME_FUNCTION = 2e-5

# Gradients, in relation to the Euclidean norm of the array's gradient.
GRADIENTS = 1e-4
