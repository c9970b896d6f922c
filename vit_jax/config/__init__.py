"""What can be stated: fields with their ranges, a run, the base class of networks, flags. Free of jax.

A field that changes the result of a run is *identity*: with another value it is another run. A field that only states
where or for how long the run computes (devices, logging, budget, folders) is *execution* and may change on resume.
"""
