"""Export of trained models to other programs; their outputs are compared with the run's."""
