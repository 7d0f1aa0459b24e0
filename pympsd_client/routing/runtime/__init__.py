"""The functions of the CUDA runtime that cuda.bindings.cyruntime has, over those of the driver.

Most have a function of the driver with the same parameters (`rows.EQUAL`); the others are rows whose cores are in
the modules of their chapters. Each first makes a context current, as the runtime does. Results of the driver have the
same numbers in the runtime.
"""
