"""The folder that the launcher puts on the PYTHONPATH of a zygote, for its `sitecustomize`."""
