"""A kind of output in one file each: its words, target, loss, scores and answers; free of jax when imported."""
