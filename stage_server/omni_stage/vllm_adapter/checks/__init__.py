"""What is checked before an engine serves: the image, the GPU's driver, the checkpoint's tensors."""
