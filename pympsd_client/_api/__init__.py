"""The functions of the CUDA driver API, a module for each chapter of its manual."""
