"""The images, audio and video of a request: their cost, and the processes that decode them."""
