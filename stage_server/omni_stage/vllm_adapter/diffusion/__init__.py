"""The one-shot stage (diffusion, decoders): its scheduler, its runner and its worker."""
