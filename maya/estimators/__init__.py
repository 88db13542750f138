"""How long a device takes for what it was asked to do: a duration, where it comes from, and how sure it is.

work           what a kernel or library call has to do, apart from any device
"""
