"""Tensor parallel: one process a device, which all run the same steps, behind one page."""
