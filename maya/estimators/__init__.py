"""How long a device takes for what it was asked to do: a duration, where it comes from, and how sure it is.

work               what a kernel or library call has to do, apart from any device
features           from a record of a trace to a work
questions          from the options of `maya estimate` to works
batch              works of one kind as columns, and the times given for them
bounds, limits     what a device cannot beat
estimator          a device and works of any kinds -> estimates
gemm, attention, convolution, memory_bound, libraries, roofline
                   the estimators of the kinds
forest, curves     what is learned: trees, and curves over sizes
pack               what was learned about a device, in a file
breakdown          where the time of a trace goes, by kind
training, curve_training, recurrent_fit
                   learning, with the error on what was left out
sources, recipes   public measurements, and what of them goes into the packs that come with Maya
measurements_file, calibration
                   a user's own measurements, and the pack that is made of them
"""
