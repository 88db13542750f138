"""Training: measurements -> packs. Needs scikit-learn; prediction does not.

sources/                        public measurements of kernels
recipes, model_training         GEMMs and attention: which measurements train which model; the training
convolution_training, recurrent_fit, curve_training
                                convolutions, recurrent layers, memory-bound kernels
measurements_file, calibration  `maya calibrate`: the user's own measurements -> a pack
"""
