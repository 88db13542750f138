"""Several machines for one job: node agents, the launcher's links to them, files, placement.

A *node agent* (coordinator/node_agent) runs on every machine, starts a zygote there, and relays between it and the
launcher. The nodes of this package are machines; the virtual nodes of the emulated cluster are placed on them.
"""
