"""What tensors can do, by family. Each function takes a Tensor first and is one of its methods."""
