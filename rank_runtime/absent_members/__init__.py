"""Process groups with absent members, seen from a rank.

In a job with absent ranks (`maya-torchrun --represent`) NCCL calls go to the coordinator, which completes them for
absent members. Gloo would connect every member with every other, so in such a job its place is taken by a stand-in:
present members exchange their contributions through the store, and each absent member contributes what the closest
present member before it contributes.

Modules
    known_groups            the process groups of the job: who is present, who stands for whom, siblings
    store_exchange          contributions of present members, through torch's store
    stand_in_collectives    the collectives of a group, on CPU tensors
    stand_in_kernels        their registration with torch's dispatcher
    object_collectives      lists of objects from absent ranks
    checkpoint_plans        distributed checkpoints
    own_stores              a program's own TCPStore
"""
