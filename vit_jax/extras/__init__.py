"""Features that a run can do without: the core knows each by a name alone (vit_jax/plugins.py)."""
