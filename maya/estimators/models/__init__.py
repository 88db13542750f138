"""Models of kernel durations: one module per kernel class, on top of device bounds.

gemm, attention, convolution, library_calls   compute-bound classes
memory_bound                                  all others; families, curves and row_traffic serve it
roofline                                      fallback for classes without measurements
bounds, bottleneck                            limits of the device
forest                                        evaluates boosted trees
"""
