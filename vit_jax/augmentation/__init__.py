"""Training images on the device, a whole batch at a time: crops, flips, policies, erasing, mixing; normalisation.

Each example has its own PRNG key (a mixed pair has one), so the draws do not depend on how a batch is cut; every draw
states its dtype, so they do not depend on jax_enable_x64.
"""
