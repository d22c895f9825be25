"""What fits where: bytes of components, memory at the peak, and the placement that follows."""
