"""The memory of stages: weights, KV cache and activations by calculation, stages that share a GPU, the peak."""
