"""How long a device takes for what it was asked to do: a duration, where it comes from, and how sure it is.

work           what a kernel or library call has to do, apart from any device
batch          works of one kind as columns, and the times given for them
bounds         what a device cannot beat
forest         learned trees, evaluated for many rows at a time
pack           what was learned about a device, in a file
gemm           matrix products
attention      attention kernels
roofline       what nothing was measured of
estimator      a device and works of any kinds -> estimates
"""
