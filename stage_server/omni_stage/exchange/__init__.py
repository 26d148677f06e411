"""What the service, the engines and the models pass to one another: arrays, outputs of a step, forms of reply."""
