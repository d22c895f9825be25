"""The bundled demo model: its small language, its pictures, its checker, its training and its evaluation.

Importing this package, its vocabulary, its renderer or its checker imports no torch: only numpy and Pillow.
"""
