"""TensorRT and TensorRT-RTX: engines, built and run in a child process."""
