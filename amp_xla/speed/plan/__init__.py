"""Forecasts of step time, memory and cost on GPUs that are not at hand."""
