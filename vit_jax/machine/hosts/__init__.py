"""Several processes, on one machine or many, that train one run together: jax.distributed, and what it lacks.

launchers.py reads what a launcher says of a process, place.py what `--hosts` states, watch.py tells who is lost,
group.py holds `Hosts`: what the processes tell each other.
"""
